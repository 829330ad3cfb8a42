//! Runtime handlers: other OCI runtimes, by the name that a RuntimeClass has. Their containers have the same shims, records, logs and
//! cgroups as those of the builtin launcher.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use podwright_linux::pidfd::PidFd;
use podwright_shim::plan::ExternalRuntime;

use crate::settings::{EngineSettings, OciRuntime};

/// The builtin launcher, or another runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Handler {
    Builtin,
    External { path: PathBuf, root: PathBuf },
}

impl EngineSettings {
    /// `None`: no handler has this name.
    pub(crate) fn handler(&self, name: &str) -> Option<Handler> {
        if matches!(name, "" | BUILTIN_HANDLER) {
            return Some(Handler::Builtin);
        }
        let OciRuntime { path, root } = self.runtimes.get(name)?;
        let root = root.clone().unwrap_or_else(|| self.run_dir.join(STATE_DIR).join(name));
        Some(Handler::External { path: path.clone(), root })
    }
}

impl Handler {
    /// For the plan of a container.
    pub(crate) fn plan(&self, specification: &Path, bundle: &Path) -> Option<ExternalRuntime> {
        let Self::External { path, root } = self else { return None };
        let text = |path: &Path| path.to_string_lossy().into_owned();
        Some(ExternalRuntime {
            path: text(path),
            root: text(root),
            specification: text(specification),
            bundle: text(bundle),
        })
    }

    /// Removes what the runtime has of a container, its processes included. One that it does not know is success. Blocks.
    pub(crate) fn delete(&self, id: &str) -> io::Result<()> {
        let Self::External { path, root } = self else { return Ok(()) };
        if !root.join(id).exists() {
            return Ok(());
        }
        let mut command = Command::new(path);
        command.arg("--root").arg(root).args(["delete", "--force", id]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        // An unreaped child keeps its pid.
        let exited = PidFd::open(child.id()).and_then(|process| process.wait_exit(DELETE_LIMIT));
        if !matches!(exited, Ok(true)) {
            let _ = child.kill();
            let _ = child.wait();
            let late = || io::Error::new(io::ErrorKind::TimedOut, format!("{} delete takes too long", path.display()));
            return Err(exited.err().unwrap_or_else(late));
        }
        match child.wait()? {
            status if status.success() => Ok(()),
            status => Err(io::Error::other(format!("{} delete: {status}", path.display()))),
        }
    }
}

/// The name of the builtin handler besides the empty one.
pub(crate) const BUILTIN_HANDLER: &str = "podwright";
/// Below the run directory: the state of a runtime means nothing after a reboot.
pub(crate) const STATE_DIR: &str = "runtimes";
const DELETE_LIMIT: Duration = Duration::from_secs(30);
