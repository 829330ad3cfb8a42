//! The compared pods: those of the status matrix, and some with more fields in their statuses.

use anyhow::{Context, Result, ensure};
use podwright_testbed::image::{BUSYBOX, ENTRYPOINT, USER_1000};
use serde_json::{Value, json};

use super::downward;
use crate::suite::status_matrix;
use crate::suite::{condition, container, sh, sleeper};

/// Seconds; enough for a pod to run. Pods with a deadline start before all others.
const DEADLINE: u32 = 20;

/// A pod, and the condition after which its fields are compared.
pub(crate) struct Compared {
    pub(crate) name: &'static str,
    pub(crate) spec: Value,
    pub(crate) until: fn(&Value) -> Result<()>,
}

impl Compared {
    /// The pod never becomes stable: it is compared in a back-off. Which one is random, since the Go kubelet shows some of them only
    /// briefly: after an exit it reports `terminated` until its next sync.
    pub(crate) fn loops(&self) -> bool {
        let looping = [
            "onfailure-1",
            "always-0",
            "init-fails-always",
            "post-start-fails",
            "not-alive",
            "never-started",
            "one-of-two",
            "bad-command-always",
            "no-registry",
        ];
        looping.contains(&self.name)
    }

    /// The pod has an active deadline, so it starts before the others.
    pub(crate) fn starts_early(&self) -> bool {
        !self.spec["activeDeadlineSeconds"].is_null()
    }

    /// The number of restarts until the comparison depends on timing.
    pub(crate) fn random_restarts(&self) -> bool {
        self.loops() || self.name == "sidecar-fails-job"
    }
}

/// All compared pods.
pub(crate) fn all() -> Vec<Compared> {
    let mut all: Vec<Compared> = status_matrix::cases()
        .into_iter()
        .map(|case| {
            let mut spec = case.spec;
            let until = match case.name {
                // These never become stable: both are compared in the first back-off.
                "post-start-fails" | "not-alive" | "never-started" => backs_off,
                // The pod has to run before its deadline.
                "deadline" => {
                    spec["activeDeadlineSeconds"] = json!(DEADLINE);
                    has_failed
                }
                _ => case.expect,
            };
            Compared { name: case.name, spec, until }
        })
        .collect();
    all.extend(networked());
    all.extend(reporting());
    all.extend(ended());
    all.extend(stuck());
    all.extend(downward::cases());
    all
}

/// Running pods with network probes.
fn networked() -> Vec<Compared> {
    // A busy host may be slow: probes that must pass have high failure thresholds.
    let http = |path: &str| json!({"httpGet": {"path": path, "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 30});
    let mut server = sh("c", "mkdir /w; echo ok > /w/ok; exec httpd -f -p 8080 -h /w");
    (server["livenessProbe"], server["readinessProbe"]) = (http("/ok"), http("/ok"));
    server["ports"] = json!([{"containerPort": 8080, "name": "web"}]);
    let mut missing = sh("c", "exec httpd -f -p 8080");
    missing["readinessProbe"] = http("/none");
    let mut side = sleeper("side");
    side["restartPolicy"] = json!("Always");
    side["startupProbe"] =
        json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 30});
    let mut gated = pod("Always", json!([]), json!([sleeper("c")]));
    gated["readinessGates"] = json!([{"conditionType": "example.com/gate"}]);
    vec![
        Compared { name: "http", spec: pod("Always", json!([]), json!([server])), until: is_ready },
        Compared { name: "http-404", spec: pod("Always", json!([]), json!([missing])), until: is_running },
        Compared {
            name: "sidecar-probed",
            spec: pod("Always", json!([sh("i", "true"), side]), json!([sleeper("c")])),
            until: is_ready,
        },
        Compared { name: "gated", spec: gated, until: is_running },
    ]
}

/// Pods whose termination messages contain what they were given.
fn reporting() -> Vec<Compared> {
    let says = |script: &str| sh("c", &format!("({script}) > /dev/termination-log 2>&1; exit 0"));
    let mut env = says("echo $NAME $NS $CPU $MEM $BOTH; pwd; hostname");
    env["env"] = json!([
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
        {"name": "MEM", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory"}}},
        {"name": "BOTH", "value": "$(NAME)/$(NS)/$(NONE)/$$(NAME)"},
    ]);
    env["workingDir"] = json!("/tmp");
    env["resources"] =
        json!({"limits": {"cpu": "200m", "memory": "64Mi"}, "requests": {"cpu": "100m", "memory": "32Mi"}});

    let mut files = says("cat /d/name /d/cpu; ls -l /d/name | cut -c1-10; cat /etc/hosts | tail -1");
    files["volumeMounts"] = json!([{"name": "d", "mountPath": "/d", "readOnly": true}]);
    files["resources"] = json!({"limits": {"cpu": "300m", "memory": "64Mi"}});
    let mut files = pod("Never", json!([]), json!([files]));
    files["hostAliases"] = json!([{"ip": "10.1.2.3", "hostnames": ["far", "away"]}]);
    files["volumes"] = json!([{"name": "d", "downwardAPI": {"items": [
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "cpu", "mode": 0o400, "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}},
    ]}}]);

    let mut parts = says("echo in > /a/file; ls /whole; cat /whole/one/file; stat -c %a /whole");
    parts["env"] = json!([{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    parts["volumeMounts"] = json!([
        {"name": "v", "mountPath": "/a", "subPath": "one"},
        {"name": "v", "mountPath": "/b", "subPathExpr": "$(POD)"},
        {"name": "v", "mountPath": "/whole"},
    ]);
    let mut parts = pod("Never", json!([]), json!([parts]));
    parts["volumes"] = json!([{"name": "v", "emptyDir": {}}]);

    let step = |name: &str| {
        let mut c = sh(name, &format!("echo {name} >> /v/steps"));
        c["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        c
    };
    let mut last = says("cat /v/steps");
    last["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    let mut chain = pod("OnFailure", json!([step("one"), step("two"), step("three")]), json!([last]));
    chain["volumes"] = json!([{"name": "v", "emptyDir": {"medium": "Memory"}}]);

    let mut user = says("id; umask; stat -c '%u %g %a' /v");
    user["image"] = json!(USER_1000);
    user["securityContext"] = json!({"runAsNonRoot": true, "readOnlyRootFilesystem": true});
    user["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    let mut user = pod("Never", json!([]), json!([user]));
    user["securityContext"] = json!({"fsGroup": 2000, "supplementalGroups": [3000]});
    user["volumes"] = json!([{"name": "v", "emptyDir": {}}]);

    let mut image =
        json!({"name": "c", "image": ENTRYPOINT, "args": ["given", "$(X)"], "env": [{"name": "X", "value": "x"}]});
    image["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    vec![
        Compared { name: "view-env", spec: pod("Never", json!([]), json!([env])), until: is_succeeded },
        Compared { name: "view-files", spec: files, until: is_succeeded },
        Compared { name: "view-parts", spec: parts, until: is_succeeded },
        Compared { name: "view-chain", spec: chain, until: is_succeeded },
        Compared { name: "view-user", spec: user, until: is_succeeded },
        Compared { name: "entrypoint", spec: pod("Never", json!([]), json!([image])), until: is_succeeded },
    ]
}

/// Pods that terminate.
fn ended() -> Vec<Compared> {
    let mut words = sh("c", "echo first; echo last words; exit 3");
    words["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    let mut stubborn = pod("Always", json!([]), json!([sh("c", "trap '' TERM; while :; do sleep 0.1; done")]));
    stubborn["activeDeadlineSeconds"] = json!(DEADLINE);
    stubborn["terminationGracePeriodSeconds"] = json!(2);
    let mut hungry = sh("c", "exec tail /dev/zero");
    hungry["resources"] = json!({"limits": {"memory": "16Mi"}});
    let mut stays = sh("b", "exit 6");
    stays["restartPolicy"] = json!("Never");
    vec![
        Compared { name: "last-words", spec: pod("Never", json!([]), json!([words])), until: is_failed },
        Compared { name: "stubborn", spec: stubborn, until: has_failed },
        Compared { name: "hungry", spec: pod("Never", json!([]), json!([hungry])), until: is_failed },
        Compared { name: "killed", spec: pod("Never", json!([]), json!([sh("c", "kill -9 $$")])), until: is_failed },
        Compared {
            name: "policy-of-one",
            spec: pod("Always", json!([]), json!([sleeper("a"), stays])),
            until: |p| {
                is_running(p)?;
                ensure!(container(p, "b")["state"]["terminated"].is_object(), "b has not ended");
                Ok(())
            },
        },
        Compared {
            name: "one-of-two",
            spec: pod("Always", json!([]), json!([sleeper("a"), sh("c", "exit 5")])),
            until: backs_off,
        },
    ]
}

/// Pods that fail to start.
fn stuck() -> Vec<Compared> {
    let mut volume = sleeper("c");
    volume["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    let mut volume = pod("Always", json!([]), json!([volume]));
    volume["volumes"] = json!([{"name": "v", "hostPath": {"path": "/nowhere/at/all", "type": "Directory"}}]);
    let image = json!({"name": "c", "image": "localhost:1/none:1"});
    vec![
        Compared { name: "no-volume", spec: volume, until: |p| waits_for(p, "ContainerCreating") },
        Compared {
            name: "no-registry",
            spec: pod("Always", json!([]), json!([image])),
            until: |p| waits_for(p, "ImagePullBackOff"),
        },
        Compared {
            name: "bad-command-always",
            spec: pod("Always", json!([]), json!([{"name": "c", "image": BUSYBOX, "command": ["/none"]}])),
            until: backs_off,
        },
    ]
}

/// With a pod network, unlike the pods of the matrix.
pub(super) fn pod(policy: &str, init: Value, containers: Value) -> Value {
    json!({"restartPolicy": policy, "terminationGracePeriodSeconds": 1, "initContainers": init, "containers": containers})
}

fn phase(pod: &Value, wanted: &str) -> Result<()> {
    ensure!(pod["status"]["phase"] == wanted, "the phase is not {wanted}");
    Ok(())
}

pub(super) fn is_succeeded(pod: &Value) -> Result<()> {
    phase(pod, "Succeeded")
}

fn is_failed(pod: &Value) -> Result<()> {
    phase(pod, "Failed")
}

/// Without an API server, the Go kubelet reports Failed before it has stopped the containers.
fn has_failed(pod: &Value) -> Result<()> {
    is_failed(pod)?;
    ensure!(container(pod, "c")["state"]["running"].is_null(), "c still runs");
    Ok(())
}

fn is_running(pod: &Value) -> Result<()> {
    phase(pod, "Running")?;
    let statuses = pod["status"]["containerStatuses"].as_array().context("no containers")?;
    ensure!(statuses.iter().any(|c| c["state"]["running"].is_object()), "nothing runs");
    Ok(())
}

fn is_ready(pod: &Value) -> Result<()> {
    ensure!(condition(pod, "Ready")["status"] == "True", "it is not ready");
    Ok(())
}

fn waits_for(pod: &Value, reason: &str) -> Result<()> {
    let state = &container(pod, "c")["state"];
    ensure!(state["waiting"]["reason"] == reason, "c does not wait because of {reason}");
    Ok(())
}

fn backs_off(pod: &Value) -> Result<()> {
    waits_for(pod, "CrashLoopBackOff")
}
