//! What the machine says of itself: name, addresses, processors, memory, disk, boot.

use std::fs;
use std::io;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use podwright_linux::hugepages::{self, HugePages};

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Facts {
    /// As the kernel has it.
    pub(crate) hostname: String,
    pub(crate) boot_id: String,
    /// Of the way out, the preferred one first; loopback if there is none.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) cpus: usize,
    /// In bytes.
    pub(crate) memory: i64,
    /// Of the file system of the root directory, in bytes.
    pub(crate) disk: i64,
    /// Processes and threads the kernel allows.
    pub(crate) pids: i64,
    /// Of every size the kernel has.
    pub(crate) huge_pages: Vec<HugePages>,
    /// AppArmor is built in and switched on.
    pub(crate) app_armor: bool,
    /// SELinux is built in and switched on.
    pub(crate) selinux: bool,
    /// Where the processors tell their temperature.
    pub(crate) thermal_paths: Vec<String>,
    /// Swap areas in use.
    pub(crate) swaps: Vec<String>,
    /// Of the addresses that were given, those no interface has.
    pub(crate) elsewhere: Vec<IpAddr>,
}

impl Facts {
    /// Ask the machine. It may be given another name than its own, and addresses, by flags.
    pub(crate) fn read(root_dir: &Path, name: Option<&str>, given: &[String]) -> io::Result<Self> {
        let text = |path: &str| {
            fs::read_to_string(path).map_err(|error| io::Error::new(error.kind(), format!("read {path}: {error}")))
        };
        let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let memory =
            mem_total(&text("/proc/meminfo")?).ok_or_else(|| io::Error::other("/proc/meminfo has no MemTotal"))?;
        Ok(Self {
            boot_id: match told_boot_id() {
                Some(told) => told,
                None => text("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
            },
            // The name of the node is what is looked up, as with the kubelet.
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
            elsewhere: given.iter().filter_map(|text| text.trim().parse().ok()).filter(|ip| !is_here(*ip)).collect(),
            hostname,
        })
    }
}

/// Tests can't start the machine anew: they tell an agent that it was. What is shipped is built without debug assertions, and asks
/// the kernel alone.
fn told_boot_id() -> Option<String> {
    cfg!(debug_assertions).then(|| std::env::var("PODWRIGHT_BOOT_ID").ok()).flatten()
}

/// The number of processors in a list like `0-3,8`.
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

/// The lesser of the two limits (Go kubelet: `pidlimit.Stats`).
fn pids() -> i64 {
    let limits = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let read = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
    limits.into_iter().filter_map(read).min().unwrap_or(PIDS_MAX)
}

/// How often each processor was too hot: it betrays what the neighbours do (Go kubelet: `defaultMaskedPaths`).
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

/// The directory may not be there yet: then that of the nearest one that is.
fn disk_size(dir: &Path) -> io::Result<i64> {
    let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let stat = rustix::fs::statvfs(there)?;
    Ok(i64::try_from(stat.f_blocks.saturating_mul(stat.f_frsize)).unwrap_or(i64::MAX))
}

/// What the node's name means, as far as it is here; then the addresses of the default routes; else loopback. Those of IPv4 come
/// first, as with the kubelet.
fn addresses(hostname: &str) -> Vec<IpAddr> {
    // Connecting a UDP socket sends nothing: the kernel only picks the address it would send from.
    let route = |bind: &str, to: &str| {
        let socket = UdpSocket::bind(bind).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|ip| usable(*ip))
    };
    let mut found: Vec<IpAddr> = lookup(hostname).into_iter().filter(|ip| usable(*ip) && is_here(*ip)).collect();
    found.extend([route("0.0.0.0:0", "198.51.100.1:9"), route("[::]:0", "[2001:db8::1]:9")].into_iter().flatten());
    found.sort_by_key(IpAddr::is_ipv6);
    if found.is_empty() {
        found.push(IpAddr::from([127, 0, 0, 1]));
    }
    found
}

/// An interface has it.
fn is_here(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

fn usable(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || link_local)
}

/// A resolver that doesn't answer must not hold the start up: the thread is left to its fate.
fn lookup(hostname: &str) -> Vec<IpAddr> {
    let (tx, rx) = mpsc::sync_channel(1);
    let target = (hostname.to_owned(), 0);
    std::thread::spawn(move || {
        let found = target.to_socket_addrs().map(|found| found.map(|a| a.ip()).collect::<Vec<_>>());
        let _ = tx.send(found.unwrap_or_default());
    });
    rx.recv_timeout(LOOKUP_MAX).unwrap_or_default()
}

/// The kernel's own limit on 64 bits (PID_MAX_LIMIT).
const PIDS_MAX: i64 = 1 << 22;
const LOOKUP_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
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
    fn processors_that_tell_their_temperature_are_found() {
        let dir = std::env::temp_dir().join(format!("podwright-cpus-{}", std::process::id()));
        for name in ["cpu10/thermal_throttle", "cpu2/thermal_throttle", "cpu3", "cpufreq/thermal_throttle"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        let found = thermal_paths(&dir);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found, [2, 10].map(|n| format!("{}/cpu{n}/thermal_throttle", dir.display())));
    }

    #[test]
    fn this_machine_has_a_name_memory_and_an_address() {
        let facts = Facts::read(Path::new("/var/lib/no/such/directory"), None, &[]).unwrap();
        assert!(!facts.hostname.is_empty() && facts.boot_id.len() == 36, "{facts:?}");
        assert!(facts.cpus > 0 && facts.memory > 1 << 20 && facts.disk > 1 << 20, "{facts:?}");
        assert!(!facts.addresses.is_empty());
    }

    #[test]
    fn the_nodes_name_is_looked_up_and_given_addresses_must_be_here() {
        let given = ["127.0.0.1".to_owned(), "0.0.0.0".to_owned(), "192.0.2.77".to_owned(), "x".to_owned()];
        let facts = Facts::read(Path::new("/"), Some("192.0.2.1"), &given).unwrap();
        assert_eq!(facts.elsewhere, ["192.0.2.77".parse::<IpAddr>().unwrap()]);
        assert!(!facts.addresses.contains(&"192.0.2.1".parse().unwrap()), "what it means is not here");
    }
}
