//! Exec and attach: the streams of a client and those of a process.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use podwright_cri::{Code, CriError};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::process_io::{apply_sizes, copy_input, copy_output};
use super::streams::{OpenedStream, StreamInput, StreamOutput};
use super::token::StreamRequest;
use super::websocket::Channels;
use super::{ExecProcess, ProcessStreams, StreamTarget};

/// The streams that the request of the CRI has asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedStreams {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

/// The versions of the remote command protocol, from the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CommandProtocol {
    /// `channel.k8s.io` and `v2.channel.k8s.io`: errors as text.
    V2,
    /// Window sizes.
    V3,
    /// Exit codes, in a status object.
    V4,
    /// WebSocket only: the client can close stdin.
    V5,
}

/// The client's ends. `error` carries the result.
pub(super) struct ClientStreams {
    stdin: Option<StreamInput>,
    stdout: Option<StreamOutput>,
    stderr: Option<StreamOutput>,
    resize: Option<StreamInput>,
    error: StreamOutput,
    protocol: CommandProtocol,
}

impl ClientStreams {
    /// Waits until the SPDY client has opened all streams. `None`: it has not in time.
    pub(super) async fn of_spdy(
        opened: &mut mpsc::Receiver<OpenedStream>,
        requested: RequestedStreams,
        protocol: CommandProtocol,
    ) -> Option<Self> {
        let RequestedStreams { stdin, stdout, stderr, tty } = requested;
        let resize = tty && protocol >= CommandProtocol::V3;
        let mut missing = vec!["error"];
        let wanted = [(stdin, "stdin"), (stdout, "stdout"), (stderr, "stderr"), (resize, "resize")];
        missing.extend(wanted.iter().filter(|(wanted, _)| *wanted).map(|(_, name)| *name));
        let (mut stdin, mut stdout, mut stderr, mut resize, mut error) = (None, None, None, None, None);
        let collect = async {
            while !missing.is_empty() {
                let stream = opened.recv().await?;
                let kind = stream.headers.get("streamtype").map_or("", String::as_str);
                let Some(index) = missing.iter().position(|name| *name == kind) else {
                    tracing::debug!(stream = kind, "unexpected stream of a client");
                    let _ = stream.output.reset().await;
                    continue;
                };
                match missing.swap_remove(index) {
                    "stdin" => stdin = Some(stream.input),
                    "stdout" => stdout = Some(stream.output),
                    "stderr" => stderr = Some(stream.output),
                    "resize" => resize = Some(stream.input),
                    _ => error = Some(stream.output),
                }
            }
            Some(())
        };
        timeout(STREAM_CREATION_TIMEOUT, collect).await.ok()??;
        Some(Self { stdin, stdout, stderr, resize, error: error?, protocol })
    }

    /// The five channels of a WebSocket client. The first message shows it that the connection works.
    pub(super) async fn of_channels(
        channels: Channels,
        requested: RequestedStreams,
        protocol: CommandProtocol,
    ) -> Self {
        let mut inputs = channels.inputs.into_iter();
        let mut outputs = channels.outputs.into_iter();
        let (stdin, resize) = (inputs.next().flatten(), inputs.nth(3).flatten());
        let mut output = |wanted: bool| outputs.next().filter(|_| wanted);
        let _stdin = output(false);
        let (stdout, stderr) = (output(requested.stdout), output(requested.stderr));
        let error = output(true).expect("the error channel was made");
        let _ = stdout.as_ref().or(stderr.as_ref()).unwrap_or(&error).write(Bytes::new()).await;
        Self { stdin, stdout, stderr, resize, error, protocol }
    }
}

/// Which of the five channels the client may send on: stdin, stdout, stderr, error, resize.
pub(super) fn readable_channels(requested: RequestedStreams) -> [bool; 5] {
    [requested.stdin, false, false, false, requested.tty]
}

/// Runs the request and sends its result.
pub(super) async fn run_command(target: &dyn StreamTarget, request: StreamRequest, client: ClientStreams) {
    let ClientStreams { stdin, stdout, stderr, resize, error, protocol } = client;
    let client = (stdin, stdout, stderr, resize);
    let outcome = match request {
        StreamRequest::Exec(request) => {
            let command = limited("Exec", target.exec(request)).await;
            match command {
                Ok(process) => run_exec(process, client).await,
                Err(error) => Outcome::Failed(format!("error executing command in container: {}", error.message)),
            }
        }
        StreamRequest::Attach(request) => match limited("Attach", target.attach(request)).await {
            Ok(streams) => run_attach(streams, client).await,
            Err(error) => Outcome::Failed(format!("error attaching to container: {}", error.message)),
        },
        StreamRequest::PortForward(_) => Outcome::Failed("not a remote command".into()),
    };
    if let Some(message) = outcome.message(protocol) {
        let _ = error.write(message.into()).await;
    }
    let _ = error.finish().await;
}

type ClientParts = (Option<StreamInput>, Option<StreamOutput>, Option<StreamOutput>, Option<StreamInput>);

async fn run_exec(process: ExecProcess, client: ClientParts) -> Outcome {
    let ExecProcess { streams, exit } = process;
    let exited = CancellationToken::new();
    let wait = async {
        let exit = exit.await;
        exited.cancel();
        exit
    };
    let failed =
        |error: &dyn std::fmt::Display| Outcome::Failed(format!("error executing command in container: {error}"));
    match copy_streams(streams, client, exited.clone(), wait).await {
        Ok(Ok(code)) => Outcome::Exited(code),
        Ok(Err(error)) => failed(&error.message),
        Err(error) => failed(&error),
    }
}

/// Lasts until the container closes its outputs; without outputs, until the client closes stdin.
async fn run_attach(streams: ProcessStreams, client: ClientParts) -> Outcome {
    if client.1.is_none() && client.2.is_none() {
        let ProcessStreams { stdin, terminal, .. } = streams;
        let copied = tokio::select! {
            copied = copy_input(client.0, stdin) => copied,
            () = async { apply_sizes(client.3, terminal).await; std::future::pending().await } => Ok(()),
        };
        return Outcome::of_copy(copied, "error attaching to container");
    }
    let never = CancellationToken::new();
    let copied = copy_streams(streams, client, never, std::future::ready(())).await;
    Outcome::of_copy(copied, "error attaching to container")
}

/// Copies until the outputs have ended and `done` returns.
async fn copy_streams<T>(
    streams: ProcessStreams,
    client: ClientParts,
    exited: CancellationToken,
    done: impl Future<Output = T>,
) -> io::Result<T> {
    let ProcessStreams { stdin, stdout, stderr, terminal } = streams;
    let (client_stdin, client_stdout, client_stderr, client_sizes) = client;
    let stdout = copy_output(stdout, client_stdout, exited.clone());
    let stderr = copy_output(stderr, client_stderr, exited);
    let outputs = async { tokio::try_join!(stdout, stderr, async { Ok(done.await) }).map(|(_, _, done)| done) };
    let inputs = async {
        match tokio::join!(copy_input(client_stdin, stdin), apply_sizes(client_sizes, terminal)).0 {
            Err(error) => Err(error),
            Ok(()) => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = outputs => ended,
        failed = inputs => failed,
    }
}

async fn limited<T>(call: &'static str, work: impl Future<Output = Result<T, CriError>>) -> Result<T, CriError> {
    let late = |_| Err(CriError::new(Code::DeadlineExceeded, call, "the process did not start in time"));
    timeout(START_TIMEOUT, work).await.unwrap_or_else(late)
}

/// How a session ended.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// The exit code.
    Exited(i32),
    Failed(String),
}

impl Outcome {
    fn of_copy(copied: io::Result<()>, what: &str) -> Self {
        match copied {
            Ok(()) => Self::Exited(0),
            Err(error) => Self::Failed(format!("{what}: {error}")),
        }
    }

    /// For the error stream. Since v4 it is a `metav1.Status`, before it is a text, and nothing on success.
    fn message(&self, protocol: CommandProtocol) -> Option<String> {
        let text = match self {
            Self::Exited(0) if protocol < CommandProtocol::V4 => return None,
            Self::Exited(0) => return Some(json!({ "metadata": {}, "status": "Success" }).to_string()),
            Self::Exited(code) => format!("command terminated with non-zero exit code: exit status {code}"),
            Self::Failed(message) => format!("Internal error occurred: {message}"),
        };
        if protocol < CommandProtocol::V4 {
            return Some(text);
        }
        let status = match self {
            Self::Exited(code) => json!({
                "metadata": {}, "status": "Failure", "message": text, "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
            Self::Failed(_) => {
                json!({ "metadata": {}, "status": "Failure", "message": text, "reason": "InternalError", "code": 500 })
            }
        };
        Some(status.to_string())
    }
}

/// cri-streaming: `DefaultStreamCreationTimeout`.
const STREAM_CREATION_TIMEOUT: Duration = Duration::from_secs(30);
/// As long as a launch may take.
const START_TIMEOUT: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_follows_the_protocol_of_the_client() {
        assert_eq!(Outcome::Exited(0).message(CommandProtocol::V3), None);
        let success = Outcome::Exited(0).message(CommandProtocol::V4).unwrap();
        assert_eq!(success, r#"{"metadata":{},"status":"Success"}"#);
        let text = Outcome::Exited(3).message(CommandProtocol::V2).unwrap();
        assert_eq!(text, "command terminated with non-zero exit code: exit status 3");
        let status: serde_json::Value =
            serde_json::from_str(&Outcome::Exited(3).message(CommandProtocol::V5).unwrap()).unwrap();
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(status["details"]["causes"][0], json!({ "reason": "ExitCode", "message": "3" }));
        let failed: serde_json::Value =
            serde_json::from_str(&Outcome::Failed("no".into()).message(CommandProtocol::V4).unwrap()).unwrap();
        assert_eq!((failed["reason"].as_str(), failed["code"].as_i64()), (Some("InternalError"), Some(500)));
    }
}
