//! Builds the parts from the configuration, ties them together, and takes them apart again at the end.

use tokio_util::sync::CancellationToken;

use crate::config::Config;

/// Run the agent until told to stop.
pub(crate) async fn run(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    tracing::info!(node = config.node.node_name, root = %config.dirs.root.display(), "started");
    stop.cancelled().await;
    Ok(())
}
