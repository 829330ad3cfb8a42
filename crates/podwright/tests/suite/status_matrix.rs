//! Pods of every kind reach the status that Kubernetes documents.

use anyhow::{Result, ensure};
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::{LIMIT, TestNode, condition, container, sh, sleeper};

/// A pod and its expected status.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) spec: Value,
    /// Succeeds once the status is reached.
    pub(crate) expect: fn(&Value) -> Result<()>,
}

fn spec(policy: &str, init: Value, containers: Value) -> Value {
    json!({"restartPolicy": policy, "terminationGracePeriodSeconds": 1, "hostNetwork": true,
        "initContainers": init, "containers": containers})
}

fn sidecar(name: &str, script: &str) -> Value {
    let mut c = sh(name, script);
    c["restartPolicy"] = json!("Always");
    c
}

/// A container whose first process ignores all signals and is killed, so that it always exits the same way.
fn deaf(name: &str) -> Value {
    sh(name, "exec sleep 1000")
}

fn is(pod: &Value, phase: &str) -> Result<()> {
    ensure!(pod["status"]["phase"] == phase, "phase is {}", pod["status"]["phase"]);
    Ok(())
}

fn exit(pod: &Value, name: &str, code: i64, reason: &str) -> Result<()> {
    let ended = &container(pod, name)["state"]["terminated"];
    ensure!(ended["exitCode"] == code && ended["reason"] == reason, "{name}: {:#}", container(pod, name)["state"]);
    Ok(())
}

fn waiting(pod: &Value, name: &str, reason: &str) -> Result<()> {
    let state = &container(pod, name)["state"];
    ensure!(state["waiting"]["reason"] == reason, "{name}: {state:#}");
    Ok(())
}

fn ready(pod: &Value, wanted: &str) -> Result<()> {
    ensure!(condition(pod, "Ready")["status"] == wanted, "{:#}", pod["status"]["conditions"]);
    Ok(())
}

/// All pods with their expected statuses.
pub(crate) fn cases() -> Vec<Case> {
    let none = || json!([]);
    // A busy host may need long for a command: slowness is not a failure.
    let probe = |script: &str| json!({"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30});
    let mut cases = vec![
        Case {
            name: "never-0",
            spec: spec("Never", none(), json!([sh("c", "exit 0")])),
            expect: |p| {
                is(p, "Succeeded")?;
                exit(p, "c", 0, "Completed")?;
                ensure!(condition(p, "Ready")["reason"] == "PodCompleted", "{:#}", condition(p, "Ready"));
                ready(p, "False")
            },
        },
        Case {
            name: "never-7",
            spec: spec("Never", none(), json!([sh("c", "echo last words > /dev/termination-log; exit 7")])),
            expect: |p| {
                is(p, "Failed")?;
                ensure!(
                    container(p, "c")["state"]["terminated"]["message"] == "last words\n",
                    "{:#}",
                    container(p, "c")
                );
                exit(p, "c", 7, "Error")
            },
        },
        Case {
            name: "never-two",
            spec: spec("Never", none(), json!([sh("a", "exit 0"), sh("b", "sleep 1; exit 3")])),
            expect: |p| {
                is(p, "Failed")?;
                exit(p, "a", 0, "Completed")?;
                exit(p, "b", 3, "Error")
            },
        },
        Case {
            name: "onfailure-0",
            spec: spec("OnFailure", none(), json!([sh("c", "exit 0")])),
            expect: |p| {
                is(p, "Succeeded")?;
                ensure!(container(p, "c")["restartCount"] == 0, "restarted");
                exit(p, "c", 0, "Completed")
            },
        },
        Case {
            name: "onfailure-1",
            spec: spec("OnFailure", none(), json!([sh("c", "exit 1")])),
            expect: |p| {
                is(p, "Running")?;
                ensure!(container(p, "c")["lastState"]["terminated"]["exitCode"] == 1, "{:#}", container(p, "c"));
                waiting(p, "c", "CrashLoopBackOff")
            },
        },
        Case {
            name: "always-0",
            spec: spec("Always", none(), json!([sh("c", "exit 0")])),
            expect: |p| {
                is(p, "Running")?;
                ensure!(
                    container(p, "c")["lastState"]["terminated"]["reason"] == "Completed",
                    "{:#}",
                    container(p, "c")
                );
                waiting(p, "c", "CrashLoopBackOff")
            },
        },
        Case {
            name: "init-ok",
            spec: spec("Always", json!([sh("i1", "true"), sh("i2", "true")]), json!([sleeper("c")])),
            expect: |p| {
                is(p, "Running")?;
                exit(p, "i1", 0, "Completed")?;
                exit(p, "i2", 0, "Completed")?;
                ensure!(condition(p, "Initialized")["status"] == "True", "not initialized");
                ready(p, "True")
            },
        },
        Case {
            name: "init-fails-never",
            spec: spec("Never", json!([sh("i1", "exit 4"), sh("i2", "true")]), json!([sleeper("c")])),
            expect: |p| {
                is(p, "Failed")?;
                exit(p, "i1", 4, "Error")?;
                waiting(p, "i2", "PodInitializing")?;
                waiting(p, "c", "PodInitializing")
            },
        },
        Case {
            name: "init-fails-always",
            spec: spec("Always", json!([sh("i1", "exit 4")]), json!([sleeper("c")])),
            expect: |p| {
                is(p, "Pending")?;
                waiting(p, "i1", "CrashLoopBackOff")?;
                ensure!(
                    condition(p, "Initialized")["reason"] == "ContainersNotInitialized",
                    "{:#}",
                    p["status"]["conditions"]
                );
                waiting(p, "c", "PodInitializing")
            },
        },
        Case {
            name: "sidecar-job",
            spec: spec(
                "Never",
                json!([sidecar("side", "trap 'exit 0' TERM; while :; do sleep 0.1; done")]),
                json!([sh("c", "sleep 1; exit 0")]),
            ),
            expect: |p| {
                is(p, "Succeeded")?;
                exit(p, "c", 0, "Completed")?;
                exit(p, "side", 0, "Completed")
            },
        },
        Case {
            name: "sidecar-fails-job",
            spec: spec("Never", json!([sidecar("side", "sleep 1; exit 9")]), json!([sh("c", "sleep 4; exit 0")])),
            expect: |p| {
                is(p, "Succeeded")?;
                exit(p, "c", 0, "Completed")
            },
        },
        Case {
            name: "rule-restarts",
            spec: {
                let mut c = sh("c", "[ -f /v/once ] && exit 0; touch /v/once; exit 42");
                c["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
                c["restartPolicy"] = json!("Never");
                let exit_codes = json!({"operator": "In", "values": [42]});
                c["restartPolicyRules"] = json!([{"action": "Restart", "exitCodes": exit_codes}]);
                let mut s = spec("Never", none(), json!([c]));
                s["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
                s
            },
            expect: |p| {
                is(p, "Succeeded")?;
                ensure!(container(p, "c")["restartCount"] == 1, "{:#}", container(p, "c"));
                exit(p, "c", 0, "Completed")
            },
        },
        Case {
            name: "no-image",
            spec: spec(
                "Always",
                none(),
                json!([{"name": "c", "image": "localhost/none:1", "imagePullPolicy": "Never"}]),
            ),
            expect: |p| {
                is(p, "Pending")?;
                waiting(p, "c", "ErrImageNeverPull")
            },
        },
        Case {
            name: "bad-command",
            spec: spec(
                "Never",
                none(),
                json!([{"name": "c", "image": podwright_testbed::image::BUSYBOX, "command": ["/none"]}]),
            ),
            expect: |p| {
                is(p, "Failed")?;
                exit(p, "c", 128, "StartError")
            },
        },
        Case {
            name: "non-root",
            spec: spec(
                "Always",
                none(),
                json!([{"name": "c", "image": podwright_testbed::image::BUSYBOX,
                "securityContext": {"runAsNonRoot": true}}]),
            ),
            expect: |p| {
                is(p, "Pending")?;
                waiting(p, "c", "CreateContainerConfigError")
            },
        },
        Case {
            name: "deadline",
            spec: {
                let mut s = spec("Always", none(), json!([sleeper("c")]));
                s["activeDeadlineSeconds"] = json!(2);
                s
            },
            expect: |p| {
                is(p, "Failed")?;
                ensure!(p["status"]["reason"] == "DeadlineExceeded", "{:#}", p["status"]["reason"]);
                Ok(())
            },
        },
    ];
    let with = |name, mut c: Value, field: &str, value: Value, expect| {
        c[field] = value;
        Case { name, spec: spec("Always", json!([]), json!([c])), expect }
    };
    cases.push(with(
        "post-start-fails",
        deaf("c"),
        "lifecycle",
        json!({"postStart": {"exec": {"command": ["false"]}}}),
        |p| {
            let c = container(p, "c");
            ensure!(c["lastState"]["terminated"].is_object(), "{c:#}");
            Ok(())
        },
    ));
    cases.push(with("never-ready", sleeper("c"), "readinessProbe", probe("exit 1"), |p| {
        is(p, "Running")?;
        ensure!(container(p, "c")["ready"] == false, "ready");
        ensure!(condition(p, "Ready")["reason"] == "ContainersNotReady", "{:#}", condition(p, "Ready"));
        ready(p, "False")
    }));
    cases.push(with("not-alive", deaf("c"), "livenessProbe", probe("exit 1"), |p| {
        let c = container(p, "c");
        ensure!(c["restartCount"].as_i64() >= Some(1), "{c:#}");
        Ok(())
    }));
    cases.push(with("never-started", deaf("c"), "startupProbe", probe("exit 1"), |p| {
        let c = container(p, "c");
        ensure!(c["restartCount"].as_i64() >= Some(1), "{c:#}");
        Ok(())
    }));
    let mut passes = probe("exit 0");
    passes["failureThreshold"] = json!(30);
    cases.push(with("started", sleeper("c"), "startupProbe", passes, |p| {
        ensure!(container(p, "c")["started"] == true, "{:#}", container(p, "c"));
        ready(p, "True")
    }));
    cases.push(restarts_all());
    cases
}

/// A restart rule that restarts every container, init containers included, in the same sandbox.
fn restarts_all() -> Case {
    let in_volume = |mut c: Value| {
        c["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        c
    };
    let mut job = sh("job", "[ -f /v/once ] && touch /v/done && exit 0; touch /v/once; exit 42");
    job["restartPolicy"] = json!("Never");
    let exit_codes = json!({"operator": "In", "values": [42]});
    job["restartPolicyRules"] = json!([{"action": "RestartAllContainers", "exitCodes": exit_codes}]);
    let other = sh("other", "until [ -f /v/done ]; do sleep 0.1; done");
    let init = sh("init", "true");
    let mut spec = spec("Never", json!([in_volume(init)]), json!([in_volume(job), in_volume(other)]));
    spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    let expect = |p: &Value| {
        is(p, "Succeeded")?;
        for name in ["init", "job", "other"] {
            exit(p, name, 0, "Completed")?;
            ensure!(container(p, name)["restartCount"] == 1, "{:#}", container(p, name));
        }
        ensure!(condition(p, "AllContainersRestarting")["status"] == "False", "{:#}", p["status"]["conditions"]);
        Ok(())
    };
    Case { name: "restarts-all", spec, expect }
}

pub(crate) fn pods_of_every_kind_get_the_documented_status(flavor: Flavor) {
    let node = TestNode::start(flavor);
    let cases = cases();
    for case in &cases {
        node.put(case.name, &case.spec);
    }
    for case in &cases {
        wait_until(LIMIT, case.name, || {
            let pod = node.pod(case.name)?;
            (case.expect)(&pod).map_err(|e| e.context(format!("{:#}", pod["status"])))
        });
    }
    for case in &cases {
        node.remove(case.name);
    }
    node.wait_nothing_left();
}
