//! Status and RuntimeConfig.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_cri::{CriError, v1};
use serde_json::json;

use super::VerbContext;
use crate::context::{EngineContext, failure};
use crate::handlers::BUILTIN_HANDLER;

pub(crate) async fn status(calls: VerbContext<'_>, verbose: bool) -> Result<v1::StatusResponse, CriError> {
    let context = calls.context.clone();
    let asked = move || context.network.status().map_err(|error| failure(&error).message);
    let network = calls.context.pool.run("network status", NETWORK_LIMIT, asked).await;
    let network = network.map_err(|error| error.to_string()).flatten();
    let condition = |r#type: &str, reason: &str, problem: Option<String>| v1::RuntimeCondition {
        r#type: r#type.into(),
        status: problem.is_none(),
        reason: if problem.is_some() { reason.into() } else { String::new() },
        message: problem.unwrap_or_default(),
    };
    let conditions = vec![
        condition("RuntimeReady", "", None),
        condition("NetworkReady", "NetworkPluginNotReady", network.err()),
        condition("RecordsReadable", "RecordUnreadable", calls.context.unreadable.message()),
        condition("RecordsWritten", "RecordNotWritten", calls.context.unwritten.message()),
    ];
    let mut info = BTreeMap::new();
    if verbose {
        info.insert("config".to_owned(), settings(calls.context));
    }
    let features = v1::RuntimeHandlerFeatures {
        recursive_read_only_mounts: true,
        user_namespaces: calls.context.features.idmapped_tmpfs,
    };
    let handler = |name: &str| v1::RuntimeHandler { name: name.into(), features: Some(features) };
    // What another runtime can do is not known.
    let none = v1::RuntimeHandlerFeatures::default();
    let others = calls.context.settings.runtimes.keys();
    let others = others.map(|name| v1::RuntimeHandler { name: name.clone(), features: Some(none) });
    Ok(v1::StatusResponse {
        status: Some(v1::RuntimeStatus { conditions }),
        info,
        runtime_handlers: [handler(""), handler(BUILTIN_HANDLER)].into_iter().chain(others).collect(),
        features: Some(v1::RuntimeFeatures { supplemental_groups_policy: true, ..v1::RuntimeFeatures::default() }),
    })
}

fn settings(context: &EngineContext) -> String {
    let settings = &context.settings;
    let text = json!({ "rootDir": settings.root_dir, "runDir": settings.run_dir, "shimCgroup": settings.shim_cgroup });
    text.to_string()
}

pub(crate) fn runtime_config() -> v1::RuntimeConfigResponse {
    let linux = v1::LinuxRuntimeConfiguration { cgroup_driver: v1::CgroupDriver::Cgroupfs.into() };
    v1::RuntimeConfigResponse { linux: Some(linux) }
}

const NETWORK_LIMIT: Duration = Duration::from_secs(10);
