//! fsGroup and its change policy on a real runtime: which volumes are given to the group, when, and which never.
//!
//! The policy speaks of persistent volumes. What is made for the pod alone is given to the group when it is made, under either
//! policy, and is its containers' own from then on; a part of the machine is never given away.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use anyhow::{Result, ensure};
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::container_output::said_by;
use super::{Bed, LIMIT, sh};

pub(crate) fn a_group_gets_what_is_made_for_its_pod_once_and_nothing_of_the_machine(flavor: Flavor) {
    let mut bed = Bed::start(flavor);
    let host = bed.scratch.dir("host").expect("made");
    fs::write(host.join("file"), "of the host\n").expect("written");
    fs::set_permissions(host.join("file"), fs::Permissions::from_mode(0o600)).expect("changed");
    let before = [about(&host), about(&host.join("file"))];
    let policies = [("always", "Always"), ("mismatch", "OnRootMismatch")];
    for (name, policy) in policies {
        bed.put(name, &owned(policy, &host));
    }
    for (name, policy) in policies {
        wait_until(LIMIT, &format!("what the group got under {policy}"), || {
            is_said(&bed, name, 0, &["4000 2777", "4000 2777", "4000 440"])
        });
    }
    // Every volume is set up anew by an agent that comes back, and the next instance starts after that.
    bed.agent.kill9().expect("killed");
    bed.agent.start_again().expect("started");
    fs::write(host.join("go"), "").expect("written");
    for (name, policy) in policies {
        wait_until(LIMIT, &format!("what was left alone under {policy}"), || {
            bed.phase(name, "Succeeded")?;
            is_said(&bed, name, 1, &["5 2700", "6 600", "7 2755", "4000 440", "0"])
        });
    }
    fs::remove_file(host.join("go")).expect("removed");
    assert_eq!([about(&host), about(&host.join("file"))], before, "a part of the machine was given away");
    bed.remove_all();
    bed.wait_nothing_left();
}

/// In its first life the container finds its volumes and changes them; in its second it finds them as it left them.
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

fn is_said(bed: &Bed, name: &str, life: u32, wanted: &[&str]) -> Result<()> {
    let text = said_by(bed, &bed.pod(name)?, "c", life)?;
    ensure!(text.lines().collect::<Vec<_>>() == wanted, "{name}: {text}");
    Ok(())
}

/// Owner, group and mode.
fn about(path: &Path) -> (u32, u32, u32) {
    let found = fs::metadata(path).expect("there");
    (found.uid(), found.gid(), found.mode() & 0o7777)
}
