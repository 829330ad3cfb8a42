//! The command line: commands, their flags and their help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::run_flags::RunFlags;
use crate::run_flags::kubelet_flags::{SplitFlags, split_kubelet_flags};

mod action_flags;
mod examples;
mod offline_flags;
mod query_flags;
mod target;

pub(crate) use action_flags::{
    ApplyFlags, DeleteFlags, ExecFlags, LogFlags, RestartFlags, StopFlags, WaitCondition, WaitFlags,
};
pub(crate) use offline_flags::{CheckFlags, CheckOutput, CheckRules, ReplayFlags};
pub(crate) use query_flags::{DescribeFlags, EventFlags, ExplainFlags, GetFlags, Output, Resource, Scope};

/// The exit code for wrong flags or a wrong configuration: running the command again does not help.
pub(crate) const EXIT_USAGE: u8 = 2;

/// The exit codes of all commands; the help of `run`, `exec`, `check` and `replay` says more.
const EXIT_CODES: &str = "Exit codes:
  0  success
  1  failure: rejected, not found, timed out, or the agent is not running
  2  wrong usage, or a file cannot be read
exec exits with the exit code of the command, or 126 if the command could not be run or its exit code is unknown.";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "podwright",
    version,
    propagate_version = true,
    about = "A Kubernetes node agent: runs pods on this host, standalone or in a cluster",
    after_help = EXIT_CODES,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// All commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the agent in the foreground; pods keep running when it stops.
    ///
    /// Kubelet flags that set a field of KubeletConfiguration, such as --max-pods or --cgroup-driver, are accepted and override the
    /// configuration file. Kubelet flags that have no effect yet are accepted with a warning.
    ///
    /// Exit codes: 0 stopped by a signal; 1 the agent could not start or continue, see the log; 2 wrong flags or a wrong
    /// configuration, restarting does not help.
    #[command(display_name = "podwright")]
    Run(Box<RunFlags>),
    #[command(flatten)]
    Client(ClientCommand),
    /// Validate manifests without an agent; errors and warnings are printed by line.
    ///
    /// Exit codes: 0 all manifests are valid, there may be warnings; 1 a manifest is invalid, or has warnings and --strict is given;
    /// 2 wrong usage, or a file cannot be read.
    Check(CheckFlags),
    /// Replay a recording of an agent step by step, and compare the decisions.
    ///
    /// Exit codes: 0 all decisions are the same; 1 a decision differs, or the file cannot be replayed; 2 wrong usage.
    Replay(ReplayFlags),
    /// Print the version.
    Version,
    /// Write the manual pages.
    #[command(hide = true)]
    Man {
        /// Output directory.
        dir: PathBuf,
    },
    /// Print a completion script for a shell.
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// The commands that talk to a running agent.
#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// List pods or events, like kubectl.
    Get(GetFlags),
    /// Show the details of a pod.
    Describe(DescribeFlags),
    /// List events.
    Events(EventFlags),
    /// Explain the state of a pod: its history, what it is waiting for, and what to do about it.
    Explain(ExplainFlags),
    /// Create or update pods from files.
    Apply(ApplyFlags),
    /// Delete pods that were created by apply, and wait until they are gone.
    Delete(DeleteFlags),
    /// Restart the containers of a pod now, in the same sandbox; a stopped or terminated pod is started again.
    Restart(RestartFlags),
    /// Stop pods gracefully; they stay listed, and stay stopped until they are restarted.
    Stop(StopFlags),
    /// Print the logs of a container.
    Logs(LogFlags),
    /// Run a command in a container, and exit with its exit code.
    Exec(ExecFlags),
    /// Wait for a condition of pods.
    Wait(WaitFlags),
}

impl Cli {
    /// Parses the arguments; the first is the name of the program. Started as `kubelet`, the command is `run`.
    pub(crate) fn parse_from(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut args: Vec<OsString> = args.into_iter().collect();
        let program = args.first().map(PathBuf::from).unwrap_or_default();
        let as_kubelet = program.file_name() == Some("kubelet".as_ref());
        if as_kubelet {
            args[0] = "podwright".into();
            args.insert(1, "run".into());
        }
        let split = match args.get(1).is_some_and(|verb| verb == "run") {
            true => split_kubelet_flags(args),
            false => SplitFlags { own: args, ..SplitFlags::default() },
        };
        let mut cli = Self::from_arg_matches(&Self::definition().try_get_matches_from(split.own)?)?;
        if let Command::Run(flags) = &mut cli.command {
            flags.as_kubelet = as_kubelet;
            (flags.field_flags, flags.ignored) = (split.field_flags, split.ignored);
        }
        Ok(cli)
    }

    /// The definition that help, manual pages and completions are generated from.
    pub(crate) fn definition() -> clap::Command {
        examples::add_to(Self::command())
    }

    /// Writes the completion script.
    pub(crate) fn complete(shell: Shell, to: &mut dyn std::io::Write) {
        clap_complete::generate(shell, &mut Self::definition(), "podwright", to);
    }
}

#[cfg(test)]
mod tests;
