//! RemoveContainer. An unknown id is success.

use podwright_cri::CriError;

use super::{VerbContext, find_container, refused};
use crate::driver::EngineCall;

pub(crate) async fn remove_container(calls: VerbContext<'_>, text: String) -> Result<(), CriError> {
    let found = find_container(&calls.context.objects(), CALL, &text)?;
    let Some(id) = found else { return Ok(()) };
    calls.driver.call(EngineCall::Remove(id)).await.map_err(|failure| refused(CALL, failure))
}

const CALL: &str = "RemoveContainer";
