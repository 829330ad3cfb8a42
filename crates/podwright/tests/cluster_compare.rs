//! The same pods of one API server under this agent and under the Go kubelet, one after the other as the same node: the statuses
//! that the API server has at the end, and the reasons of the events, are compared field by field.

#[expect(dead_code, reason = "only the cases of the suite are used here")]
mod suite;

#[expect(dead_code, reason = "shared with compare")]
mod comparison;

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, Containerd, ControlPlane, Flavor, GoKubelet, Scratch, wait_until};
use serde_json::{Value, json};

use comparison::accepted::Setting;
use comparison::cases::{self, Compared};
use comparison::difference::assert_same;
use comparison::fields::Fields;
use comparison::messages::comparable;
use comparison::stable::{frequent_syncs, stable_fields, wait_running};
use suite::LIMIT;

const NODE: &str = "compared";
const PODS: &str = "/api/v1/namespaces/compared/pods";
const EVENTS: &str = "/api/v1/namespaces/compared/events";

#[test]
fn the_api_server_gets_the_same_statuses_as_from_the_go_kubelet() {
    let plane = ControlPlane::shared();
    plane.namespace(NODE).expect("a namespace");
    let kubeconfig = plane.node_kubeconfig(NODE).expect("a kubeconfig");
    let scratch = Scratch::new().expect("a scratch");
    let containerd = Containerd::start(&scratch, Flavor::V2).expect("containerd starts");
    let cases = cases::all();

    let agent = Agent::new(&scratch).runtime(&containerd).hostname(NODE).kubeconfig(&kubeconfig);
    let mut agent = agent.start().expect("the agent starts");
    let ours = run(plane, "podwright", &cases);
    agent.sigterm().expect("the agent stops");
    plane.kubectl(&["delete", "node", NODE]).expect("deleted");

    let kubelet = GoKubelet::start_joined(&scratch, &containerd, NODE, &kubeconfig, &frequent_syncs())
        .expect("the Go kubelet starts");
    let theirs = run(plane, "the Go kubelet", &cases);
    drop(kubelet);
    drop(containerd);

    assert_same(Setting::Cluster, &cases, &ours, &theirs);
}

/// Runs the pods on the node; returns their last statuses and the reasons of their events.
fn run(plane: &ControlPlane, who: &str, cases: &[Compared]) -> BTreeMap<&'static str, Fields> {
    let began = Instant::now();
    let create = |early: bool| {
        for case in cases.iter().filter(|case| case.starts_early() == early) {
            let mut spec = case.spec.clone();
            spec["nodeName"] = json!(NODE);
            // For the same pods as in the comparison without a cluster.
            spec["automountServiceAccountToken"] = json!(false);
            plane.api().create(PODS, &json!({"metadata": {"name": case.name}, "spec": spec})).expect("created");
        }
    };
    create(true);
    wait_running(who, cases, "", || plane.api().get(PODS));
    create(false);
    // Spec and metadata belong to the API server: only the status, which the node writes, is compared.
    let statuses = || -> Result<Value> {
        let mut list = plane.api().get(PODS)?;
        for pod in list["items"].as_array_mut().context("a list")? {
            *pod = json!({"metadata": {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}, "status": pod["status"]});
        }
        Ok(list)
    };
    let mut found = stable_fields(who, cases, "", statuses);
    println!("{who}: {} pods stable after {:.1?}", cases.len(), began.elapsed());
    let events = plane.api().get(EVENTS).expect("events");
    let pods = plane.api().get(PODS).expect("pods");
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
    plane.kubectl(&["-n", NODE, "delete", "pods", "--all", "--wait=false", "--grace-period=1"]).expect("deleted");
    wait_until(LIMIT, "all pods to be gone", || {
        let left = plane.api().get(PODS)?["items"].as_array().map_or(0, Vec::len);
        ensure!(left == 0, "{left} pods are left");
        Ok(())
    });
    found
}
