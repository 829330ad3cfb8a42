//! `podwright exec` and `attach`: a process in a container, connected to our stdin, stdout and stderr.

use std::process::ExitCode;

use k8s_openapi::api::core::v1::Pod;

use super::session::{self, LocalStreams};
use super::upgrade::upgrade;
use super::{Client, ClientError, containers, encode, find, pod_path, terminal};
use crate::cli::{AttachFlags, ExecFlags, pod_name};

/// `podwright exec`: runs the command. Its exit code becomes ours.
pub(super) async fn run(flags: &ExecFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let pod = find(&client, flags.namespace(), pod_name(&flags.pod)?).await?;
    let container = containers::chosen(&pod, flags.container.as_deref());
    let tty = flags.tty && terminal::stdin_is_terminal();
    if flags.tty && !tty {
        eprintln!("podwright: stdin is not a terminal, -t has no effect");
    }
    let command: String = flags.command.iter().map(|argument| format!("&command={}", encode(argument))).collect();
    let path = format!("{}/exec?{}{command}", pod_path(&pod), streams(&container, flags.stdin, tty));
    connect(&client, &path, Connected { stdin: flags.stdin, tty, raw: tty, detachable: false }).await
}

/// `podwright attach`: ends when the process of the container does, or the user detaches.
pub(super) async fn attach(flags: &AttachFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let pod = find(&client, flags.namespace(), pod_name(&flags.pod)?).await?;
    let container = containers::chosen(&pod, flags.container.as_deref());
    // Whether the process has a terminal was decided at its start.
    let (stdin_open, tty) = process_input(&pod, &container);
    if flags.tty && !tty {
        eprintln!("podwright: container {container:?} was started without a terminal, -t has no effect");
    }
    if flags.stdin && !stdin_open {
        eprintln!("podwright: container {container:?} was started without stdin, it reads no input");
    }
    let stdin = flags.stdin && stdin_open;
    let raw = stdin && tty && flags.tty && terminal::stdin_is_terminal();
    if raw {
        eprintln!("If you don't see a command prompt, try pressing enter. Ctrl-P Ctrl-Q detaches.");
    }
    let path = format!("{}/attach?{}", pod_path(&pod), streams(&container, stdin, tty));
    connect(&client, &path, Connected { stdin, tty, raw, detachable: raw }).await
}

/// How our streams are connected.
struct Connected {
    stdin: bool,
    /// The process has a terminal.
    tty: bool,
    /// Our terminal passes every key on.
    raw: bool,
    detachable: bool,
}

async fn connect(client: &Client, path: &str, how: Connected) -> Result<ExitCode, ClientError> {
    let io = upgrade(client, path, session::PROTOCOL).await?;
    let raw = if how.raw { terminal::RawMode::enter().map_err(|error| client.failed(error)).map(Some)? } else { None };
    let local = LocalStreams {
        stdin: how.stdin.then(tokio::io::stdin),
        stdout: tokio::io::stdout(),
        stderr: tokio::io::stderr(),
        tty: how.tty,
        detachable: how.detachable,
    };
    let result = session::run(io, local).await;
    drop(raw);
    let end = result.map_err(|error| client.failed(error))?;
    if let Some(message) = &end.message {
        eprintln!("podwright: {message}");
    }
    Ok(ExitCode::from(end.code))
}

fn streams(container: &str, stdin: bool, tty: bool) -> String {
    format!("stdout=true&stderr={}&stdin={stdin}&tty={tty}&container={}", !tty, encode(container))
}

/// Whether the container was started with an open stdin, and with a terminal.
fn process_input(pod: &Pod, name: &str) -> (bool, bool) {
    let Some(spec) = &pod.spec else { return (false, false) };
    let container =
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|container| container.name == name);
    container
        .map_or((false, false), |container| (container.stdin.unwrap_or_default(), container.tty.unwrap_or_default()))
}
