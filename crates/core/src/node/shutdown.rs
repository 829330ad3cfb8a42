//! Ends the pods of a node that shuts down, group by group, and lets the host continue when all have ended.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Node;
use crate::model::{Cause, Effect, FullName, KubeEvent, Now, Out, PodUid, ShutdownRequest, Source};
use crate::pod::{KillOptions, PodFacts, State};
use crate::shutdown::{
    NODE_SHUTDOWN, ShutdownFacts, ShutdownPod, ShutdownStep, TERMINATED, TERMINATED_MESSAGE, priority_of,
};

/// Kubernetes: `DefaultTerminationGracePeriodSeconds`.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// The host shuts down, or does not.
pub(super) fn on_shutdown(
    node: &mut Node,
    request: Option<ShutdownRequest>,
    now: Now,
    out: &mut Out,
) -> BTreeSet<PodUid> {
    let config = &node.pods.config;
    let announced = !config.sources.contains(&Source::Api);
    let changed = match request.zip(config.shutdown.as_ref()) {
        Some((request, periods)) => node.shutdown.begin(&request, periods, announced, now.boot),
        None => node.shutdown.cancel(),
    };
    let is_active = node.shutdown.is_active();
    node.admission.set_closed(is_active);
    if changed {
        // First, so that the Node object becomes not ready and no new traffic is sent here.
        node.pods.runtime.health.set_shutting_down(is_active);
        out.effects.push(Effect::RuntimeChanged);
        out.effects.push(event(node, is_active));
    }
    let suspended = node.pods.workers.iter().filter(|(_, pod)| pod.record().is_suspended());
    let suspended: BTreeSet<PodUid> = suspended.map(|(uid, _)| uid.clone()).collect();
    suspended.into_iter().chain(node.pods.held()).collect()
}

/// Takes the next steps of a shutdown under way.
pub(super) fn advance(node: &mut Node, now: Now, out: &mut Out) {
    while node.shutdown.is_active() {
        let facts = facts(node);
        let steps = node.shutdown.advance(&facts, now.boot);
        if steps.is_empty() {
            return;
        }
        for step in steps {
            match step {
                ShutdownStep::Kill { uid, grace } => end_pod(node, uid, grace, now, out),
                ShutdownStep::Allow { id } => out.effects.push(Effect::AllowShutdown { request: id }),
            }
        }
        node.settle(now, out);
    }
}

/// Static pods are terminated too. For a pod that is already terminating only the grace period is shortened.
fn end_pod(node: &mut Node, uid: PodUid, grace: Duration, now: Now, out: &mut Out) {
    let Some(record) = node.pods.workers.get(&uid).map(PodFacts::record) else { return };
    // A pod of the local API runs again after the boot, so its phase must not be terminal.
    let fails = record.termination().is_none() && record.source != Source::Local;
    let evicted = fails.then(|| (TERMINATED.to_owned(), TERMINATED_MESSAGE.to_owned()));
    let options = KillOptions { grace: Some(grace), evicted, ..KillOptions::default() };
    node.pods.with(&uid, now, out, |machine, ctx, _| machine.kill(Cause::Shutdown, options, ctx));
    node.touched.insert(uid);
}

fn facts(node: &Node) -> ShutdownFacts {
    let is_active = |pod: &PodFacts| (State::Syncing..State::Finished).contains(&pod.state()) && !pod.is_broken();
    let pods = node.pods.workers.iter().filter(|(_, pod)| is_active(pod)).map(|(uid, pod)| {
        let spec = pod.record().pod.spec.as_ref();
        let grace = spec.and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(DEFAULT_GRACE_SECONDS);
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        ShutdownPod { uid: uid.clone(), priority: spec.map_or(0, priority_of), grace }
    });
    ShutdownFacts { pods: pods.collect(), reported: node.stores.is_reported() }
}

/// Go kubelet: `nodeshutdown`'s event of the node.
fn event(node: &Node, is_active: bool) -> Effect {
    let what = if is_active { "event" } else { "cancellation" };
    Effect::Event(KubeEvent {
        uid: None,
        pod: FullName { namespace: "".into(), name: node.pods.config.node_name.as_str().into() },
        container: None,
        warning: false,
        reason: NODE_SHUTDOWN,
        message: format!("Shutdown manager detected shutdown {what}"),
        annotations: vec![],
    })
}
