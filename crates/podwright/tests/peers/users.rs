//! User namespaces (`hostUsers: false`) on a runtime that supports them: root in the container is unprivileged on the host.

use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, Containerd, Flavor, Scratch, TestRuntime, wait_until};
use serde_json::{Value, json};

use crate::suite::container_output::read_output;
use crate::suite::features::with;
use crate::suite::{LIMIT, TestNode, container, container_id, one, sh, sleeper};

/// Kubernetes: the number of user ids per pod.
const LENGTH: u64 = 65_536;

#[test]
fn pods_run_in_their_own_user_namespaces() {
    let scratch = Scratch::new().expect("a scratch");
    let runtime = match crate::FLAVOR {
        Flavor::Engine => TestRuntime::start(&scratch, Flavor::Engine),
        _ => Containerd::start_with_user_namespaces(&scratch).map(|it| TestRuntime::Containerd(Box::new(it))),
    };
    let runtime = runtime.expect("the runtime starts");
    let agent = Agent::new(&scratch).runtime(&runtime).start().expect("the agent starts");
    let mut node = TestNode { scratch, runtime, agent };
    let script = "cat /proc/self/uid_map; id -u; touch /v/mine /m/mine; stat -c '%u %g' /v/mine /m/mine; cat /d/name; echo; \
        cat /proc/interrupts | wc -c; mount -t tmpfs x /mnt 2>/dev/null && echo mounted; true";
    let mut c = sh("c", script);
    // An unmasked /proc is allowed only in a user namespace.
    c["securityContext"] = json!({"procMount": "Unmasked"});
    c["volumeMounts"] = json!([
        {"name": "v", "mountPath": "/v"}, {"name": "m", "mountPath": "/m"}, {"name": "d", "mountPath": "/d"},
    ]);
    let item = json!({"path": "name", "fieldRef": {"fieldPath": "metadata.name"}});
    let volumes = json!([
        {"name": "v", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}},
        {"name": "d", "downwardAPI": {"items": [item]}},
    ]);
    node.put("short", &with(c, json!({"hostUsers": false, "volumes": volumes})));
    for name in ["one", "two"] {
        let mut spec = one(&sleeper("c"));
        spec["hostUsers"] = json!(false);
        node.put(name, &spec);
    }
    wait_until(LIMIT, "what the pod sees", || {
        let text = read_output(&node, &node.phase("short", "Succeeded")?)?;
        let mut lines = text.lines();
        let map: Vec<u64> =
            lines.next().unwrap_or_default().split_whitespace().filter_map(|n| n.parse().ok()).collect();
        ensure!(map.len() == 3 && map[0] == 0 && map[1] >= LENGTH && map[2] == LENGTH, "{text}");
        let rest: Vec<&str> = lines.collect();
        ensure!(rest.get(..4) == Some(&["0", "0 0", "0 0", "short-node"]), "{text}");
        let interrupts: u64 = rest.get(4).context("no more")?.parse()?;
        ensure!(interrupts > 0, "/proc is masked: {text}");
        ensure!(rest.len() == 5, "it may mount, which needs a right it was not given: {text}");
        Ok(())
    });
    let before = [first_user(&node, "one"), first_user(&node, "two")];
    assert_ne!(before[0] / LENGTH, before[1] / LENGTH, "two pods share users: {before:?}");
    // The id ranges and the pods are kept.
    node.agent.kill9().expect("killed");
    node.agent.start_again().expect("started again");
    node.put("three", &{
        let mut spec = one(&sleeper("c"));
        spec["hostUsers"] = json!(false);
        spec
    });
    let third = first_user(&node, "three");
    assert!(before.iter().all(|user| user / LENGTH != third / LENGTH), "{before:?} {third}");
    assert_eq!([first_user(&node, "one"), first_user(&node, "two")], before);
    node.remove_all();
    node.wait_nothing_left();
}

/// The host user id of the pod's root.
fn first_user(node: &TestNode, name: &str) -> u64 {
    wait_until(LIMIT, &format!("{name} to run"), || {
        let pod = node.phase(name, "Running")?;
        ensure!(container(&pod, "c")["restartCount"] == 0, "{name} restarted");
        owner_of_processes(node, &pod)
    })
}

fn owner_of_processes(node: &TestNode, pod: &Value) -> Result<u64> {
    let uid = pod["metadata"]["uid"].as_str().context("a uid")?;
    let id = container_id(container(pod, "c"));
    let below = format!("{}/kubepods/besteffort/pod{uid}/{id}/cgroup.procs", node.scratch.name());
    let procs = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"].map(|top| fs::read_to_string(format!("{top}/{below}")));
    let procs = procs.into_iter().find_map(Result::ok).context("no cgroup")?;
    let pid = procs.lines().next().context("no process")?;
    let user = fs::metadata(format!("/proc/{pid}"))?.uid();
    ensure!(u64::from(user) >= LENGTH, "process {pid} belongs to {user}");
    Ok(user.into())
}
