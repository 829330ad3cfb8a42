//! The output of containers, read from their log files in the CRI format.

use anyhow::{Context, Result};
use serde_json::Value;

use super::TestNode;

/// The output of the first instance of container `c`.
pub(crate) fn read_output(node: &TestNode, pod: &Value) -> Result<String> {
    read_output_of(node, pod, "c", 0)
}

/// The output of one instance of a container, both streams together.
pub(crate) fn read_output_of(node: &TestNode, pod: &Value, container: &str, attempt: u32) -> Result<String> {
    let field = |name: &str| pod["metadata"][name].as_str().context("a pod has metadata");
    let dir = format!("{}_{}_{}", field("namespace")?, field("name")?, field("uid")?);
    let file = node.scratch.pod_logs()?.join(dir).join(container).join(format!("{attempt}.log"));
    let raw = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    Ok(content(&raw))
}

/// The text of `time stream tag text` lines; a line with tag P continues in the next one.
fn content(raw: &str) -> String {
    let mut text = String::new();
    for line in raw.lines() {
        let mut parts = line.splitn(4, ' ').skip(2);
        let (tag, line) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        text.push_str(line);
        if tag != "P" {
            text.push('\n');
        }
    }
    text
}
