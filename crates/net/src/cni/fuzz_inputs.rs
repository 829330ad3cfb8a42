//! What plugins and administrators write, for the fuzz targets.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Instant;

use serde_json::{Map, Value};

use super::addresses_of;
use super::cache::CachedAttachment;
use super::config::NetworkList;
use super::invoke::Invocation;
use crate::cni_error::CniError;

/// A file of the directory of configurations, and what its plugins would read.
pub fn configuration(bytes: &[u8]) {
    let Ok(list) = NetworkList::parse(bytes) else { return };
    let runtime = Map::from_iter([("portMappings".to_owned(), Value::Array(vec![]))]);
    for plugin in &list.plugins {
        let kind = plugin.kind();
        assert!(
            !kind.contains('/') && !kind.starts_with('.') && !kind.is_empty(),
            "{kind:?} is a file of its directory"
        );
        let input = list.plugin_input(plugin, &runtime, Some(&Value::Null));
        assert!(input["name"] == list.name && input["prevResult"].is_null());
    }
}

/// The result of ADD.
pub fn result(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
    if let Ok(addresses) = addresses_of(Some(&value), "plugin") {
        assert!(!addresses.is_empty(), "a pod has an address");
    }
}

/// The output of a plugin that failed.
pub fn failure(output: &[u8], errors: &[u8]) {
    let operation = Invocation {
        command: "ADD",
        container_id: String::new(),
        netns: String::new(),
        interface: String::new(),
        args: String::new(),
        path: String::new(),
        deadline: Instant::now(),
    };
    let error = operation.failure("plugin", ExitStatus::from_raw(1 << 8), output, errors);
    let CniError::Failed { message, .. } = error else { panic!("{error}") };
    assert!(message.len() <= 4096, "{} bytes", message.len());
}

/// The file that a former process has kept.
pub fn attachment(bytes: &[u8]) {
    let Ok(cached) = serde_json::from_slice::<CachedAttachment>(bytes) else { return };
    for plugin in &cached.list.plugins {
        cached.list.plugin_input(plugin, &cached.runtime, cached.result.as_ref());
    }
}
