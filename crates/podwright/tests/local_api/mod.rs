//! The local API of a real agent: submitted pods survive restarts, and overload is bounded.

mod overload;
mod streams;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{image, leftovers, wait_until};
use serde_json::{Value, json};

use crate::fixture::{LIMIT, LocalNode, pod};
use crate::suite::journal;
use crate::suite::local_client as client;

const PODS: &str = "/api/v1/namespaces/default/pods";

impl LocalNode {
    fn request(&self, method: &str, path: &str, body: &Value) -> Result<(u16, Value)> {
        client::request(&self.socket(), method, path, body)
    }

    fn create(&self, name: &str, spec: &Value) -> Value {
        let (code, pod) = self.request("POST", PODS, &pod(name, spec)).expect("answered");
        assert_eq!(code, 201, "{pod:#}");
        pod
    }

    fn delete(&self, name: &str) -> Value {
        let (code, pod) = self.request("DELETE", &format!("{PODS}/{name}"), &Value::Null).expect("answered");
        assert_eq!(code, 200, "{pod:#}");
        pod
    }

    fn pod(&self, name: &str) -> Result<Value> {
        let (code, pod) = self.request("GET", &format!("{PODS}/{name}"), &Value::Null)?;
        ensure!(code == 200, "{pod:#}");
        Ok(pod)
    }

    fn wait_phase(&self, name: &str, wanted: &str) -> Value {
        wait_until(LIMIT, &format!("{name} to be {wanted}"), || {
            let pod = self.pod(name)?;
            ensure!(pod["status"]["phase"] == wanted, "{:#}", pod["status"]);
            Ok(pod)
        })
    }

    /// Waits until the object is deleted.
    fn wait_gone(&self, name: &str) {
        wait_until(LIMIT, &format!("{name} to be gone"), || {
            let (code, pod) = self.request("GET", &format!("{PODS}/{name}"), &Value::Null)?;
            ensure!(code == 404, "{:#}", pod);
            Ok(())
        });
    }

    fn files(&self) -> usize {
        let kept = self.scratch.root_dir().expect("there").join("manifests");
        std::fs::read_dir(kept).expect("there").count()
    }

    fn wait_nothing_left(&self) {
        wait_until(LIMIT, "no pod to be known", || {
            let (_, list) = self.request("GET", "/api/v1/pods", &Value::Null)?;
            let left = list["items"].as_array().context("a list")?;
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        });
        wait_until(Duration::from_secs(20), "nothing to be left", || {
            let mut left = leftovers(&self.scratch, &self.runtime)?;
            left.extend(journal::pods(&self.scratch)?);
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        });
        assert_eq!(self.files(), 0);
    }
}

fn sh(script: &str) -> Value {
    json!({"terminationGracePeriodSeconds": 3, "containers":
        [{"name": "c", "image": image::BUSYBOX, "command": ["sh", "-c", script]}]})
}

/// Runs until SIGTERM, and then exits at once.
fn sleeper() -> Value {
    sh("trap 'exit 0' TERM; while :; do sleep 0.1; done")
}

fn container(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

#[test]
fn submitted_pods_survive_agent_and_host_restarts_and_deletes_continue() {
    let mut node = LocalNode::start();
    node.create("web", &sleeper());
    let mut once = sh("exit 0");
    once["restartPolicy"] = json!("Never");
    node.create("once", &once);
    let deaf = "trap '' TERM; while :; do sleep 0.1; done";
    node.create("stubborn", &sh(deaf));
    let mut patient = sh(deaf);
    patient["terminationGracePeriodSeconds"] = json!(600);
    node.create("patient", &patient);
    let web = node.wait_phase("web", "Running");
    node.wait_phase("once", "Succeeded");
    node.wait_phase("stubborn", "Running");
    node.wait_phase("patient", "Running");

    // The agent is killed during a delete: nothing is restarted, the delete continues.
    assert_eq!(node.delete("stubborn")["metadata"]["deletionGracePeriodSeconds"], 3);
    assert_eq!(node.delete("patient")["metadata"]["deletionGracePeriodSeconds"], 600);
    node.agent.kill9().expect("killed");
    node.agent.start_again().expect("started again");
    node.wait_gone("stubborn");
    // A second delete shortens the grace period from ten minutes to two seconds.
    let ending = node.pod("patient").expect("the pod has minutes left");
    assert!(container(&ending)["state"]["running"].is_object(), "{:#}", ending["status"]);
    let two = json!({"gracePeriodSeconds": 2});
    let (code, shortened) = node.request("DELETE", &format!("{PODS}/patient"), &two).expect("answered");
    assert_eq!((code, &shortened["metadata"]["deletionGracePeriodSeconds"]), (200, &json!(2)), "{shortened:#}");
    node.wait_gone("patient");
    let after = node.wait_phase("web", "Running");
    for field in ["uid", "creationTimestamp", "generation"] {
        assert_eq!(after["metadata"][field], web["metadata"][field], "{field}");
    }
    assert_eq!(
        (container(&after)["containerID"].clone(), container(&after)["restartCount"].clone()),
        (container(&web)["containerID"].clone(), json!(0))
    );

    // The host restarts: running pods run again, terminated pods stay terminated.
    node.agent.kill9().expect("killed");
    node.runtime.power_cut().expect("cut");
    node.runtime.start_again().expect("started again");
    node.agent.set_env("PODWRIGHT_BOOT_ID", "another-boot");
    node.agent.start_again().expect("started again");
    wait_until(LIMIT, "web to come back", || {
        let pod = node.pod("web")?;
        ensure!(container(&pod)["restartCount"] == 1 && container(&pod)["state"]["running"].is_object(), "{pod:#}");
        Ok(())
    });
    let once = node.wait_phase("once", "Succeeded");
    assert_eq!(container(&once)["restartCount"], 0, "the completed pod ran again");

    // The name of a static pod can't be used by a submitted one.
    node.scratch.put_manifest("static.json", &pod("static", &sleeper())).expect("written");
    wait_until(LIMIT, "the static pod", || node.pod("static-node"));
    let (code, status) = node.request("POST", PODS, &pod("static-node", &sleeper())).expect("answered");
    assert!(code == 409 && status["message"].as_str().is_some_and(|m| m.contains("static.json")), "{status:#}");
    let (code, status) = node.request("DELETE", &format!("{PODS}/static-node"), &Value::Null).expect("answered");
    assert!(code == 403 && status["message"].as_str().is_some_and(|m| m.contains("static.json")), "{status:#}");
    node.scratch.remove_manifest("static.json").expect("removed");

    for name in ["web", "once"] {
        node.delete(name);
    }
    node.wait_nothing_left();
}

#[test]
fn acknowledged_creates_survive_kills_of_the_agent() {
    let mut node = LocalNode::start();
    let mut answered = Vec::new();
    for round in 0..5 {
        let (socket, count) = (node.socket(), Arc::new(AtomicUsize::new(0)));
        let acknowledged = Arc::clone(&count);
        let writer = std::thread::spawn(move || {
            let mut taken = Vec::new();
            for n in 0.. {
                let name = format!("p{round}-{n}");
                acknowledged.store(taken.len(), Ordering::Relaxed);
                // A pod with a node selector that never matches: only its object matters here.
                let mut spec = sleeper();
                spec["nodeSelector"] = json!({"never": "here"});
                match client::request(&socket, "POST", PODS, &pod(&name, &spec)) {
                    Ok((201, _)) => taken.push(name),
                    Ok((code, status)) => panic!("{code} {status:#}"),
                    Err(_) => return taken,
                }
            }
            taken
        });
        wait_until(LIMIT, "two pods to be acknowledged", || {
            ensure!(count.load(Ordering::Relaxed) >= 2 || writer.is_finished(), "not yet");
            Ok(())
        });
        // At another moment of a request in each round.
        std::thread::sleep(Duration::from_millis(7 * round));
        node.agent.kill9().expect("killed");
        answered.extend(writer.join().expect("the writer ends when the socket closes"));
        node.agent.start_again().expect("started again");
        let (_, list) = node.request("GET", "/api/v1/pods", &Value::Null).expect("answered");
        let there: Vec<&str> =
            list["items"].as_array().expect("a list").iter().filter_map(|p| p["metadata"]["name"].as_str()).collect();
        for name in &answered {
            assert!(there.contains(&name.as_str()), "{name} was acknowledged and is lost");
        }
    }
    assert!(answered.len() > 5, "only {} were acknowledged", answered.len());
    let (_, broken) = node.request("GET", "/podwright/v1/manifests", &Value::Null).expect("answered");
    assert_eq!(broken["broken"], json!([]), "a manifest file is incomplete");
}
