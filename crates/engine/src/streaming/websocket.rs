//! WebSocket connections: messages that begin with the number of their channel, or a tunnel for SPDY.

use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as WsError, Message, Utf8Bytes};
use tokio_util::sync::CancellationToken;

use super::streams::{Activity, FrameQueue, OutFrame, StreamInput, StreamOutput, deliver_chunk};

/// How messages carry channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChannelCodec {
    /// The channel is a digit, the data is encoded, messages are texts.
    pub(super) base64: bool,
    /// Since v5: a message to channel 255 closes the channel that it names.
    pub(super) close_signal: bool,
}

/// The channels of a connection, by number.
pub(super) struct Channels {
    /// `None`: what the client sends on it is dropped.
    pub(super) inputs: Vec<Option<StreamInput>>,
    pub(super) outputs: Vec<StreamOutput>,
}

/// The server's side of an upgraded connection.
pub(super) async fn accept<T: AsyncRead + AsyncWrite + Unpin>(transport: T) -> WebSocketStream<T> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_MAX))
        .max_frame_size(Some(MESSAGE_MAX))
        .read_buffer_size(BUFFER)
        .write_buffer_size(0);
    WebSocketStream::from_raw_socket(transport, Role::Server, Some(config)).await
}

/// Runs `session` on the channels; `readable` says which of them the client may send on. When it returns, what it has sent is
/// delivered and the connection is closed. When the client disconnects or was idle for too long, the session is dropped.
pub(super) async fn serve_channels<T, S>(
    socket: WebSocketStream<T>,
    codec: ChannelCodec,
    readable: &[bool],
    idle: Duration,
    session: impl FnOnce(Channels) -> S,
) -> Result<(), WsError>
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: Future<Output = ()>,
{
    let (mut to, mut from) = socket.split();
    let (frames, mut queue) = mpsc::channel(QUEUED_FRAMES);
    let (mut senders, mut inputs, mut outputs) = (vec![], vec![], vec![]);
    for (channel, readable) in (0..).zip(readable) {
        let (sender, input) = StreamInput::channel(None);
        senders.push(readable.then_some(sender));
        inputs.push(readable.then_some(input));
        outputs.push(StreamOutput::new(channel, frames.clone(), None));
    }
    let (activity, replies) = (Activity::new(), frames.clone());
    let mut reading = std::pin::pin!(async {
        while let Some(message) = from.next().await {
            activity.note();
            deliver(message?, codec, &mut senders, &replies).await;
        }
        Ok(())
    });
    let mut writing = std::pin::pin!(async {
        while let Some(frame) = queue.recv().await {
            match frame {
                OutFrame::Data { data, last: true, .. } if data.is_empty() => {}
                OutFrame::Data { stream, data, .. } => to.send(codec.message(stream, &data)).await?,
                OutFrame::GoAway => return to.send(normal_closure()).await,
                OutFrame::Heartbeat => {
                    to.send(heartbeat()).await?;
                    continue;
                }
                OutFrame::Reply { .. } | OutFrame::Reset { .. } | OutFrame::Pong(_) => {}
            }
            activity.note();
        }
        Ok(())
    });
    tokio::select! {
        result = &mut reading => return result,
        result = &mut writing => return result,
        () = activity.idle_for(idle) => return Ok(()),
        () = session(Channels { inputs, outputs }) => {}
    }
    let ended = CancellationToken::new();
    let finish = async {
        // Sent while frames are written: the queue may be full. The client answers with a close message; what it sends before
        // is dropped.
        let written = async {
            let result = tokio::join!(writing, frames.send(OutFrame::GoAway)).0;
            ended.cancel();
            result
        };
        let read = async {
            let linger = async {
                ended.cancelled().await;
                tokio::time::sleep(LINGER_TIMEOUT).await;
            };
            tokio::select! { _ = &mut reading => {} () = linger => {} }
        };
        tokio::join!(written, read).0
    };
    timeout(FLUSH_TIMEOUT, finish).await.unwrap_or(Ok(()))
}

/// A message of the client. Unknown channels and data that is not base64 are dropped, as wsstream does.
async fn deliver(
    message: Message,
    codec: ChannelCodec,
    senders: &mut [Option<mpsc::Sender<Bytes>>],
    frames: &FrameQueue,
) {
    // wsstream reads both kinds.
    let bytes: Bytes = match message {
        Message::Binary(bytes) => bytes,
        Message::Text(text) => text.into(),
        _ => return,
    };
    let Some((&first, data)) = bytes.split_first() else { return };
    if codec.close_signal && first == CLOSE_SIGNAL {
        if let Some(sender) = data.first().and_then(|channel| senders.get_mut(usize::from(*channel))) {
            *sender = None;
        }
        return;
    }
    let channel = if codec.base64 { first.wrapping_sub(b'0') } else { first };
    let Some(Some(sender)) = senders.get(usize::from(channel)) else { return };
    let data = match codec.base64 {
        true => BASE64_STANDARD.decode(data).unwrap_or_default().into(),
        false => bytes.slice(1..),
    };
    if !data.is_empty() {
        deliver_chunk(sender, data, frames).await;
    }
}

impl ChannelCodec {
    fn message(self, channel: u32, data: &[u8]) -> Message {
        let channel = u8::try_from(channel).expect("as many as were made");
        if self.base64 {
            return Message::text(format!("{}{}", char::from(b'0' + channel), BASE64_STANDARD.encode(data)));
        }
        let mut message = BytesMut::with_capacity(1 + data.len());
        message.put_u8(channel);
        message.put_slice(data);
        Message::Binary(message.freeze())
    }
}

/// Carries the bytes of another protocol in binary messages, until one side ends.
pub(super) async fn pump_tunnel<T: AsyncRead + AsyncWrite + Unpin>(
    socket: WebSocketStream<T>,
    tunnel: DuplexStream,
) -> Result<(), WsError> {
    let (mut to, mut from) = socket.split();
    let (mut tunnel_out, mut tunnel_in) = tokio::io::split(tunnel);
    let mut inward = std::pin::pin!(async {
        while let Some(message) = from.next().await {
            match message? {
                Message::Binary(bytes) => tunnel_in.write_all(&bytes).await?,
                Message::Close(_) => break,
                _ => {}
            }
        }
        Ok::<_, WsError>(tunnel_in.shutdown().await?)
    });
    let mut outward = std::pin::pin!(async {
        loop {
            let mut chunk = BytesMut::with_capacity(BUFFER);
            if tunnel_out.read_buf(&mut chunk).await? == 0 {
                return to.send(normal_closure()).await;
            }
            to.send(Message::Binary(chunk.freeze())).await?;
        }
    });
    tokio::select! {
        // The other side sees the end and ends too.
        result = &mut inward => { result?; outward.await }
        result = &mut outward => { result?; timeout(LINGER_TIMEOUT, inward).await.unwrap_or(Ok(())) }
    }
}

/// A pong that answers no ping (RFC 6455, 5.5.3).
fn heartbeat() -> Message {
    Message::Pong(Bytes::new())
}

/// Clients take a close message without a status for an error.
fn normal_closure() -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() }))
}

/// A connection that ended is no error worth a log line.
pub(super) fn is_disconnect(error: &WsError) -> bool {
    match error {
        WsError::ConnectionClosed | WsError::AlreadyClosed => true,
        WsError::Io(error) => error.kind() != io::ErrorKind::Other,
        WsError::Protocol(tokio_tungstenite::tungstenite::error::ProtocolError::ResetWithoutClosingHandshake) => true,
        _ => false,
    }
}

/// Clients send 32 KiB at a time.
const MESSAGE_MAX: usize = 1 << 20;
const BUFFER: usize = 32 << 10;
/// Frames of at most 32 KiB that wait for a slow client.
const QUEUED_FRAMES: usize = 8;
/// For the client to read what was sent last.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);
/// For the client to close its half.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// remotecommand: `StreamClose`.
const CLOSE_SIGNAL: u8 = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_a_session_sends_last_reaches_a_slow_client() {
        let (client, server) = tokio::io::duplex(64);
        let session = async |channels: Channels| {
            for _ in 0..20 {
                channels.outputs[0].write(Bytes::from(vec![1; 1000])).await.unwrap();
            }
        };
        let codec = ChannelCodec { base64: false, close_signal: false };
        let idle = Duration::from_secs(3600);
        let served = podwright_tasks::spawn("websocket-test", async move {
            serve_channels(accept(server).await, codec, &[false], idle, session).await
        });
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        let mut data = 0;
        loop {
            match client.next().await.expect("a close message comes last").unwrap() {
                Message::Binary(bytes) => data += bytes.len() - 1,
                Message::Close(close) => break assert_eq!(close.unwrap().code, CloseCode::Normal),
                other => panic!("{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(data, 20_000);
        drop(client);
        let _ = served.await.unwrap();
    }
}
