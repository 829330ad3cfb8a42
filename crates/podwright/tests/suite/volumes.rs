//! Volumes on a real runtime: their content, their lifetime, and that containers can't escape through them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::container_output::{read_output, read_output_of};
use super::features::{Asked, with};
use super::{LIMIT, TestNode, condition, container, one, sh, sleeper};

pub(crate) fn volumes_have_the_right_content_and_can_not_be_escaped(flavor: Flavor) {
    let node = TestNode::start(flavor);
    let host = node.scratch.dir("host").expect("made");
    let _socket = furnish(&host);
    let all: [Asked; 4] = [
        ("empty", empty_dirs(), empty_dirs_are_right),
        ("host", host_paths(&host), host_paths_are_right),
        ("about", downward_api(), downward_api_is_right),
        ("parts", parts(&host), parts_are_right),
    ];
    for (name, spec, _) in &all {
        node.put_labeled(name, spec);
    }
    node.put("late", &late(&host));
    node.put("escape", &escape(&host));
    let config_map = json!([{"name": "v", "configMap": {"name": "settings"}}]);
    node.put("config", &with(sh("c", "true"), json!({"volumes": config_map})));
    for (name, _, check) in &all {
        wait_until(LIMIT, name, || {
            let pod = node.phase(name, "Succeeded")?;
            check(&node, &pod)
        });
    }
    assert!(host.join("made").is_dir() && host.join("made-file").is_file(), "made by `…OrCreate`");
    a_missing_host_path_is_reported_and_waited_for(&node, &host);
    symlinks_out_of_the_volume_are_rejected(&node, &host);
    wait_until(LIMIT, "the configMap to be refused", || {
        let log = node.agent.log();
        let line = log.lines().find(|l| l.contains("config.json")).context("the log does not name it")?;
        ensure!(line.contains("may not refer to configmaps") && line.contains("spec.volumes[0].configMap"), "{line}");
        Ok(())
    });
    a_changed_label_reaches_the_files(&node);
    node.remove_all();
    node.wait_nothing_left();
    assert_eq!(fs::read_to_string(host.join("file")).expect("there"), "of the host\n", "the host's own stays");
    assert!(host.join("precious/file").exists() && host.join("made").is_dir());
}

/// Creates a file of each type.
fn furnish(host: &Path) -> UnixListener {
    fs::create_dir(host.join("directory")).expect("made");
    fs::create_dir(host.join("precious")).expect("made");
    fs::write(host.join("precious/file"), "precious\n").expect("written");
    fs::write(host.join("file"), "of the host\n").expect("written");
    let (mode, device) = (rustix::fs::Mode::from_raw_mode(0o600), rustix::fs::makedev(7, 200));
    let kind = rustix::fs::FileType::BlockDevice;
    rustix::fs::mknodat(rustix::fs::CWD, host.join("block"), kind, mode, device).expect("made");
    UnixListener::bind(host.join("socket")).expect("bound")
}

fn mounted(mut container: Value, mounts: Value) -> Value {
    container["volumeMounts"] = mounts;
    container
}

fn empty_dirs() -> Value {
    let mounts = json!([{"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"}]);
    let script = "if [ ! -e /disk/lived ]; then touch /disk/lived /memory/lived; exit 1; fi; ls /disk/lived /memory/lived; \
        df -k /memory | tail -n 1 | awk '{print $1, $2}'; dd if=/dev/zero of=/memory/big bs=1M count=2 2>/dev/null || echo full; \
        stat -c %a /disk /memory; until [ -e /disk/from-other ]; do sleep 0.1; done; cat /disk/from-other";
    let other = "until [ -e /disk/lived ]; do sleep 0.1; done; echo hello > /disk/from-other";
    let mut spec = with(mounted(sh("c", script), mounts.clone()), json!({}));
    spec["restartPolicy"] = json!("OnFailure");
    spec["containers"].as_array_mut().expect("a list").push(mounted(sh("other", other), mounts));
    spec["volumes"] = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]);
    spec
}

fn empty_dirs_are_right(node: &TestNode, pod: &Value) -> Result<()> {
    let text = read_output_of(node, pod, "c", 1)?;
    let wanted = ["/disk/lived", "/memory/lived", "tmpfs 1024", "full", "777", "777", "hello"];
    ensure!(text.lines().collect::<Vec<_>>() == wanted, "{text}");
    Ok(())
}

fn host_paths(host: &Path) -> Value {
    let kinds = [
        ("any", "directory", ""),
        ("directory", "directory", "Directory"),
        ("made", "made", "DirectoryOrCreate"),
        ("file", "file", "File"),
        ("made-file", "made-file", "FileOrCreate"),
        ("socket", "socket", "Socket"),
        ("block", "block", "BlockDevice"),
    ];
    let volume = |(name, path, kind): &(&str, &str, &str)| json!({"name": name, "hostPath": {"path": host.join(path), "type": kind}});
    let mut volumes: Vec<Value> = kinds.iter().map(volume).collect();
    volumes.push(json!({"name": "null", "hostPath": {"path": "/dev/null", "type": "CharDevice"}}));
    let names = kinds.iter().map(|(name, ..)| *name).chain(["null"]);
    let mounts: Vec<Value> = names.map(|n| json!({"name": n, "mountPath": format!("/h/{n}")})).collect();
    let script = "cd /h; touch directory/new && ls any; touch made/new; cat file; echo x > made-file; \
        test -S socket && test -b block && test -c null && echo all kinds";
    with(mounted(sh("c", script), json!(mounts)), json!({"volumes": volumes}))
}

fn host_paths_are_right(node: &TestNode, pod: &Value) -> Result<()> {
    let text = read_output(node, pod)?;
    ensure!(text == "new\nof the host\nall kinds\n", "{text}");
    Ok(())
}

fn downward_api() -> Value {
    let item = |path: &str, field: &str| json!({"path": path, "fieldRef": {"fieldPath": field}});
    let limit = json!({"path": "deep/memory", "mode": 0o400,
        "resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}});
    let script = "cat /a/labels; echo; cat /a/deep/memory; echo; stat -Lc %a /a/deep/memory; cat /b/uid; echo; \
        cat /b/name; echo; touch /a/x 2>/dev/null || echo read-only";
    let mounts = json!([{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}]);
    let mut c = mounted(sh("c", script), mounts);
    c["resources"] = json!({"limits": {"memory": "32Mi"}});
    with(
        c,
        json!({"volumes": [
            {"name": "a", "downwardAPI": {"items": [item("labels", "metadata.labels"), limit]}},
            {"name": "b", "projected": {"sources": [
                {"downwardAPI": {"items": [item("uid", "metadata.uid")]}},
                {"downwardAPI": {"items": [item("name", "metadata.name")]}},
            ]}},
        ]}),
    )
}

fn downward_api_is_right(node: &TestNode, pod: &Value) -> Result<()> {
    let text = read_output(node, pod)?;
    let uid = pod["metadata"]["uid"].as_str().context("a uid")?;
    ensure!(text == format!("app=\"about\"\n32\n400\n{uid}\nabout-node\nread-only\n"), "{text}");
    Ok(())
}

fn parts(host: &Path) -> Value {
    let mounts = json!([
        {"name": "v", "mountPath": "/sub", "subPath": "a/b"},
        {"name": "v", "mountPath": "/expr", "subPathExpr": "of-$(POD)/x"},
        {"name": "v", "mountPath": "/whole"},
        {"name": "h", "mountPath": "/one-file", "subPath": "file", "readOnly": true},
    ]);
    let script = "touch /sub/in-sub /expr/in-expr; cd /whole; find . -type f | sort; cat /one-file; \
        echo x 2>/dev/null > /one-file || echo read-only";
    let mut c = mounted(sh("c", script), mounts);
    c["env"] = json!([{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    with(c, json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "h", "hostPath": {"path": host}}]}))
}

fn parts_are_right(node: &TestNode, pod: &Value) -> Result<()> {
    let text = read_output(node, pod)?;
    let text: Vec<&str> = text.lines().filter(|l| !l.starts_with("sh:")).collect();
    ensure!(text == ["./a/b/in-sub", "./of-parts-node/x/in-expr", "of the host", "read-only"], "{text:?}");
    Ok(())
}

fn late(host: &Path) -> Value {
    let volumes = json!([{"name": "there-soon", "hostPath": {"path": host.join("late"), "type": "Directory"}}]);
    let mounts = json!([{"name": "there-soon", "mountPath": "/v"}]);
    with(mounted(sleeper("c"), mounts), json!({"volumes": volumes}))
}

fn a_missing_host_path_is_reported_and_waited_for(node: &TestNode, host: &Path) {
    wait_until(LIMIT, "the missing directory to be named", || {
        let pod = node.phase("late", "Pending")?;
        ensure!(container(&pod, "c")["state"]["waiting"]["reason"] == "ContainerCreating", "{:#}", pod["status"]);
        ensure!(condition(&pod, "PodReadyToStartContainers")["status"] == "False", "{:#}", pod["status"]);
        let log = node.agent.log();
        let line = log.lines().find(|l| l.contains("FailedMount") && l.contains("there-soon")).context("not named")?;
        ensure!(line.contains("hostPath type check failed") && line.contains("/host/late"), "{line}");
        ensure!(line.matches("MountVolume.SetUp failed").count() == 1, "output twice: {line}");
        Ok(())
    });
    fs::create_dir(host.join("late")).expect("made");
    node.wait_phase("late", "Running");
}

/// One container creates symlinks in the volume, the others mount them as subPath.
fn escape(host: &Path) -> Value {
    let target = host.join("precious").display().to_string();
    let script =
        format!("ln -s {target} /v/absolute; ln -s ../../../../../../host/precious /v/relative; ln -s /v/x /v/own");
    let whole = json!([{"name": "v", "mountPath": "/v"}]);
    let part = |name: &str| {
        let mounts = json!([{"name": "v", "mountPath": "/p", "subPath": name}]);
        mounted(sh(name, "rm -rf /p/*; touch /p/was-here"), mounts)
    };
    json!({"restartPolicy": "Never", "initContainers": [mounted(sh("init", &script), whole)],
        "containers": [part("absolute"), part("relative"), part("own")], "volumes": [{"name": "v", "emptyDir": {}}]})
}

fn symlinks_out_of_the_volume_are_rejected(node: &TestNode, host: &Path) {
    wait_until(LIMIT, "the links to be refused", || {
        let pod = node.phase("escape", "Pending")?;
        for name in ["absolute", "relative", "own"] {
            let waiting = &container(&pod, name)["state"]["waiting"];
            ensure!(waiting["reason"] == "CreateContainerConfigError", "{:#}", pod["status"]);
            let message = waiting["message"].as_str().unwrap_or_default();
            ensure!(message.contains("leads out of the volume") && message.contains(name), "{message}");
        }
        Ok(())
    });
    let entries: Vec<_> = fs::read_dir(host.join("precious")).expect("there").flatten().collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!(fs::read_to_string(host.join("precious/file")).expect("there"), "precious\n");
    let mode = fs::metadata(host.join("precious")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o755, "{mode:o}");
}

/// The pod stays the same, so its containers keep running, and the files are updated.
fn a_changed_label_reaches_the_files(node: &TestNode) {
    let items = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let mut spec = one(&mounted(
        sh("c", "trap 'exit 0' TERM; while :; do cat /a/labels; echo; sleep 0.2; done"),
        json!([{"name": "a", "mountPath": "/a"}]),
    ));
    spec["volumes"] = json!([{"name": "a", "downwardAPI": {"items": items}}]);
    let put = |color: &str| {
        let metadata =
            json!({"name": "colored", "uid": "0c0102ed-0000-4000-8000-000000000001", "labels": {"color": color}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        node.scratch.put_manifest("colored.json", &pod).expect("written");
    };
    put("red");
    let before = node.wait_phase("colored", "Running");
    put("blue");
    wait_until(LIMIT, "the new label to reach the file", || {
        let pod = node.phase("colored", "Running")?;
        ensure!(container(&pod, "c")["containerID"] == container(&before, "c")["containerID"], "restarted");
        let text = read_output(node, &pod)?;
        ensure!(text.lines().last() == Some("color=\"blue\""), "{:?}", text.lines().last());
        Ok(())
    });
}
