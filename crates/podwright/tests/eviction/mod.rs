//! Eviction on small file systems: one for the agent's root directory, one for the images of the runtime.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, Flavor, Scratch, TestRuntime, wait_until};
use rustix::mount::{MountFlags, mount};
use serde_json::{Value, json};

use crate::suite::{LIMIT, TestNode, condition, container, cri, local_client, one, sh, sleeper};

/// A file system of this size on a directory of the instance, which unmounts it at its end.
fn small_disk(dir: &Path, mib: u64) {
    let options = CString::new(format!("size={mib}m,mode=755")).expect("no zero byte");
    mount("podwright-test", dir, "tmpfs", MountFlags::empty(), options.as_c_str()).expect("mounted");
}

/// Submits a pod to the local API: unlike a static pod, it can be evicted.
fn submit(node: &TestNode, name: &str, spec: &Value) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    let socket = node.scratch.run_dir().expect("there").join("api.sock");
    let (code, body) =
        local_client::request(&socket, "POST", "/api/v1/namespaces/default/pods", &pod).expect("submitted");
    assert_eq!(code, 201, "{body:#}");
}

fn phase(node: &TestNode, name: &str, wanted: &str) -> Result<Value> {
    let pod = node.agent.pod(name)?.with_context(|| format!("{name} is unknown to the agent"))?;
    ensure!(pod["status"]["phase"] == wanted, "{name}: {:#}", pod["status"]);
    Ok(pod)
}

fn wait_phase(node: &TestNode, name: &str, wanted: &str) -> Value {
    wait_until(LIMIT, &format!("{name} to be {wanted}"), || phase(node, name, wanted))
}

fn evictions(node: &TestNode) -> Vec<String> {
    let metrics = node.agent.get("/metrics").expect("metrics").body;
    metrics.lines().filter(|line| line.starts_with("kubelet_evictions{")).map(str::to_owned).collect()
}

/// The pod that fills the disk of the root directory is evicted, with its exit code; static and other pods run on.
#[test]
fn a_pod_that_fills_the_disk_is_evicted_and_the_others_run_on() {
    let scratch = Scratch::new().expect("a scratch");
    small_disk(&scratch.root_dir().expect("there"), 64);
    let runtime = TestRuntime::start(&scratch, crate::FLAVOR).expect("the runtime starts");
    let config = json!({
        "evictionHard": {"nodefs.available": "24Mi"},
        "evictionPressureTransitionPeriod": "3s",
    });
    let agent = Agent::new(&scratch).runtime(&runtime).config(config).start().expect("the agent starts");
    let node = TestNode { scratch, runtime, agent };
    let volume = json!([{"name": "v", "emptyDir": {}}]);
    let writes = |mib: u32, then: &str| {
        let script = format!("dd if=/dev/zero of=/v/file bs=1M count={mib}; {then}");
        let mut container = sh("c", &script);
        container["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        let mut spec = one(&container);
        spec["volumes"] = volume.clone();
        spec
    };
    // It uses more than the pod below would without it, and is never evicted.
    node.put("fixed", &writes(8, "trap 'exit 0' TERM; while :; do sleep 0.1; done"));
    submit(&node, "quiet", &one(&sleeper("c")));
    let before = [node.wait_phase("fixed", "Running"), wait_phase(&node, "quiet", "Running")];
    submit(&node, "fills", &writes(40, "trap 'exit 3' TERM; while :; do sleep 0.1; done"));
    let pod = wait_phase(&node, "fills", "Failed");
    assert_eq!(pod["status"]["reason"], "Evicted", "{:#}", pod["status"]);
    let message = pod["status"]["message"].as_str().unwrap_or_default();
    let expected = "The node was low on resource: ephemeral-storage. Threshold quantity: 24Mi, available: ";
    assert!(message.starts_with(expected), "{message}");
    let disruption = condition(&pod, "DisruptionTarget");
    assert_eq!((&disruption["status"], &disruption["reason"]), (&json!("True"), &json!("TerminationByKubelet")));
    assert_eq!(container(&pod, "c")["state"]["terminated"]["exitCode"], 3, "{:#}", pod["status"]);
    assert_eq!(evictions(&node), ["kubelet_evictions{eviction_signal=\"nodefs.available\"} 1"]);
    let events = events(&node);
    for (reason, message) in [("EvictionThresholdMet", "Attempting to reclaim ephemeral-storage"), ("Evicted", message)]
    {
        assert!(events.iter().any(|e| e["reason"] == reason && e["message"] == message), "{events:#?}");
    }
    // The space is free again, and the node takes pods.
    submit(&node, "later", &one(&sleeper("c")));
    wait_phase(&node, "later", "Running");
    std::thread::sleep(Duration::from_secs(12));
    let after = [node.phase("fixed", "Running").expect("it runs"), phase(&node, "quiet", "Running").expect("it runs")];
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(container(before, "c")["containerID"], container(after, "c")["containerID"]);
    }
    assert_eq!(evictions(&node).len(), 1, "nothing else was evicted");
}

fn events(node: &TestNode) -> Vec<Value> {
    let socket = node.scratch.run_dir().expect("there").join("api.sock");
    let (_, list) = local_client::request(&socket, "GET", "/api/v1/events", &Value::Null).expect("events");
    list["items"].as_array().expect("a list").clone()
}

/// A disk full of unused images: they are removed, and no pod is evicted.
#[test]
fn unused_images_are_removed_before_a_pod_is_evicted() {
    let scratch = Scratch::new().expect("a scratch");
    // The engine has its images below the root directory.
    let images_dir = if crate::FLAVOR == Flavor::Engine { "root" } else { "containerd" };
    let images_dir = scratch.dir(images_dir).expect("there");
    small_disk(&images_dir, 200);
    let runtime = TestRuntime::start(&scratch, crate::FLAVOR).expect("the runtime starts");
    let config = json!({
        "evictionHard": {"imagefs.available": "48Mi"}, "imageMinimumGCAge": "1ns",
        "evictionPressureTransitionPeriod": "3s",
    });
    let agent = Agent::new(&scratch).runtime(&runtime).config(config).start().expect("the agent starts");
    let node = TestNode { scratch, runtime, agent };
    submit(&node, "quiet", &one(&sleeper("c")));
    let before = wait_phase(&node, "quiet", "Running");
    let archive = large_image(&node.scratch.dir("large").expect("there"), 64).expect("an archive");
    node.runtime.import(&archive).expect("imported");
    // Only now is too little left: an image that is being imported can't be removed.
    fs::write(images_dir.join("filler"), vec![0; 40 << 20]).expect("written");
    wait_until(LIMIT, "the unused image to go", || {
        let left = cri::images(&node);
        ensure!(!left.iter().any(|name| name == LARGE), "{left:?}");
        Ok(())
    });
    std::thread::sleep(Duration::from_secs(12));
    let after = phase(&node, "quiet", "Running").expect("it runs");
    assert_eq!(container(&before, "c")["containerID"], container(&after, "c")["containerID"]);
    assert_eq!(evictions(&node), [""; 0]);
}

const LARGE: &str = "localhost/podwright/large:1";

/// A docker-archive of an image with one file of this size that does not compress.
fn large_image(dir: &Path, mib: u64) -> Result<PathBuf> {
    let mut random = fs::File::open("/dev/urandom")?;
    let content = dir.join("file");
    std::io::copy(&mut std::io::Read::take(&mut random, mib << 20), &mut fs::File::create(&content)?)?;
    let run = |program: &str, args: &[&str]| -> Result<String> {
        let output = Command::new(program).args(args).current_dir(dir).output()?;
        ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    run("tar", &["-cf", "layer.tar", "file"])?;
    let digest = run("sha256sum", &["layer.tar"])?.split(' ').next().unwrap_or_default().to_owned();
    let config = json!({"architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]}});
    fs::write(dir.join("config.json"), config.to_string())?;
    let manifest = json!([{"Config": "config.json", "RepoTags": [LARGE], "Layers": ["layer.tar"]}]);
    fs::write(dir.join("manifest.json"), manifest.to_string())?;
    run("tar", &["-cf", "image.tar", "manifest.json", "config.json", "layer.tar"])?;
    Ok(dir.join("image.tar"))
}
