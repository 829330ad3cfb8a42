//! Responses in lines of JSON, and those of a watch: one event per line.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Client, ClientError};
use crate::decode::decode;

/// Maximum length of a line, far above the size of a large pod.
const LINE_MAX: usize = 16 << 20;

/// The lines of a streamed body.
pub(super) struct LineReader {
    body: Incoming,
    rest: BytesMut,
}

/// The events of a watch.
pub(super) struct WatchReader(LineReader);

/// A line of the stream.
#[derive(Deserialize)]
struct WatchEvent {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

impl LineReader {
    pub(super) fn new(body: Incoming) -> Self {
        Self { body, rest: BytesMut::new() }
    }

    /// The next line, without the newline; `None` when the agent has closed the stream.
    pub(super) async fn next_line(&mut self, client: &Client) -> Result<Option<Bytes>, ClientError> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.rest[searched..].iter().position(|b| *b == b'\n') {
                let line = self.rest.split_to(searched + at + 1).freeze();
                return Ok(Some(line.slice(..line.len() - 1)));
            }
            searched = self.rest.len();
            if searched > LINE_MAX {
                return Err(client.failed("a line is too long"));
            }
            match self.body.frame().await.transpose().map_err(|error| client.failed(error))? {
                Some(frame) => self.rest.extend_from_slice(&frame.into_data().unwrap_or_default()),
                None if self.rest.is_empty() => return Ok(None),
                None => return Ok(Some(self.rest.split().freeze())),
            }
        }
    }
}

impl WatchReader {
    pub(super) fn new(body: Incoming) -> Self {
        Self(LineReader::new(body))
    }

    /// The type and object of the next change; `None` when the agent has closed the stream.
    pub(super) async fn next<T: DeserializeOwned>(
        &mut self,
        client: &Client,
    ) -> Result<Option<(String, T)>, ClientError> {
        loop {
            let Some(line) = self.0.next_line(client).await? else { return Ok(None) };
            let WatchEvent { kind, object } = serde_json::from_slice(&line).map_err(|error| client.failed(error))?;
            match kind.as_str() {
                "ADDED" | "MODIFIED" | "DELETED" => {
                    let object = decode(&object).map_err(|error| client.failed(error))?;
                    return Ok(Some((kind, object)));
                }
                "ERROR" => {
                    let code = object["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
                    let message = object["message"].as_str().unwrap_or("the watch failed").to_owned();
                    return Err(ClientError::Refused { code, message });
                }
                _ => {}
            }
        }
    }
}
