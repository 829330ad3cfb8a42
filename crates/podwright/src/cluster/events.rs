//! What happened here, told to the cluster: every event the loop keeps, and the node's own.

use podwright_agent::hands::MachineClock;
use podwright_agent::the_loop::{Clock, Handle, KeptEvent};
use podwright_api::events::Occurrence;
use podwright_core::model::{FullName, KubeEvent};
use podwright_core::node_status::{RuntimeFacts, readiness};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::sync::{mpsc, watch};

/// Events on their way: what is more waits in the loop's own ring, and its oldest is lost.
pub(super) const ON_THEIR_WAY_MAX: usize = 64;

/// Hand every event on.
pub(super) async fn hand_on(mut kept: Receiver<KeptEvent>, to: mpsc::Sender<Occurrence>) {
    loop {
        match kept.recv().await {
            Ok(kept) => {
                let KeptEvent { event, field_path, first, last, count } = kept;
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

/// Tell that the node starts, and whenever it gets ready or is it no more.
pub(super) async fn tell_of_readiness(node: String, mut runtime: watch::Receiver<RuntimeFacts>, handle: Handle) {
    tell(&handle, &node, "Starting", "Starting kubelet.".into());
    let mut was = None;
    loop {
        let (is, is_known) = {
            let facts = runtime.borrow_and_update();
            (readiness(&facts).is_ok(), facts.is_known())
        };
        if is_known && was != Some(is) {
            let reason = if is { "NodeReady" } else { "NodeNotReady" };
            tell(&handle, &node, reason, format!("Node {node} status is now: {reason}"));
            was = Some(is);
        }
        if runtime.changed().await.is_err() {
            return;
        }
    }
}

fn tell(handle: &Handle, node: &str, reason: &'static str, message: String) {
    let pod = FullName { namespace: "".into(), name: node.into() };
    let event = KubeEvent { uid: "".into(), pod, container: None, warning: false, reason, message };
    tracing::info!(reason, "{}", event.message);
    handle.views().tell(&event, MachineClock.now());
}
