//! Faults on the connection to the API server: cut, frozen, late, invalid. They only cause delay.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::ensure;
use podwright_testbed::{ControlPlane, ProxiedRequest, ProxyAction, wait_until};
use serde_json::{Value, json};

use crate::cluster_node::ClusterNode;
use crate::mixed_workload::MixedWorkload;
use crate::pod_watch::{PodWatch, flips, last_states};
use crate::suite::{LIMIT, condition, container, one, sh, sleeper};

/// Counts faults by name.
#[derive(Clone, Default)]
struct FaultCounts(Arc<Mutex<BTreeMap<String, usize>>>);

impl FaultCounts {
    /// Counts one more; returns the previous count.
    fn again(&self, what: impl Into<String>) -> usize {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = times.entry(what.into()).or_default();
        *times += 1;
        *times - 1
    }

    fn times(&self, what: &str) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(what).copied().unwrap_or_default()
    }

    fn wait(&self, what: &str, times: usize) {
        wait_until(LIMIT, &format!("{what}, {times} times"), || {
            ensure!(self.times(what) >= times, "{:?}", self.0);
            Ok(())
        });
    }
}

#[test]
fn no_status_is_lost_when_connections_are_cut_around_each_write() {
    let (node, proxy) = ClusterNode::through_a_proxy(ControlPlane::shared(), "cut");
    let watched = PodWatch::begin(&node);
    let happened = FaultCounts::default();
    let seen = happened.clone();
    proxy.decide(move |asked: &ProxiedRequest| {
        if asked.method == "GET" || !asked.path.contains("/pods") {
            return ProxyAction::Pass;
        }
        // Status writes repeatedly; mirror pod writes and final deletes once each way.
        let times = seen.again(format!("{} {}", asked.method, asked.path));
        match if asked.method == "PATCH" { times % 3 } else { times } {
            0 => ProxyAction::CutBefore,
            1 => ProxyAction::CutAfter,
            _ => ProxyAction::Pass,
        }
    });
    let story = MixedWorkload::begin(&node);
    let mut trapping = one(&sh("c", "trap 'exit 7' TERM; touch /tmp/up; while :; do sleep 0.1; done"));
    trapping["terminationGracePeriodSeconds"] = json!(30);
    // Ready once the trap is set: an earlier SIGTERM would end it differently.
    trapping["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1, "timeoutSeconds": 30});
    node.put("trapping", &trapping);
    node.wait_ready("trapping");
    node.delete("pods", "trapping");
    story.progress(&node);
    node.wait_gone("trapping");
    story.verify(&node);
    let events = watched.end(&node);
    let flips = flips(&events);
    assert!(flips.is_empty(), "{flips:#?}");
    let last = last_states(&events);
    assert_eq!(
        container(last["trapping"], "c")["state"]["terminated"]["exitCode"],
        7,
        "{:#}",
        last["trapping"]["status"]
    );
    assert!(happened.times("PATCH /api/v1/namespaces/cut/pods/job/status") >= 3, "{:?}", happened.0);
}

#[test]
fn stale_lists_and_watches_are_ignored() {
    let (node, proxy) = ClusterNode::through_a_proxy(ControlPlane::shared(), "past");
    let ours = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", node.name);
    let list = || node.plane.api().get(&ours).expect("a list");
    let empty = list().to_string();
    node.put("over", &one(&sleeper("c")));
    node.wait_ready("over");
    let story = MixedWorkload::begin(&node);
    let old = list();
    node.delete("pods", "over");
    node.wait_gone("over");
    let watched = PodWatch::begin(&node);

    // Old events of each pod, of the deleted one too; then deletions of all.
    let pods = old["items"].as_array().expect("a list");
    let replay: String = ["ADDED", "MODIFIED", "DELETED"]
        .iter()
        .flat_map(|kind| pods.iter().map(move |pod| line(kind, pod)))
        .chain([line("BOOKMARK", &json!({"kind": "Pod", "metadata": {"resourceVersion": "1"}}))])
        .collect();
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"});
    let happened = FaultCounts::default();
    let seen = happened.clone();
    let old = old.to_string();
    proxy.decide(move |asked: &ProxiedRequest| {
        if asked.is_watch_of_pods() {
            return match seen.again("watch") {
                0 => ProxyAction::Prepend(replay.clone() + &line("ERROR", &gone)),
                _ => ProxyAction::Prepend(replay.clone()),
            };
        }
        match asked.is_list_of_pods().then(|| seen.again("list")) {
            Some(0 | 2) => ProxyAction::Respond(200, None, empty.clone()),
            Some(1) => ProxyAction::Respond(200, None, old.clone()),
            _ => ProxyAction::Pass,
        }
    });
    proxy.cut();
    story.progress(&node);
    // A stale watch, stale lists, a current one, and again a watch that starts in the past.
    happened.wait("list", 4);
    happened.wait("watch", 2);
    assert!(node.agent.log().contains("pod watch is too far behind"), "the error on the watch was not understood");
    assert!(node.agent.pod("over").expect("an answer").is_none(), "it was brought back");
    let flips = flips(&watched.end(&node));
    assert!(flips.is_empty(), "{flips:#?}");
    story.verify(&node);
}

#[test]
fn invalid_responses_throttling_and_errors_only_cause_delay() {
    let (node, proxy) = ClusterNode::through_a_proxy(ControlPlane::shared(), "garbage");
    let story = MixedWorkload::begin(&node);
    let watched = PodWatch::begin(&node);
    let happened = FaultCounts::default();
    let seen = happened.clone();
    proxy.decide(move |asked: &ProxiedRequest| {
        // The controllers must not mark the node as lost meanwhile.
        if asked.is_lease() {
            return ProxyAction::Pass;
        }
        // A server that has just started responds 404.
        if asked.method == "DELETE" && seen.again("deleted") == 0 {
            let status = json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "pods not found"});
            return ProxyAction::Respond(404, None, status.to_string());
        }
        let kind = if asked.method == "GET" { "read" } else { "written" };
        let fates = [
            ProxyAction::Respond(200, None, "<html>a proxy's page</html>".into()),
            ProxyAction::Respond(429, Some(("retry-after", "1")), "slow down".into()),
            ProxyAction::Respond(
                500,
                None,
                json!({"kind": "Status", "code": 500, "reason": "InternalError"}).to_string(),
            ),
            // The write succeeds, but the response is garbage. A watch starts with garbage only, else it would never recover.
            if asked.path.contains("watch=true") {
                ProxyAction::Prepend("{\"type\": \"DANCED\", \"object\": {}}\n".into())
            } else {
                ProxyAction::Rewrite(|part| part.slice(..part.len() / 2))
            },
            ProxyAction::Respond(503, Some(("retry-after", "soon")), String::new()),
            ProxyAction::Respond(200, None, "{}".into()),
        ];
        fates[seen.again(kind) % fates.len()].clone()
    });
    proxy.cut();
    story.progress(&node);
    happened.wait("read", 6);
    happened.wait("written", 6);
    happened.wait("deleted", 1);
    proxy.pass();
    story.verify(&node);
    let flips = flips(&watched.end(&node));
    assert!(flips.is_empty(), "{flips:#?}");
}

#[test]
fn half_open_connections_are_abandoned() {
    let (node, proxy) = ClusterNode::through_a_proxy(ControlPlane::shared(), "frozen");
    let since = || node.get_node().map(|object| condition(&object, "Ready")["lastTransitionTime"].clone());
    let ready_since = since().expect("there");
    let story = MixedWorkload::begin(&node);
    let watched = PodWatch::begin(&node);
    let happened = FaultCounts::default();
    let seen = happened.clone();
    proxy.decide(move |asked: &ProxiedRequest| {
        let what = if asked.is_lease() { "lease" } else { "other" };
        if seen.again(what) == 0 { ProxyAction::Freeze } else { ProxyAction::Pass }
    });
    story.progress(&node);
    happened.wait("lease", 2);
    happened.wait("other", 2);
    story.verify(&node);
    let flips = flips(&watched.end(&node));
    // Controllers mark a node without a renewed lease as lost, and its pods as not ready.
    let lost = since().expect("there") != ready_since;
    println!("the node was {}", if lost { "called lost meanwhile" } else { "ready all the time" });
    assert!(flips.is_empty() || lost, "{flips:#?}");
}

#[test]
fn large_unusual_and_foreign_pods_are_handled() {
    let (node, proxy) = ClusterNode::through_a_proxy(ControlPlane::shared(), "strange");
    let happened = FaultCounts::default();
    let (seen, foreign) = (happened.clone(), Arc::new(Mutex::new(String::new())));
    let word = Arc::clone(&foreign);
    proxy.decide(move |asked: &ProxiedRequest| {
        let pods = asked.is_list_of_pods() || asked.is_watch_of_pods() || asked.path.contains("/pods/");
        let foreign = word.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match pods.then(|| seen.again("asked")) {
            Some(_) if asked.is_watch_of_pods() && !foreign.is_empty() => ProxyAction::Prepend(foreign),
            Some(_) => ProxyAction::Rewrite(with_unknown_fields),
            None => ProxyAction::Pass,
        }
    });
    proxy.cut();
    // As large as etcd accepts; every string fits the kernel's limit for arguments, and environment and arguments fit ours.
    let mut large = one(&sleeper("c"));
    let env: Vec<Value> = (0..8).map(|i| json!({"name": format!("E{i}"), "value": "x".repeat(115_000)})).collect();
    large["containers"][0]["env"] = json!(env);
    large["containers"][0]["args"] = json!(vec!["x".repeat(115_000); 4]);
    node.put("large", &large);
    node.put("strange", &one(&sleeper("c")));
    for name in ["large", "strange"] {
        node.wait_ready(name);
    }
    assert!(node.get("pods", "large").expect("there").to_string().len() > 1_300_000);
    assert!(OF_NEXT_YEAR.load(Ordering::SeqCst) > 0, "no unknown field was ever sent");

    // A server never sends this. If it does, the pod is ignored.
    let mut other = one(&sleeper("c"));
    other["nodeName"] = json!("elsewhere");
    node.create("pods", &json!({"metadata": {"name": "foreign"}, "spec": other}));
    let tries = AtomicUsize::new(0);
    assert!(!node.agent.log().contains("a pod of another node"), "the server does send it");
    wait_until(LIMIT, "the foreign pod to be seen", || {
        // With a new resource version each time, because unchanged versions are ignored.
        let label = format!("n{}", tries.fetch_add(1, Ordering::SeqCst));
        node.patch("pods", "foreign", &json!({"metadata": {"labels": {"try": label}}}));
        let pod = node.get("pods", "foreign")?;
        *foreign.lock().unwrap_or_else(PoisonError::into_inner) = line("ADDED", &pod);
        let before = happened.times("asked");
        proxy.cut();
        happened.wait("asked", before + 1);
        ensure!(node.agent.log().contains("a pod of another node"), "it was not yet news");
        Ok(())
    });
    assert!(node.agent.pod("foreign").expect("an answer").is_none());
    foreign.lock().unwrap_or_else(PoisonError::into_inner).clear();
    for name in ["large", "strange"] {
        let pod = node.phase(name, "Running").expect("it runs");
        assert_eq!(container(&pod, "c")["restartCount"], 0);
        node.delete("pods", name);
    }
    let now = json!({"gracePeriodSeconds": 0});
    node.plane.api().delete(&format!("{}/foreign", node.path("pods")), Some(&now)).expect("deleted");
    node.wait_nothing_left();
}

/// How often a field was inserted.
static OF_NEXT_YEAR: AtomicUsize = AtomicUsize::new(0);

/// Inserts fields that no version of Kubernetes has.
fn with_unknown_fields(part: bytes::Bytes) -> bytes::Bytes {
    let Ok(text) = std::str::from_utf8(&part) else { return part };
    let changed = text
        .replace("\"spec\":{", "\"spec\":{\"fieldOfNextYear\":{\"deep\":[{\"er\":1}]},")
        .replace("\"containers\":[{", "\"containers\":[{\"another\":[true],");
    if changed.len() > text.len() {
        OF_NEXT_YEAR.fetch_add(1, Ordering::SeqCst);
    }
    changed.into()
}

/// A line of a watch.
fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}
