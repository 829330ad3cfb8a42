//! fsGroup and its change policy on a real runtime: which volumes change their group, and when.
//!
//! The policy is about persistent volumes. Volumes created for the pod get the group once, when they are created, under either
//! policy; host paths are never changed.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use anyhow::{Result, ensure};
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::container_output::read_output_of;
use super::{LIMIT, TestNode, sh};

pub(crate) fn fs_group_applies_once_to_pod_volumes_and_never_to_host_paths(flavor: Flavor) {
    let mut node = TestNode::start(flavor);
    let host = node.scratch.dir("host").expect("made");
    fs::write(host.join("file"), "of the host\n").expect("written");
    fs::set_permissions(host.join("file"), fs::Permissions::from_mode(0o600)).expect("changed");
    let before = [about(&host), about(&host.join("file"))];
    let policies = [("always", "Always"), ("mismatch", "OnRootMismatch")];
    for (name, policy) in policies {
        node.put(name, &owned(policy, &host));
    }
    for (name, policy) in policies {
        wait_until(LIMIT, &format!("what the group got under {policy}"), || {
            output_is(&node, name, 0, &["4000 2777", "4000 2777", "4000 440"])
        });
    }
    // A restarted agent sets up every volume again, before the next instance starts.
    node.agent.kill9().expect("killed");
    node.agent.start_again().expect("started");
    fs::write(host.join("go"), "").expect("written");
    for (name, policy) in policies {
        wait_until(LIMIT, &format!("what was left alone under {policy}"), || {
            node.phase(name, "Succeeded")?;
            output_is(&node, name, 1, &["5 2700", "6 600", "7 2755", "4000 440", "0"])
        });
    }
    fs::remove_file(host.join("go")).expect("removed");
    assert_eq!([about(&host), about(&host.join("file"))], before, "a part of the machine was given away");
    node.remove_all();
    node.wait_nothing_left();
}

/// The first instance of the container prints its volumes and changes them; the second prints them unchanged.
fn owned(policy: &str, host: &Path) -> Value {
    let script = "if [ ! -e /disk/file ]; then \
            stat -c '%g %a' /disk /memory; stat -Lc '%g %a' /about/name; touch /disk/file; \
            chgrp 5 /disk; chmod 2700 /disk; chgrp 6 /disk/file; chmod 600 /disk/file; chgrp 7 /memory; chmod 2755 /memory; \
            until [ -e /host/go ]; do sleep 0.1; done; exit 1; \
        fi; stat -c '%g %a' /disk /disk/file /memory; stat -Lc '%g %a' /about/name; stat -c %g /host/file";
    let mut c = sh("c", script);
    let mounts = ["disk", "memory", "about", "host"].map(|v| json!({"name": v, "mountPath": format!("/{v}")}));
    c["volumeMounts"] = json!(mounts);
    let name = json!({"path": "name", "mode": 0o400, "fieldRef": {"fieldPath": "metadata.name"}});
    json!({
        "restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 2, "containers": [c],
        "securityContext": {"fsGroup": 4000, "fsGroupChangePolicy": policy},
        "volumes": [
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "about", "downwardAPI": {"items": [name]}},
            {"name": "host", "hostPath": {"path": host}},
        ],
    })
}

fn output_is(node: &TestNode, name: &str, attempt: u32, wanted: &[&str]) -> Result<()> {
    let text = read_output_of(node, &node.pod(name)?, "c", attempt)?;
    ensure!(text.lines().collect::<Vec<_>>() == wanted, "{name}: {text}");
    Ok(())
}

/// Owner, group and mode of a file.
fn about(path: &Path) -> (u32, u32, u32) {
    let found = fs::metadata(path).expect("there");
    (found.uid(), found.gid(), found.mode() & 0o7777)
}
