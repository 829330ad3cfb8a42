//! The command line: commands, their flags and their help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::run_flags::RunFlags;
use crate::run_flags::kubelet_flags::{SplitFlags, split_kubelet_flags};

mod action_flags;
mod arguments;
mod completion_scripts;
mod copy_flags;
mod engine_flags;
mod examples;
mod image_flags;
mod json_path;
mod name_completion;
mod offline_flags;
mod pod_selection;
mod proxy_flags;
mod query_flags;
mod stream_flags;
mod takeover_flags;
mod target;
mod tips;
mod top_flags;

pub(crate) use action_flags::{
    ApplyFlags, DeleteFlags, ExecFlags, FieldValidation, LogFlags, RestartFlags, StartFlags, StopFlags, WaitCondition,
    WaitFlags,
};
pub(crate) use copy_flags::{CopyFlags, CopyPath};
pub(crate) use engine_flags::EngineFlags;
pub(crate) use image_flags::{ImageCommand, ImageFlags, ImageOutput, ImagePullFlags};
pub(crate) use json_path::JsonPath;
pub(crate) use name_completion::{CompleteNamesFlags, CompletedNames, NameCompletion};
pub(crate) use offline_flags::{CheckFlags, CheckOutput, CheckRules, ReplayFlags};
pub(crate) use pod_selection::{PodArgumentError, PodSelection, pod_name};
pub(crate) use proxy_flags::ProxyFlags;
pub(crate) use query_flags::{
    DescribeFlags, EventFlags, ExplainFlags, GetFlags, Output, OutputArgument, Resource, Scope, StatusFlags,
};
pub(crate) use stream_flags::{AttachFlags, ListenAddress, PodPort, PortForwardFlags, PortPair};
pub(crate) use takeover_flags::TakeoverFlags;
pub(crate) use top_flags::{MeasuredResource, TopFlags, TopOrder};

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
    /// Report what would restart if this agent took over the node of a running Go kubelet, and why.
    ///
    /// Takes the flags of `run`, with the kubelet's defaults, so that the command line of the kubelet can be used. Reads its configuration,
    /// its state files, the runtime and the API server; changes nothing, and may run beside the kubelet.
    ///
    /// Exit codes: 0 nothing restarts; 1 pods would restart or lose something, each is listed; 2 wrong usage, or something could not be
    /// read.
    Takeover(Box<TakeoverFlags>),
    /// Pull, load, save, list and remove the images of the embedded engine.
    ///
    /// A running agent is asked; without one the command works on the store itself. An agent on another container runtime has no images
    /// of its own: use crictl there.
    ///
    /// Exit codes: 0 success; 1 failure; 2 wrong usage.
    Image(ImageFlags),
    /// Serve the embedded container engine on a CRI socket, without an agent; pods keep running when it stops.
    ///
    /// For crictl, critest or another kubelet. It uses its own network, cgroup of shims and directories, which no other engine may use:
    /// end the agent first, or give other ones.
    ///
    /// Exit codes: 0 ended by a signal; 1 failure; 2 wrong usage.
    Engine(EngineFlags),
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
    /// Show the CPU and memory that pods, containers or the node use at this moment.
    Top(TopFlags),
    /// Show the state of the node: runtime, pod network, allocatable resources, images, pods, invalid manifests and recent warnings.
    Status(StatusFlags),
    /// Explain the state of a pod: its history, what it is waiting for, and what to do about it.
    Explain(ExplainFlags),
    /// Create or update pods from files.
    Apply(ApplyFlags),
    /// Delete pods that were created by apply, and wait until they are gone.
    Delete(DeleteFlags),
    /// Restart the containers of pods now, in the same sandbox; stopped and terminated pods are started again.
    ///
    /// The command ends when the agent has accepted the request; `podwright wait` waits for the result.
    Restart(RestartFlags),
    /// Stop pods gracefully; they stay listed, and stay stopped until they are started.
    Stop(StopFlags),
    /// Start pods that were stopped or have terminated; running pods are left alone.
    Start(StartFlags),
    /// Print the logs of containers.
    Logs(LogFlags),
    /// Run a command in a container, and exit with its exit code.
    Exec(ExecFlags),
    /// Connect to the process of a container: its output, and its input with -i.
    ///
    /// Ends when the process exits. With -it, Ctrl-P Ctrl-Q detaches; Ctrl-C reaches the process.
    Attach(AttachFlags),
    /// Copy files between this host and a container, whose image must have `tar`.
    Cp(CopyFlags),
    /// Forward ports of this host to a pod, until interrupted.
    PortForward(PortForwardFlags),
    /// Wait for a condition of pods.
    Wait(WaitFlags),
    /// Serve the local API on a loopback port for kubectl, and write the kubeconfig for it.
    ///
    /// Every request needs the token of the kubeconfig. The proxy ends when it is interrupted.
    Proxy(ProxyFlags),
    /// Print the names that complete a command line, for the scripts of `completion`.
    #[command(hide = true)]
    CompleteNames(CompleteNamesFlags),
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
        let args = if as_kubelet { args } else { arguments::rewrite(args) };
        let split = match args.get(1).is_some_and(|verb| verb == "run" || verb == "takeover") {
            true => split_kubelet_flags(args),
            false => SplitFlags { own: args, ..SplitFlags::default() },
        };
        let matches = Self::definition()
            .try_get_matches_from(&split.own)
            .map_err(|error| tips::with_curated_tips(error, &split.own))?;
        let mut cli = Self::from_arg_matches(&matches)?;
        let flags = match &mut cli.command {
            Command::Run(flags) => Some((&mut **flags, as_kubelet)),
            Command::Takeover(flags) => Some((&mut flags.run, true)),
            _ => None,
        };
        if let Some((flags, as_kubelet)) = flags {
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
        // A closed pipe is not a failure.
        let _ = completion_scripts::write(shell, &mut Self::definition(), to);
    }

    /// The names that complete the last of these arguments, which follow the name of the program.
    pub(crate) fn name_completion(arguments: &[String]) -> Option<NameCompletion> {
        name_completion::completion(&Self::definition(), arguments)
    }
}

#[cfg(test)]
mod tests;
