//! The flags of `podwright proxy`.

use std::path::PathBuf;

use clap::Args;

use super::query_flags::SocketFlags;

/// `podwright proxy`
#[derive(Args, Debug)]
pub(crate) struct ProxyFlags {
    /// The port of 127.0.0.1 to listen on; 0 takes a free one.
    #[arg(short, long, value_name = "PORT", default_value_t = 8001)]
    pub(crate) port: u16,
    /// Write the kubeconfig to this new file, with mode 0600, instead of to stdout. It is removed at the end.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}
