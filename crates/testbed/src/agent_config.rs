//! The KubeletConfiguration of both agents, ours and the Go kubelet.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use crate::scratch::Scratch;

/// A configuration that confines the agent to its scratch, merged with `changes` field by field at every depth. `endpoint`: of the
/// runtime; `None`: the agent's default.
pub fn agent_config(scratch: &Scratch, endpoint: Option<&str>, changes: &Value) -> Result<Value> {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": scratch.cgroup_root(),
        "containerRuntimeEndpoint": endpoint.unwrap_or_default(),
        "podLogsDir": scratch.pod_logs()?,
        "failCgroupV1": false,
        "failSwapOn": false,
        "staticPodPath": scratch.manifests()?,
        "resolvConf": resolv_conf(scratch)?,
        // A full disk of the host must not fail unrelated tests.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%",
                         "nodefs.inodesFree": "0%", "imagefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
        // Without CAP_SYS_RESOURCE a score can't be lowered.
        "oomScoreAdj": 0,
    });
    merge(&mut config, changes);
    Ok(config)
}

/// Writes the configuration into the scratch; JSON is valid YAML.
pub(crate) fn write_config(scratch: &Scratch, name: &str, config: &Value) -> Result<PathBuf> {
    let path = scratch.path().join(name);
    fs::write(&path, serde_json::to_vec_pretty(config)?)?;
    Ok(path)
}

fn resolv_conf(scratch: &Scratch) -> Result<PathBuf> {
    let path = scratch.path().join("resolv.conf");
    fs::write(&path, "nameserver 127.0.0.1\nsearch node.test\n")?;
    Ok(path)
}

/// Merges `changes` into `base`, field by field at every depth.
pub(crate) fn merge(base: &mut Value, changes: &Value) {
    match (base, changes) {
        (Value::Object(base), Value::Object(changes)) => {
            for (key, change) in changes {
                merge(base.entry(key.clone()).or_insert(Value::Null), change);
            }
        }
        (base, change) => *base = change.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_merged_field_by_field() {
        let mut base = json!({"a": {"b": 1, "c": 2}, "d": [1]});
        merge(&mut base, &json!({"a": {"c": 3}, "d": [2], "e": true}));
        assert_eq!(base, json!({"a": {"b": 1, "c": 3}, "d": [2], "e": true}));
    }
}
