//! ExecSync: runs a command and returns the beginning of its output (see the module `exec_output`).

use std::os::fd::OwnedFd;
use std::time::Duration;

use podwright_cri::{Code, CriError, v1};
use podwright_shim::client::Descriptors;
use podwright_shim::protocol::{DescriptorKind, StdioPlan};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::exec_plan::{ExecAsked, ExecRunning, start};
use super::{VerbContext, invalid};
use crate::exec_output::ExecOutput;

pub(crate) async fn exec_sync(
    calls: VerbContext<'_>,
    request: v1::ExecSyncRequest,
) -> Result<v1::ExecSyncResponse, CriError> {
    let seconds = u64::try_from(request.timeout).map_err(|_| invalid(CALL, "the timeout is negative"))?;
    let asked = ExecAsked {
        call: CALL,
        container: request.container_id,
        command: request.cmd,
        stdio: StdioPlan::default(),
        deadline: (seconds > 0).then(|| Duration::from_secs(seconds)),
        sync: true,
    };
    let ExecRunning { sandbox, descriptors, ended } = start(calls, asked).await?;
    let (stdout, stderr) = pipes(descriptors)?;
    let output = || calls.context.exec_output.output(&sandbox.0);
    let (drain, drained) = tokio::sync::watch::channel(false);
    let outputs = async { tokio::join!(read(stdout, output(), drained.clone()), read(stderr, output(), drained)) };
    tokio::pin!(outputs);
    let mut complete = None;
    let exited = tokio::select! {
        // Both streams may end before the process.
        exited = async { complete = Some((&mut outputs).await); std::future::pending().await } => exited,
        exited = ended => exited,
    };
    let (stdout, stderr) = match complete {
        Some(outputs) => outputs,
        // What a process that stays behind holds open does not delay the answer for longer than the drain.
        None => {
            let end = async {
                tokio::time::sleep(DRAIN).await;
                drain.send_replace(true);
                std::future::pending::<()>().await;
            };
            tokio::select! {
                outputs = &mut outputs => outputs,
                () = end => unreachable!("never ends"),
            }
        }
    };
    let exited = exited.map_err(|_| CriError::new(Code::Unavailable, CALL, "the shim was lost"))?;
    if exited.deadline_exceeded {
        let message = format!("command timed out: timeout {seconds}s exceeded");
        return Err(CriError::new(Code::DeadlineExceeded, CALL, message));
    }
    let code = exited.report.map_or(255, |report| report.code);
    Ok(v1::ExecSyncResponse {
        stdout: stdout.into_bytes(),
        stderr: stderr.into_bytes(),
        exit_code: i32::try_from(code).unwrap_or(255),
    })
}

fn pipes(descriptors: Descriptors) -> Result<(OwnedFd, OwnedFd), CriError> {
    let (mut stdout, mut stderr) = (None, None);
    for (kind, fd) in descriptors {
        match kind {
            DescriptorKind::Stdout => stdout = Some(fd),
            DescriptorKind::Stderr => stderr = Some(fd),
            _ => {}
        }
    }
    stdout.zip(stderr).ok_or_else(|| CriError::new(Code::Other, CALL, "the shim sent no streams"))
}

/// Reads to the end.
async fn read(fd: OwnedFd, mut output: ExecOutput, mut drained: tokio::sync::watch::Receiver<bool>) -> ExecOutput {
    let pipe =
        rustix::io::ioctl_fionbio(&fd, true).map_err(Into::into).and_then(|()| pipe::Receiver::from_owned_fd(fd));
    let Ok(mut pipe) = pipe else { return output };
    let mut chunk = vec![0; 64 << 10];
    loop {
        let length = tokio::select! {
            length = pipe.read(&mut chunk) => length.unwrap_or(0),
            _ = drained.wait_for(|drained| *drained) => 0,
        };
        if length == 0 {
            return output;
        }
        output.push(&chunk[..length]);
    }
}

/// Reads to the end without keeping anything.
pub(super) fn discard(fd: OwnedFd) {
    podwright_tasks::spawn("discard-output", async move {
        let Ok(()) = rustix::io::ioctl_fionbio(&fd, true) else { return };
        let Ok(mut pipe) = pipe::Receiver::from_owned_fd(fd) else { return };
        let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    });
}

const CALL: &str = "ExecSync";
/// After the end of the command.
const DRAIN: Duration = Duration::from_secs(2);
