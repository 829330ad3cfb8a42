//! Probes of every kind with every handler, thresholds and delays, and results that survive the agent.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::health_server::HealthServer;
use super::{LIMIT, TestNode, condition, container, one, sh, sleeper};

/// A host directory whose files switch probes on and off; containers see it as `/s`.
struct Switches(PathBuf);

impl Switches {
    fn on(&self, name: &str) {
        fs::write(self.0.join(name), "").expect("written");
    }

    fn off(&self, name: &str) {
        fs::remove_file(self.0.join(name)).expect("removed");
    }

    /// The lines that probes wrote.
    fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.0.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// The pod with the switches mounted in its first container.
    fn given_to(&self, mut spec: Value) -> Value {
        spec["volumes"] = json!([{"name": "s", "hostPath": {"path": self.0}}]);
        spec["containers"][0]["volumeMounts"] = json!([{"name": "s", "mountPath": "/s"}]);
        spec
    }
}

fn switches(node: &TestNode) -> Switches {
    Switches(node.scratch.dir("switches").expect("made"))
}

fn exec(script: &str) -> Value {
    json!({"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "failureThreshold": 1})
}

fn with(mut container: Value, probe: &str, spec: Value) -> Value {
    container[probe] = spec;
    container
}

fn is_ready(node: &TestNode, name: &str, wanted: bool) -> Result<()> {
    let pod = node.phase(name, "Running")?;
    let status = if wanted { "True" } else { "False" };
    ensure!(condition(&pod, "Ready")["status"] == status, "{name}: {:#}", pod["status"]);
    ensure!(container(&pod, "c")["ready"] == wanted, "{name}: {:#}", container(&pod, "c"));
    ensure!(container(&pod, "c")["restartCount"] == 0, "{name} restarted");
    Ok(())
}

pub(crate) fn probes_of_every_kind_with_every_handler_work(flavor: Flavor) {
    let node = TestNode::start(flavor);
    let switches = switches(&node);
    let grpc = HealthServer::start();
    put_readiness(&node, &switches, grpc.port);
    put_liveness(&node, &switches);
    put_counted(&node, &switches);

    let tcp_port = fs::read_to_string(switches.0.join("tcp-port")).expect("written");
    let all = ["exec", "http", "tcp", "grpc"];
    let are = |wanted: bool| {
        for name in all {
            wait_until(LIMIT, &format!("{name} to be ready: {wanted}"), || is_ready(&node, name, wanted));
        }
    };
    are(false);
    switches.on("exec");
    switches.on("page");
    let listener = TcpListener::bind(format!("127.0.0.1:{tcp_port}")).expect("bound");
    grpc.set(true);
    are(true);
    switches.off("exec");
    switches.off("page");
    drop(listener);
    grpc.set(false);
    are(false);

    liveness_restarts(&node);
    counts_are_kept(&node, &switches);
    switches.on("end");
    node.remove_all();
    node.wait_nothing_left();
}

/// Pods whose readiness the test switches.
fn put_readiness(node: &TestNode, switches: &Switches, grpc_port: u16) {
    let readiness = |c: Value, probe: Value| switches.given_to(one(&with(c, "readinessProbe", probe)));
    node.put("exec", &readiness(sleeper("c"), exec("test -e /s/exec")));
    let mut web = sh("c", "exec httpd -f -p 8080 -h /s");
    web["ports"] = json!([{"name": "web", "containerPort": 8080}]);
    let get = json!({"httpGet": {"port": "web", "path": "/page"}, "periodSeconds": 1, "failureThreshold": 1});
    node.put("http", &readiness(web, get));
    let port = podwright_testbed::free_port().expect("a port");
    fs::write(switches.0.join("tcp-port"), port.to_string()).expect("written");
    let connect = json!({"tcpSocket": {"host": "127.0.0.1", "port": port}, "periodSeconds": 1, "failureThreshold": 1});
    node.put("tcp", &readiness(sleeper("c"), connect));
    let ask = json!({"grpc": {"port": grpc_port, "service": "any"}, "periodSeconds": 1, "failureThreshold": 1});
    let mut spec = readiness(sleeper("c"), ask);
    spec["hostNetwork"] = json!(true);
    node.put("grpc", &spec);
}

/// Containers that ignore TERM, in pods with a very long grace period: only the grace period of the probe
/// ends them early.
fn put_liveness(node: &TestNode, switches: &Switches) {
    let stubborn = || sh("c", "trap '[ -e /s/end ] && exit 0' TERM; while :; do sleep 0.1; done");
    let means = [
        ("live-exec", json!({"command": ["false"]}), "exec"),
        ("live-http", json!({"port": 8081, "path": "/"}), "httpGet"),
        ("live-tcp", json!({"port": 8082}), "tcpSocket"),
        ("live-grpc", json!({"port": 8083}), "grpc"),
    ];
    for (name, action, kind) in means {
        let probe =
            json!({kind: action, "periodSeconds": 1, "failureThreshold": 2, "terminationGracePeriodSeconds": 1});
        let mut spec = switches.given_to(one(&with(stubborn(), "livenessProbe", probe)));
        spec["terminationGracePeriodSeconds"] = json!(600);
        node.put(name, &spec);
    }
}

fn liveness_restarts(node: &TestNode) {
    for name in ["live-exec", "live-http", "live-tcp", "live-grpc"] {
        let pod = wait_until(LIMIT, &format!("{name} to be restarted"), || {
            let pod = node.pod(name)?;
            ensure!(container(&pod, "c")["restartCount"].as_i64() >= Some(1), "{:#}", container(&pod, "c"));
            Ok::<_, anyhow::Error>(pod)
        });
        let ended = &container(&pod, "c")["lastState"]["terminated"];
        assert_eq!(ended["exitCode"], 137, "{name}: killed after its short grace: {ended:#}");
        let lived = seconds(&ended["finishedAt"]) - seconds(&ended["startedAt"]);
        assert!(lived < 60, "{name} lived {lived} s, its pod's grace is 600");
    }
    let log = node.agent.log();
    for words in ["Liveness probe failed", "failed liveness probe, will be restarted"] {
        assert!(log.contains(words), "the log does not say {words:?}");
    }
}

fn seconds(time: &Value) -> i64 {
    time.as_str().and_then(|t| t.parse::<jiff::Timestamp>().ok()).expect("a time").as_second()
}

/// Probes that record each run.
fn put_counted(node: &TestNode, switches: &Switches) {
    // Ready after two successes in a row, not ready after three failures.
    let mut probe = exec("echo $(test -e /s/counted && echo yes || echo no) >> /s/runs; test -e /s/counted");
    (probe["successThreshold"], probe["failureThreshold"]) = (json!(2), json!(3));
    node.put("counted", &switches.given_to(one(&with(sleeper("c"), "readinessProbe", probe))));
    // Not before its initial delay.
    let begun = "cut -d. -f1 /proc/uptime > /s/begun; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let mut probe = exec("cut -d. -f1 /proc/uptime >> /s/delayed");
    probe["initialDelaySeconds"] = json!(3);
    node.put("delayed", &switches.given_to(one(&with(sh("c", begun), "readinessProbe", probe))));
    // The startup probe delays the others; three failures kill an instance.
    let mut probe = exec("echo $HOSTNAME >> /s/startups; test -e /s/started");
    probe["failureThreshold"] = json!(1000);
    let mut c = with(sleeper("c"), "startupProbe", probe);
    c["livenessProbe"] = exec("echo x >> /s/too-early; true");
    c["readinessProbe"] = exec("echo x >> /s/too-early; true");
    node.put("starting", &switches.given_to(one(&c)));
    let mut probe = exec("echo x >> /s/failing-$(cat /tmp/life); false");
    probe["failureThreshold"] = json!(3);
    let script = "echo $$-$(cut -d' ' -f1 /proc/uptime) > /tmp/life; exec sleep 1000";
    let mut spec = switches.given_to(one(&with(sh("c", script), "startupProbe", probe)));
    spec["terminationGracePeriodSeconds"] = json!(1);
    node.put("failing", &spec);
}

fn counts_are_kept(node: &TestNode, switches: &Switches) {
    let runs = || switches.lines("runs");
    wait_until(LIMIT, "some failures", || {
        ensure!(runs().len() >= 2, "{:?}", runs());
        is_ready(node, "counted", false)
    });
    switches.on("counted");
    wait_until(LIMIT, "counted to be ready", || is_ready(node, "counted", true));
    assert!(runs().iter().filter(|r| *r == "yes").count() >= 2, "ready after {:?}", runs());
    let before = runs().len();
    switches.off("counted");
    wait_until(LIMIT, "counted not to be ready", || is_ready(node, "counted", false));
    let failed = runs().iter().skip(before).filter(|r| *r == "no").count();
    assert!((3..=5).contains(&failed), "not ready after {failed} failures");

    let delayed = switches.lines("delayed");
    let number = |line: &str| line.parse::<i64>().expect("a number");
    let waited = number(&delayed[0]) - number(&switches.lines("begun")[0]);
    assert!((2..20).contains(&waited), "the first probe came after {waited} s");

    let pod = node.wait_phase("starting", "Running");
    assert_eq!(container(&pod, "c")["started"], false);
    assert!(switches.lines("startups").len() >= 2 && switches.lines("too-early").is_empty(), "others ran");
    switches.on("started");
    wait_until(LIMIT, "starting to be started and ready", || {
        ensure!(container(&node.pod("starting")?, "c")["started"] == true, "not started");
        is_ready(node, "starting", true)
    });
    let startups = switches.lines("startups").len();

    wait_until(LIMIT, "failing to be restarted", || {
        let pod = node.pod("failing")?;
        ensure!(container(&pod, "c")["restartCount"].as_i64() >= Some(1), "{:#}", container(&pod, "c"));
        Ok(())
    });
    let first = runs_per_instance(&switches.0).into_values().max().expect("some runs");
    assert_eq!(first, 3, "an instance ends with its third failure");
    assert_eq!(switches.lines("startups").len(), startups, "a startup that passed is not asked again");
}

/// How often each instance of `failing` was probed.
fn runs_per_instance(dir: &Path) -> BTreeMap<String, usize> {
    let entries = fs::read_dir(dir).expect("there").flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let count = |name: &String| fs::read_to_string(dir.join(name)).unwrap_or_default().lines().count();
    entries.filter(|name| name.starts_with("failing-")).map(|name| (name.clone(), count(&name))).collect()
}

pub(crate) fn readiness_does_not_change_when_the_agent_is_killed(flavor: Flavor, times: usize) {
    let mut node = TestNode::start(flavor);
    let switches = switches(&node);
    let mut wanted = BTreeMap::new();
    for i in 0..4 {
        let mut slow = exec("true");
        slow["periodSeconds"] = json!(if i == 0 { 60 } else { 1 });
        node.put(&format!("ready{i}"), &one(&with(sleeper("c"), "readinessProbe", slow)));
        node.put(&format!("sick{i}"), &one(&with(sleeper("c"), "readinessProbe", exec("false"))));
        wanted.extend([(format!("ready{i}-node"), "True"), (format!("sick{i}-node"), "False")]);
    }
    let mut hold = exec("test -e /s/never");
    hold["failureThreshold"] = json!(100_000);
    node.put("starting", &switches.given_to(one(&with(sleeper("c"), "startupProbe", hold))));
    node.put("plain", &one(&sleeper("c")));
    wanted.extend([("starting-node".to_owned(), "False"), ("plain-node".to_owned(), "True")]);
    let all_as = |pods: &Value| -> Result<BTreeMap<String, Value>> {
        let mut since = BTreeMap::new();
        for (name, status) in &wanted {
            let items = pods["items"].as_array().context("a list")?;
            let pod = items.iter().find(|p| p["metadata"]["name"] == **name).with_context(|| format!("no {name}"))?;
            let ready = condition(pod, "Ready");
            ensure!(ready["status"] == *status && pod["status"]["phase"] == "Running", "{name}: {:#}", pod["status"]);
            ensure!(container(pod, "c")["restartCount"] == 0, "{name} restarted");
            since.insert(name.clone(), ready["lastTransitionTime"].clone());
        }
        Ok(since)
    };
    let before = wait_until(LIMIT, "all to be as they should", || all_as(&node.agent.pods()?));

    // A reader polls all the time: the status is always correct and complete.
    let (over, address) = (Arc::new(AtomicBool::new(false)), node.agent.address().to_owned());
    let looks = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut looks = 0;
            while !over.load(Ordering::SeqCst) {
                if let Ok(answer) = podwright_testbed::get(&address, "/pods") {
                    let shown = serde_json::from_str(&answer.body).expect("JSON");
                    all_as(&shown).map_err(|e| e.context(format!("look {looks}")))?;
                    looks += 1;
                }
                std::thread::sleep(Duration::from_millis(3));
            }
            Ok::<_, anyhow::Error>(looks)
        });
        for i in 0..times {
            node.kill_agent();
            node.agent.start_again().expect("started again");
            std::thread::sleep(Duration::from_millis(37 * (i as u64 % 10)));
        }
        over.store(true, Ordering::SeqCst);
        watch.join().expect("no panic")
    });
    let looks = looks.unwrap_or_else(|e| panic!("{e:#}"));
    assert!(looks > times, "only {looks} looks");
    println!("{looks} looks at /pods during {times} restarts");
    let after = wait_until(LIMIT, "all to be as they should", || all_as(&node.agent.pods()?));
    assert_eq!(after, before, "a condition changed in between");
    // Probes continue: a changed result is noticed.
    switches.on("never");
    wait_until(LIMIT, "starting to be ready", || is_ready(&node, "starting", true));
    node.remove_all();
    node.wait_nothing_left();
}
