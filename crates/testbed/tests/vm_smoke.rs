//! Our agent on its own engine and on Debian's containerd: limits are in force, an OOM kill is reported, a probe makes a pod ready,
//! exec and logs work, and nothing is left behind. Runs in the VM with cgroup v2, and also on a host with v1.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, Cache, Flavor, Scratch, TestRuntime, free_port, get, image, leftovers, wait_until};
use serde_json::{Value, json};

/// The VM is emulated, and slow.
const LIMIT: Duration = Duration::from_secs(120);
/// Of a pod.
const PIDS_MAX: &str = "40";

#[test]
fn pods_run_on_containerd_and_are_removed() {
    let node = SmokeNode::start(Flavor::Debian16);
    let pods = node.put_pods();
    node.check_pods();
    node.remove_pods(&pods);
}

#[test]
fn pods_run_on_the_engine_and_are_removed() {
    let mut node = SmokeNode::start(Flavor::Engine);
    let mut pods = node.put_pods();
    let port = free_port().expect("a port");
    pods.push(node.put("mapped", &web(json!([{"containerPort": 8080, "hostPort": port}]))));
    let limited = node.check_pods();
    node.check_processes(&limited);
    wait_until(LIMIT, "the host port to answer", || {
        let answer = get(&format!("127.0.0.1:{port}"), "/passwd")?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    });
    node.remove_pods(&pods);
    node.agent.sigterm().expect("it ends");
    let name = node.scratch.name();
    assert!(!Path::new("/sys/class/net").join(&name).exists(), "the bridge is left");
    let nft = Cache::find().debian("nft").expect("nft is in the cache");
    let tables = Command::new(nft).args(["list", "tables"]).output().expect("nft runs");
    let tables = String::from_utf8_lossy(&tables.stdout).into_owned();
    assert!(!tables.contains(&name), "the table is left: {tables}");
}

struct SmokeNode {
    scratch: Scratch,
    runtime: TestRuntime,
    agent: Agent,
}

/// The end of the agent's log is printed when a test fails.
impl Drop for SmokeNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.agent.log();
            let tail: Vec<&str> = log.lines().rev().take(60).collect();
            eprintln!("--- end of the agent's log ---");
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

impl SmokeNode {
    fn start(flavor: Flavor) -> Self {
        let scratch = Scratch::new().expect("a scratch");
        let runtime = TestRuntime::start(&scratch, flavor).expect("the runtime starts");
        let config = json!({"podPidsLimit": PIDS_MAX.parse::<u32>().expect("a number")});
        let agent = Agent::new(&scratch).runtime(&runtime).config(config).start().expect("the agent starts");
        Self { scratch, runtime, agent }
    }

    fn put(&self, name: &'static str, spec: &Value) -> &'static str {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        self.scratch.put_manifest(&format!("{name}.json"), &pod).expect("written");
        name
    }

    fn put_pods(&self) -> Vec<&'static str> {
        let pods = [("limited", limited()), ("greedy", greedy()), ("web", web(json!([])))];
        pods.iter().map(|(name, spec)| self.put(name, spec)).collect()
    }

    /// Checks the three pods and returns the limited one.
    fn check_pods(&self) -> Value {
        let limited = wait_until(LIMIT, "the limited pod to run", || self.phase("limited-node", "Running"));
        self.check_limits(&limited);
        let greedy = wait_until(LIMIT, "the greedy pod to fail", || self.phase("greedy-node", "Failed"));
        let ended = &greedy["status"]["containerStatuses"][0]["state"]["terminated"];
        assert_eq!((&ended["reason"], &ended["exitCode"]), (&json!("OOMKilled"), &json!(137)), "{ended:#}");
        wait_until(LIMIT, "the web pod to be ready", || {
            let web = self.phase("web-node", "Running")?;
            let conditions = web["status"]["conditions"].as_array().context("no conditions")?;
            let ready = conditions.iter().any(|found| found["type"] == "Ready" && found["status"] == "True");
            ensure!(ready, "{conditions:#?}");
            Ok(())
        });
        self.check_exec_and_logs();
        limited
    }

    /// What the kernel has of the limits of a guaranteed pod, whose cgroup is right below `kubepods`, and of its container.
    fn check_limits(&self, pod: &Value) {
        let of_pod = pod_cgroup(&self.scratch, pod);
        let of_container = of_pod.join(container_id(pod));
        for group in [&of_pod, &of_container] {
            assert_eq!(value(group, "memory", "memory.max", "memory.limit_in_bytes"), (32 << 20).to_string());
            let quota = value(group, "cpu", "cpu.max", "cpu.cfs_quota_us");
            assert!(["20000 100000", "20000"].contains(&quota.as_str()), "{quota}");
            // 204 shares, as the kubelet converts them.
            let weight = value(group, "cpu", "cpu.weight", "cpu.shares");
            assert!(["8", "204"].contains(&weight.as_str()), "{weight}");
        }
        assert_eq!(value(&of_pod, "pids", "pids.max", "pids.max"), PIDS_MAX);
    }

    fn check_exec_and_logs(&self) {
        let logs = self.podwright(&["logs", "limited"]);
        assert_eq!(String::from_utf8_lossy(&logs.stdout), "started\n", "{logs:?}");
        let exec = self.in_limited("echo hello; exit 7");
        assert_eq!((exec.status.code(), &exec.stdout[..]), (Some(7), &b"hello\n"[..]), "{exec:?}");
        let null = self.in_limited("echo x > /dev/null && head -c 1 /dev/zero > /dev/null");
        assert!(null.status.success(), "{null:?}");
        // Anyone may open this device whose cgroup allows it.
        let fuse = self.in_limited("mknod /fuse c 10 229 || exit 3; (exec 3< /fuse)");
        let refused = String::from_utf8_lossy(&fuse.stderr).contains("Operation not permitted");
        assert!(refused && fuse.status.code() != Some(3), "{fuse:?}");
    }

    /// A process that an exec started is in the cgroup of its container, which is the root of what the container sees on v2.
    fn check_processes(&self, limited: &Value) {
        let group = pod_cgroup(&self.scratch, limited).join(container_id(limited));
        let seen = self.in_limited("cat /proc/self/cgroup; cat /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/memory.max");
        let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
        if is_v2() {
            let limit = format!("\n{}\n", 32 << 20);
            assert!(seen.starts_with("0::/\n") && seen.contains("\n1\n") && seen.ends_with(&limit), "{seen}");
        } else {
            assert!(seen.contains(&group.display().to_string()), "{seen}");
        }
        let made = self.in_limited("mkdir /sys/fs/cgroup/below");
        assert!(String::from_utf8_lossy(&made.stderr).contains("Read-only file system"), "{made:?}");
        // More than the pod may have.
        let bomb = self.in_limited("i=0; while [ $i -lt 50 ]; do sleep 1000 > /dev/null 2>&1 & i=$((i+1)); done");
        assert!(String::from_utf8_lossy(&bomb.stderr).contains("can't fork"), "{bomb:?}");
    }

    fn in_limited(&self, script: &str) -> Output {
        self.podwright(&["exec", "limited", "--", "sh", "-c", script])
    }

    /// A command of the tested binary for this agent.
    fn podwright(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(Agent::program().expect("built"));
        command.args(arguments).env("PODWRIGHT_RUN_DIR", self.scratch.run_dir().expect("there"));
        command.output().expect("it runs")
    }

    fn phase(&self, name: &str, wanted: &str) -> Result<Value> {
        let pod = self.agent.pod(name)?.context("not known")?;
        ensure!(pod["status"]["phase"] == wanted, "{:#}", pod["status"]);
        Ok(pod)
    }

    fn remove_pods(&self, pods: &[&str]) {
        for name in pods {
            self.scratch.remove_manifest(&format!("{name}.json")).expect("removed");
        }
        wait_until(LIMIT, "nothing to be left", || {
            let left = leftovers(&self.scratch, &self.runtime)?;
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        });
    }
}

fn limited() -> Value {
    json!({"terminationGracePeriodSeconds": 1, "containers": [{
        "name": "c", "image": image::BUSYBOX, "command": ["sh", "-c", "echo started; exec sleep 3600"],
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

fn web(ports: Value) -> Value {
    json!({"terminationGracePeriodSeconds": 1, "containers": [{
        "name": "c", "image": image::BUSYBOX, "command": ["httpd", "-f", "-p", "8080", "-h", "/etc"], "ports": ports,
        "readinessProbe": {"httpGet": {"port": 8080, "path": "/passwd"}, "periodSeconds": 1, "timeoutSeconds": 5},
    }]})
}

/// Below the root of each hierarchy.
fn pod_cgroup(scratch: &Scratch, pod: &Value) -> PathBuf {
    let hash = pod["metadata"]["annotations"]["kubernetes.io/config.hash"].as_str();
    let uid = hash.or(pod["metadata"]["uid"].as_str()).expect("a static pod has one");
    Path::new("/").join(scratch.name()).join("kubepods").join(format!("pod{uid}"))
}

fn container_id(pod: &Value) -> &str {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().expect("it runs");
    id.rsplit('/').next().expect("a part")
}

fn is_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// The content of a file of a cgroup, by its names in v2 and v1.
fn value(group: &Path, controller: &str, v2: &str, v1: &str) -> String {
    let (root, file) = if is_v2() { (PathBuf::new(), v2) } else { (PathBuf::from(controller), v1) };
    let group = group.strip_prefix("/").expect("absolute");
    let path = Path::new("/sys/fs/cgroup").join(root).join(group).join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.trim().to_owned()
}
