//! StopContainer. An unknown id is success.

use std::time::Duration;

use podwright_cri::CriError;

use super::{VerbContext, find_container, refused};
use crate::driver::EngineCall;

pub(crate) async fn stop_container(calls: VerbContext<'_>, text: String, grace: Duration) -> Result<(), CriError> {
    let found = find_container(&calls.context.objects(), CALL, &text)?;
    let Some(id) = found else { return Ok(()) };
    calls.driver.call(EngineCall::Stop(id, grace)).await.map_err(|failure| refused(CALL, failure))
}

const CALL: &str = "StopContainer";
