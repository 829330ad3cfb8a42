//! What others write into the Node object, heard of at once. It is a hint only: what is missed is seen by the next comparison.

use std::future::pending;

use http::Method;
use k8s_openapi::api::core::v1::Node;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::client::{Cluster, request};
use crate::lines::Lines;
use crate::trimmed;

/// A watch on one node's object.
pub(super) struct News {
    cluster: Cluster,
    path: String,
    lines: Option<Lines>,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl News {
    pub(super) fn new(cluster: &Cluster, node: &str) -> Self {
        let seconds = WATCH_SECONDS + u64::from(std::process::id() % 240);
        let path = format!("/api/v1/nodes?fieldSelector=metadata.name%3D{node}&watch=true&timeoutSeconds={seconds}");
        Self { cluster: cluster.clone(), path, lines: None }
    }

    /// The object as it is now; `None`: it must be read. Never comes while there is no watch to be had: whoever waits looks by
    /// itself from time to time, and asks here again then.
    pub(super) async fn next(&mut self) -> Option<Node> {
        let lines = match &mut self.lines {
            Some(lines) => lines,
            none => match self.cluster.send(request(Method::GET, &self.path, None)).await {
                Ok(response) => none.insert(Lines::new(response.into_body())),
                Err(error) => {
                    tracing::debug!(%error, "the node's object can't be watched");
                    return pending().await;
                }
            },
        };
        match lines.next().await {
            Some(Ok(line)) => heard(&line),
            _ => {
                self.lines = None;
                pending().await
            }
        }
    }
}

fn heard(line: &[u8]) -> Option<Node> {
    let line: Line<'_> = serde_json::from_slice(line).ok()?;
    let is_there = matches!(line.kind, "ADDED" | "MODIFIED");
    is_there.then(|| trimmed::node(line.object.get().as_bytes()).ok()).flatten()
}

const WATCH_SECONDS: u64 = 480;
