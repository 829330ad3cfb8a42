//! The flags of `podwright image`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `podwright image`
#[derive(Args, Debug)]
pub(crate) struct ImageFlags {
    /// The root directory of an agent that does not run: the images in its engine/images. If that agent runs, the command asks it.
    /// [default: the agent of --run-dir; if none runs, /var/lib/podwright]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) root_dir: Option<PathBuf>,
    /// The --run-dir of the agent.
    #[arg(
        long,
        value_name = "DIR",
        env = "PODWRIGHT_RUN_DIR",
        hide_env_values = true,
        default_value = "/run/podwright",
        global = true
    )]
    pub(crate) run_dir: PathBuf,
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

/// The commands on images.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Pull images from their registries; prints the id of each.
    Pull(ImagePullFlags),
    /// Load images from archives of docker, podman, skopeo or buildah, compressed or not, or from OCI layouts.
    Load {
        /// Archives, directories with an OCI layout, or - for an archive on stdin.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Write images to one archive, which docker, podman and containerd can load.
    Save {
        /// Names or ids.
        #[arg(value_name = "IMAGE", required = true)]
        images: Vec<String>,
        /// The file to write. [default: stdout, if it is not a terminal]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// List images.
    #[command(visible_alias = "list")]
    Ls {
        /// Print ids only.
        #[arg(short, long)]
        quiet: bool,
        /// Output format. [default: a table]
        #[arg(short, long, value_name = "FORMAT", conflicts_with = "quiet")]
        output: Option<ImageOutput>,
    },
    /// Remove images with all their names. Nothing is removed if one of them does not exist, or is in use by a container.
    Rm {
        /// Names or ids.
        #[arg(value_name = "IMAGE", required = true)]
        images: Vec<String>,
        /// Remove images that containers use, too; the containers keep their files.
        #[arg(short, long)]
        force: bool,
    },
    /// Remove images without a name that no container uses, and the content that no image uses.
    Prune,
    /// Print images as JSON: names, layers and configuration.
    Inspect {
        /// Names or ids.
        #[arg(value_name = "IMAGE", required = true)]
        images: Vec<String>,
    },
}

/// `podwright image pull`
#[derive(Args, Debug)]
pub(crate) struct ImagePullFlags {
    /// For example docker.io/library/busybox:1 or registry.example/app@sha256:…
    #[arg(value_name = "IMAGE", required = true)]
    pub(crate) images: Vec<String>,
    /// The user of the registry; needs --password-stdin.
    #[arg(short, long, value_name = "NAME", requires = "password_stdin")]
    pub(crate) username: Option<String>,
    /// Read the password from stdin.
    #[arg(long, requires = "username")]
    pub(crate) password_stdin: bool,
    /// A directory with a hosts.toml per registry, in the format of containerd: mirrors and certificates. A running agent uses the one
    /// of its --engine-registries.
    #[arg(long, value_name = "DIR")]
    pub(crate) hosts_dir: Option<PathBuf>,
    /// Do not show progress.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Output formats of `podwright image ls` besides the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImageOutput {
    /// A list of JSON objects.
    Json,
}
