//! What happened here, told to the cluster: every event the loop keeps, and the node's own.

use podwright_agent::event_loop::{Clock, CorrelatedEvent, Handle};
use podwright_agent::node_executor::SystemClock;
use podwright_api::events::Occurrence;
use podwright_core::model::{FullName, KubeEvent};
use podwright_core::node_status::NodeEvent;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::sync::mpsc;

/// Events on their way: what is more waits in the loop's own ring, and its oldest is lost.
pub(super) const ON_THEIR_WAY_MAX: usize = 64;

/// Hand every event on.
pub(super) async fn hand_on(mut kept: Receiver<CorrelatedEvent>, to: mpsc::Sender<Occurrence>) {
    loop {
        match kept.recv().await {
            Ok(kept) => {
                let CorrelatedEvent { event, field_path, first, last, count } = kept;
                let occurrence = Occurrence { event, field_path, first: first.wall, last: last.wall, count };
                if to.send(occurrence).await.is_err() {
                    return;
                }
            }
            Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "too many events: some are not sent"),
            Err(RecvError::Closed) => return,
        }
    }
}

/// Tell that the node starts, and what becomes of it.
pub(super) async fn tell_of_node(node: String, mut events: mpsc::Receiver<NodeEvent>, handle: Handle) {
    let message = "Starting kubelet.".into();
    tell(&handle, &node, NodeEvent { warning: false, reason: "Starting", message });
    while let Some(event) = events.recv().await {
        tell(&handle, &node, event);
    }
}

fn tell(handle: &Handle, node: &str, event: NodeEvent) {
    let NodeEvent { warning, reason, message } = event;
    let pod = FullName { namespace: "".into(), name: node.into() };
    let event = KubeEvent { uid: "".into(), pod, container: None, warning, reason, message };
    tracing::info!(reason, "{}", event.message);
    handle.state().record_event(&event, SystemClock.now());
}
