//! The same pods of one API server under this agent and under the Go kubelet, one after the other as the same node: the statuses
//! that the API server has in the end, and the reasons of the events, are compared field by field.

#[expect(dead_code, reason = "of the suite only its cases are used here")]
mod suite;

#[path = "cluster_compare/accepted.rs"]
mod accepted;
#[path = "compare/cases.rs"]
mod cases;
#[path = "compare/difference.rs"]
mod difference;
#[path = "compare/everywhere.rs"]
mod everywhere;
#[path = "compare/fields.rs"]
mod fields;
#[path = "compare/settled.rs"]
mod settled;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, Containerd, ControlPlane, Flavor, GoKubelet, Scratch, wait_until};
use serde_json::{Value, json};

use accepted::ACCEPTED;
use cases::Compared;
use fields::Fields;
use settled::{running, settled};
use suite::LIMIT;

const NODE: &str = "compared";
const PODS: &str = "/api/v1/namespaces/compared/pods";
const EVENTS: &str = "/api/v1/namespaces/compared/events";

#[test]
fn the_api_server_is_told_what_the_go_kubelet_tells_it() {
    let plane = ControlPlane::shared();
    plane.namespace(NODE).expect("a namespace");
    let kubeconfig = plane.node_kubeconfig(NODE).expect("a kubeconfig");
    let scratch = Scratch::new().expect("a scratch");
    let containerd = Containerd::start(&scratch, Flavor::V2).expect("containerd starts");
    let cases = cases::all();

    let agent = Agent::new(&scratch).runtime(&containerd).hostname(NODE).kubeconfig(&kubeconfig);
    let mut agent = agent.start().expect("the agent starts");
    let ours = run(plane, "podwright", &cases);
    agent.sigterm().expect("it ends");
    plane.kubectl(&["delete", "node", NODE]).expect("deleted");

    let kubelet = GoKubelet::start_joined(&scratch, &containerd, NODE, &kubeconfig, &json!({})).expect("it starts");
    let theirs = run(plane, "the Go kubelet", &cases);
    drop(kubelet);
    drop(containerd);

    let rules = everywhere::and(ACCEPTED);
    let (mut wrong, mut used, mut fields) = (vec![], BTreeSet::new(), 0);
    for case in &cases {
        let (count, lines) = difference::compare(case.name, &ours[case.name], &theirs[case.name], &rules, &mut used);
        fields += count;
        wrong.extend(lines);
    }
    println!(
        "{fields} fields of {} pods compared: {} rules used, {} differ wrongly",
        cases.len(),
        used.len(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{} fields differ:\n{}", wrong.len(), wrong.join("\n"));
    let stale = difference::stale(&rules, &used);
    assert!(stale.is_empty(), "accepted, but no longer seen: {stale:#?}");
}

/// Run the pods on the node, and take the last statuses and the reasons of their events.
fn run(plane: &ControlPlane, who: &str, cases: &[Compared]) -> BTreeMap<&'static str, Fields> {
    let began = Instant::now();
    let create = |hurry: bool| {
        for case in cases.iter().filter(|case| case.hurries() == hurry) {
            let mut spec = case.spec.clone();
            spec["nodeName"] = json!(NODE);
            // The same pods as without a cluster.
            spec["automountServiceAccountToken"] = json!(false);
            plane.api().create(PODS, &json!({"metadata": {"name": case.name}, "spec": spec})).expect("created");
        }
    };
    create(true);
    running(who, cases, "", || plane.api().get(PODS));
    create(false);
    // Spec and metadata are the API server's: only what the node says is compared.
    let told = || -> Result<Value> {
        let mut list = plane.api().get(PODS)?;
        for pod in list["items"].as_array_mut().context("a list")? {
            *pod = json!({"metadata": {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}, "status": pod["status"]});
        }
        Ok(list)
    };
    let mut found = settled(who, cases, "", told);
    println!("{who}: {} pods settled after {:.1?}", cases.len(), began.elapsed());
    let events = plane.api().get(EVENTS).expect("events");
    let pods = plane.api().get(PODS).expect("pods");
    for pod in pods["items"].as_array().expect("a list") {
        let of = events["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|e| e["involvedObject"]["uid"] == pod["metadata"]["uid"]);
        let reasons: BTreeSet<&str> = of.filter_map(|event| event["reason"].as_str()).collect();
        let fields = found.iter_mut().find(|(name, _)| pod["metadata"]["name"] == **name).expect("a case").1;
        for reason in reasons {
            fields.insert(format!("event {reason}"), true.into());
        }
    }
    plane.kubectl(&["-n", NODE, "delete", "pods", "--all", "--wait=false", "--grace-period=1"]).expect("deleted");
    wait_until(LIMIT, "all pods to be gone", || {
        let left = plane.api().get(PODS)?["items"].as_array().map_or(0, Vec::len);
        ensure!(left == 0, "{left} are left");
        Ok(())
    });
    found
}
