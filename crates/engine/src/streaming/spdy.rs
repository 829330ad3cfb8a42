//! SPDY/3.1, as far as remote commands and port-forwards need it. There is no flow control, as in moby/spdystream.
//!
//! Clients are not trusted: control frames, decompressed headers, and the number of streams have bounds; data frames of any
//! length are delivered in chunks.

mod connection;
mod dictionary;

use std::collections::BTreeMap;
use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::streams::OutFrame;
use dictionary::HEADER_DICTIONARY;

pub(super) use connection::serve_spdy;

/// A frame of the client.
#[derive(Debug, PartialEq)]
enum InFrame {
    /// `last`: the client sends nothing on it.
    Open {
        stream: u32,
        headers: BTreeMap<String, String>,
        last: bool,
    },
    /// A part of a data frame.
    Data {
        stream: u32,
        data: Bytes,
        last: bool,
    },
    Reset {
        stream: u32,
    },
    Ping(u32),
    GoAway,
    /// Settings, window updates and the like.
    Ignored,
}

/// Why the connection is closed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpdyError {
    #[error("read from the client")]
    Read(#[source] io::Error),
    #[error("write to the client")]
    Write(#[source] io::Error),
    #[error("a control frame of {0} bytes; at most {CONTROL_FRAME_MAX} are accepted")]
    TooLong(usize),
    #[error("a control frame is too short")]
    TooShort,
    #[error("SPDY version {0} instead of 3")]
    Version(u16),
    #[error("decompress the headers of stream {stream}")]
    Compression {
        stream: u32,
        #[source]
        source: flate2::DecompressError,
    },
    #[error("invalid headers of stream {0}")]
    Headers(u32),
    #[error("stream id {0} is even, zero, or not higher than the last one")]
    StreamId(u32),
}

/// Reads frames.
struct FrameReader<R> {
    from: R,
    headers: HeaderDecoder,
    /// The data frame under way: stream, bytes left, whether it is the last.
    data: Option<(u32, usize, bool)>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    fn new(from: R) -> Self {
        Self { from, headers: HeaderDecoder(Decompress::new(true)), data: None }
    }

    /// The next frame or part of one; `None` when the client has closed the connection.
    async fn next(&mut self) -> Result<Option<InFrame>, SpdyError> {
        if self.data.is_some() {
            return self.data_chunk().await.map(Some);
        }
        let mut head = [0; 8];
        match self.from.read_exact(&mut head).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read.map_err(SpdyError::Read)?,
        };
        let mut head = &head[..];
        let first = head.get_u32();
        let last = head.get_u8() & FLAG_FIN != 0;
        let length = usize::try_from(head.get_uint(3)).expect("24 bits");
        if first & CONTROL_BIT == 0 {
            self.data = Some((first, length, last));
            return self.data_chunk().await.map(Some);
        }
        let version = (first >> 16 & 0x7fff) as u16;
        if version != VERSION {
            return Err(SpdyError::Version(version));
        }
        if length > CONTROL_FRAME_MAX {
            return Err(SpdyError::TooLong(length));
        }
        let mut payload = vec![0; length];
        self.from.read_exact(&mut payload).await.map_err(SpdyError::Read)?;
        self.control((first & 0xffff) as u16, last, &payload).map(Some)
    }

    /// The next part of the data frame under way. A frame without data has one empty part.
    async fn data_chunk(&mut self) -> Result<InFrame, SpdyError> {
        let (stream, left, last) = self.data.take().expect("checked by the caller");
        let mut data = BytesMut::with_capacity(left.min(DATA_CHUNK));
        let mut limited = (&mut self.from).take(data.capacity() as u64);
        if left > 0 && limited.read_buf(&mut data).await.map_err(SpdyError::Read)? == 0 {
            return Err(SpdyError::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        let left = left - data.len();
        if left > 0 {
            self.data = Some((stream, left, last));
        }
        Ok(InFrame::Data { stream, data: data.freeze(), last: last && left == 0 })
    }

    fn control(&mut self, kind: u16, last: bool, payload: &[u8]) -> Result<InFrame, SpdyError> {
        let number = || payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)).ok_or(SpdyError::TooShort);
        Ok(match kind {
            SYN_STREAM => {
                let stream = number()? & !CONTROL_BIT;
                let block = payload.get(10..).ok_or(SpdyError::TooShort)?;
                InFrame::Open { stream, headers: self.headers.decode(stream, block)?, last }
            }
            // They take part in the compression, so that they must be read.
            SYN_REPLY | HEADERS => {
                self.headers.decode(number()?, payload.get(4..).ok_or(SpdyError::TooShort)?)?;
                InFrame::Ignored
            }
            RST_STREAM => InFrame::Reset { stream: number()? },
            PING => InFrame::Ping(number()?),
            GOAWAY => InFrame::GoAway,
            _ => InFrame::Ignored,
        })
    }
}

/// Headers are compressed in one zlib stream per connection.
struct HeaderDecoder(Decompress);

impl HeaderDecoder {
    fn decode(&mut self, stream: u32, block: &[u8]) -> Result<BTreeMap<String, String>, SpdyError> {
        let plain = self.decompress(stream, block)?;
        parse_headers(&plain).ok_or(SpdyError::Headers(stream))
    }

    fn decompress(&mut self, stream: u32, mut block: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let failed = |source| SpdyError::Compression { stream, source };
        // One byte more than allowed, to notice what is too long.
        let mut plain = Vec::with_capacity(HEADERS_MAX + 1);
        loop {
            let (read, written) = (self.0.total_in(), plain.len());
            let status = match self.0.decompress_vec(block, &mut plain, FlushDecompress::Sync) {
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0.set_dictionary(HEADER_DICTIONARY).map_err(failed)?;
                    Status::Ok
                }
                status => status.map_err(failed)?,
            };
            if plain.len() > HEADERS_MAX {
                return Err(SpdyError::Headers(stream));
            }
            let read = usize::try_from(self.0.total_in() - read).map_err(|_| SpdyError::Headers(stream))?;
            block = &block[read..];
            if status == Status::StreamEnd || (read == 0 && plain.len() == written) {
                return Ok(plain);
            }
        }
    }
}

/// A number of pairs, each with the lengths of its parts. `None`: malformed.
fn parse_headers(mut plain: &[u8]) -> Option<BTreeMap<String, String>> {
    let count = plain.try_get_u32().ok()?;
    let mut headers = BTreeMap::new();
    for _ in 0..count {
        let name = take_text(&mut plain)?;
        let value = take_text(&mut plain)?;
        if headers.insert(name.to_ascii_lowercase(), value).is_some() {
            return None;
        }
    }
    Some(headers)
}

fn take_text(plain: &mut &[u8]) -> Option<String> {
    let length = usize::try_from(plain.try_get_u32().ok()?).ok()?;
    let (text, rest) = plain.split_at_checked(length)?;
    *plain = rest;
    String::from_utf8(text.to_vec()).ok()
}

/// Writes frames.
struct FrameWriter<W> {
    to: W,
    headers: Compress,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    fn new(to: W) -> Self {
        Self { to, headers: Compress::new(Compression::fast(), true) }
    }

    async fn write(&mut self, frame: OutFrame) -> Result<(), SpdyError> {
        match frame {
            OutFrame::Data { stream, data, last } => {
                let mut head = BytesMut::with_capacity(8);
                head.put_u32(stream);
                head.put_u8(if last { FLAG_FIN } else { 0 });
                head.put_uint(data.len() as u64, 3);
                self.send(&mut head.chain(data)).await
            }
            OutFrame::Reply { stream } => {
                let mut payload = stream.to_be_bytes().to_vec();
                payload.extend(self.no_headers());
                self.control(SYN_REPLY, &payload).await
            }
            OutFrame::Reset { stream, status } => {
                self.control(RST_STREAM, &[stream.to_be_bytes(), status.to_be_bytes()].concat()).await
            }
            OutFrame::Pong(id) => self.control(PING, &id.to_be_bytes()).await,
            // The answer to a ping that the client has not sent, which it must ignore. It could not answer a ping: while its data is not
            // read, Go's clients would wait with the answer and read nothing.
            OutFrame::Heartbeat => self.control(PING, &HEARTBEAT_ID.to_be_bytes()).await,
            // No last stream id: the client ends its streams. Status OK.
            OutFrame::GoAway => self.control(GOAWAY, &[0; 8]).await,
        }
    }

    /// The header block of a reply: no headers.
    fn no_headers(&mut self) -> Vec<u8> {
        let mut block = Vec::with_capacity(64);
        let compressed = self.headers.compress_vec(&0u32.to_be_bytes(), &mut block, FlushCompress::Sync);
        compressed.expect("a deflate stream that was not finished takes input");
        block
    }

    async fn control(&mut self, kind: u16, payload: &[u8]) -> Result<(), SpdyError> {
        let mut head = BytesMut::with_capacity(8);
        head.put_u16(0x8000 | VERSION);
        head.put_u16(kind);
        head.put_u8(0);
        head.put_uint(payload.len() as u64, 3);
        self.send(&mut head.chain(payload)).await
    }

    async fn send(&mut self, bytes: &mut (impl Buf + Send)) -> Result<(), SpdyError> {
        self.to.write_all_buf(bytes).await.map_err(SpdyError::Write)
    }

    /// Everything was sent; the client gets EOF.
    async fn shutdown(&mut self) -> Result<(), SpdyError> {
        self.to.shutdown().await.map_err(SpdyError::Write)
    }
}

const VERSION: u16 = 3;
const CONTROL_BIT: u32 = 1 << 31;
const FLAG_FIN: u8 = 1;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
/// Odd, as those of clients, which count from 1.
const HEARTBEAT_ID: u32 = u32::MAX;
/// Clients send a few headers; spdystream has no bound but the 24 bits of the length.
const CONTROL_FRAME_MAX: usize = 64 << 10;
/// Decompressed headers of one frame.
const HEADERS_MAX: usize = 16 << 10;
/// Data is delivered in parts of at most this size.
const DATA_CHUNK: usize = 32 << 10;

#[cfg(test)]
mod tests;
