//! ReopenContainerLog.

use std::time::Duration;

use podwright_cri::{Code, CriError};
use podwright_shim::client::RequestPacket;
use podwright_shim::protocol::{ReopenLog, request};

use super::{VerbContext, known_container};
use crate::machine::{SandboxId, ShownContainer};

pub(crate) async fn reopen_container_log(calls: VerbContext<'_>, text: String) -> Result<(), CriError> {
    let (id, link) = {
        let objects = calls.context.objects();
        let id = known_container(&objects, CALL, &text)?;
        let runs = objects.machines.container(&id).and_then(|c| c.shown()) == Some(ShownContainer::Running);
        let entry = objects.containers.get(&id).filter(|_| runs);
        let sandbox = entry.map(|entry| SandboxId(entry.record.sandbox_id.clone()));
        let link = sandbox.and_then(|sandbox| objects.sandboxes.get(&sandbox)?.link.clone());
        (id, link)
    };
    let link = link.ok_or_else(|| CriError::new(Code::Other, CALL, "container is not running"))?;
    let body = request::RequestKind::ReopenLog(ReopenLog { container: id.0 });
    let answer = link.call(RequestPacket::new(body), LIMIT).await;
    answer.map(drop).map_err(|error| CriError::new(Code::Other, CALL, error.to_string()))
}

const CALL: &str = "ReopenContainerLog";
const LIMIT: Duration = Duration::from_secs(30);
