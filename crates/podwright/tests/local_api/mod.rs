//! The local API of a real agent on Debian's containerd: what is submitted lives on whatever dies, and abuse wears nobody out.

mod client;
mod overload;
mod streams;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{image, leftovers, wait_until};
use serde_json::{Value, json};

use crate::fixture::{Bed, LIMIT, pod};
use crate::suite::journal;

const PODS: &str = "/api/v1/namespaces/default/pods";

impl Bed {
    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<(u16, Value)> {
        client::ask(&self.socket(), method, path, body)
    }

    fn create(&self, name: &str, spec: &Value) -> Value {
        let (code, pod) = self.ask("POST", PODS, &pod(name, spec)).expect("answered");
        assert_eq!(code, 201, "{pod:#}");
        pod
    }

    fn delete(&self, name: &str) -> Value {
        let (code, pod) = self.ask("DELETE", &format!("{PODS}/{name}"), &Value::Null).expect("answered");
        assert_eq!(code, 200, "{pod:#}");
        pod
    }

    fn pod(&self, name: &str) -> Result<Value> {
        let (code, pod) = self.ask("GET", &format!("{PODS}/{name}"), &Value::Null)?;
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

    /// Its object is gone, its file too.
    fn wait_gone(&self, name: &str) {
        wait_until(LIMIT, &format!("{name} to be gone"), || {
            let (code, pod) = self.ask("GET", &format!("{PODS}/{name}"), &Value::Null)?;
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
            let (_, list) = self.ask("GET", "/api/v1/pods", &Value::Null)?;
            let left = list["items"].as_array().context("a list")?;
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        });
        wait_until(Duration::from_secs(20), "nothing to be left", || {
            let mut left = leftovers(&self.scratch, &self.containerd)?;
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

/// Runs until it is told to end, and then ends at once.
fn sleeper() -> Value {
    sh("trap 'exit 0' TERM; while :; do sleep 0.1; done")
}

fn container(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

#[test]
fn submitted_pods_outlive_the_agent_and_the_machine_and_a_delete_goes_on() {
    let mut bed = Bed::start();
    bed.create("web", &sleeper());
    let mut once = sh("exit 0");
    once["restartPolicy"] = json!("Never");
    bed.create("once", &once);
    let deaf = "trap '' TERM; while :; do sleep 0.1; done";
    bed.create("stubborn", &sh(deaf));
    let mut patient = sh(deaf);
    patient["terminationGracePeriodSeconds"] = json!(600);
    bed.create("patient", &patient);
    let web = bed.wait_phase("web", "Running");
    bed.wait_phase("once", "Succeeded");
    bed.wait_phase("stubborn", "Running");
    bed.wait_phase("patient", "Running");

    // The agent dies in the middle of a delete: nothing is restarted, the delete goes on.
    assert_eq!(bed.delete("stubborn")["metadata"]["deletionGracePeriodSeconds"], 3);
    assert_eq!(bed.delete("patient")["metadata"]["deletionGracePeriodSeconds"], 600);
    bed.agent.kill9().expect("killed");
    bed.agent.start_again().expect("started again");
    bed.wait_gone("stubborn");
    // Midway its time is shortened: ten minutes were promised, and two seconds are enough.
    let ending = bed.pod("patient").expect("it has minutes left");
    assert!(container(&ending)["state"]["running"].is_object(), "{:#}", ending["status"]);
    let two = json!({"gracePeriodSeconds": 2});
    let (code, shortened) = bed.ask("DELETE", &format!("{PODS}/patient"), &two).expect("answered");
    assert_eq!((code, &shortened["metadata"]["deletionGracePeriodSeconds"]), (200, &json!(2)), "{shortened:#}");
    bed.wait_gone("patient");
    let after = bed.wait_phase("web", "Running");
    for field in ["uid", "creationTimestamp", "generation"] {
        assert_eq!(after["metadata"][field], web["metadata"][field], "{field}");
    }
    assert_eq!(
        (container(&after)["containerID"].clone(), container(&after)["restartCount"].clone()),
        (container(&web)["containerID"].clone(), json!(0))
    );

    // The machine dies: what is to run runs again, what has ended has ended.
    bed.agent.kill9().expect("killed");
    bed.containerd.power_cut().expect("cut");
    bed.containerd.start_again().expect("started again");
    bed.agent.set_env("PODWRIGHT_BOOT_ID", "another-boot");
    bed.agent.start_again().expect("started again");
    wait_until(LIMIT, "web to come back", || {
        let pod = bed.pod("web")?;
        ensure!(container(&pod)["restartCount"] == 1 && container(&pod)["state"]["running"].is_object(), "{pod:#}");
        Ok(())
    });
    let once = bed.wait_phase("once", "Succeeded");
    assert_eq!(container(&once)["restartCount"], 0, "it ran again");

    // A manifest's name is its own; a submitted pod's file names nobody else.
    bed.scratch.put_manifest("static.json", &pod("static", &sleeper())).expect("written");
    wait_until(LIMIT, "the static pod", || bed.pod("static-node"));
    let (code, status) = bed.ask("POST", PODS, &pod("static-node", &sleeper())).expect("answered");
    assert!(code == 409 && status["message"].as_str().is_some_and(|m| m.contains("static.json")), "{status:#}");
    let (code, status) = bed.ask("DELETE", &format!("{PODS}/static-node"), &Value::Null).expect("answered");
    assert!(code == 403 && status["message"].as_str().is_some_and(|m| m.contains("static.json")), "{status:#}");
    bed.scratch.remove_manifest("static.json").expect("removed");

    for name in ["web", "once"] {
        bed.delete(name);
    }
    bed.wait_nothing_left();
}

#[test]
fn what_was_answered_is_kept_when_the_agent_is_killed_during_creates() {
    let mut bed = Bed::start();
    let mut answered = Vec::new();
    for round in 0..5 {
        let socket = bed.socket();
        let writer = std::thread::spawn(move || {
            let mut taken = Vec::new();
            for n in 0.. {
                let name = format!("p{round}-{n}");
                // A pod that waits for a node selector it never gets: only its object matters here.
                let mut spec = sleeper();
                spec["nodeSelector"] = json!({"never": "here"});
                match client::ask(&socket, "POST", PODS, &pod(&name, &spec)) {
                    Ok((201, _)) => taken.push(name),
                    Ok((code, status)) => panic!("{code} {status:#}"),
                    Err(_) => return taken,
                }
            }
            taken
        });
        std::thread::sleep(Duration::from_millis(40 + 35 * round));
        bed.agent.kill9().expect("killed");
        answered.extend(writer.join().expect("it writes until the door is closed"));
        bed.agent.start_again().expect("started again");
        let (_, list) = bed.ask("GET", "/api/v1/pods", &Value::Null).expect("answered");
        let there: Vec<&str> =
            list["items"].as_array().expect("a list").iter().filter_map(|p| p["metadata"]["name"].as_str()).collect();
        for name in &answered {
            assert!(there.contains(&name.as_str()), "{name} was taken and is lost");
        }
    }
    assert!(answered.len() > 5, "only {} were taken", answered.len());
    let (_, broken) = bed.ask("GET", "/podwright/v1/manifests", &Value::Null).expect("answered");
    assert_eq!(broken["broken"], json!([]), "a file was cut short");
}
