//! A watch's answer as lines: one JSON document each, bounded.

use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use kube::client::Body;

use crate::error::ApiError;

/// The lines of an answer that goes on.
pub(crate) struct Lines {
    body: Body,
    buffer: BytesMut,
    /// No line ends before this.
    searched: usize,
    ended: bool,
}

impl Lines {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new(), searched: 0, ended: false }
    }

    /// The next line, `None` at the end. Cancel-safe: what came stays in the buffer.
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
                // A line that has no end was cut off.
                return (!self.buffer.is_empty()).then(|| {
                    self.buffer.clear();
                    self.searched = 0;
                    Err(ApiError::Unreachable("the answer ended in the middle of an object".into()))
                });
            }
            if self.buffer.len() > LINE_MAX {
                return Some(Err(ApiError::Garbage(format!("an object of more than {LINE_MAX} bytes"))));
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

/// An object is at most 1.5 MiB in etcd, and some more as JSON.
const LINE_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(text: &'static str) -> Vec<Result<String, ApiError>> {
        let mut lines = Lines::new(Body::from(text.as_bytes().to_vec()));
        let mut all = vec![];
        while let Some(line) = lines.next().await {
            all.push(line.map(|line| String::from_utf8_lossy(&line).into_owned()));
        }
        all
    }

    #[tokio::test]
    async fn lines_are_split_and_a_cut_one_is_an_error() {
        assert_eq!(all("{}\n\n{\"a\":1}\n").await, [Ok("{}".to_owned()), Ok("{\"a\":1}".to_owned())]);
        let cut = all("{}\n{\"a\"").await;
        assert!(cut[0].is_ok() && matches!(cut[1], Err(ApiError::Unreachable(_))) && cut.len() == 2, "{cut:?}");
        assert!(all("").await.is_empty());
    }
}
