//! The command line. Flags carry the names of the Go kubelet's, so that a unit file written for it works.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

mod act;
mod ask;
mod examples;
mod kubelet_flags;
mod offline;
mod target;

pub(crate) use act::{ApplyFlags, Awaited, DeleteFlags, ExecFlags, LogFlags, RestartFlags, StopFlags, WaitFlags};
pub(crate) use ask::{Ask, DescribeFlags, EventFlags, ExplainFlags, GetFlags, Output, Resource, Scope};
#[cfg(test)]
pub(crate) use kubelet_flags::SETTINGS;
pub(crate) use kubelet_flags::Setting;
pub(crate) use offline::{CheckFlags, CheckOutput, Judge, LogFormat, ReplayFlags, WatchingFlags};

/// What scripts can rely on; `run`, `exec`, `check` and `replay` say more on their own pages.
const EXIT_CODES: &str = "Exit codes:
  0  it was done
  1  it was not done: refused, not found, timed out, or no agent answers
  2  it was typed wrong, or a file can't be read
The exit code of exec is the command's own; 126 if that is not known or it could not be run.";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "podwright",
    version,
    propagate_version = true,
    about = "Runs Kubernetes pods on this machine and keeps them running",
    after_help = EXIT_CODES,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the agent until it is told to stop; pods go on without it.
    ///
    /// Flags of the kubelet that say what a field of its configuration says, such as --max-pods or --cgroup-driver, are taken too and
    /// win over the file. Those that do nothing here yet are named in a warning.
    ///
    /// Exit codes: 0 it was told to end; 1 it could not start or go on, the log says why; 2 wrong flags or a wrong configuration, so
    /// that starting it again won't help.
    #[command(display_name = "podwright")]
    Run(Box<RunFlags>),
    /// Show pods or events, as kubectl does.
    Get(GetFlags),
    /// Show everything about a pod.
    Describe(DescribeFlags),
    /// Show what happened to pods.
    Events(EventFlags),
    /// Tell the life of a pod: what happened, what it waits for, what can be done about it.
    Explain(ExplainFlags),
    /// Make pods of files so: new ones are created, known ones updated.
    Apply(ApplyFlags),
    /// End pods that were made by apply, and wait until they are gone.
    Delete(DeleteFlags),
    /// Restart the containers of a pod now, in the same sandbox; a pod that has ended gets another life.
    Restart(RestartFlags),
    /// End pods gracefully; they stay known and ended until they are restarted.
    Stop(StopFlags),
    /// Print what a container wrote.
    Logs(LogFlags),
    /// Run a command in a container; its exit code is this one's.
    Exec(ExecFlags),
    /// Wait until a pod is as wanted.
    Wait(WaitFlags),
    /// Check manifests without an agent: what is wrong, and what does nothing here, by line.
    ///
    /// Exit codes: 0 every manifest can be used, there may be warnings; 1 one can't, or with --strict has warnings; 2 wrong usage,
    /// or something can't be read.
    Check(CheckFlags),
    /// Decide again what a recorded agent decided, step by step, and compare.
    ///
    /// Exit codes: 0 every decision was the same; 1 one differs, or the file can't be replayed; 2 wrong usage.
    Replay(ReplayFlags),
    /// Print the version.
    Version,
    /// Write the manual pages.
    #[command(hide = true)]
    Man {
        /// Into this directory.
        dir: PathBuf,
    },
    /// Print a completion script for a shell.
    Completion {
        /// The shell it is for.
        shell: Shell,
    },
}

/// The flags of `run`. What is given here wins over the configuration file.
#[derive(Args, Clone, Debug, Default)]
#[command(next_line_help = true)]
pub(crate) struct RunFlags {
    /// A KubeletConfiguration file (kubelet.config.k8s.io/v1beta1), YAML or JSON.
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub(crate) config: Option<PathBuf>,
    /// The agent's own directory: journal, volumes. [default: /var/lib/podwright; /var/lib/kubelet when started as kubelet]
    #[arg(long, value_name = "DIR", help_heading = "Configuration")]
    pub(crate) root_dir: Option<PathBuf>,
    /// Sockets and what need not outlive a reboot.
    #[arg(
        long,
        value_name = "DIR",
        env = "PODWRIGHT_RUN_DIR",
        hide_env_values = true,
        default_value = "/run/podwright",
        help_heading = "Configuration"
    )]
    pub(crate) run_dir: PathBuf,
    /// Where links to the logs of all containers go, for log collectors.
    #[arg(
        long,
        value_name = "DIR",
        env = "PODWRIGHT_LOG_LINK_DIR",
        hide_env = true,
        default_value = "/var/log/containers",
        help_heading = "Configuration"
    )]
    pub(crate) container_logs_dir: PathBuf,

    /// A directory of pod manifests, or one manifest.
    #[arg(long, value_name = "PATH", help_heading = "Pods")]
    pub(crate) pod_manifest_path: Option<PathBuf>,
    /// Take manifests of every file name, not only *.yaml, *.yml and *.json. On when started as kubelet.
    #[arg(long, help_heading = "Pods")]
    pub(crate) manifest_all_names: bool,
    /// Refuse manifests with fields that nobody knows or that do nothing here, instead of warning of them.
    #[arg(long, help_heading = "Pods")]
    pub(crate) strict: bool,
    /// A URL to fetch pod manifests from.
    #[arg(long, value_name = "URL", help_heading = "Pods")]
    pub(crate) manifest_url: Option<String>,
    /// A header to send with it, NAME:VALUE; may be given several times.
    #[arg(long, value_name = "HEADER", help_heading = "Pods")]
    pub(crate) manifest_url_header: Vec<String>,

    /// How to reach the API server; without it the node belongs to no cluster.
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Make the node's object in the API if there is none. [default: true]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "Cluster"
    )]
    pub(crate) register_node: Option<bool>,
    /// Taints the node's object is made with, KEY=VALUE:EFFECT.
    #[arg(long, value_name = "TAINTS", value_delimiter = ',', help_heading = "Cluster")]
    pub(crate) register_with_taints: Vec<String>,

    /// The container runtime's CRI socket.
    #[arg(long, value_name = "ENDPOINT", help_heading = "Runtime")]
    pub(crate) container_runtime_endpoint: Option<String>,
    /// The CRI socket for images, if it is another one.
    #[arg(long, value_name = "ENDPOINT", help_heading = "Runtime")]
    pub(crate) image_service_endpoint: Option<String>,

    /// The node's name, if it is not the host's.
    #[arg(long, value_name = "NAME", help_heading = "Node")]
    pub(crate) hostname_override: Option<String>,
    /// The node's address, or one of each family.
    #[arg(long, value_name = "IP", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_ip: Vec<String>,
    /// Labels of the node, KEY=VALUE.
    #[arg(long, value_name = "LABELS", value_delimiter = ',', help_heading = "Node")]
    pub(crate) node_labels: Vec<String>,

    /// Serve /healthz, /readyz, /livez, /pods and /metrics over HTTP on this address.
    #[arg(long, value_name = "ADDRESS", help_heading = "Watching it")]
    pub(crate) listen: Option<SocketAddr>,
    /// How much to log: 4 and more is for debugging. [default: 0]
    #[arg(short = 'v', long = "v", value_name = "N", help_heading = "Watching it")]
    pub(crate) verbosity: Option<u8>,
    #[command(flatten)]
    pub(crate) watching: WatchingFlags,

    /// Started by the name `kubelet`: its directories and habits are the defaults.
    #[arg(skip)]
    pub(crate) as_kubelet: bool,
    /// Flags of the kubelet that stand for fields of its configuration.
    #[arg(skip)]
    pub(crate) settings: Vec<Setting>,
    /// Flags of the kubelet that were given and do nothing here.
    #[arg(skip)]
    pub(crate) ignored: Vec<String>,
}

impl Cli {
    /// Parse the arguments, the program's name first.
    pub(crate) fn parse_from(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut args: Vec<OsString> = args.into_iter().collect();
        let program = args.first().map(PathBuf::from).unwrap_or_default();
        let as_kubelet = program.file_name() == Some("kubelet".as_ref());
        if as_kubelet {
            args[0] = "podwright".into();
            args.insert(1, "run".into());
        }
        let split = match args.get(1).is_some_and(|verb| verb == "run") {
            true => kubelet_flags::split_kubelet_flags(args),
            false => kubelet_flags::SplitFlags { kept: args, ..kubelet_flags::SplitFlags::default() },
        };
        let mut cli = Self::from_arg_matches(&Self::definition().try_get_matches_from(split.kept)?)?;
        if let Command::Run(flags) = &mut cli.command {
            flags.as_kubelet = as_kubelet;
            (flags.settings, flags.ignored) = (split.settings, split.ignored);
        }
        Ok(cli)
    }

    /// What help, manual pages and completions are made of.
    pub(crate) fn definition() -> clap::Command {
        examples::add_to(Self::command())
    }

    /// Write the completion script.
    pub(crate) fn complete(shell: Shell, to: &mut dyn std::io::Write) {
        clap_complete::generate(shell, &mut Self::definition(), "podwright", to);
    }
}

impl RunFlags {
    /// The root directory.
    pub(crate) fn root_dir(&self) -> &Path {
        let usual = if self.as_kubelet { "/var/lib/kubelet" } else { "/var/lib/podwright" };
        self.root_dir.as_deref().unwrap_or(Path::new(usual))
    }
}

#[cfg(test)]
mod tests;
