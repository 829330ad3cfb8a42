//! A watch that goes on: when the agent ends it, or is started anew, it is opened again after what was seen.

use serde_json::Value;
use tokio::time::sleep;

use super::lines::Lines;
use super::{AGAIN_AFTER, Client, ClientError, encode, with_query};

/// See the module.
pub(super) struct Watch<'a> {
    client: &'a Client,
    /// The list that is watched.
    path: String,
    /// What was seen last; empty: everything comes, as new.
    version: String,
    lines: Option<Lines>,
}

impl<'a> Watch<'a> {
    /// Of this list, from what it was when it was read.
    pub(super) fn after(client: &'a Client, path: &str, list: &Value) -> Self {
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        Self { client, path: path.to_owned(), version, lines: None }
    }

    /// The next object that has changed, come or gone.
    pub(super) async fn next(&mut self) -> Result<Value, ClientError> {
        loop {
            let lines = match &mut self.lines {
                Some(lines) => lines,
                none => none.insert(Lines::new(self.client.follow(&opened(&self.path, &self.version)).await?)),
            };
            match lines.change::<Value>(self.client).await {
                Ok(Some((_, object))) => {
                    if let Some(version) = object["metadata"]["resourceVersion"].as_str() {
                        version.clone_into(&mut self.version);
                    }
                    return Ok(object);
                }
                Ok(None) => {}
                Err(error) => match error.ended_watch() {
                    Some(true) => self.version.clear(),
                    Some(false) => {}
                    None => return Err(error),
                },
            }
            self.lines = None;
            sleep(AGAIN_AFTER).await;
        }
    }
}

fn opened(path: &str, version: &str) -> String {
    match version {
        "" => with_query(path, "watch=true"),
        version => with_query(path, &format!("watch=true&resourceVersion={}", encode(version))),
    }
}
