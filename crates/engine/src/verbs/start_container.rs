//! StartContainer.

use podwright_cri::CriError;

use super::{VerbContext, known_container, refused};
use crate::driver::EngineCall;

pub(crate) async fn start_container(calls: VerbContext<'_>, text: String) -> Result<(), CriError> {
    let id = known_container(&calls.context.objects(), CALL, &text)?;
    calls.driver.call(EngineCall::Start(id)).await.map_err(|failure| refused(CALL, failure))
}

const CALL: &str = "StartContainer";
