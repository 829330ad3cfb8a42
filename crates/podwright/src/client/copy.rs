//! `podwright cp`: files between this host and a container, as kubectl does it: a tar stream through `tar` in the container.
//!
//! ```text
//!  from a container:  exec tar -c ─▶ session ─▶ pipe ─▶ unpack (a thread), confined to the destination
//!  to a container:    pack (a thread) ─▶ pipe ─▶ session ─▶ exec tar -x
//! ```

mod pack;
mod paths;
mod unpack;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

use k8s_openapi::api::core::v1::Pod;
use tokio::io::{AsyncRead, AsyncWrite, sink};
use tokio::net::unix::pipe;

use super::session::{self, CommandExit, LocalStreams, NOT_RUN};
use super::upgrade::upgrade;
use super::{Client, ClientError, containers, encode, find, pod_path};
use crate::cli::{CopyFlags, CopyPath, pod_name};
use paths::{RemotePath, local_target};

/// Copies in the direction of the arguments.
pub(super) async fn copy(flags: &CopyFlags) -> Result<ExitCode, ClientError> {
    match (&flags.source, &flags.destination) {
        (CopyPath::Remote { namespace, pod, path }, CopyPath::Local(to)) => {
            let container = RemoteContainer::find(flags, namespace.as_deref(), pod).await?;
            download(&container, &RemotePath::parse(path), to).await
        }
        (CopyPath::Local(from), CopyPath::Remote { namespace, pod, path }) => {
            // Before anything happens in the container.
            std::fs::metadata(from).map_err(|error| copy_error(format!("read {}: {error}", from.display())))?;
            let container = RemoteContainer::find(flags, namespace.as_deref(), pod).await?;
            upload(&container, from, path).await
        }
        _ => Err(ClientError::Usage(
            "one of both paths must be in a pod, as POD:PATH, and the other on this host".into(),
        )),
    }
}

/// The container at the other end.
struct RemoteContainer {
    client: Client,
    pod: Pod,
    name: String,
}

impl RemoteContainer {
    async fn find(flags: &CopyFlags, namespace: Option<&str>, pod: &str) -> Result<Self, ClientError> {
        let namespace = match (namespace, flags.namespace.as_deref()) {
            (Some(given), Some(flag)) if given != flag => {
                let message = format!("the namespace {given:?} of the path is not that of -n, which is {flag:?}");
                return Err(ClientError::Usage(message));
            }
            (given, flag) => given.or(flag).unwrap_or("default"),
        };
        let client = Client::new(&flags.socket.run_dir);
        let pod = find(&client, namespace, pod_name(pod)?).await?;
        let name = containers::chosen(&pod, flags.container.as_deref());
        Ok(Self { client, pod, name })
    }

    /// Runs a command with these streams.
    async fn exec(
        &self,
        command: &[&str],
        stdin: Option<impl AsyncRead + Unpin>,
        stdout: impl AsyncWrite + Unpin,
        stderr: impl AsyncWrite + Unpin,
    ) -> Result<CommandExit, ClientError> {
        let arguments: String = command.iter().map(|argument| format!("&command={}", encode(argument))).collect();
        let query = format!("stdout=true&stderr=true&stdin={}&container={}", stdin.is_some(), encode(&self.name));
        let path = format!("{}/exec?{query}{arguments}", pod_path(&self.pod));
        let io = upgrade(&self.client, &path, session::PROTOCOL).await?;
        let local = LocalStreams { stdin, stdout, stderr, tty: false, detachable: false };
        session::run(io, local).await.map_err(|error| self.client.failed(error))
    }

    /// The result of `tar`, which has printed its own errors.
    fn check(&self, exit: &CommandExit) -> Result<(), ClientError> {
        let message = exit.message.as_deref().unwrap_or_default();
        let lower = message.to_lowercase();
        let not_found = lower.contains("not found") || lower.contains("no such file");
        match exit.code {
            0 => Ok(()),
            NOT_RUN | 127 if exit.code == 127 || not_found => Err(copy_error(format!(
                "container {:?} has no program `tar`, which cp needs: add it to the image, or copy single files with \
                 `podwright exec`, as in `podwright exec POD -- cat FILE` ({message})",
                self.name
            ))),
            NOT_RUN => Err(copy_error(message.to_owned())),
            code => Err(copy_error(format!("tar in container {:?} failed with exit code {code}", self.name))),
        }
    }
}

async fn download(container: &RemoteContainer, from: &RemotePath, to: &Path) -> Result<ExitCode, ClientError> {
    let target = local_target(from, to)?;
    let (read, write) = blocking_pipe(&container.client)?;
    let write = pipe::Sender::from_owned_fd(write).map_err(|error| container.client.failed(error))?;
    let unpacking = tokio::task::spawn_blocking(move || unpack::unpack(io::PipeReader::from(read), &target));
    let command = ["tar", "-cf", "-", "-C", &from.parent, &from.entry];
    let exit = container.exec(&command, None::<tokio::io::Empty>, write, tokio::io::stderr()).await;
    let unpacked = unpacking.await.map_err(|error| copy_error(error.to_string()))?;
    // If the destination cannot be written, the pipe breaks: that is the cause, not the end of tar.
    match (exit, unpacked) {
        (Ok(exit), unpacked) if exit.code != 0 => {
            container.check(&exit)?;
            unpacked.map(|_| ExitCode::FAILURE).map_err(|error| copy_error(error.to_string()))
        }
        (_, Err(error)) => Err(copy_error(error.to_string())),
        (Err(error), _) => Err(error),
        (Ok(_), Ok(0)) => Err(copy_error(format!("nothing of {} could be copied", from.text))),
        (Ok(_), Ok(_)) => Ok(ExitCode::SUCCESS),
    }
}

async fn upload(container: &RemoteContainer, from: &Path, to: &str) -> Result<ExitCode, ClientError> {
    let is_dir = to.ends_with('/') || {
        let exit = container.exec(&["test", "-d", to], None::<tokio::io::Empty>, sink(), sink()).await?;
        exit.code == 0
    };
    let target = paths::remote_target(from, to, is_dir)?;
    let (read, write) = blocking_pipe(&container.client)?;
    let read = pipe::Receiver::from_owned_fd(read).map_err(|error| container.client.failed(error))?;
    let (source, name) = (from.to_owned(), target.name);
    let packing = tokio::task::spawn_blocking(move || pack::pack(&source, &name, io::PipeWriter::from(write)));
    // The modification times are those of the copy, as with kubectl: only an owner may set others.
    let command = ["tar", "-xmf", "-", "-C", &target.parent];
    let exit = container.exec(&command, Some(read), tokio::io::stdout(), tokio::io::stderr()).await?;
    container.check(&exit)?;
    let packed = packing.await.map_err(|error| copy_error(error.to_string()))?;
    packed.map(|()| ExitCode::SUCCESS).map_err(|error| copy_error(error.to_string()))
}

fn blocking_pipe(client: &Client) -> Result<(OwnedFd, OwnedFd), ClientError> {
    let (read, write) = io::pipe().map_err(|error| client.failed(error))?;
    Ok((read.into(), write.into()))
}

fn copy_error(message: String) -> ClientError {
    ClientError::Refused { code: 500, message }
}
