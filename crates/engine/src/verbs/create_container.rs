//! CreateContainer.

use podwright_cri::{Code, CriError, v1};

use super::{VerbContext, invalid, known_sandbox, new_id, refused};
use crate::driver::EngineCall;
use crate::machine::{ContainerId, ContainerKey, ContainerRecordState};
use crate::store::ContainerRecord;

pub(crate) async fn create_container(
    calls: VerbContext<'_>,
    request: v1::CreateContainerRequest,
) -> Result<String, CriError> {
    let config = request.config.ok_or_else(|| invalid(CALL, "the request has no configuration"))?;
    let metadata = config.metadata.clone().ok_or_else(|| invalid(CALL, "the request has no metadata"))?;
    if metadata.name.is_empty() {
        return Err(invalid(CALL, "the container has no name"));
    }
    let sandbox = known_sandbox(&calls.context.objects(), CALL, &request.pod_sandbox_id)?;
    if let Some(why) = calls.context.unreadable.refuses_container(&sandbox) {
        return Err(CriError::new(Code::Other, CALL, why));
    }
    let id = ContainerId(new_id(CALL)?);
    let key = ContainerKey { sandbox: sandbox.clone(), name: metadata.name, attempt: metadata.attempt };
    let record = Box::new(ContainerRecord {
        config,
        sandbox_id: sandbox.0,
        image_id: String::new(),
        layers: vec![],
        chain: vec![],
        created_at_ns: 0,
        started_at_ns: 0,
        stop_signal: 0,
        image_name: String::new(),
        image_ref: String::new(),
        user: None,
        state: ContainerRecordState::Created,
    });
    let call = EngineCall::Create { id: id.clone(), key, record };
    calls.driver.call(call).await.map_err(|failure| refused(CALL, failure))?;
    Ok(id.0)
}

const CALL: &str = "CreateContainer";
