//! One control plane shared by all tests of a test program.
//!
//! Statics are not dropped when a test program exits, so a separate process removes the shared control plane: it waits until ours
//! has exited, for whatever reason, and then runs `testbed sweep`.

use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result};

use crate::agent::program_next_to_tests;
use crate::control_plane::ControlPlane;
use crate::scratch::Scratch;

/// The control plane, and the process that removes it. The child is stored to keep its standard input open until we exit.
static SHARED: OnceLock<(ControlPlane, Child)> = OnceLock::new();

impl ControlPlane {
    /// The control plane that all tests of this program share, started on first use. Each test creates its own namespace and must
    /// not stop it.
    pub fn shared() -> &'static Self {
        let (plane, _) = SHARED.get_or_init(|| {
            let sweeper = start_sweeper().expect("the sweeper starts");
            let scratch = Scratch::new().expect("a scratch");
            (Self::start(&scratch).expect("the control plane starts"), sweeper)
        });
        plane
    }
}

fn start_sweeper() -> Result<Child> {
    let testbed = program_next_to_tests("testbed").context("it removes what tests share")?;
    let mut command = Command::new("sh");
    // Reads until we have exited; what we leave behind has no owner then.
    command.args(["-c", "cat; exec \"$0\" sweep"]).arg(testbed);
    Ok(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}
