//! Host ports of a pod that a process of the host listens on: traffic to them would reach either that process or the pod.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use podwright_core::admission::{HostPort, Requests};
use podwright_core::model::Pod;

use super::{CallExecutor, warn};

impl CallExecutor {
    /// Records an event for each host port that is in use. A failed check is only logged: the pod may work.
    pub(super) async fn warn_of_used_host_ports(&self, pod: &Pod) {
        let ports = Requests::of(pod).host_ports;
        if ports.is_empty() {
            return;
        }
        let key = format!("host ports of pod {}", pod.metadata.uid.as_deref().unwrap_or_default());
        let work = move || used_ports(Path::new("/proc"), &ports);
        match self.pool.run(key, CHECK_TIME_MAX, work).await {
            Ok(used) => {
                for (port, process) in used {
                    let HostPort { port, protocol, .. } = port;
                    let message = format!(
                        "hostPort {port}/{protocol} is in use on the host by {process}: connections may not reach the pod"
                    );
                    warn(&self.events, pod, None, "HostPortInUse", message);
                }
            }
            Err(error) => tracing::debug!(%error, "host ports not checked"),
        }
    }
}

/// A socket that listens on a port of the host.
#[derive(Debug, PartialEq, Eq)]
struct Listener {
    address: IpAddr,
    port: u16,
    inode: u64,
}

/// The ports in use, each with the process that listens, at most [`REPORTED_MAX`].
fn used_ports(proc: &Path, ports: &BTreeSet<HostPort>) -> Vec<(HostPort, String)> {
    let mut used: Vec<(HostPort, u64)> = Vec::new();
    for protocol in ["tcp", "udp"] {
        let wanted: Vec<&HostPort> = ports.iter().filter(|port| port.protocol.eq_ignore_ascii_case(protocol)).collect();
        if wanted.is_empty() {
            continue;
        }
        // The tables of the network namespace of this process.
        for table in [protocol.to_owned(), format!("{protocol}6")] {
            let text = fs::read_to_string(proc.join("self/net").join(table)).unwrap_or_default();
            for listener in listeners(&text, protocol == "tcp") {
                let found = wanted.iter().filter(|port| is_used(port, &listener));
                used.extend(found.map(|port| ((*port).clone(), listener.inode)));
            }
        }
    }
    used.sort();
    used.dedup_by(|a, b| a.0 == b.0);
    used.truncate(REPORTED_MAX);
    let names = processes(proc, used.iter().map(|(_, inode)| *inode).collect());
    let unknown = || "an unknown process".to_owned();
    used.into_iter().map(|(port, inode)| (port, names.get(&inode).cloned().unwrap_or_else(unknown))).collect()
}

fn is_used(port: &HostPort, listener: &Listener) -> bool {
    if i32::from(listener.port) != port.port {
        return false;
    }
    let Ok(wanted) = port.ip.parse::<IpAddr>() else { return true };
    wanted.is_unspecified() || listener.address.is_unspecified() || wanted == listener.address
}

/// The listening sockets of a table such as `/proc/net/tcp`; for UDP, the unconnected ones.
fn listeners(table: &str, tcp: bool) -> Vec<Listener> {
    let state = if tcp { "0A" } else { "07" };
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        if fields.get(3) != Some(&state) {
            return None;
        }
        let (address, port) = fields[1].split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        Some(Listener { address: parse_address(address)?, port, inode: fields.get(9)?.parse().ok()? })
    };
    table.lines().skip(1).filter_map(parse).collect()
}

/// 32-bit words in the byte order of the host.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

/// Names and ids of the processes that hold these sockets.
fn processes(proc: &Path, mut inodes: BTreeSet<u64>) -> BTreeMap<u64, String> {
    let mut names = BTreeMap::new();
    let until = Instant::now() + SCAN_TIME_MAX;
    let pids = fs::read_dir(proc).into_iter().flatten().flatten();
    for pid in pids.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok())) {
        for fd in fs::read_dir(pid.path().join("fd")).into_iter().flatten().flatten() {
            if inodes.is_empty() || Instant::now() > until {
                return names;
            }
            let Ok(link) = fs::read_link(fd.path()) else { continue };
            let inode = link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            if let Some(inode) = inode.filter(|inode| inodes.remove(inode)) {
                let name = fs::read_to_string(pid.path().join("comm")).unwrap_or_default();
                names.insert(inode, format!("{} (pid {})", name.trim_end(), pid.file_name().display()));
            }
        }
    }
    names
}

/// Ports named in events of one start.
const REPORTED_MAX: usize = 10;
/// For the whole check, which delays the start of the sandbox.
const CHECK_TIME_MAX: Duration = Duration::from_secs(3);
/// For the search of the processes.
const SCAN_TIME_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u16, protocol: &str, ip: &str) -> HostPort {
        HostPort { port: number.into(), protocol: protocol.into(), ip: ip.into() }
    }

    #[test]
    fn a_port_that_a_process_listens_on_is_found_with_its_name() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let used = listener.local_addr().unwrap().port();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let ports = BTreeSet::from([port(used, "TCP", "0.0.0.0"), port(free, "TCP", "0.0.0.0")]);
        let found = used_ports(Path::new("/proc"), &ports);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0.port, i32::from(used));
        assert!(found[0].1.ends_with(&format!(" (pid {})", std::process::id())), "{found:?}");
        let elsewhere = BTreeSet::from([port(used, "TCP", "127.0.0.2"), port(used, "UDP", "0.0.0.0")]);
        assert_eq!(used_ports(Path::new("/proc"), &elsewhere), []);
    }

    #[test]
    fn addresses_and_states_of_the_tables_are_parsed() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0\n\
            1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 4243 1 0 100 0 0 10 0\n\
            garbage\n";
        let found = listeners(table, true);
        let address = if cfg!(target_endian = "little") { "127.0.0.1" } else { "1.0.0.127" };
        assert_eq!(found, [Listener { address: address.parse().unwrap(), port: 8080, inode: 4242 }]);
        assert_eq!(parse_address(&"0".repeat(32)), Some(Ipv6Addr::UNSPECIFIED.into()));
        assert_eq!(parse_address("12"), None);
    }
}
