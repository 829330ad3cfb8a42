//! The parts of /proc that the statistics need. Parsers are separate from reading.

use std::collections::BTreeMap;
use std::fs::read_to_string;

use jiff::{SignedDuration, Timestamp};

use super::sample::{HostSample, InterfaceSample};

/// Reads the host's values; those that cannot be read stay `None`.
pub(super) fn read_host() -> HostSample {
    let memory = read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = meminfo(&memory);
    HostSample {
        boot_time: boot_time(),
        memory_total: memory.get("MemTotal").copied(),
        swap_total: memory.get("SwapTotal").copied(),
        swap_free: memory.get("SwapFree").copied(),
        max_pid: max_pid(),
        tasks: read_to_string("/proc/loadavg").ok().and_then(|text| tasks(&text)),
        network: read_to_string("/proc/self/net/dev").map(|text| interfaces(&text)).unwrap_or_default(),
        devices: device_names(&read_to_string("/proc/diskstats").unwrap_or_default()),
        ..HostSample::default()
    }
}

/// The interfaces in the network namespace of a process.
pub(super) fn network_of(pid: u32) -> Option<Vec<InterfaceSample>> {
    read_to_string(format!("/proc/{pid}/net/dev")).ok().map(|text| interfaces(&text))
}

/// The agent's own cgroup; `None`: it is the root.
pub(super) fn own_cgroup(v2: bool) -> Option<String> {
    cgroup_of(&read_to_string("/proc/self/cgroup").ok()?, v2)
}

/// Lines `4:memory:/path`, and `0::/path` for v2.
fn cgroup_of(text: &str, v2: bool) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let wanted = if v2 { number == "0" } else { controllers.split(',').any(|name| name == "memory") };
        (wanted && path != "/").then(|| path.to_owned())
    })
}

/// Kubernetes: `GetBootTime`, now minus the uptime.
fn boot_time() -> Option<Timestamp> {
    let uptime = podwright_linux::clock::boot_time();
    Timestamp::now().checked_sub(SignedDuration::try_from(uptime).ok()?).ok()
}

/// Bytes by name.
fn meminfo(text: &str) -> BTreeMap<&str, u64> {
    fn line(line: &str) -> Option<(&str, u64)> {
        let (name, value) = line.split_once(':')?;
        let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some((name, kib.saturating_mul(1024)))
    }
    text.lines().filter_map(line).collect()
}

/// Kubernetes: `pidlimit.Stats`.
fn max_pid() -> Option<u64> {
    let number = |path: &str| read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let (pids, threads) = (number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max"));
    [pids, threads].into_iter().flatten().min()
}

/// The fourth field of /proc/loadavg is `running/all`.
fn tasks(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// The lines of a net/dev file, without the interfaces that cAdvisor ignores.
fn interfaces(text: &str) -> Vec<InterfaceSample> {
    let interface = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let name = name.trim();
        if IGNORED_INTERFACES.iter().any(|prefix| name.starts_with(prefix)) {
            return None;
        }
        let numbers: Vec<u64> = counters.split_whitespace().map_while(|n| n.parse().ok()).collect();
        let [rx_bytes, rx_packets, rx_errors, rx_dropped, _, _, _, _, tx_bytes, tx_packets, tx_errors, tx_dropped, ..] =
            numbers[..]
        else {
            return None;
        };
        Some(InterfaceSample {
            name: name.to_owned(),
            rx_bytes,
            rx_packets,
            rx_errors,
            rx_dropped,
            tx_bytes,
            tx_packets,
            tx_errors,
            tx_dropped,
        })
    };
    text.lines().filter_map(interface).take(INTERFACES_MAX).collect()
}

/// Device number and name of every line of /proc/diskstats.
fn device_names(text: &str) -> BTreeMap<(u32, u32), String> {
    let device = |line: &str| {
        let mut fields = line.split_whitespace();
        let number = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some((number, fields.next()?.to_owned()))
    };
    text.lines().filter_map(device).collect()
}

/// The first eleven counters of a device in /proc/diskstats.
pub(super) fn disk_counters(text: &str, device: &str) -> Option<[u64; 11]> {
    let line = text.lines().find(|line| line.split_whitespace().nth(2) == Some(device))?;
    let counters: Vec<u64> = line.split_whitespace().skip(3).map_while(|n| n.parse().ok()).take(11).collect();
    counters.try_into().ok()
}

/// cAdvisor: `isIgnoredDevice`.
const IGNORED_INTERFACES: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];
/// A pod with privileges may make any number of interfaces.
const INTERFACES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read_without_those_of_the_host_side() {
        let text = "Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0
  eth0: 2000 20 1 2 0 0 0 0 3000 30 3 4 0 0 0 0
veth12: 9 9 9 9 0 0 0 0 9 9 9 9 0 0 0 0\n";
        let found = interfaces(text);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].rx_bytes, found[0].rx_dropped), ("eth0", 2000, 2));
        assert_eq!((found[0].tx_bytes, found[0].tx_errors, found[0].tx_dropped), (3000, 3, 4));
    }

    #[test]
    fn other_files_are_parsed() {
        assert_eq!(meminfo("MemTotal:       16 kB\nHugePages_Total: 0\n"), BTreeMap::from([("MemTotal", 16384)]));
        assert_eq!(tasks("0.10 0.20 0.30 2/345 999\n"), Some(345));
        assert_eq!(cgroup_of("4:cpu,memory:/a/b\n0::/c\n", false).as_deref(), Some("/a/b"));
        assert_eq!(cgroup_of("4:cpu,memory:/a/b\n0::/c\n", true).as_deref(), Some("/c"));
        assert_eq!(cgroup_of("0::/\n", true), None);
        let disks = " 254 0 vda 1 2 3 4 5 6 7 8 9 10 11 12\n";
        assert_eq!(device_names(disks)[&(254, 0)], "vda");
        assert_eq!(disk_counters(disks, "vda"), Some([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]));
        assert_eq!(disk_counters(disks, "vdb"), None);
    }

    #[test]
    fn the_values_of_this_host_are_plausible() {
        let host = read_host();
        assert!(host.memory_total > Some(1 << 24) && host.tasks > Some(1) && host.max_pid > Some(300), "{host:?}");
        assert!(host.boot_time.is_some_and(|boot| boot < Timestamp::now()), "{host:?}");
        assert!(network_of(std::process::id()).is_some());
    }
}
