//! The measured pods.

use anyhow::Result;
use podwright_testbed::Scratch;
use podwright_testbed::image::{BUSYBOX, PAUSE};
use serde_json::{Value, json};

/// A pod that waits for SIGTERM without using CPU, and exits at once. With a pod network, or the host's.
pub(crate) fn sleeper(host_network: bool) -> Value {
    json!({"terminationGracePeriodSeconds": 2, "hostNetwork": host_network,
        "containers": [{"name": "c", "image": PAUSE}]})
}

/// A pod that fails shortly after each start.
pub(crate) fn failing() -> Value {
    json!({"terminationGracePeriodSeconds": 1, "hostNetwork": true,
        "containers": [{"name": "c", "image": BUSYBOX, "command": ["sh", "-c", "sleep 0.3; exit 1"]}]})
}

pub(crate) fn put(scratch: &Scratch, name: &str, spec: &Value) -> Result<()> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    scratch.put_manifest(&format!("{name}.json"), &pod)
}

pub(crate) fn remove(scratch: &Scratch, name: &str) -> Result<()> {
    scratch.remove_manifest(&format!("{name}.json"))
}

/// This many of the same kind, at once.
pub(crate) fn put_all(scratch: &Scratch, count: usize, spec: &Value) -> Result<()> {
    (0..count).try_for_each(|n| put(scratch, &format!("pod{n}"), spec))
}

/// Those of [`put_all`].
pub(crate) fn remove_all(scratch: &Scratch, count: usize) -> Result<()> {
    (0..count).try_for_each(|n| remove(scratch, &format!("pod{n}")))
}

/// How many pods of a v1 PodList are ready. The Go kubelet's empty list is `null`.
pub(crate) fn ready(list: &Value) -> usize {
    let is_ready = |pod: &&Value| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    list["items"].as_array().into_iter().flatten().filter(is_ready).count()
}
