//! Archives between a connection and a blocking thread: a bounded channel of pieces in each direction.
//!
//! A thread that waits for the connection ends when the other side of its channel is dropped, so a client that goes away leaves
//! no thread behind.

use std::io::{self, Read, Write};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// The body of a request, for a thread that blocks on it.
pub(super) struct UploadReader {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    rest: Bytes,
    /// The whole body was read. A channel that closes before was cut.
    complete: bool,
}

/// The reader, and the end that [`pump`] feeds.
pub(super) fn body_reader() -> (mpsc::Sender<io::Result<Bytes>>, UploadReader) {
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    (sender, UploadReader { pieces, rest: Bytes::new(), complete: false })
}

impl Read for UploadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() && !self.complete {
            self.rest = self.pieces.blocking_recv().unwrap_or_else(|| Err(cut_off()))?;
            // An empty piece is the end.
            self.complete = self.rest.is_empty();
        }
        let count = buffer.len().min(self.rest.len());
        buffer[..count].copy_from_slice(&self.rest[..count]);
        self.rest.advance(count);
        Ok(count)
    }
}

/// Sends a body to its reader, with an empty piece at the end. When the reader has ended, the rest is discarded for
/// [`DRAIN_MAX`]: if the connection were closed at once, the client would see a reset instead of the response.
pub(super) async fn pump(mut body: Incoming, pieces: mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let piece = tokio::select! {
            piece = next_piece(&mut body) => piece,
            () = pieces.closed() => break,
        };
        let more = piece.as_ref().is_ok_and(|piece| !piece.is_empty());
        if pieces.send(piece).await.is_err() {
            break;
        }
        if !more {
            return;
        }
    }
    let _ = timeout(DRAIN_MAX, async { while let Some(Ok(_)) = body.frame().await {} }).await;
}

/// The next bytes; none at the end of the body.
async fn next_piece(body: &mut Incoming) -> io::Result<Bytes> {
    loop {
        let frame = timeout(IDLE_MAX, body.frame()).await.map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, format!("the client sent nothing for {} s", IDLE_MAX.as_secs()))
        })?;
        match frame.transpose().map_err(|_| cut_off())?.map(hyper::body::Frame::into_data) {
            None => return Ok(Bytes::new()),
            Some(Ok(data)) if !data.is_empty() => return Ok(data),
            // Trailers, or an empty piece.
            Some(_) => {}
        }
    }
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the client went away")
}

/// Where a thread writes the body of a response.
pub(super) struct BodyWriter {
    pieces: mpsc::Sender<Bytes>,
    buffer: Vec<u8>,
}

/// The writer, and what it has written.
pub(super) fn body_writer() -> (BodyWriter, mpsc::Receiver<Bytes>) {
    let (pieces, written) = mpsc::channel(PIECES_MAX);
    (BodyWriter { pieces, buffer: vec![] }, written)
}

impl Write for BodyWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(data);
        if self.buffer.len() >= PIECE {
            self.flush()?;
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::take(&mut self.buffer));
        self.pieces.blocking_send(piece).map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the client went away"))
    }
}

/// Pieces on their way between connection and thread.
const PIECES_MAX: usize = 4;
/// Bytes of a piece of a response.
const PIECE: usize = 64 << 10;
/// For a client that sends nothing.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// For a client that keeps sending a rejected archive.
const DRAIN_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_is_cut_off_is_not_taken_for_complete() {
        let read = |mut reader: UploadReader| {
            std::thread::spawn(move || {
                let mut all = vec![];
                reader.read_to_end(&mut all).map(|_| all)
            })
        };
        let (whole, reader) = body_reader();
        for piece in ["ab", "c", ""] {
            whole.send(Ok(Bytes::from(piece))).await.unwrap();
        }
        assert_eq!(read(reader).join().unwrap().unwrap(), b"abc");
        let (cut, reader) = body_reader();
        cut.send(Ok(Bytes::from("ab"))).await.unwrap();
        drop(cut);
        assert_eq!(read(reader).join().unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn a_writer_ends_when_its_client_is_gone() {
        let (mut writer, mut written) = body_writer();
        let thread = std::thread::spawn(move || {
            loop {
                if let Err(error) = writer.write_all(&[0; 1000]) {
                    return error.kind();
                }
            }
        });
        assert!(written.recv().await.unwrap().len() >= PIECE);
        drop(written);
        assert_eq!(thread.join().unwrap(), io::ErrorKind::BrokenPipe);
    }
}
