//! A body that comes line by line: what a watch sends.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Client, ClientError};

/// The longest line: one large pod, many times over.
const LINE_MAX: usize = 16 << 20;

/// The lines of a body.
pub(super) struct Lines {
    body: Incoming,
    rest: BytesMut,
}

/// One change of a watch.
#[derive(Deserialize)]
pub(super) struct Change {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) object: Value,
}

impl Lines {
    pub(super) fn new(body: Incoming) -> Self {
        Self { body, rest: BytesMut::new() }
    }

    /// The next line, without its end; `None` when the agent has ended it.
    pub(super) async fn next(&mut self, client: &Client) -> Result<Option<Bytes>, ClientError> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.rest[searched..].iter().position(|b| *b == b'\n') {
                let line = self.rest.split_to(searched + at + 1).freeze();
                return Ok(Some(line.slice(..line.len() - 1)));
            }
            searched = self.rest.len();
            if searched > LINE_MAX {
                return Err(client.broken("a line without an end"));
            }
            match self.body.frame().await.transpose().map_err(|error| client.broken(error))? {
                Some(frame) => self.rest.extend_from_slice(&frame.into_data().unwrap_or_default()),
                None if self.rest.is_empty() => return Ok(None),
                None => return Ok(Some(self.rest.split().freeze())),
            }
        }
    }

    /// The next change of a watch. A watch that has come to its end is begun anew by whoever reads it.
    pub(super) async fn change<T: DeserializeOwned>(
        &mut self,
        client: &Client,
    ) -> Result<Option<(String, T)>, ClientError> {
        loop {
            let Some(line) = self.next(client).await? else { return Ok(None) };
            let Change { kind, object } = serde_json::from_slice(&line).map_err(|error| client.broken(error))?;
            match kind.as_str() {
                "ADDED" | "MODIFIED" | "DELETED" => {
                    let object = serde_json::from_value(object).map_err(|error| client.broken(error))?;
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
