//! One container from nothing to the exit of `true`: by zygote, shim and launcher of the engine, by `runc run` of the same bundle, and
//! by a C program that does only what every runtime must do.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oci_spec::runtime::Spec;
use podwright_engine::plan::{PlanInputs, launch_plan};
use podwright_linux::cgroup::{CgroupPath, CgroupResources, CgroupTree};
use podwright_shim::client::{RequestPacket, ShimAnswer, ShimClient};
use podwright_shim::plan::{CgroupMembership, RootfsPlan, SetupPlan};
use podwright_shim::protocol::{LaunchRequest, StdioPlan};
use podwright_shim::zygote::{Zygote, ZygoteOptions};
use podwright_testbed::{Cache, Scratch};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::{Value, json};

use crate::cluster::median;

const ROUNDS: usize = 20;
const LIMIT: Duration = Duration::from_secs(30);

/// Medians in seconds.
pub(crate) struct LaunchTimes {
    pub(crate) engine: f64,
    pub(crate) runc: f64,
    pub(crate) minimal: f64,
}

pub(crate) fn measure() -> Result<LaunchTimes> {
    let scratch = Scratch::new()?;
    let bundle = Bundle::new(&scratch)?;
    let minimal = compiled(&scratch)?;
    let mut zygote = Zygote::start(&ZygoteOptions::default()).context("start the zygote")?;
    let mut times = [vec![], vec![], vec![]];
    // The first round warms up caches and is not counted.
    for round in 0..=ROUNDS {
        let began = [by_engine(&bundle, &mut zygote, round)?, by_runc(&bundle, round)?, by_minimal(&bundle, &minimal)?];
        if round > 0 {
            times.iter_mut().zip(began).for_each(|(all, took)| all.push(took.as_secs_f64()));
        }
    }
    let [engine, runc, minimal] = times.map(median);
    Ok(LaunchTimes { engine, runc, minimal })
}

/// A root with a static `true`, and the specification that containerd would write.
struct Bundle {
    dir: PathBuf,
    config: Value,
    cgroup_root: String,
}

impl Bundle {
    fn new(scratch: &Scratch) -> Result<Self> {
        let dir = scratch.dir("bundle")?;
        for name in ["rootfs/bin", "rootfs/proc", "rootfs/old", "staging", "runc"] {
            fs::create_dir_all(dir.join(name))?;
        }
        fs::copy(Cache::find().kept("debian/bin")?.join("busybox"), dir.join("rootfs/bin/true"))?;
        let mount = |target: &str, kind: &str, options: &[&str]| json!({"destination": target, "type": kind, "source": kind, "options": options});
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "env": ["PATH=/bin"], "cwd": "/"},
            "root": {"path": dir.join("rootfs")},
            "hostname": "bench",
            "mounts": [
                mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
                mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
                mount("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
                mount("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
                mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
            ],
            "linux": {
                "resources": {"devices": [{"allow": false, "access": "rwm"}]},
                "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"}],
                "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            },
        });
        Ok(Self { dir, config, cgroup_root: scratch.cgroup_root() })
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }
}

/// With a shim and namespaces of its own, as the first container of a pod.
fn by_engine(bundle: &Bundle, zygote: &mut Zygote, round: usize) -> Result<Duration> {
    let id = format!("c{round}");
    let pod_dir = bundle.dir.join(format!("pod{round}"));
    fs::create_dir(&pod_dir)?;
    let spec: Spec = serde_json::from_value(bundle.config.clone())?;
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let began = Instant::now();
    let tree = CgroupTree::detect()?;
    let cgroup = CgroupPath::parse(&format!("{}/engine-{id}", bundle.cgroup_root))?;
    tree.create(&cgroup, &CgroupResources::default())?;
    let inputs = PlanInputs {
        container_id: &id,
        rootfs: RootfsPlan { directory: bundle.path("rootfs"), ..RootfsPlan::default() },
        staging_dir: &bundle.path("staging"),
        cgroups: tree.directories(&cgroup).into_iter().map(membership).collect(),
        user: None,
        image_layers: &BTreeMap::new(),
        devices: &[],
    };
    let plan = launch_plan(&spec, &inputs)?;
    let forked = zygote.fork(&id, File::open(&pod_dir)?.as_fd())?;
    let mut client = ShimClient::from_socket(forked.connection)?;
    client.call(&RequestPacket::hello(&boot_id), LIMIT)?;
    let setup =
        SetupPlan { new_network: true, new_ipc: true, new_uts: true, hostname: "bench".into(), ..SetupPlan::default() };
    client.call(&RequestPacket::setup(&setup)?, LIMIT)?;
    let request = LaunchRequest { container: id, stdio: Some(StdioPlan::default()), ..LaunchRequest::default() };
    let answer = client.call(&RequestPacket::launch(request, &plan)?, LIMIT)?;
    let ShimAnswer::Launched { pidfd, .. } = answer else { anyhow::bail!("not launched: {answer:?}") };
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None)?;
    tree.remove(&cgroup, LIMIT)?;
    let took = began.elapsed();
    pidfd_send_signal(&forked.pidfd, Signal::KILL)?;
    Ok(took)
}

fn membership((hierarchy, directory): (String, PathBuf)) -> CgroupMembership {
    CgroupMembership { hierarchy, directory: directory.display().to_string() }
}

fn by_runc(bundle: &Bundle, round: usize) -> Result<Duration> {
    let id = format!("c{round}");
    let mut config = bundle.config.clone();
    config["linux"]["cgroupsPath"] = format!("{}/runc-{id}", bundle.cgroup_root).into();
    fs::write(bundle.path("config.json"), config.to_string())?;
    // Not the wrapper in the cache: its shell takes milliseconds.
    let debian = Cache::find().kept("debian")?;
    let mut command = Command::new(debian.join("usr/sbin/runc"));
    command.env("LD_LIBRARY_PATH", debian.join("usr/lib/x86_64-linux-gnu"));
    command.args(["--root", &bundle.path("runc"), "run", "--bundle", &bundle.path(""), &id]);
    timed(&mut command)
}

fn by_minimal(bundle: &Bundle, program: &Path) -> Result<Duration> {
    timed(Command::new(program).arg(bundle.path("rootfs")))
}

fn timed(command: &mut Command) -> Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let began = Instant::now();
    let output = command.output()?;
    let took = began.elapsed();
    ensure!(output.status.success(), "{command:?}: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(took)
}

fn compiled(scratch: &Scratch) -> Result<PathBuf> {
    let (source, program) = (scratch.path().join("minimal.c"), scratch.path().join("minimal"));
    fs::write(&source, include_str!("minimal.c"))?;
    timed(Command::new("cc").args(["-O2", "-static", "-o"]).arg(&program).arg(&source))?;
    Ok(program)
}
