//! `podwright exec`: runs a command in a container, connected to our stdin, stdout and stderr.

mod spdy;
mod terminal;

use std::io;
use std::process::ExitCode;

use http::{Method, StatusCode, header};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Client, ClientError, encode, find, pod_path};
use crate::cli::ExecFlags;
use spdy::{Sender, SpdyFrame, StreamId};

/// The exit code if the command could not be run, or its exit code is unknown.
const NOT_RUN: u8 = 126;

/// Runs the command. Its exit code becomes ours.
pub(super) async fn run(flags: &ExecFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let pod = find(&client, flags.namespace(), &flags.pod).await?;
    let tty = flags.tty && terminal::stdin_is_terminal();
    if flags.tty && !tty {
        eprintln!("podwright: stdin is not a terminal, -t has no effect");
    }
    let mut query = format!("stdout=true&stderr={}&stdin={}&tty={tty}", !tty, flags.stdin);
    if let Some(container) = &flags.container {
        query.push_str(&format!("&container={}", encode(container)));
    }
    for argument in &flags.command {
        query.push_str(&format!("&command={}", encode(argument)));
    }
    let path = format!("{}/exec?{query}", pod_path(&pod));
    let mut response = client
        .request(Method::POST, &path, None, |request| {
            request
                .header(header::CONNECTION, "Upgrade")
                .header(header::UPGRADE, "SPDY/3.1")
                .header("x-stream-protocol-version", "v4.channel.k8s.io")
        })
        .await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let status = response.status();
        let body = response.body_mut().collect().await.map_err(|error| client.failed(error))?.to_bytes();
        return Err(ClientError::from_response(status, &body));
    }
    let upgraded = hyper::upgrade::on(response).await.map_err(|error| client.failed(error))?;
    let raw = if tty { terminal::RawMode::enter().map_err(|error| client.failed(error)).map(Some)? } else { None };
    let result = session(TokioIo::new(upgraded), flags.stdin, tty).await;
    drop(raw);
    let end = result.map_err(|error| client.failed(error))?;
    if let Some(message) = &end.message {
        eprintln!("podwright: {message}");
    }
    Ok(ExitCode::from(end.code))
}

/// The exit of the command.
#[derive(Debug, PartialEq)]
struct CommandExit {
    code: u8,
    /// For stderr.
    message: Option<String>,
}

/// The SPDY streams of a session.
struct Streams {
    error: StreamId,
    stdin: Option<StreamId>,
    stdout: StreamId,
    stderr: Option<StreamId>,
    resize: Option<StreamId>,
}

/// Copies bytes in both directions until the server closes the connection after the command's exit.
async fn session(io: impl AsyncRead + AsyncWrite, stdin: bool, tty: bool) -> io::Result<CommandExit> {
    let (mut from, to) = tokio::io::split(io);
    let mut to = Sender::new(to);
    let streams = open(&mut to, stdin, tty).await?;
    let (mut input, mut keys) = (tokio::io::stdin(), vec![0; spdy::CHUNK]);
    let (mut out, mut err) = (tokio::io::stdout(), tokio::io::stderr());
    let mut resizes = terminal::resizes()?;
    let (mut error, mut open_input) = (Vec::new(), streams.stdin);
    if let (Some(stream), Some(size)) = (streams.resize, terminal::size()) {
        to.data(stream, size.as_bytes(), false).await?;
    }
    // Reading a frame is not cancel-safe, so a future of its own reads them, not a branch of the select below.
    let (frames, mut received) = tokio::sync::mpsc::channel(16);
    let reader = async move {
        loop {
            let frame = spdy::receive(&mut from).await;
            let end = !matches!(frame, Ok(Some(_)));
            if frames.send(frame).await.is_err() || end {
                return;
            }
        }
    };
    tokio::pin!(reader);
    let mut reading = true;
    loop {
        tokio::select! {
            () = &mut reader, if reading => reading = false,
            frame = received.recv() => match frame.transpose()?.flatten() {
                Some(SpdyFrame::Data { stream, data, .. }) if stream == streams.error => error.extend_from_slice(&data),
                Some(SpdyFrame::Data { stream, data, .. }) if stream == streams.stdout => {
                    out.write_all(&data).await?;
                    out.flush().await?;
                }
                Some(SpdyFrame::Data { stream, data, .. }) if Some(stream) == streams.stderr => {
                    err.write_all(&data).await?;
                    err.flush().await?;
                }
                Some(SpdyFrame::Ping(id)) => to.pong(id).await?,
                Some(SpdyFrame::Reset { stream }) if Some(stream) == streams.stdin => open_input = None,
                Some(SpdyFrame::Data { .. } | SpdyFrame::Reset { .. } | SpdyFrame::Other) => {}
                Some(SpdyFrame::GoAway) | None => return Ok(command_exit(&error)),
            },
            read = input.read(&mut keys), if open_input.is_some() => {
                let read = read?;
                if let Some(stream) = open_input {
                    to.data(stream, &keys[..read], read == 0).await?;
                }
                if read == 0 {
                    open_input = None;
                }
            }
            Some(()) = resizes.recv(), if streams.resize.is_some() => {
                if let (Some(stream), Some(size)) = (streams.resize, terminal::size()) {
                    to.data(stream, size.as_bytes(), false).await?;
                }
            }
        }
    }
}

async fn open<W: AsyncWrite + Unpin>(to: &mut Sender<W>, stdin: bool, tty: bool) -> io::Result<Streams> {
    let error = to.open("error").await?;
    let stdin = if stdin { Some(to.open("stdin").await?) } else { None };
    let stdout = to.open("stdout").await?;
    let stderr = if tty { None } else { Some(to.open("stderr").await?) };
    let resize = if tty { Some(to.open("resize").await?) } else { None };
    Ok(Streams { error, stdin, stdout, stderr, resize })
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
