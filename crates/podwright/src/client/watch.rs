//! A watch that resumes after the last seen version when the agent closes the connection or is restarted.

use serde_json::Value;
use tokio::time::sleep;

use super::watch_stream::WatchReader;
use super::{Client, ClientError, RETRY_DELAY, WatchResume, encode, with_query};

pub(super) struct ResumingWatch<'a> {
    client: &'a Client,
    /// The path of the list.
    path: String,
    /// The last seen resource version; empty: the watch begins with all existing objects.
    version: String,
    stream: Option<WatchReader>,
}

impl<'a> ResumingWatch<'a> {
    /// Watches a list from the version that was read.
    pub(super) fn after(client: &'a Client, path: &str, list: &Value) -> Self {
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        Self { client, path: path.to_owned(), version, stream: None }
    }

    /// The next object that was added, modified or deleted.
    pub(super) async fn next(&mut self) -> Result<Value, ClientError> {
        loop {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                none => {
                    none.insert(WatchReader::new(self.client.follow(&watch_path(&self.path, &self.version)).await?))
                }
            };
            match stream.next::<Value>(self.client).await {
                Ok(Some((_, object))) => {
                    if let Some(version) = object["metadata"]["resourceVersion"].as_str() {
                        version.clone_into(&mut self.version);
                    }
                    return Ok(object);
                }
                Ok(None) => {}
                Err(error) => match error.watch_resume() {
                    Some(WatchResume::FromStart) => self.version.clear(),
                    Some(WatchResume::FromLastVersion) => {}
                    None => return Err(error),
                },
            }
            self.stream = None;
            sleep(RETRY_DELAY).await;
        }
    }
}

fn watch_path(path: &str, version: &str) -> String {
    match version {
        "" => with_query(path, "watch=true"),
        version => with_query(path, &format!("watch=true&resourceVersion={}", encode(version))),
    }
}
