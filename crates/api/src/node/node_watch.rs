//! A watch on the node's own object, so that changes by others are seen at once. It is a hint only: a change that the watch misses
//! is found by the next periodic comparison.

use std::future::pending;

use http::Method;
use k8s_openapi::api::core::v1::Node;

use crate::client::{ApiClient, request};
use crate::trimmed;
use crate::watch_stream::{WatchEvent, WatchStream};

/// A watch on one node's object, opened on demand.
pub(super) struct NodeWatch {
    client: ApiClient,
    path: String,
    stream: Option<WatchStream>,
}

impl NodeWatch {
    pub(super) fn new(client: &ApiClient, node: &str) -> Self {
        let seconds = WATCH_SECONDS + u64::from(std::process::id() % 240);
        let path = format!("/api/v1/nodes?fieldSelector=metadata.name%3D{node}&watch=true&timeoutSeconds={seconds}");
        Self { client: client.clone(), path, stream: None }
    }

    /// The object after its next change; `None`: it changed and must be read. Pends for ever while no watch can be opened or after
    /// one ended: the caller compares periodically anyway, and calls this again then.
    pub(super) async fn next(&mut self) -> Option<Node> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => match self.client.send(request(Method::GET, &self.path, None)).await {
                Ok(response) => none.insert(WatchStream::new(response.into_body())),
                Err(error) => {
                    tracing::debug!(%error, "node watch failed");
                    return pending().await;
                }
            },
        };
        match stream.next().await {
            Some(Ok(line)) => changed_node(&line),
            _ => {
                self.stream = None;
                pending().await
            }
        }
    }
}

fn changed_node(line: &[u8]) -> Option<Node> {
    let event = WatchEvent::parse(line).ok()?;
    let exists = matches!(event.kind.as_str(), "ADDED" | "MODIFIED");
    exists.then(|| trimmed::node(event.object.get().as_bytes()).ok()).flatten()
}

const WATCH_SECONDS: u64 = 480;
