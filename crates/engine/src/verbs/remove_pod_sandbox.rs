//! RemovePodSandbox. An unknown id is success.

use podwright_cri::CriError;

use super::{VerbContext, find_sandbox, refused};
use crate::driver::EngineCall;

pub(crate) async fn remove_pod_sandbox(calls: VerbContext<'_>, id: String) -> Result<(), CriError> {
    let found = find_sandbox(&calls.context.objects(), CALL, &id)?;
    let Some(id) = found else { return Ok(()) };
    calls.driver.call(EngineCall::RemoveSandbox(id)).await.map_err(|failure| refused(CALL, failure))
}

const CALL: &str = "RemovePodSandbox";
