use std::fs;

use super::*;

fn write(dir: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(dir).unwrap();
    for (name, content) in files {
        fs::write(dir.join(name), content).unwrap();
    }
}

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

#[test]
fn a_v2_cgroup_is_read_with_its_pressure_and_limits() {
    let root = tempfile::tempdir().unwrap();
    let tree = CgroupTree::plain_v2(root.path(), &["cpu", "memory"]).unwrap();
    let psi = "some avg10=1.50 avg60=0.20 avg300=0.00 total=77\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=33\n";
    write(
        &root.path().join("kubepods/pod1"),
        &[
            (
                "cpu.stat",
                "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\nnr_periods 7\nnr_throttled 2\nthrottled_usec 9\n",
            ),
            ("cpu.pressure", psi),
            ("cpu.max", "5000 100000\n"),
            ("cpu.weight", "100\n"),
            ("memory.current", "10000\n"),
            ("memory.max", "max\n"),
            ("memory.stat", "anon 4000\nfile 5000\ninactive_file 2000\npgfault 12\npgmajfault 1\n"),
            ("memory.events", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 5\n"),
            ("memory.events.local", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n"),
            ("memory.swap.current", "4096\n"),
            ("memory.swap.max", "8192\n"),
            ("io.stat", "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n"),
            ("pids.current", "4\n"),
            ("pids.max", "max\n"),
            ("cgroup.procs", "11\n12\n"),
        ],
    );
    let usage = tree.usage(&path("/kubepods/pod1"), UsageDetail::All).unwrap();
    assert_eq!(usage.cpu.usage_ns, Some(1_500_000));
    assert_eq!((usage.cpu.quota_us, usage.cpu.period_us), (Some(Bound::At(5000)), Some(100_000)));
    let pressure = usage.cpu.pressure.unwrap();
    assert_eq!((pressure.some.avg10, pressure.some.total_us, pressure.full.total_us), (1.5, 77, 33));
    assert_eq!((usage.memory.usage, usage.memory.inactive_file), (Some(10_000), Some(2000)));
    assert_eq!((usage.memory.limit, usage.memory.swap_limit), (Some(Bound::Max), Some(Bound::At(8192))));
    assert_eq!((usage.memory.swap, usage.memory.oom_kills), (Some(4096), Some(1)));
    assert_eq!(usage.io.devices[&(8, 0)], DeviceIo { read_bytes: 10, write_bytes: 20, reads: 1, writes: 2 });
    assert_eq!((usage.pids.current, usage.pids.processes.as_slice()), (Some(4), [11, 12].as_slice()));
    assert_eq!(tree.usage(&path("/kubepods/none"), UsageDetail::All), None);
    let few = tree.usage(&path("/kubepods/pod1"), UsageDetail::CpuAndMemory).unwrap();
    assert_eq!((few.cpu.usage_ns, few.memory.usage), (usage.cpu.usage_ns, usage.memory.usage));
    assert_eq!((few.pids, few.io.devices.len()), (PidUsage::default(), 0));
}

#[test]
fn the_v2_root_has_no_memory_file_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    let tree = CgroupTree::plain_v2(root.path(), &["cpu", "memory"]).unwrap();
    write(root.path(), &[("memory.stat", "anon 400\nfile 500\ninactive_file 200\n")]);
    let usage = tree.usage(&CgroupPath::root(), UsageDetail::CpuAndMemory).unwrap();
    assert_eq!((usage.memory.usage, usage.memory.limit, usage.cpu.usage_ns), (Some(900), None, None));
}

#[test]
fn a_v1_cgroup_is_read_from_all_its_hierarchies() {
    let root = tempfile::tempdir().unwrap();
    let tree = CgroupTree::plain_v1(root.path(), &["cpu,cpuacct", "memory", "blkio", "pids"]).unwrap();
    let at = |hierarchy: &str| root.path().join(hierarchy).join("pod1");
    write(
        &at("cpu,cpuacct"),
        &[
            ("cpuacct.usage", "1500\n"),
            ("cpuacct.stat", "user 3\nsystem 1\n"),
            ("cpu.stat", "nr_periods 5\nnr_throttled 1\nthrottled_time 300\n"),
            ("cpu.shares", "512\n"),
            ("cpu.cfs_quota_us", "-1\n"),
            ("cpu.cfs_period_us", "100000\n"),
        ],
    );
    write(
        &at("memory"),
        &[
            ("memory.usage_in_bytes", "9000\n"),
            ("memory.limit_in_bytes", "67108864\n"),
            ("memory.memsw.limit_in_bytes", "77108864\n"),
            (
                "memory.stat",
                "cache 1\nrss 2\npgfault 3\ntotal_cache 10\ntotal_rss 20\ntotal_inactive_file 30\ntotal_pgfault 31\n",
            ),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ],
    );
    write(
        &at("blkio"),
        &[
            ("blkio.throttle.io_service_bytes_recursive", "8:0 Read 5\n8:0 Write 6\n8:0 Total 11\nTotal 11\n"),
            ("blkio.throttle.io_serviced_recursive", "8:0 Read 1\n8:0 Write 2\nTotal 3\n"),
        ],
    );
    write(&at("pids"), &[("pids.current", "2\n"), ("pids.max", "100\n"), ("cgroup.procs", "9\n")]);
    let usage = tree.usage(&path("/pod1"), UsageDetail::All).unwrap();
    assert_eq!((usage.cpu.usage_ns, usage.cpu.throttled_ns), (Some(1500), Some(300)));
    assert_eq!((usage.cpu.quota_us, usage.cpu.shares), (Some(Bound::Max), Some(512)));
    assert_eq!((usage.memory.usage, usage.memory.rss, usage.memory.inactive_file), (Some(9000), Some(20), Some(30)));
    assert_eq!((usage.memory.page_faults, usage.memory.total_page_faults), (Some(3), Some(31)));
    assert_eq!((usage.memory.limit, usage.memory.swap_limit), (Some(Bound::At(64 << 20)), Some(Bound::At(10_000_000))));
    assert_eq!((usage.memory.swap, usage.memory.oom_kills), (None, Some(2)));
    assert_eq!(usage.io.devices[&(8, 0)], DeviceIo { read_bytes: 5, write_bytes: 6, reads: 1, writes: 2 });
    assert_eq!((usage.pids.current, usage.pids.max), (Some(2), Some(Bound::At(100))));
}

#[test]
fn numbers_near_the_largest_are_no_limits() {
    assert_eq!(parse_bound("9223372036854771712"), Some(Bound::Max));
    assert_eq!(parse_bound("-1"), Some(Bound::Max));
    assert_eq!(parse_bound("4096"), Some(Bound::At(4096)));
    assert_eq!(parse_bound("x"), None);
}
