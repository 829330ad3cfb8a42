//! Files from ConfigMaps and Secrets: one per key, or those the volume names.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, KeyToPath, Secret};

use super::atomic::{File, Payload};
use super::{failed, files};
use crate::host::HostError;

/// Which keys become which files.
pub(super) struct Selection<'a> {
    /// Named keys; `None` or empty: all.
    pub(super) items: Option<&'a [KeyToPath]>,
    pub(super) default_mode: Option<i32>,
    /// A named key may be missing.
    pub(super) optional: bool,
}

/// The contents by key, and how a missing key is told.
pub(super) struct Entries<'a> {
    entries: BTreeMap<&'a str, &'a [u8]>,
    missing: &'static str,
}

impl<'a> Entries<'a> {
    /// A ConfigMap's, text and binary; `None`: it is missing and may be.
    pub(super) fn of_config_map(object: Option<&'a ConfigMap>) -> Self {
        let text = object.into_iter().flat_map(|o| o.data.iter().flatten());
        let binary = object.into_iter().flat_map(|o| o.binary_data.iter().flatten());
        let text = text.map(|(key, value)| (key.as_str(), value.as_bytes()));
        let binary = binary.map(|(key, value)| (key.as_str(), value.0.as_slice()));
        Self { entries: text.chain(binary).collect(), missing: "configmap references non-existent config key" }
    }

    /// A Secret's.
    pub(super) fn of_secret(object: Option<&'a Secret>) -> Self {
        let data = object.into_iter().flat_map(|o| o.data.iter().flatten());
        let entries = data.map(|(key, value)| (key.as_str(), value.0.as_slice())).collect();
        Self { entries, missing: "references non-existent secret key" }
    }

    /// Adds the selected files.
    pub(super) fn collect(&self, selection: &Selection<'_>, payload: &mut Payload) -> Result<(), HostError> {
        let items = selection.items.unwrap_or_default();
        if items.is_empty() {
            for (key, content) in &self.entries {
                add(key, content, files::mode(None, selection.default_mode), payload)?;
            }
        }
        for item in items {
            match self.entries.get(item.key.as_str()) {
                Some(content) => add(&item.path, content, files::mode(item.mode, selection.default_mode), payload)?,
                None if selection.optional => {}
                None => return Err(failed(format!("{}: {}", self.missing, item.key))),
            }
        }
        Ok(())
    }
}

fn add(path: &str, content: &[u8], mode: Result<u32, String>, payload: &mut Payload) -> Result<(), HostError> {
    let told = |e: String| failed(format!("file {path:?}: {e}"));
    let file = File { content: content.to_vec(), mode: mode.map_err(told)?, owner: None };
    payload.insert(files::clean(path).map_err(told)?, file);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config_map() -> ConfigMap {
        serde_json::from_value(json!({"data": {"a": "1", "b": "2"}, "binaryData": {"raw": "AAE="}})).unwrap()
    }

    fn collect(items: serde_json::Value, optional: bool) -> Result<Vec<(String, Vec<u8>, u32)>, String> {
        let items: Vec<KeyToPath> = serde_json::from_value(items).unwrap();
        let selection = Selection { items: Some(&items), default_mode: Some(0o440), optional };
        let mut payload = Payload::new();
        Entries::of_config_map(Some(&config_map())).collect(&selection, &mut payload).map_err(|e| e.message)?;
        Ok(payload.into_iter().map(|(path, f)| (path.display().to_string(), f.content, f.mode)).collect())
    }

    #[test]
    fn all_keys_or_the_named_ones() {
        let all = collect(json!([]), false).unwrap();
        assert_eq!(
            all,
            [("a".into(), b"1".to_vec(), 0o440), ("b".into(), b"2".to_vec(), 0o440), ("raw".into(), vec![0, 1], 0o440)]
        );
        let some = collect(json!([{"key": "b", "path": "deep/b", "mode": 0o400}]), false).unwrap();
        assert_eq!(some, [("deep/b".into(), b"2".to_vec(), 0o400)]);
    }

    #[test]
    fn a_missing_key_is_named_unless_it_may_be_missing() {
        let items = json!([{"key": "no", "path": "x"}]);
        assert_eq!(collect(items.clone(), false).unwrap_err(), "configmap references non-existent config key: no");
        assert_eq!(collect(items, true).unwrap(), []);
    }

    #[test]
    fn no_path_leads_out() {
        for path in ["../x", "/etc/passwd", "..data", "a/../../b"] {
            assert!(collect(json!([{"key": "a", "path": path}]), false).unwrap_err().contains("path must"), "{path}");
        }
        assert!(collect(json!([{"key": "a", "path": "x", "mode": 0o1000}]), false).unwrap_err().contains("mode"));
    }

    #[test]
    fn content_is_not_printed() {
        let mut payload = Payload::new();
        let secret: Secret = serde_json::from_value(json!({"data": {"k": "aHVudGVyMg=="}})).unwrap();
        let selection = Selection { items: None, default_mode: None, optional: false };
        Entries::of_secret(Some(&secret)).collect(&selection, &mut payload).unwrap();
        assert_eq!(payload.values().next().unwrap().content, b"hunter2");
        let printed = format!("{payload:?}");
        assert!(!printed.contains("104, 117") && !printed.contains("hunter2"), "{printed}");
    }
}
