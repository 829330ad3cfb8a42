//! Pods that use up what they can get.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use podwright_testbed::{HungMount, Scratch};
use serde_json::{Value, json};

use crate::suite::{container, one, sh, sleeper};

/// The CPU share of an attacker: what is tested is the agent, not the scheduler of the kernel.
const CPU: &str = "50m";

pub(super) const DEAD_NAME_SERVER: &str = "dead-name-server";
/// A name of this host that needs no name server.
pub(super) const KNOWN_HOST: &str = "known.example";
/// The list of pods is large next to it.
pub(super) const MANY_VARIABLES: &str = "many-variables";

/// A pod, and its state when the attack is under way.
pub(super) struct Attack {
    pub(super) name: &'static str,
    pub(super) spec: Value,
    pub(super) is_under_way: fn(&Value) -> bool,
}

/// All attacks of pods that are admitted.
pub(super) fn all(hung: &HungMount) -> Vec<Attack> {
    let running = |name, spec| Attack { name, spec, is_under_way };
    vec![
        running("log-flood", log_flood()),
        running("fork-bomb", fork_bomb()),
        running(DEAD_NAME_SERVER, probes_of_names()),
        running("huge-environment", huge_environment()),
        running("slow-volume", slow_volume(hung)),
        running("event-flood", event_flood()),
        Attack { name: "wildcards", spec: image_of_a_long_host(), is_under_way: is_pull_refused },
        running(MANY_VARIABLES, many_variables()),
    ]
}

/// It runs, or waits for what it has made slow.
fn is_under_way(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" || !container(pod, "c")["state"]["waiting"]["reason"].is_null()
}

/// Credentials were searched for it.
fn is_pull_refused(pod: &Value) -> bool {
    let reason = &container(pod, "c")["state"]["waiting"]["reason"];
    reason == "ErrImagePull" || reason == "ImagePullBackOff"
}

fn limited(mut container: Value) -> Value {
    container["resources"] = json!({"limits": {"cpu": CPU, "memory": "64Mi"}});
    container
}

fn log_flood() -> Value {
    one(&limited(sh("c", "yes 'a line that nobody reads'")))
}

/// Bounded by `podPidsLimit`; the shell ends when it can't fork, and is restarted.
fn fork_bomb() -> Value {
    one(&limited(sh("c", "while :; do sleep 1000 & done 2>/dev/null")))
}

/// Eight probes that look up names at a name server which never answers. Half of them end before their lookup would, and are repeated.
fn probes_of_names() -> Value {
    several(4, |n, kind| {
        let (host, timeout) = (format!("{kind}{n}.example"), if kind == "live" { 1 } else { 30 });
        json!({"httpGet": {"host": host, "port": 80}, "periodSeconds": 1, "timeoutSeconds": timeout, "failureThreshold": 1_000_000})
    })
}

/// Twenty failing probes a second, each with an event.
fn event_flood() -> Value {
    several(
        10,
        |_, _| json!({"tcpSocket": {"host": "127.0.0.1", "port": 1}, "periodSeconds": 1, "failureThreshold": 1_000_000}),
    )
}

/// So many containers with two probes each.
fn several(count: usize, probe: impl Fn(usize, &str) -> Value) -> Value {
    let container = |n: usize| {
        let mut container = sleeper(&format!("c{n}"));
        container["readinessProbe"] = probe(n, "ready");
        container["livenessProbe"] = probe(n, "live");
        container
    };
    json!({"terminationGracePeriodSeconds": 2, "containers": (0..count).map(container).collect::<Vec<_>>()})
}

/// Below the limit of 1 MiB.
fn huge_environment() -> Value {
    with_variables((0..4000).map(|n| json!({"name": format!("V{n}"), "value": "x".repeat(200)})))
}

/// Of few bytes each, and almost as many as a manifest may have.
fn many_variables() -> Value {
    variables(14_000)
}

/// Its manifest is refused, with a length that is allowed.
pub(super) fn too_many_variables() -> Value {
    variables(80_000)
}

fn variables(count: usize) -> Value {
    with_variables((0..count).map(|n| json!({"name": format!("V{n}"), "value": "x"})))
}

/// Each takes three kilobytes when it is decoded, and 16 bytes in the manifest, which is refused.
pub(super) fn too_many_volumes() -> Value {
    let mut spec = one(&sleeper("c"));
    spec["volumes"] = (0..80_000).map(|n| json!({"name": format!("v{n}")})).collect();
    spec
}

/// Eleven variables, each ten times as long as the one before: its manifest is refused.
pub(super) fn exploding_environment() -> Value {
    with_variables((0..11).map(|n| match n {
        0 => json!({"name": "X0", "value": "0123456789"}),
        _ => json!({"name": format!("X{n}"), "value": format!("$(X{})", n - 1).repeat(10)}),
    }))
}

fn with_variables(variables: impl Iterator<Item = Value>) -> Value {
    let mut container = sleeper("c");
    container["env"] = variables.collect();
    one(&container)
}

fn slow_volume(hung: &HungMount) -> Value {
    let mut spec = one(&sleeper("c"));
    spec["volumes"] = json!([{"name": "slow", "hostPath": {"path": hung.point().join("data"), "type": "Directory"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "slow", "mountPath": "/v"}]);
    spec
}

/// Of a registry that refuses connections, with the longest label that a host name may have.
fn image_of_a_long_host() -> Value {
    let mut spec = one(&sleeper("c"));
    spec["containers"][0]["image"] = json!(format!("{}:1/x:1", long_host()));
    spec
}

fn long_host() -> String {
    format!("{}.example", "a".repeat(63))
}

/// Credentials for a host with 20 wildcards, which almost matches [`long_host`]: a matcher that tries every combination does not end.
pub(super) fn put_wildcard_credentials(scratch: &Scratch) {
    let key = format!("{}b.example:1", "*a".repeat(20));
    let credentials = json!({"auths": {key: {"username": "u", "password": "p"}}});
    let file = scratch.root_dir().expect("there").join("config.json");
    std::fs::write(file, credentials.to_string()).expect("written");
}

/// The hosts file that has [`long_host`] and [`KNOWN_HOST`].
pub(super) fn hosts_file() -> String {
    format!("127.0.0.1 localhost {KNOWN_HOST} {}\n", long_host())
}

/// Lookups that outlive their probes would occupy every thread that they may have after this time: four begin each second.
const LOOKUPS_PILE_UP: Duration = Duration::from_secs(6);

/// A name server that never answers: its queries are neither answered nor refused.
pub(super) struct DeadNameServer(UdpSocket);

impl DeadNameServer {
    /// On an address of the loopback interface that no other test uses.
    pub(super) fn start() -> Self {
        let id = std::process::id();
        let octet = |shift: u32| u8::try_from((id >> shift) & 0xff).expect("one byte");
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 53, octet(8), octet(0)), 53)).expect("bound");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        Self(socket)
    }

    /// The content of `/etc/resolv.conf`.
    pub(super) fn resolv_conf(&self) -> String {
        format!("nameserver {}\n", self.0.local_addr().expect("bound").ip())
    }

    /// Waits until it was asked for [`LOOKUPS_PILE_UP`].
    pub(super) fn wait_for_lookups(&self) {
        self.0.recv(&mut [0; 512]).expect("a query");
        std::thread::sleep(LOOKUPS_PILE_UP);
    }
}
