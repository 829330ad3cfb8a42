//! Users, groups, capabilities and resources of containers: as specified, or rejected with a clear message.

use std::fs;

use anyhow::{Result, ensure};
use podwright_testbed::{Flavor, image, wait_until};
use serde_json::{Value, json};

use super::container_output::{read_output, read_output_of};
use super::features::{Asked, with};
use super::{LIMIT, TestNode, container, one, resources, sh};

/// A seccomp profile that denies one system call.
const NO_MKDIR: &str =
    r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}"#;

const STATUS: &str = "grep -E '^(CapEff|CapBnd|Seccomp|NoNewPrivs):' /proc/self/status";

pub(crate) fn containers_get_the_users_and_privileges_of_their_specs(flavor: Flavor) {
    let node = TestNode::configured(flavor, json!({"podPidsLimit": 123}));
    let profiles = node.scratch.root_dir().expect("there").join("seccomp/team");
    fs::create_dir_all(&profiles).expect("made");
    fs::write(profiles.join("no-mkdir.json"), NO_MKDIR).expect("written");
    let all: [Asked; 4] = [
        ("users", users(), users_are_right),
        ("rights", rights(), rights_are_right),
        ("sysctl", sysctl(), |node, pod| {
            let text = read_output(node, pod)?;
            ensure!(text == "81\n", "{text}");
            Ok(())
        }),
        ("non-root", non_root(image::USER_1000), |node, pod| {
            let text = read_output(node, pod)?;
            ensure!(text == "1000\n", "{text}");
            Ok(())
        }),
    ];
    for (name, spec, _) in &all {
        node.put(name, spec);
    }
    node.put("by-name", &non_root(image::USER_GUEST));
    let script = "cat /proc/self/uid_map; stat -c %u:%g:%a /etc/hosts /etc/hostname /etc/resolv.conf";
    node.put("own-users", &with(sh("c", script), json!({"hostUsers": false})));
    let groups = json!({"runAsUser": 1000, "runAsGroup": 2000, "supplementalGroups": [3000], "supplementalGroupsPolicy": "Strict"});
    node.put("strict", &with(sh("c", "id -G"), json!({"securityContext": groups})));
    let armor = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
    node.put("armored", &with(sh("c", "true"), json!({"securityContext": armor})));
    let mut unmasked = sh("c", "true");
    unmasked["securityContext"] = json!({"procMount": "Unmasked"});
    node.put("unmasked", &with(unmasked, json!({})));
    resources::put(&node);
    for (name, _, check) in &all {
        wait_until(LIMIT, name, || {
            let pod = node.phase(name, "Succeeded")?;
            check(&node, &pod)
        });
    }
    wait_until(LIMIT, "the user that is only a name to be refused", || {
        let pod = node.phase("by-name", "Pending")?;
        let waiting = &container(&pod, "c")["state"]["waiting"];
        ensure!(waiting["reason"] == "CreateContainerConfigError", "{:#}", pod["status"]);
        let message = waiting["message"].as_str().unwrap_or_default();
        ensure!(message.contains("non-numeric user (guest)"), "{message}");
        Ok(())
    });
    strict_groups_are_applied_or_rejected(&node, flavor);
    a_profile_needs_app_armor(&node);
    wait_until(LIMIT, "the open /proc to be refused", || {
        let log = node.agent.log();
        let named = |l: &str| l.contains("unmasked.json") && l.contains("Unmasked needs hostUsers: false");
        ensure!(log.lines().any(named), "not named");
        Ok(())
    });
    own_users_are_given_or_refused(&node, flavor);
    resources::check(&node);
    node.remove_all();
    node.wait_nothing_left();
}

/// containerd has Debian's runc here, which knows no user namespaces; the engine does.
fn own_users_are_given_or_refused(node: &TestNode, flavor: Flavor) {
    wait_until(LIMIT, "the user namespace to be had or refused", || {
        if flavor == Flavor::Engine {
            let text = read_output(node, &node.phase("own-users", "Succeeded")?)?;
            let seen: Vec<&str> = text.split_whitespace().collect();
            ensure!(seen.len() == 6 && seen[0] == "0" && seen[1] != "0" && seen[2] == "65536", "{text}");
            ensure!(seen[3..] == ["0:0:644"; 3], "files of the pod belong to its root: {text}");
            return Ok(());
        }
        let pod = node.phase("own-users", "Pending")?;
        let words = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
        ensure!(node.agent.log().lines().any(|l| l.contains("own-users") && l.contains(words)), "{:#}", pod["status"]);
        Ok(())
    });
}

/// Only the groups of the pod's spec, if the runtime supports that; else the pod is rejected and does not run with more groups.
fn strict_groups_are_applied_or_rejected(node: &TestNode, flavor: Flavor) {
    wait_until(LIMIT, "strict groups to be had or refused", || {
        if flavor != Flavor::Debian16 {
            let text = read_output(node, &node.phase("strict", "Succeeded")?)?;
            let mut groups: Vec<&str> = text.split_whitespace().collect();
            groups.sort_unstable();
            ensure!(groups == ["2000", "3000"], "{text}");
            return Ok(());
        }
        let pod = node.phase("strict", "Pending")?;
        let words = "SupplementalGroupsPolicy=Strict is not supported in this node";
        ensure!(node.agent.log().lines().any(|l| l.contains("strict") && l.contains(words)), "{:#}", pod["status"]);
        Ok(())
    });
}

fn a_profile_needs_app_armor(node: &TestNode) {
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|on| on.starts_with('Y'));
    if enabled {
        // AppArmor is disabled in the testbed's runtime: the pod runs without it.
        node.wait_phase("armored", "Succeeded");
        return;
    }
    wait_until(LIMIT, "the profile to be refused", || {
        let pod = node.phase("armored", "Pending")?;
        ensure!(pod["status"]["reason"] == "AppArmor", "{:#}", pod["status"]);
        let message = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        ensure!(pod["status"]["message"] == message, "{:#}", pod["status"]);
        Ok(())
    });
}

fn users() -> Value {
    let mut own = sh("own", "id -u; id -g");
    own["securityContext"] = json!({"runAsUser": 7, "runAsGroup": 8});
    let mut c = sh("c", "id -u; id -g; id -G; touch /v/file; stat -c '%g %a' /v; stat -c %g /v/file");
    c["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    let context = json!({"runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 4000, "supplementalGroups": [3000]});
    let mut spec = with(c, json!({"securityContext": context, "volumes": [{"name": "v", "emptyDir": {}}]}));
    spec["containers"].as_array_mut().expect("a list").push(own);
    spec
}

fn users_are_right(node: &TestNode, pod: &Value) -> Result<()> {
    let text = read_output(node, pod)?;
    let lines: Vec<&str> = text.lines().collect();
    ensure!(lines.len() == 5, "{text}");
    ensure!((lines[0], lines[1]) == ("1000", "2000"), "{text}");
    // Policy Merge: the user's groups in the image count too.
    let mut groups: Vec<&str> = lines[2].split(' ').collect();
    groups.sort_unstable();
    ensure!(groups == ["2000", "3000", "4000", "50000"], "{text}");
    ensure!((lines[3], lines[4]) == ("4000 2777", "4000"), "{text}");
    let own = read_output_of(node, pod, "own", 0)?;
    ensure!(own == "7\n8\n", "{own}");
    Ok(())
}

fn rights() -> Value {
    let container = |name: &str, script: &str, context: Value| {
        let mut c = sh(name, script);
        c["securityContext"] = context;
        c
    };
    let seccomp = |kind: &str| json!({"seccompProfile": {"type": kind}});
    let local = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "team/no-mkdir.json"}});
    // The ones that this kernel has.
    let masks = "cat /proc/interrupts /proc/keys /proc/timer_list 2>/dev/null | wc -c; ls /sys/firmware | wc -l; \
        echo 1 > /proc/sys/kernel/domainname || echo read-only";
    json!({"restartPolicy": "Never", "containers": [
        container("plain", &format!("{STATUS}; {masks}"), json!({})),
        container("one-cap", STATUS, json!({"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}})),
        container("privileged", &format!("{STATUS}; test -e /dev/kmsg && echo devices"), json!({"privileged": true})),
        container("no-new", STATUS, json!({"allowPrivilegeEscalation": false})),
        container("read-only", "touch /x || echo no; touch /dev/shm/x && echo yes", json!({"readOnlyRootFilesystem": true})),
        container("unconfined", STATUS, seccomp("Unconfined")),
        container("default", STATUS, seccomp("RuntimeDefault")),
        container("local", &format!("{STATUS}; mkdir /tmp/x || echo denied"), local),
    ]})
}

fn rights_are_right(node: &TestNode, pod: &Value) -> Result<()> {
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|l| l.starts_with(&format!("{name}:"))).unwrap_or_default();
        line.split_whitespace().last().unwrap_or_default().to_owned()
    };
    let is = |container: &str, name: &str, value: &str| -> Result<()> {
        let text = read_output_of(node, pod, container, 0)?;
        ensure!(field(&text, name) == value, "{container}: {name} should be {value}:\n{text}");
        Ok(())
    };
    is("plain", "CapEff", "00000000a80425fb")?;
    is("plain", "Seccomp", "0")?;
    is("plain", "NoNewPrivs", "0")?;
    let plain = read_output_of(node, pod, "plain", 0)?;
    let rest: Vec<&str> = plain.lines().filter(|l| !l.contains(':')).collect();
    ensure!(rest == ["0", "0", "read-only"], "masked paths are open:\n{plain}");
    is("one-cap", "CapEff", "0000000000001000")?;
    // The ones of the host, which may lack some.
    let own = fs::read_to_string("/proc/self/status")?;
    is("privileged", "CapEff", &field(&own, "CapBnd"))?;
    ensure!(read_output_of(node, pod, "privileged", 0)?.contains("devices"), "no devices");
    is("no-new", "NoNewPrivs", "1")?;
    let read_only = read_output_of(node, pod, "read-only", 0)?;
    ensure!(read_only.lines().filter(|l| !l.contains(':')).collect::<Vec<_>>() == ["no", "yes"], "{read_only}");
    is("unconfined", "Seccomp", "0")?;
    is("default", "Seccomp", "2")?;
    is("local", "Seccomp", "2")?;
    ensure!(read_output_of(node, pod, "local", 0)?.contains("denied"), "the profile does nothing");
    Ok(())
}

fn sysctl() -> Value {
    let name = "net.ipv4.ip_unprivileged_port_start";
    with(
        sh("c", &format!("cat /proc/sys/{}", name.replace('.', "/"))),
        json!({"securityContext": {"sysctls": [{"name": name, "value": "81"}]}}),
    )
}

fn non_root(image: &str) -> Value {
    let mut c = sh("c", "id -u");
    c["image"] = json!(image);
    c["securityContext"] = json!({"runAsNonRoot": true});
    let mut spec = one(&c);
    spec["restartPolicy"] = json!("Never");
    spec
}
