//! Files of ConfigMaps and Secrets: one per key, or those in `items`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, KeyToPath, Secret};

use super::atomic::{Payload, VolumeFile};
use super::{FileError, VolumeError, files};

/// The mapping of keys to files.
pub(super) struct KeySelection<'a> {
    /// `None` or empty: all keys.
    pub(super) items: Option<&'a [KeyToPath]>,
    pub(super) default_mode: Option<i32>,
    /// A named key may be missing.
    pub(super) optional: bool,
}

/// The data of an object, by key.
pub(super) struct ObjectData<'a> {
    entries: BTreeMap<&'a str, &'a [u8]>,
    /// The Go kubelet's message for a missing key.
    missing: &'static str,
}

impl<'a> ObjectData<'a> {
    /// `data` and `binaryData` of a ConfigMap; `None`: it is optional and missing.
    pub(super) fn of_config_map(object: Option<&'a ConfigMap>) -> Self {
        let text = object.into_iter().flat_map(|o| o.data.iter().flatten());
        let binary = object.into_iter().flat_map(|o| o.binary_data.iter().flatten());
        let text = text.map(|(key, value)| (key.as_str(), value.as_bytes()));
        let binary = binary.map(|(key, value)| (key.as_str(), value.0.as_slice()));
        Self { entries: text.chain(binary).collect(), missing: "configmap references non-existent config key" }
    }

    /// The data of a Secret; `None`: it is optional and missing.
    pub(super) fn of_secret(object: Option<&'a Secret>) -> Self {
        let data = object.into_iter().flat_map(|o| o.data.iter().flatten());
        let entries = data.map(|(key, value)| (key.as_str(), value.0.as_slice())).collect();
        Self { entries, missing: "references non-existent secret key" }
    }

    /// Adds the selected files.
    pub(super) fn collect(&self, selection: &KeySelection<'_>, payload: &mut Payload) -> Result<(), VolumeError> {
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
                None => return Err(VolumeError::KeyNotFound { message: self.missing, key: item.key.clone() }),
            }
        }
        Ok(())
    }
}

fn add(path: &str, content: &[u8], mode: Result<u32, FileError>, payload: &mut Payload) -> Result<(), VolumeError> {
    let failed = VolumeError::file(path);
    let file = VolumeFile { content: content.to_vec(), mode: mode.map_err(&failed)?, owner: None };
    payload.insert(files::clean(path).map_err(failed)?, file);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_tasks::error_chain;
    use serde_json::json;

    fn config_map() -> ConfigMap {
        serde_json::from_value(json!({"data": {"a": "1", "b": "2"}, "binaryData": {"raw": "AAE="}})).unwrap()
    }

    fn collect(items: serde_json::Value, optional: bool) -> Result<Vec<(String, Vec<u8>, u32)>, String> {
        let items: Vec<KeyToPath> = serde_json::from_value(items).unwrap();
        let selection = KeySelection { items: Some(&items), default_mode: Some(0o440), optional };
        let mut payload = Payload::new();
        ObjectData::of_config_map(Some(&config_map()))
            .collect(&selection, &mut payload)
            .map_err(|e| error_chain(&e))?;
        Ok(payload.into_iter().map(|(path, f)| (path.display().to_string(), f.content, f.mode)).collect())
    }

    #[test]
    fn all_keys_or_the_selected_ones_become_files() {
        let all = collect(json!([]), false).unwrap();
        assert_eq!(
            all,
            [("a".into(), b"1".to_vec(), 0o440), ("b".into(), b"2".to_vec(), 0o440), ("raw".into(), vec![0, 1], 0o440)]
        );
        let some = collect(json!([{"key": "b", "path": "deep/b", "mode": 0o400}]), false).unwrap();
        assert_eq!(some, [("deep/b".into(), b"2".to_vec(), 0o400)]);
    }

    #[test]
    fn a_missing_key_is_an_error_unless_it_is_optional() {
        let items = json!([{"key": "no", "path": "x"}]);
        assert_eq!(collect(items.clone(), false).unwrap_err(), "configmap references non-existent config key: no");
        assert_eq!(collect(items, true).unwrap(), []);
    }

    #[test]
    fn paths_that_leave_the_volume_are_rejected() {
        for path in ["../x", "/etc/passwd", "..data", "a/../../b"] {
            assert!(collect(json!([{"key": "a", "path": path}]), false).unwrap_err().contains("path must"), "{path}");
        }
        assert!(collect(json!([{"key": "a", "path": "x", "mode": 0o1000}]), false).unwrap_err().contains("mode"));
    }

    #[test]
    fn debug_output_does_not_contain_the_content() {
        let mut payload = Payload::new();
        let secret: Secret = serde_json::from_value(json!({"data": {"k": "aHVudGVyMg=="}})).unwrap();
        let selection = KeySelection { items: None, default_mode: None, optional: false };
        ObjectData::of_secret(Some(&secret)).collect(&selection, &mut payload).unwrap();
        assert_eq!(payload.values().next().unwrap().content, b"hunter2");
        let printed = format!("{payload:?}");
        assert!(!printed.contains("104, 117") && !printed.contains("hunter2"), "{printed}");
    }
}
