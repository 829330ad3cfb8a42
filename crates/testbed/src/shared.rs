//! One control plane for all tests of a program.
//!
//! Nothing is dropped when a test program ends, so somebody else takes the shared one away: a process that waits for the end
//! of ours, however that comes, and sweeps.

use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result};

use crate::agent::program_beside_tests;
use crate::control_plane::ControlPlane;
use crate::scratch::Scratch;

/// The instance, its place, and who takes it away. The last is kept for its standard input, which ends with us.
static SHARED: OnceLock<(ControlPlane, Child)> = OnceLock::new();

impl ControlPlane {
    /// The one that all tests of this program share, started on first use. Take a namespace of your own in it, and don't stop it.
    pub fn shared() -> &'static Self {
        let (plane, _) = SHARED.get_or_init(|| {
            let undertaker = undertaker().expect("somebody to sweep after the end");
            let scratch = Scratch::new().expect("a scratch");
            (Self::start(&scratch).expect("the control plane starts"), undertaker)
        });
        plane
    }
}

fn undertaker() -> Result<Child> {
    let testbed = program_beside_tests("testbed").context("it takes away what tests share")?;
    let mut command = Command::new("sh");
    // Reads until we are gone; what we leave has no owner then.
    command.args(["-c", "cat; exec \"$0\" sweep"]).arg(testbed);
    Ok(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}
