//! The body of a watch response: one JSON document per line, each of bounded size.

use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::ApiError;

/// Splits the body of a watch response into lines.
pub(crate) struct WatchStream {
    body: Body,
    buffer: BytesMut,
    /// Bytes of the buffer that are known to hold no newline.
    searched: usize,
    ended: bool,
}

/// One line of a watch: the event's type and its object, not parsed yet.
#[derive(Deserialize)]
pub(crate) struct WatchEvent<'a> {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(borrow)]
    pub(crate) object: &'a RawValue,
}

impl<'a> WatchEvent<'a> {
    pub(crate) fn parse(line: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }
}

impl WatchStream {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new(), searched: 0, ended: false }
    }

    /// The next line, `None` at the end of the body. Cancel-safe: bytes received so far stay in the buffer.
    pub(crate) async fn next(&mut self) -> Option<Result<BytesMut, ApiError>> {
        loop {
            if let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + at);
                self.buffer.advance(1);
                self.searched = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Some(Ok(line));
            }
            self.searched = self.buffer.len();
            if self.ended {
                // A last line without a newline was truncated.
                return (!self.buffer.is_empty()).then(|| {
                    self.buffer.clear();
                    self.searched = 0;
                    Err(ApiError::Unreachable("the response ended in the middle of an object".into()))
                });
            }
            if self.buffer.len() > LINE_MAX {
                return Some(Err(ApiError::Malformed(format!("an object of more than {LINE_MAX} bytes"))));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Some(Err(ApiError::Unreachable(error.to_string()))),
                None => self.ended = true,
            }
        }
    }
}

/// An object is at most 1.5 MiB in etcd, and somewhat larger as JSON.
const LINE_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(text: &'static str) -> Vec<Result<String, ApiError>> {
        let mut stream = WatchStream::new(Body::from(text.as_bytes().to_vec()));
        let mut all = vec![];
        while let Some(line) = stream.next().await {
            all.push(line.map(|line| String::from_utf8_lossy(&line).into_owned()));
        }
        all
    }

    #[tokio::test]
    async fn the_body_is_split_into_lines_and_a_truncated_line_is_an_error() {
        assert_eq!(all("{}\n\n{\"a\":1}\n").await, [Ok("{}".to_owned()), Ok("{\"a\":1}".to_owned())]);
        let cut = all("{}\n{\"a\"").await;
        assert!(cut[0].is_ok() && matches!(cut[1], Err(ApiError::Unreachable(_))) && cut.len() == 2, "{cut:?}");
        assert!(all("").await.is_empty());
    }
}
