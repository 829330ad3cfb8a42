//! ContainerStatus.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use podwright_cri::{CriError, v1};
use serde_json::{Value, json};

use super::{VerbContext, failed, known_container, not_found};
use crate::context::EngineContext;
use crate::machine::{ContainerId, SandboxId};
use crate::views;

pub(crate) async fn container_status(
    calls: VerbContext<'_>,
    text: String,
    verbose: bool,
) -> Result<v1::ContainerStatusResponse, CriError> {
    let (id, sandbox, pid, status) = {
        let objects = calls.context.objects();
        let id = known_container(&objects, CALL, &text)?;
        let unknown = || not_found(CALL, "container", &text);
        let status = views::container_status(&objects, &id).ok_or_else(unknown)?;
        let entry = objects.containers.get(&id).ok_or_else(unknown)?;
        let pid = entry.process.map_or(0, |process| process.pid);
        (id, SandboxId(entry.record.sandbox_id.clone()), pid, status)
    };
    let mut info = BTreeMap::new();
    if verbose {
        let of = id.clone();
        let read = move |context: &EngineContext| read_spec(context, &of);
        let spec = calls.context.blocking(&sandbox, READ_LIMIT, read).await.map_err(|e| failed(CALL, &e))?;
        let text = json!({ "sandboxID": sandbox.0, "pid": pid, "runtimeSpec": spec });
        info.insert("info".to_owned(), text.to_string());
    }
    Ok(v1::ContainerStatusResponse { status: Some(status), info })
}

fn read_spec(context: &EngineContext, id: &ContainerId) -> std::io::Result<Value> {
    let dir = context.store.container_dir(id).map_err(std::io::Error::other)?;
    serde_json::from_slice(&fs::read(dir.join("config.json"))?).map_err(std::io::Error::other)
}

const CALL: &str = "ContainerStatus";
const READ_LIMIT: Duration = Duration::from_secs(10);
