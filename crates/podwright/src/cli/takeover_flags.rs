//! The flags of `podwright takeover`.

use clap::Args;

use crate::run_flags::RunFlags;

/// `podwright takeover`
#[derive(Args, Clone, Debug)]
pub(crate) struct TakeoverFlags {
    /// Only report what would restart; nothing is changed. The only mode: the takeover itself is the start of the agent.
    #[arg(long, required = true)]
    pub(crate) check: bool,
    /// The flags of the agent that would take over: those of the kubelet that runs.
    #[command(flatten)]
    pub(crate) run: RunFlags,
}
