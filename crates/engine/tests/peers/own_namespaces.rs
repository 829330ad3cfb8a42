//! Runs a test again in a network, IPC and mount namespace of its own: critest uses fixed ports and leaves shared memory behind.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Set in the process that has its own namespaces.
const INSIDE: &str = "PODWRIGHT_PEERS_TEST_INSIDE";

/// Runs `work` in the process that has its own namespaces; in the first one that process itself. `test` is the path of the test.
pub(crate) fn run(test: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    if std::env::var_os(INSIDE).is_some() {
        podwright_net::loopback_up().context("the loopback interface")?;
        return work();
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "--ipc", "--mount", "--"]).arg(std::env::current_exe()?);
    let status = command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").status().context("start unshare")?;
    ensure!(status.success(), "{test}: {status}");
    Ok(())
}
