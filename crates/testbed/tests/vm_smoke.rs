//! Our agent on Debian's containerd: limits are in force, an OOM kill is reported, a probe makes a pod ready, and nothing is left
//! behind. Runs in the VM with cgroup v2, and also on a host with v1.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, Containerd, Flavor, Scratch, image, leftovers, wait_until};
use serde_json::{Value, json};

/// The VM is emulated, and slow.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn three_pods_run_and_are_removed() {
    let scratch = Scratch::new().expect("a scratch");
    let containerd = Containerd::start(&scratch, Flavor::Debian16).expect("containerd starts");
    let agent = Agent::new(&scratch).runtime(&containerd).start().expect("the agent starts");
    let pods = [("limited", limited()), ("greedy", greedy()), ("web", web())];
    for (name, spec) in &pods {
        scratch.put_manifest(&format!("{name}.json"), &pod(name, spec)).expect("written");
    }

    let limited = wait_until(LIMIT, "the limited pod to run", || phase(&agent, "limited-node", "Running"));
    let hash = limited["metadata"]["annotations"]["kubernetes.io/config.hash"].as_str();
    let uid = hash.or(limited["metadata"]["uid"].as_str()).expect("a static pod has one");
    assert_eq!(memory_limit(&scratch, uid).expect("its cgroup is there"), (32 << 20).to_string());

    let greedy = wait_until(LIMIT, "the greedy pod to fail", || phase(&agent, "greedy-node", "Failed"));
    let ended = &greedy["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["reason"], &ended["exitCode"]), (&json!("OOMKilled"), &json!(137)), "{ended:#}");

    wait_until(LIMIT, "the web pod to be ready", || {
        let web = phase(&agent, "web-node", "Running")?;
        let conditions = web["status"]["conditions"].as_array().context("no conditions")?;
        let ready = conditions.iter().any(|found| found["type"] == "Ready" && found["status"] == "True");
        ensure!(ready, "{conditions:#?}");
        Ok(())
    });

    for (name, _) in &pods {
        scratch.remove_manifest(&format!("{name}.json")).expect("removed");
    }
    wait_until(LIMIT, "nothing to be left", || {
        let left = leftovers(&scratch, &containerd)?;
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    });
}

fn pod(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn limited() -> Value {
    json!({"terminationGracePeriodSeconds": 1, "containers": [{
        "name": "c", "image": image::BUSYBOX, "command": ["sleep", "3600"],
        "resources": {"limits": {"cpu": "200m", "memory": "32Mi"}},
    }]})
}

/// `tail` buffers the last line it has read, and zeros have no line end.
fn greedy() -> Value {
    json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [{
        "name": "c", "image": image::BUSYBOX, "command": ["tail", "/dev/zero"],
        "resources": {"limits": {"memory": "24Mi"}},
    }]})
}

fn web() -> Value {
    json!({"terminationGracePeriodSeconds": 1, "containers": [{
        "name": "c", "image": image::BUSYBOX, "command": ["httpd", "-f", "-p", "8080", "-h", "/etc"],
        "readinessProbe": {"httpGet": {"port": 8080, "path": "/passwd"}, "periodSeconds": 1, "timeoutSeconds": 5},
    }]})
}

fn phase(agent: &Agent, name: &str, wanted: &str) -> Result<Value> {
    let pod = agent.pod(name)?.context("not known")?;
    ensure!(pod["status"]["phase"] == wanted, "{:#}", pod["status"]);
    Ok(pod)
}

/// The pod's own limit: a guaranteed pod's cgroup is right below `kubepods`.
fn memory_limit(scratch: &Scratch, uid: &str) -> Result<String> {
    let below = PathBuf::from(scratch.name()).join("kubepods").join(format!("pod{uid}"));
    let (v2, v1) = (PathBuf::from("/sys/fs/cgroup"), PathBuf::from("/sys/fs/cgroup/memory"));
    let files = [v2.join(&below).join("memory.max"), v1.join(&below).join("memory.limit_in_bytes")];
    let found = files.iter().find_map(|file| std::fs::read_to_string(file).ok());
    Ok(found.with_context(|| format!("none of {files:?}"))?.trim().to_owned())
}
