//! Workloads of the cluster's controllers on this node.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use podwright_testbed::image::{BUSYBOX, USER_1000};
use podwright_testbed::{ControlPlane, wait_until};
use serde_json::{Value, json};

use crate::cluster_node::ClusterNode;
use crate::suite::{LIMIT, condition, one, sh, sleeper};

fn template(node: &ClusterNode<'_>, app: &str, spec: &Value) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": node.here(spec)})
}

fn set(node: &ClusterNode<'_>, app: &str, replicas: u32) -> Value {
    json!({"metadata": {"name": app}, "spec": {"replicas": replicas, "serviceName": app,
        "selector": {"matchLabels": {"app": app}}, "template": template(node, app, &one(&sleeper("c")))}})
}

/// Waits until fields of an object's status have these values.
fn wait_status(node: &ClusterNode<'_>, kind: &str, name: &str, wanted: &[(&str, u32)]) {
    wait_until(LIMIT, &format!("{kind} {name} to have {wanted:?}"), || -> Result<()> {
        let object = node.get(kind, name)?;
        let seen = |field: &str| object["status"][field].as_u64().unwrap_or_default();
        ensure!(wanted.iter().all(|(field, value)| seen(field) == u64::from(*value)), "{:#}", object["status"]);
        Ok(())
    });
}

#[test]
fn a_deployment_of_30_starts_rolls_and_is_deleted_and_the_node_is_ready_in_3_s() {
    let mut node = ClusterNode::start(ControlPlane::shared(), "deployment");
    let mut starts = vec![node.ready_after];
    while starts.iter().min() >= Some(&Duration::from_secs(3)) {
        assert!(starts.len() < 3, "ready after {starts:?}");
        starts.push(node.starts_anew(ClusterNode::joined));
    }
    let kind = "apps/v1/deployments";
    let began = Instant::now();
    node.create(kind, &set(&node, "web", 30));
    wait_status(&node, kind, "web", &[("availableReplicas", 30)]);
    println!("ready after {starts:?}, 30 pods after {:?}", began.elapsed());

    let containers = json!([{"name": "c", "image": USER_1000}]);
    node.patch(kind, "web", &json!({"spec": {"template": {"spec": {"containers": containers}}}}));
    wait_status(
        &node,
        kind,
        "web",
        &[("observedGeneration", 2), ("updatedReplicas", 30), ("availableReplicas", 30), ("replicas", 30)],
    );
    let old: Vec<Value> = node
        .list("pods")
        .expect("a list")
        .into_iter()
        .filter(|pod| {
            pod["spec"]["containers"][0]["image"] == BUSYBOX && pod["metadata"]["deletionTimestamp"].is_null()
        })
        .collect();
    assert!(old.is_empty(), "{old:#?}");

    println!("rolled after {:?}", began.elapsed());
    node.patch(kind, "web", &json!({"spec": {"replicas": 0}}));
    node.wait_nothing_left();
    println!("nothing left after {:?}", began.elapsed());
}

#[test]
fn jobs_daemon_sets_and_stateful_sets_run_and_are_deleted() {
    let node = ClusterNode::start(ControlPlane::shared(), "sets");
    let mut job = one(&sh("c", "true"));
    job["restartPolicy"] = json!("Never");
    let spec = json!({"completions": 20, "parallelism": 10, "template": template(&node, "job", &job)});
    node.create("batch/v1/jobs", &json!({"metadata": {"name": "job"}, "spec": spec}));
    let mut daemon = set(&node, "daemon", 1);
    daemon["spec"].as_object_mut().expect("an object").retain(|key, _| key != "replicas" && key != "serviceName");
    node.create("apps/v1/daemonsets", &daemon);
    node.create("apps/v1/statefulsets", &set(&node, "state", 3));

    wait_status(&node, "batch/v1/jobs", "job", &[("succeeded", 20), ("failed", 0)]);
    let pods = node.list("pods").expect("a list");
    let of_job: Vec<&Value> = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == "job").collect();
    assert_eq!(of_job.len(), 20, "one pod for each completion");
    assert!(of_job.iter().all(|pod| pod["status"]["phase"] == "Succeeded"), "{of_job:#?}");
    wait_status(&node, "apps/v1/daemonsets", "daemon", &[("numberReady", 1)]);
    wait_status(&node, "apps/v1/statefulsets", "state", &[("readyReplicas", 3)]);
    // In order, and each under its own name.
    let names: Vec<String> = (0..3).map(|i| format!("state-{i}")).collect();
    let pods: Vec<Value> = names.iter().map(|name| node.wait_ready(name)).collect();
    for pair in pods.windows(2) {
        let (ready, created) =
            (&condition(&pair[0], "Ready")["lastTransitionTime"], &pair[1]["metadata"]["creationTimestamp"]);
        assert!(
            created.as_str() >= ready.as_str(),
            "made at {created}, though the one before was ready only at {ready}"
        );
    }
    let before = node.get("pods", "state-1").expect("there");
    node.delete("pods", "state-1");
    wait_until(LIMIT, "state-1 to be created again", || -> Result<()> {
        let pod = node.phase("state-1", "Running")?;
        ensure!(pod["metadata"]["uid"] != before["metadata"]["uid"], "the old one");
        Ok(())
    });
    for (kind, name) in [("batch/v1/jobs", "job"), ("apps/v1/daemonsets", "daemon"), ("apps/v1/statefulsets", "state")]
    {
        node.delete(kind, name);
    }
    node.wait_nothing_left();
}
