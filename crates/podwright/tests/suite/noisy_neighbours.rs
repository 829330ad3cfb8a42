//! A pod that uses up what it can get does not slow other pods down, nor does it make the agent large.

mod attacks;

use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, Flavor, HungMount, Scratch, TestRuntime, wait_until};
use serde_json::{Value, json};

use self::attacks::{Attack, DeadNameServer};
use super::{LIMIT, TestNode, condition, container, local_client, one, sh, sleeper};

/// Anonymous memory of the agent at its peak. Its code, which a debug build has much of, is not counted.
const MEMORY_MAX_KIB: u64 = 64 << 10;
/// What a shared host may add to any time.
const TOLERANCE: Duration = Duration::from_secs(2);
/// Measurements of which one must be fast enough: a busy host only adds.
const RUNS: usize = 3;
/// What clients that read nothing may add to the time of `/livez`.
const LIVE_DELAY_MAX: Duration = Duration::from_millis(100);
/// Clients that read nothing: as many as the listener serves at a time.
const SILENT_CLIENTS: usize = 64;

const PODS: &str = "/api/v1/namespaces/default/pods";
/// What the pod that runs next to all attacks writes to its log.
const BYSTANDER_LINE: &str = "still-here";

/// The latencies of one pod that starts, becomes ready and is removed.
#[derive(Clone, Copy, Debug)]
struct Latencies {
    start: Duration,
    probe: Duration,
    stop: Duration,
}

impl Latencies {
    fn measure(node: &TestNode, name: &str) -> Self {
        let mut spec = one(&sleeper("c"));
        // It needs a lookup, but no name server.
        let action = json!({"host": attacks::KNOWN_HOST, "port": port(node)});
        spec["containers"][0]["startupProbe"] = json!({"tcpSocket": action, "periodSeconds": 1});
        spec["containers"][0]["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
        let begun = Instant::now();
        node.put(name, &spec);
        wait_until(LIMIT, &format!("{name} to run"), || running(node, name));
        let start = begun.elapsed();
        wait_until(LIMIT, &format!("{name} to be ready"), || {
            let pod = running(node, name)?;
            ensure!(condition(&pod, "Ready")["status"] == "True", "{name}: {:#}", pod["status"]);
            Ok(())
        });
        let probe = begun.elapsed() - start;
        let begun = Instant::now();
        node.remove(name);
        wait_until(LIMIT, &format!("{name} to be gone"), || {
            ensure!(read(node, name)?.is_none(), "it is there");
            Ok(())
        });
        Self { start, probe, stop: begun.elapsed() }
    }

    /// The shortest time of each kind: a busy host only adds.
    fn best(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), probe: self.probe.min(other.probe), stop: self.stop.min(other.stop) }
    }

    fn check(&self, quiet: &Self) -> Result<()> {
        let times =
            [("start", self.start, quiet.start), ("probe", self.probe, quiet.probe), ("stop", self.stop, quiet.stop)];
        for (what, time, quiet) in times {
            ensure!(time <= quiet * 2 + TOLERANCE, "its {what} takes {time:?}, and {quiet:?} without the attack");
        }
        Ok(())
    }
}

/// The port of `--listen`.
fn port(node: &TestNode) -> u16 {
    let address: SocketAddr = node.agent.address().parse().expect("an address");
    address.port()
}

/// A pod by the name in its manifest, from the local API: the list of `--listen` may be large, and is attacked itself.
fn read(node: &TestNode, name: &str) -> Result<Option<Value>> {
    let socket = node.scratch.run_dir()?.join("api.sock");
    let path = format!("{PODS}/{name}-node");
    let (code, pod) = local_client::request(&socket, "GET", &path, &Value::Null)?;
    ensure!(code == 200 || code == 404, "{code}: {pod:#}");
    Ok(Some(pod).filter(|_| code == 200))
}

fn running(node: &TestNode, name: &str) -> Result<Value> {
    let pod = read(node, name)?.with_context(|| format!("{name} is unknown"))?;
    ensure!(pod["status"]["phase"] == "Running", "{name}: {:#}", pod["status"]);
    Ok(pod)
}

/// The most anonymous memory of the agent since the last reset, in KiB.
fn peak_memory(node: &TestNode) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", node.agent.pid()))?;
    let kib = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
        Ok(line.trim_start_matches(':').trim().trim_end_matches(" kB").parse()?)
    };
    // The kernel has the peak of all of its memory. Pages of files, once read, stay.
    Ok(kib("VmHWM")?.saturating_sub(kib("RssFile")? + kib("RssShmem")?))
}

/// Forgets the peak (`proc(5)`, `clear_refs`).
fn reset_peak(node: &TestNode) {
    fs::write(format!("/proc/{}/clear_refs", node.agent.pid()), "5").expect("written");
}

fn check_memory(node: &TestNode, attack: &str) {
    let memory = peak_memory(node).expect("it runs");
    println!("{attack}: {memory} KiB");
    assert!(memory <= MEMORY_MAX_KIB, "the agent had {memory} KiB next to {attack}");
}

/// A node whose agent asks a dead name server, and has credentials with wildcards.
fn start(flavor: Flavor, names: &DeadNameServer) -> (TestNode, HungMount) {
    let scratch = Scratch::new().expect("a scratch");
    let hung = HungMount::new(&scratch.path().join("hung")).expect("mounted");
    let runtime = TestRuntime::start(&scratch, flavor).expect("the runtime starts");
    attacks::put_wildcard_credentials(&scratch);
    let agent = Agent::new(&scratch)
        .runtime(&runtime)
        .config(json!({"podPidsLimit": 64, "containerLogMaxSize": "1Mi"}))
        .covered_file("/etc/resolv.conf", &names.resolv_conf())
        .covered_file("/etc/hosts", &attacks::hosts_file())
        .start();
    (TestNode { agent: agent.expect("the agent starts"), scratch, runtime }, hung)
}

/// Starts and stops a pod next to an attack that is under way.
fn check_victim(node: &TestNode, attack: &str, quiet: &Latencies) {
    for run in 1..=RUNS {
        let loud = Latencies::measure(node, &format!("next-to-{attack}-{run}"));
        println!("{attack}: {loud:?}, without it {quiet:?}");
        check_memory(node, attack);
        match loud.check(quiet) {
            Ok(()) => return,
            Err(slow) => assert!(run < RUNS, "next to {attack}: {slow}"),
        }
    }
}

/// Logs are read, and pods are submitted and deleted, at once next to an attack.
fn check_requests(node: &TestNode, attack: &str) {
    let mut slow = Ok(());
    for run in 1..=RUNS {
        slow = requests(node, &format!("submitted-{run}"));
        if slow.is_ok() {
            return;
        }
    }
    slow.unwrap_or_else(|slow| panic!("next to {attack}: {slow:#}"));
}

fn requests(node: &TestNode, name: &str) -> Result<()> {
    let socket = node.scratch.run_dir()?.join("api.sock");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": one(&sleeper("c"))});
    let answer = |method: &str, path: &str, body: &str, expected: u16| -> Result<String> {
        let begun = Instant::now();
        let (code, text) = local_client::text(&socket, method, &format!("{PODS}{path}"), body)?;
        let time = begun.elapsed();
        assert_eq!(code, expected, "{method} {path}: {text}");
        ensure!(time <= TOLERANCE, "{method} {path} takes {time:?}");
        Ok(text)
    };
    let log = answer("GET", "/bystander-node/log", "", 200);
    let submitted = answer("POST", "", &pod.to_string(), 201);
    let deleted = answer("DELETE", &format!("/{name}?gracePeriodSeconds=0"), "", 200);
    wait_until(LIMIT, &format!("{name} to be gone"), || {
        let (code, pod) = local_client::request(&socket, "GET", &format!("{PODS}/{name}"), &Value::Null)?;
        ensure!(code == 404, "{pod:#}");
        Ok(())
    });
    ensure!(log?.contains(BYSTANDER_LINE), "the log of the bystander is empty");
    submitted.and(deleted).map(drop)
}

/// Clients of the list of pods that read nothing of it delay health by a tenth of a second at most. The list is larger than what the
/// kernel buffers for a connection. There are always as many of them as the listener serves: each request for health takes the place
/// of the oldest one, and a new one follows.
fn silent_clients_delay_no_health(node: &TestNode) {
    let silent_client = || {
        let mut client = TcpStream::connect(node.agent.address()).expect("connected");
        client.write_all(b"GET /pods HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
        client
    };
    let quiet = live_time(node, || {});
    let mut clients: VecDeque<TcpStream> = (0..SILENT_CLIENTS).map(|_| silent_client()).collect();
    let loud = live_time(node, || {
        clients.pop_front();
        clients.push_back(silent_client());
    });
    println!("/livez next to {SILENT_CLIENTS} silent clients: {loud:?}, without them {quiet:?}");
    assert!(loud <= quiet + LIVE_DELAY_MAX, "/livez takes {loud:?} next to silent clients, and {quiet:?} without them");
    check_memory(node, "clients that read nothing");
}

/// The time in which 95 of 100 requests for `/livez` are answered. `after_each` runs between them.
fn live_time(node: &TestNode, mut after_each: impl FnMut()) -> Duration {
    let time = |_| {
        let begun = Instant::now();
        assert_eq!(node.agent.get("/livez").expect("an answer").status, 200);
        let time = begun.elapsed();
        after_each();
        time
    };
    let mut times: Vec<Duration> = (0..100).map(time).collect();
    times.sort_unstable();
    times[94]
}

/// A manifest that would take much memory is refused before it does.
fn large_manifests_are_refused(node: &TestNode) {
    for (name, spec) in [("variables", attacks::too_many_variables()), ("volumes", attacks::too_many_volumes())] {
        reset_peak(node);
        let file = format!("too-many-{name}");
        node.put(&file, &spec);
        let refused = |line: &str| line.contains(&format!("{file}.json")) && line.contains("of memory when decoded");
        wait_until(LIMIT, &format!("{file} to be refused"), || {
            ensure!(node.agent.log().lines().any(refused), "{}", node.agent.log());
            Ok(())
        });
        check_memory(node, &file);
        assert!(node.pod(&file).is_err());
        node.remove(&file);
    }
}

pub(crate) fn a_noisy_neighbour_slows_no_other_pod_down(flavor: Flavor) {
    let names = DeadNameServer::start();
    let (node, hung) = start(flavor, &names);
    let mut bystander = one(&sh("c", &format!("echo {BYSTANDER_LINE}; sleep 100000")));
    bystander["containers"][0]["livenessProbe"] =
        json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 10});
    node.put("bystander", &bystander);
    node.put("exploding", &attacks::exploding_environment());
    wait_until(LIMIT, "the bystander to run", || running(&node, "bystander"));
    let quiet = Latencies::measure(&node, "quiet-1").best(Latencies::measure(&node, "quiet-2"));

    large_manifests_are_refused(&node);
    for Attack { name, spec, is_under_way } in attacks::all(&hung) {
        reset_peak(&node);
        node.put(name, &spec);
        wait_until(LIMIT, &format!("{name} to be under way"), || {
            let pod = read(&node, name)?.context("unknown")?;
            ensure!(is_under_way(&pod), "{:#}", pod["status"]);
            Ok(())
        });
        if name == attacks::DEAD_NAME_SERVER {
            names.wait_for_lookups();
        }
        check_victim(&node, name, &quiet);
        check_requests(&node, name);
        if name == attacks::MANY_VARIABLES {
            silent_clients_delay_no_health(&node);
        }
        node.remove(name);
    }
    let refused = node.agent.log().lines().any(|line| line.contains("invalid") && line.contains("exploding.json"));
    assert!(refused && node.pod("exploding").is_err(), "{}", node.agent.log());
    let pod = running(&node, "bystander").expect("it runs");
    assert_eq!(container(&pod, "c")["restartCount"], 0, "{:#}", pod["status"]);
    drop(hung);
    node.remove_all();
    node.wait_nothing_left();
}
