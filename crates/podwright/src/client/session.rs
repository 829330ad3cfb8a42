//! A session with a process in a container: its standard streams, its terminal and its exit. Used by `exec`, `attach` and `cp`.
//!
//! Sending and receiving do not wait for each other: a process that writes before it reads on would otherwise block both ends.

use std::io;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::detach_keys::DetachKeys;
use super::spdy::{self, Sender, SpdyFrame, StreamId};
use super::terminal;

/// The protocol of the streams of a remote command.
pub(super) const PROTOCOL: &str = "v4.channel.k8s.io";
/// The exit code if the command could not be run, or its exit code is unknown.
pub(super) const NOT_RUN: u8 = 126;
/// Pings of the server that are not answered yet.
const PONGS_MAX: usize = 16;

/// The local ends of a session.
pub(super) struct LocalStreams<I, O, E> {
    /// `None`: the process gets no input.
    pub(super) stdin: Option<I>,
    pub(super) stdout: O,
    /// Not used with a terminal.
    pub(super) stderr: E,
    /// The process has a terminal: changes of the size of ours are sent to it.
    pub(super) tty: bool,
    /// Ctrl-P Ctrl-Q in stdin ends the session.
    pub(super) detachable: bool,
}

/// The exit of the command.
#[derive(Debug, PartialEq)]
pub(super) struct CommandExit {
    pub(super) code: u8,
    /// For stderr.
    pub(super) message: Option<String>,
}

/// The SPDY streams of a session.
struct RemoteStreams {
    error: StreamId,
    stdin: Option<StreamId>,
    stdout: StreamId,
    stderr: Option<StreamId>,
    resize: Option<StreamId>,
}

/// The user has detached.
struct Detached;

/// Copies bytes in both directions until the server closes the connection after the command's exit, or the user detaches.
pub(super) async fn run<I, O, E>(
    io: impl AsyncRead + AsyncWrite,
    local: LocalStreams<I, O, E>,
) -> io::Result<CommandExit>
where
    I: AsyncRead + Unpin,
    O: AsyncWrite + Unpin,
    E: AsyncWrite + Unpin,
{
    let LocalStreams { stdin, stdout, stderr, tty, detachable } = local;
    let (from, to) = tokio::io::split(io);
    let mut to = Sender::new(to);
    let streams = open(&mut to, stdin.is_some(), tty).await?;
    let (pongs, pings) = mpsc::channel(PONGS_MAX);
    let stdin_closed = CancellationToken::new();
    let receiving = receive(from, &streams, (stdout, stderr), pongs, &stdin_closed);
    let keys = detachable.then(DetachKeys::default);
    let sending = send(to, &streams, (stdin, keys), pings, &stdin_closed);
    tokio::pin!(receiving);
    tokio::select! {
        exit = &mut receiving => exit,
        sent = sending => match sent {
            Ok(Detached) => Ok(CommandExit { code: 0, message: None }),
            // The server does not read any more, so the command has exited: what it wrote is still to come.
            Err(_) => receiving.await,
        },
    }
}

async fn open<W: AsyncWrite + Unpin>(to: &mut Sender<W>, stdin: bool, tty: bool) -> io::Result<RemoteStreams> {
    let error = to.open("error").await?;
    let stdin = if stdin { Some(to.open("stdin").await?) } else { None };
    let stdout = to.open("stdout").await?;
    let stderr = if tty { None } else { Some(to.open("stderr").await?) };
    let resize = if tty { Some(to.open("resize").await?) } else { None };
    Ok(RemoteStreams { error, stdin, stdout, stderr, resize })
}

/// Writes the output of the process until the server closes the connection.
async fn receive(
    mut from: impl AsyncRead + Unpin,
    streams: &RemoteStreams,
    (mut out, mut err): (impl AsyncWrite + Unpin, impl AsyncWrite + Unpin),
    pongs: mpsc::Sender<u32>,
    stdin_closed: &CancellationToken,
) -> io::Result<CommandExit> {
    let mut error = Vec::new();
    loop {
        match spdy::receive(&mut from).await? {
            Some(SpdyFrame::Data { stream, data, .. }) if stream == streams.error => {
                let room = ERROR_MAX.saturating_sub(error.len());
                error.extend_from_slice(&data[..data.len().min(room)]);
            }
            Some(SpdyFrame::Data { stream, data, .. }) if stream == streams.stdout => {
                // As of a shell's `| head`: the reader is gone, which is no error of the agent.
                if !is_written(&mut out, &data).await? {
                    return Ok(CommandExit { code: 0, message: None });
                }
            }
            Some(SpdyFrame::Data { stream, data, .. }) if Some(stream) == streams.stderr => {
                is_written(&mut err, &data).await?;
            }
            // A server that sends more pings than it waits for gets no answer to some.
            Some(SpdyFrame::Ping(id)) => _ = pongs.try_send(id),
            Some(SpdyFrame::Reset { stream }) if Some(stream) == streams.stdin => stdin_closed.cancel(),
            Some(SpdyFrame::Data { .. } | SpdyFrame::Reset { .. } | SpdyFrame::Other) => {}
            Some(SpdyFrame::GoAway) | None => {
                out.shutdown().await?;
                return Ok(command_exit(&error));
            }
        }
    }
}

/// False: the other end of the pipe is closed.
async fn is_written(to: &mut (impl AsyncWrite + Unpin), data: &[u8]) -> io::Result<bool> {
    let written = match to.write_all(data).await {
        Ok(()) => to.flush().await,
        failed => failed,
    };
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// Sends input and sizes of the terminal. Returns when the user detaches.
async fn send<W: AsyncWrite + Unpin>(
    mut to: Sender<W>,
    streams: &RemoteStreams,
    (mut input, mut keys): (Option<impl AsyncRead + Unpin>, Option<DetachKeys>),
    mut pings: mpsc::Receiver<u32>,
    stdin_closed: &CancellationToken,
) -> io::Result<Detached> {
    let (mut resizes, mut chunk) = (terminal::resizes()?, vec![0; spdy::CHUNK]);
    if let (Some(stream), Some(size)) = (streams.resize, terminal::size()) {
        to.data(stream, size.as_bytes(), false).await?;
    }
    loop {
        tokio::select! {
            Some(id) = pings.recv() => to.pong(id).await?,
            read = next_chunk(&mut input, &mut chunk) => {
                let Some(stream) = streams.stdin else { continue };
                let read = read?;
                let detached = keys.as_mut().is_some_and(|keys| keys.pressed(&chunk[..read]));
                if detached {
                    return Ok(Detached);
                }
                to.data(stream, &chunk[..read], read == 0).await?;
                if read == 0 {
                    input = None;
                }
            }
            () = stdin_closed.cancelled(), if input.is_some() => input = None,
            Some(()) = resizes.recv(), if streams.resize.is_some() => {
                if let (Some(stream), Some(size)) = (streams.resize, terminal::size()) {
                    to.data(stream, size.as_bytes(), false).await?;
                }
            }
        }
    }
}

/// Never returns without an input.
async fn next_chunk(input: &mut Option<impl AsyncRead + Unpin>, chunk: &mut [u8]) -> io::Result<usize> {
    match input {
        Some(input) => input.read(chunk).await,
        None => std::future::pending().await,
    }
}

/// Decodes the error stream: a Status with the exit code, or nothing.
fn command_exit(error: &[u8]) -> CommandExit {
    let Ok(status) = serde_json::from_slice::<Status>(error) else {
        let message =
            if error.is_empty() { "the connection was closed before the command exited".into() } else { lossy(error) };
        return CommandExit { code: NOT_RUN, message: Some(message) };
    };
    if status.status.as_deref() == Some("Success") {
        return CommandExit { code: 0, message: None };
    }
    let causes = status.details.iter().flat_map(|details| details.causes.iter().flatten());
    let code = causes.filter(|cause| cause.reason.as_deref() == Some("ExitCode")).find_map(|c| c.message.clone());
    match code.and_then(|code| code.parse().ok()) {
        Some(code) => CommandExit { code, message: Some(format!("command terminated with exit code {code}")) },
        None => CommandExit { code: NOT_RUN, message: Some(status.message.unwrap_or_else(|| lossy(error))) },
    }
}

fn lossy(text: &[u8]) -> String {
    crate::print::plain(&String::from_utf8_lossy(text))
}

/// Bytes of the error stream.
const ERROR_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_stream_becomes_exit_code_and_message() {
        assert_eq!(command_exit(br#"{"status":"Success"}"#), CommandExit { code: 0, message: None });
        let failed =
            br#"{"status":"Failure","message":"x","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        assert_eq!(command_exit(failed).code, 7);
        let broken = br#"{"status":"Failure","message":"no such file"}"#;
        assert_eq!(command_exit(broken), CommandExit { code: NOT_RUN, message: Some("no such file".into()) });
        assert!(command_exit(b"").message.is_some_and(|message| message.contains("before the command exited")));
    }
}
