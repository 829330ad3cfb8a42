//! The subset of SPDY/3.1 that remote commands and port-forward need: open streams, send and receive data, half-close.
//!
//! The stream servers of all container runtimes support it, and unlike their older WebSocket protocols it can close stdin. Headers
//! of the server are skipped; ours are compressed without the preset dictionary, which the zlib header declares.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, FlushCompress};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const VERSION: u16 = 0x8003;
const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FIN: u8 = 1;
/// Size of the data frames that are sent.
pub(super) const CHUNK: usize = 16 << 10;
/// The length field has 24 bits, but no server of remote commands sends such large frames.
const FRAME_MAX: usize = 1 << 20;

/// Streams opened by the client have odd ids.
pub(super) type StreamId = u32;

/// A frame from the server.
#[derive(Debug, PartialEq)]
pub(super) enum SpdyFrame {
    /// `last`: the server has closed its half of the stream.
    Data { stream: StreamId, data: Bytes, last: bool },
    /// The server has aborted the stream.
    Reset { stream: StreamId },
    /// Must be sent back with the same id.
    Ping(u32),
    /// The server closes the connection.
    GoAway,
    /// A frame that is ignored.
    Other,
}

/// The sending half of the connection.
pub(super) struct Sender<W> {
    to: W,
    compress: Compress,
    next: StreamId,
}

impl<W: AsyncWrite + Unpin> Sender<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, compress: Compress::new(Compression::fast(), true), next: 1 }
    }

    /// Opens a stream of this type: `stdin`, `error`, …
    pub(super) async fn open(&mut self, kind: &str) -> io::Result<StreamId> {
        self.open_with(&[("streamtype", kind)]).await
    }

    /// Opens a stream with these headers, whose names are in lower case.
    pub(super) async fn open_with(&mut self, headers: &[(&str, &str)]) -> io::Result<StreamId> {
        let stream = self.next;
        self.next += 2;
        let mut pairs = BytesMut::new();
        pairs.put_u32(u32::try_from(headers.len()).map_err(io::Error::other)?);
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            pairs.put_u32(u32::try_from(text.len()).map_err(io::Error::other)?);
            pairs.put_slice(text.as_bytes());
        }
        // One zlib stream for all header blocks of the connection, flushed after each.
        let mut block = Vec::with_capacity(pairs.len() + 64);
        self.compress.compress_vec(&pairs, &mut block, FlushCompress::Sync).map_err(io::Error::other)?;
        let mut payload = BytesMut::with_capacity(10 + block.len());
        payload.put_u32(stream);
        payload.put_u32(0);
        payload.put_u16(0);
        payload.put_slice(&block);
        self.control(SYN_STREAM, &payload).await?;
        Ok(stream)
    }

    /// Sends data; `last` closes our half of the stream.
    pub(super) async fn data(&mut self, stream: StreamId, data: &[u8], last: bool) -> io::Result<()> {
        let mut frame = BytesMut::with_capacity(8 + data.len());
        frame.put_u32(stream);
        frame.put_u8(if last { FIN } else { 0 });
        frame.put_uint(data.len() as u64, 3);
        frame.put_slice(data);
        self.to.write_all(&frame).await?;
        self.to.flush().await
    }

    /// Responds to a ping.
    pub(super) async fn pong(&mut self, id: u32) -> io::Result<()> {
        self.control(PING, &id.to_be_bytes()).await
    }

    async fn control(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        let mut frame = BytesMut::with_capacity(8 + payload.len());
        frame.put_u16(VERSION);
        frame.put_u16(kind);
        frame.put_u8(0);
        frame.put_uint(payload.len() as u64, 3);
        frame.put_slice(payload);
        self.to.write_all(&frame).await?;
        self.to.flush().await
    }
}

/// The next frame; `None` when the server has closed the connection.
pub(super) async fn receive(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SpdyFrame>> {
    let mut head = [0; 8];
    match from.read_exact(&mut head).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let mut head = &head[..];
    let first = head.get_u32();
    let flags = head.get_u8();
    let length = usize::try_from(head.get_uint(3)).map_err(io::Error::other)?;
    if length > FRAME_MAX {
        return Err(io::Error::other(format!("a frame of {length} bytes")));
    }
    let mut payload = vec![0; length];
    from.read_exact(&mut payload).await?;
    if first & 0x8000_0000 == 0 {
        return Ok(Some(SpdyFrame::Data { stream: first, data: payload.into(), last: flags & FIN != 0 }));
    }
    let number = |payload: &[u8]| payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    let short = || io::Error::other("a frame is too short");
    Ok(Some(match (first & 0xffff) as u16 {
        RST_STREAM => SpdyFrame::Reset { stream: number(&payload).ok_or_else(short)? },
        PING => SpdyFrame::Ping(number(&payload).ok_or_else(short)?),
        GOAWAY => SpdyFrame::GoAway,
        _ => SpdyFrame::Other,
    }))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[tokio::test]
    async fn sent_frames_follow_the_protocol() {
        let mut wire = Vec::new();
        let mut sender = Sender::new(&mut wire);
        assert_eq!(sender.open("error").await.unwrap(), 1);
        assert_eq!(sender.open("stdin").await.unwrap(), 3);
        sender.data(3, b"hello", true).await.unwrap();
        let (mut headers, mut rest) = (Vec::new(), &wire[..]);
        for stream in [1u32, 3] {
            assert_eq!(rest[..4], [0x80, 3, 0, 1]);
            let length = usize::from(rest[6]) << 8 | usize::from(rest[7]);
            assert_eq!(rest[8..12], stream.to_be_bytes());
            headers.extend_from_slice(&rest[18..8 + length]);
            rest = &rest[8 + length..];
        }
        let mut plain = vec![0; 2 * 27];
        flate2::read::ZlibDecoder::new(&headers[..]).read_exact(&mut plain).unwrap();
        assert!(plain.ends_with(b"\0\0\0\x0astreamtype\0\0\0\x05stdin"), "{plain:?}");
        let frame = receive(&mut rest).await.unwrap();
        assert_eq!(frame, Some(SpdyFrame::Data { stream: 3, data: "hello".into(), last: true }));
        assert_eq!(receive(&mut rest).await.unwrap(), None);
    }

    #[tokio::test]
    async fn invalid_frames_are_errors() {
        assert!(receive(&mut &[0x80, 3, 0, 6, 0, 0xff, 0xff, 0xff][..]).await.is_err(), "too long");
        assert!(receive(&mut &[0x80, 3, 0, 6, 0, 0, 0, 2, 1, 2][..]).await.is_err(), "too short for a ping");
        assert!(receive(&mut &[0, 0, 0, 1, 0, 0, 0, 9, 1][..]).await.is_err(), "cut off");
        assert_eq!(receive(&mut &[0x80, 3, 0, 4, 0, 0, 0, 1, 7][..]).await.unwrap(), Some(SpdyFrame::Other));
    }
}
