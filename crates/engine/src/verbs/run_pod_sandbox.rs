//! RunPodSandbox.

use podwright_cri::{Code, CriError, v1};

use super::{VerbContext, invalid, new_id, refused};
use crate::driver::EngineCall;
use crate::handlers::Handler;
use crate::machine::{SandboxId, SandboxKey, SandboxRecordState};
use crate::store::SandboxRecord;
use crate::{pod_network, spec};

pub(crate) async fn run_pod_sandbox(
    calls: VerbContext<'_>,
    request: v1::RunPodSandboxRequest,
) -> Result<String, CriError> {
    let mut config = request.config.ok_or_else(|| invalid(CALL, "the request has no configuration"))?;
    let metadata = config.metadata.clone().ok_or_else(|| invalid(CALL, "the request has no metadata"))?;
    let handler = calls.context.settings.handler(&request.runtime_handler);
    let handler =
        handler.ok_or_else(|| invalid(CALL, format!("no runtime for {:?} is configured", request.runtime_handler)))?;
    if let Some(why) = calls.context.unreadable.refuses_pod(&metadata.uid) {
        return Err(CriError::new(Code::Other, CALL, why));
    }
    let id = SandboxId(new_id(CALL)?);
    spec::default_pod_cgroup(&mut config, &calls.context.settings.pod_cgroup, &id.0);
    // What can not be done is refused before anything is made.
    spec::pod_cgroup(&config).map_err(|error| invalid(CALL, error.to_string()))?;
    pod_network::host_ports(&config).map_err(|error| invalid(CALL, error.to_string()))?;
    spec::check_user_namespace(&config).map_err(|error| invalid(CALL, error.to_string()))?;
    if pod_network::has_user_namespace(&config) && !calls.context.features.idmapped_tmpfs {
        let why = "a user namespace needs idmapped tmpfs mounts (Linux 6.3), which this kernel lacks";
        return Err(invalid(CALL, why));
    }
    if handler != Handler::Builtin && pod_network::has_user_namespace(&config) {
        let name = request.runtime_handler;
        return Err(invalid(CALL, format!("the runtime handler {name:?} does not support user namespaces")));
    }
    let planned = pod_network::planned(&config);
    let v1::PodSandboxMetadata { name, uid, namespace, attempt } = metadata;
    let key = SandboxKey { name, namespace, uid, attempt };
    let record = Box::new(SandboxRecord {
        config,
        handler: request.runtime_handler,
        created_at_ns: 0,
        addresses: vec![],
        namespaces: vec![],
        state: SandboxRecordState::Creating(planned),
    });
    let call = EngineCall::Run { id: id.clone(), key, planned, record };
    calls.driver.call(call).await.map_err(|failure| refused(CALL, failure))?;
    Ok(id.0)
}

const CALL: &str = "RunPodSandbox";
