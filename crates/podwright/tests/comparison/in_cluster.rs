//! One run of the compared pods from an API server: the statuses that it has at the end, and the events.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, ControlPlane, Flavor, GoKubelet, Scratch, TestRuntime, wait_until};
use serde_json::{Value, json};

use super::cases::{self, Compared};
use super::messages::comparable;
use super::pair::{Kubelet, Observed, Pair};
use super::served_runtime::ServedRuntime;
use super::stable::{frequent_syncs, stable_fields, wait_running};
use crate::suite::LIMIT;

/// After this time without a new event no more are expected.
const NO_EVENT_FOR: Duration = Duration::from_secs(3);

/// Runs all pods on a node of its own; returns their last statuses, and reasons and messages of their events.
pub(crate) fn run(pair: Pair) -> Observed {
    let plane = ControlPlane::shared();
    let node = ComparedNode { plane, name: node_name(pair) };
    plane.namespace(node.name).expect("a namespace");
    let kubeconfig = plane.node_kubeconfig(node.name).expect("a kubeconfig");
    let scratch = Scratch::new().expect("a scratch");
    match pair.kubelet {
        Kubelet::Podwright => {
            let runtime = TestRuntime::start(&scratch, pair.runtime).expect("the runtime starts");
            let agent = Agent::new(&scratch).runtime(&runtime).hostname(node.name).kubeconfig(&kubeconfig);
            let _agent = agent.start().expect("the agent starts");
            node.observe(pair)
        }
        Kubelet::Go => {
            let runtime = ServedRuntime::start(&scratch, pair.runtime).expect("the runtime starts");
            let kubelet = GoKubelet::start_joined(&scratch, &runtime, node.name, &kubeconfig, &frequent_syncs());
            let _kubelet = kubelet.expect("the Go kubelet starts");
            node.observe(pair)
        }
    }
}

/// Names of the same length, because long texts are cut.
fn node_name(pair: Pair) -> &'static str {
    match (pair.kubelet, pair.runtime) {
        (Kubelet::Podwright, Flavor::Engine) => "compared-pe",
        (Kubelet::Podwright, _) => "compared-pc",
        (Kubelet::Go, Flavor::Engine) => "compared-ge",
        (Kubelet::Go, _) => "compared-gc",
    }
}

/// A node, and the namespace of the same name.
struct ComparedNode<'a> {
    plane: &'a ControlPlane,
    name: &'static str,
}

impl ComparedNode<'_> {
    fn observe(&self, pair: Pair) -> Observed {
        let (who, cases, began) = (pair.to_string(), cases::all(), Instant::now());
        self.create(&cases, true);
        wait_running(&who, &cases, "", || self.list("pods"));
        self.create(&cases, false);
        let mut found = stable_fields(&who, &cases, "", || self.statuses());
        println!("{who} in a cluster: {} pods stable after {:.1?}", cases.len(), began.elapsed());
        self.add_events(&cases, &mut found);
        self.delete_all();
        found
    }

    fn path(&self, kind: &str) -> String {
        format!("/api/v1/namespaces/{}/{kind}", self.name)
    }

    /// All objects of a kind, without the name of the node.
    fn list(&self, kind: &str) -> Result<Value> {
        let list = self.plane.api().get(&self.path(kind))?;
        Ok(serde_json::from_str(&list.to_string().replace(self.name, "NODE"))?)
    }

    /// Creates the pods that start early, or all others.
    fn create(&self, cases: &[Compared], early: bool) {
        for case in cases.iter().filter(|case| case.starts_early() == early) {
            let mut spec = case.spec.clone();
            spec["nodeName"] = json!(self.name);
            // For the same pods as in the comparison without a cluster.
            spec["automountServiceAccountToken"] = json!(false);
            let pod = json!({"metadata": {"name": case.name}, "spec": spec});
            self.plane.api().create(&self.path("pods"), &pod).expect("created");
        }
    }

    /// Spec and metadata belong to the API server: only the status, which the node writes, is compared.
    fn statuses(&self) -> Result<Value> {
        let mut list = self.list("pods")?;
        for pod in list["items"].as_array_mut().context("a list")? {
            *pod = json!({"metadata": {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}, "status": pod["status"]});
        }
        Ok(list)
    }

    fn add_events(&self, cases: &[Compared], found: &mut Observed) {
        let (events, pods) = (self.last_events(), self.list("pods").expect("pods"));
        for pod in pods["items"].as_array().expect("a list") {
            let uid = pod["metadata"]["uid"].as_str().expect("a UID");
            let case = cases.iter().find(|case| pod["metadata"]["name"] == case.name).expect("a case");
            let fields = found.get_mut(case.name).expect("a case");
            let all = events["items"].as_array().into_iter().flatten();
            for event in all.filter(|event| event["involvedObject"]["uid"] == uid) {
                let text = |key: &str| event[key].as_str().unwrap_or_default();
                fields.insert(format!("event {}", text("reason")), true.into());
                // How far a looping pod is, and so which messages it has, is a matter of time.
                if !case.random_restarts() {
                    let message = comparable(text("message"), uid);
                    fields.insert(
                        format!("event {} of {}: {message}", text("reason"), event["involvedObject"]["fieldPath"]),
                        text("type").into(),
                    );
                }
            }
        }
    }

    /// The events, once no more arrive: they are sent after their cause, and on a busy host late.
    fn last_events(&self) -> Value {
        let (mut last, mut since) = (Value::Null, Instant::now());
        wait_until(LIMIT, "the last event", || {
            let now = self.list("events")?;
            // Looping pods have new counts all the time.
            let count = |list: &Value| list["items"].as_array().map_or(0, Vec::len);
            if count(&now) != count(&last) {
                since = Instant::now();
            }
            last = now;
            ensure!(since.elapsed() > NO_EVENT_FOR, "{} events", count(&last));
            Ok(())
        });
        last
    }

    fn delete_all(&self) {
        let command = ["-n", self.name, "delete", "pods", "--all", "--wait=false", "--grace-period=1"];
        self.plane.kubectl(&command).expect("deleted");
        wait_until(LIMIT, "all pods to be gone", || {
            let left = self.list("pods")?["items"].as_array().map_or(0, Vec::len);
            ensure!(left == 0, "{left} pods are left");
            Ok(())
        });
    }
}

impl Drop for ComparedNode<'_> {
    fn drop(&mut self) {
        // The cluster is shared: controllers would report a stopped node as lost.
        let _ = self.plane.api().delete(&format!("/api/v1/nodes/{}", self.name), None);
    }
}
