//! Sends events to the cluster: those of pods from the event loop, and those of the node.

use podwright_agent::event_loop::{Clock, CorrelatedEvent, Handle};
use podwright_agent::node_executor::SystemClock;
use podwright_api::events::Occurrence;
use podwright_core::model::{FullName, KubeEvent};
use podwright_core::node_status::NodeEvent;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::sync::mpsc;

/// Queue length of events to send. When it is full, events wait in the event loop's ring buffer, which drops the oldest.
pub(super) const QUEUE_MAX: usize = 64;

/// Forwards all events of the event loop.
pub(super) async fn forward(mut kept: Receiver<CorrelatedEvent>, to: mpsc::Sender<Occurrence>) {
    loop {
        match kept.recv().await {
            Ok(kept) => {
                let CorrelatedEvent { event, field_path, first, last, count } = kept;
                let occurrence = Occurrence { event, field_path, first: first.wall, last: last.wall, count };
                if to.send(occurrence).await.is_err() {
                    return;
                }
            }
            Err(RecvError::Lagged(missed)) => tracing::warn!(count = missed, "too many events, some were not sent"),
            Err(RecvError::Closed) => return,
        }
    }
}

/// Records that the node starts, then the events of its registration and status.
pub(super) async fn report_node_events(node: String, mut events: mpsc::Receiver<NodeEvent>, handle: Handle) {
    let message = "Starting kubelet.".into();
    record(&handle, &node, NodeEvent { warning: false, reason: "Starting", message });
    while let Some(event) = events.recv().await {
        record(&handle, &node, event);
    }
}

fn record(handle: &Handle, node: &str, event: NodeEvent) {
    let NodeEvent { warning, reason, message } = event;
    let pod = FullName { namespace: "".into(), name: node.into() };
    let event = KubeEvent { uid: None, pod, container: None, warning, reason, message, annotations: vec![] };
    tracing::info!(reason, note = event.message, "node event");
    handle.state().record_event(&event, SystemClock.now());
}
