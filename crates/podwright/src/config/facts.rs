//! Facts of the host, read from the kernel: name, addresses, CPUs, memory, disk, boot id.

use std::fs;
use std::io;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use podwright_linux::hugepages::{self, HugePages};

/// Read once, when the agent starts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HostFacts {
    /// Of the kernel, not `--hostname-override`.
    pub(crate) hostname: String,
    pub(crate) boot_id: String,
    /// IPv4 first: addresses of the node name that this host has, then those of the default routes; loopback if there is none.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) cpus: usize,
    /// In bytes.
    pub(crate) memory: i64,
    /// Size of the file system of the root directory, in bytes.
    pub(crate) disk: i64,
    /// Maximum number of processes and threads.
    pub(crate) pids: i64,
    /// One entry for each size the kernel supports.
    pub(crate) huge_pages: Vec<HugePages>,
    /// AppArmor is enabled.
    pub(crate) app_armor: bool,
    /// SELinux is enabled.
    pub(crate) selinux: bool,
    /// The `thermal_throttle` directories of the CPUs.
    pub(crate) thermal_paths: Vec<String>,
    /// Swap areas in use.
    pub(crate) swaps: Vec<String>,
    /// The addresses of `--node-ip` that no network interface has.
    pub(crate) foreign_node_ips: Vec<IpAddr>,
}

impl HostFacts {
    /// Reads all facts. `name` is `--hostname-override`, `node_ips` is `--node-ip`.
    pub(crate) fn read(root_dir: &Path, name: Option<&str>, node_ips: &[String]) -> io::Result<Self> {
        let text = |path: &str| {
            fs::read_to_string(path).map_err(|error| io::Error::new(error.kind(), format!("read {path}: {error}")))
        };
        let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let memory =
            mem_total(&text("/proc/meminfo")?).ok_or_else(|| io::Error::other("/proc/meminfo has no MemTotal"))?;
        Ok(Self {
            boot_id: match test_boot_id() {
                Some(id) => id,
                None => text("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
            },
            // Like the kubelet, resolve the name of the node, not the hostname.
            addresses: addresses(name.unwrap_or(&hostname).trim()),
            cpus: online_cpus(),
            memory,
            disk: disk_size(root_dir)?,
            pids: pids(),
            huge_pages: hugepages::read(),
            app_armor: fs::read_to_string("/sys/module/apparmor/parameters/enabled")
                .is_ok_and(|on| on.starts_with('Y')),
            selinux: Path::new("/sys/fs/selinux/enforce").exists(),
            thermal_paths: thermal_paths(Path::new("/sys/devices/system/cpu")),
            swaps: swaps(&fs::read_to_string("/proc/swaps").unwrap_or_default()),
            foreign_node_ips: node_ips
                .iter()
                .filter_map(|text| text.trim().parse().ok())
                .filter(|ip| !is_local(*ip))
                .collect(),
            hostname,
        })
    }
}

/// Lets tests simulate a reboot. Release builds have no debug assertions and only ask the kernel.
fn test_boot_id() -> Option<String> {
    cfg!(debug_assertions).then(|| std::env::var("PODWRIGHT_BOOT_ID").ok()).flatten()
}

/// The number of CPUs in a list such as `0-3,8`.
pub(super) fn cpu_count(list: &str) -> Option<usize> {
    let mut count = 0usize;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

fn online_cpus() -> usize {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").ok().and_then(|text| cpu_count(&text));
    online.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The smaller of the two limits (Go kubelet: `pidlimit.Stats`).
fn pids() -> i64 {
    let limits = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let read = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
    limits.into_iter().filter_map(read).min().unwrap_or(PIDS_MAX)
}

/// The throttle counters of the CPUs: they reveal the activity of other workloads, so containers must not read them (Go kubelet:
/// `defaultMaskedPaths`).
fn thermal_paths(cpus: &Path) -> Vec<String> {
    let number = |name: &str| name.strip_prefix("cpu")?.parse::<u32>().ok();
    let found = fs::read_dir(cpus).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = found
        .filter(|cpu| cpu.path().join("thermal_throttle").exists())
        .filter_map(|cpu| number(cpu.file_name().to_str()?))
        .collect();
    numbers.sort_unstable();
    numbers.iter().map(|n| format!("{}/cpu{n}/thermal_throttle", cpus.display())).collect()
}

fn mem_total(meminfo: &str) -> Option<i64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<i64>().ok()?.checked_mul(1024)
}

fn swaps(table: &str) -> Vec<String> {
    let names = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    names.map(ToOwned::to_owned).collect()
}

/// Of the nearest existing ancestor, if the directory does not exist yet.
fn disk_size(dir: &Path) -> io::Result<i64> {
    let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let stat = rustix::fs::statvfs(there)?;
    Ok(i64::try_from(stat.f_blocks.saturating_mul(stat.f_frsize)).unwrap_or(i64::MAX))
}

/// The addresses that the node name resolves to and this host has, then those of the default routes; else loopback. IPv4 comes
/// first, like in the kubelet.
fn addresses(hostname: &str) -> Vec<IpAddr> {
    // Connecting a UDP socket sends nothing: the kernel only selects the source address.
    let route = |bind: &str, to: &str| {
        let socket = UdpSocket::bind(bind).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|ip| usable(*ip))
    };
    let mut found: Vec<IpAddr> = lookup(hostname).into_iter().filter(|ip| usable(*ip) && is_local(*ip)).collect();
    found.extend([route("0.0.0.0:0", "198.51.100.1:9"), route("[::]:0", "[2001:db8::1]:9")].into_iter().flatten());
    found.sort_by_key(IpAddr::is_ipv6);
    if found.is_empty() {
        found.push(IpAddr::from([127, 0, 0, 1]));
    }
    found
}

/// A network interface has this address.
fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

fn usable(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || link_local)
}

/// Runs in a thread that is abandoned after [`LOOKUP_MAX`]: a resolver that does not respond must not block the start.
fn lookup(hostname: &str) -> Vec<IpAddr> {
    let (tx, rx) = mpsc::sync_channel(1);
    let target = (hostname.to_owned(), 0);
    std::thread::spawn(move || {
        let found = target.to_socket_addrs().map(|found| found.map(|a| a.ip()).collect::<Vec<_>>());
        let _ = tx.send(found.unwrap_or_default());
    });
    rx.recv_timeout(LOOKUP_MAX).unwrap_or_default()
}

/// `PID_MAX_LIMIT` of 64-bit kernels.
const PIDS_MAX: i64 = 1 << 22;
const LOOKUP_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_files_are_parsed() {
        assert_eq!(cpu_count("0-3\n"), Some(4));
        assert_eq!(cpu_count("0,2-3,7"), Some(4));
        for bad in ["", "a", "3-1", "0-", "0,,1"] {
            assert_eq!(cpu_count(bad), None, "{bad}");
        }
        assert_eq!(mem_total("MemFree: 1 kB\nMemTotal:       24683964 kB\n"), Some(24_683_964 * 1024));
        assert_eq!(mem_total("MemFree: 1 kB\n"), None);
        assert!(swaps("Filename\t\t\tType\t\tSize\n").is_empty());
        assert_eq!(swaps("Filename Type Size\n/dev/vdb partition 1\n"), ["/dev/vdb"]);
    }

    #[test]
    fn thermal_throttle_directories_are_found() {
        let dir = std::env::temp_dir().join(format!("podwright-cpus-{}", std::process::id()));
        for name in ["cpu10/thermal_throttle", "cpu2/thermal_throttle", "cpu3", "cpufreq/thermal_throttle"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        let found = thermal_paths(&dir);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found, [2, 10].map(|n| format!("{}/cpu{n}/thermal_throttle", dir.display())));
    }

    #[test]
    fn the_facts_of_this_host_are_plausible() {
        let facts = HostFacts::read(Path::new("/var/lib/no/such/directory"), None, &[]).unwrap();
        assert!(!facts.hostname.is_empty() && facts.boot_id.len() == 36, "{facts:?}");
        assert!(facts.cpus > 0 && facts.memory > 1 << 20 && facts.disk > 1 << 20, "{facts:?}");
        assert!(!facts.addresses.is_empty());
    }

    #[test]
    fn the_node_name_is_resolved_and_foreign_node_ips_are_found() {
        let given = ["127.0.0.1".to_owned(), "0.0.0.0".to_owned(), "192.0.2.77".to_owned(), "x".to_owned()];
        let facts = HostFacts::read(Path::new("/"), Some("192.0.2.1"), &given).unwrap();
        assert_eq!(facts.foreign_node_ips, ["192.0.2.77".parse::<IpAddr>().unwrap()]);
        assert!(!facts.addresses.contains(&"192.0.2.1".parse().unwrap()), "no interface of this host has it");
    }
}
