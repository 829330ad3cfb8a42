//! What containers said: read from their logs, as CRI writes them.

use anyhow::{Context, Result};
use serde_json::Value;

use super::Bed;

/// What the container `c` said in its first life.
pub(crate) fn said(bed: &Bed, pod: &Value) -> Result<String> {
    said_by(bed, pod, "c", 0)
}

/// What one instance of a container said, both streams together.
pub(crate) fn said_by(bed: &Bed, pod: &Value, container: &str, attempt: u32) -> Result<String> {
    let field = |name: &str| pod["metadata"][name].as_str().context("a pod has metadata");
    let dir = format!("{}_{}_{}", field("namespace")?, field("name")?, field("uid")?);
    let file = bed.scratch.pod_logs()?.join(dir).join(container).join(format!("{attempt}.log"));
    let raw = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    Ok(words(&raw))
}

/// `time stream tag text` lines become text; a line whose tag is P goes on in the next.
fn words(raw: &str) -> String {
    let mut text = String::new();
    for line in raw.lines() {
        let mut parts = line.splitn(4, ' ').skip(2);
        let (tag, words) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        text.push_str(words);
        if tag != "P" {
            text.push('\n');
        }
    }
    text
}
