//! A root with a static shell, and plans for it.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use podwright_linux::exit_info::{self, ExitInfo};
use podwright_linux::fsctx::attributes::{NODEV, NOEXEC, NOSUID, RDONLY};
use podwright_shim::launch::{ContainerStdio, LaunchFailure, Launched, PodNamespaces, begin_init};
use podwright_shim::plan::{
    Capabilities, LaunchPlan, MountKind, MountPlan, OverlayLayers, ProcessPlan, RootfsPlan, UserPlan,
};
use tempfile::TempDir;

/// A directory with `rootfs`, `staging`, `upper` and `work`.
pub(crate) struct Bed {
    pub(crate) dir: TempDir,
}

/// The fourteen of containerd.
pub(crate) const DEFAULT_CAPABILITIES: u64 = 0xa804_25fb;

impl Bed {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("podwright-launch-").tempdir().unwrap();
        for name in ["rootfs/bin", "rootfs/etc", "rootfs/tmp", "staging", "upper", "work", "host"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let bed = Self { dir };
        fs::copy(debian("bin/busybox"), bed.path("rootfs/bin/busybox")).unwrap();
        for name in
            ["sh", "cat", "ls", "id", "sleep", "grep", "echo", "stat", "touch", "mkdir", "hostname", "tty", "wc"]
        {
            std::os::unix::fs::symlink("busybox", bed.path("rootfs/bin").join(name)).unwrap();
        }
        fs::write(bed.path("rootfs/etc/passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:1000:1001::/tmp:/bin/sh\n").unwrap();
        fs::write(bed.path("rootfs/etc/group"), "root:x:0:\nweb:x:1001:\naudio:x:29:web\n").unwrap();
        bed
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A shell script in the root directory, with the mounts and rights that CRI gives by default.
    pub(crate) fn plan(&self, script: &str) -> LaunchPlan {
        let all = DEFAULT_CAPABILITIES;
        LaunchPlan {
            container_id: "c1".into(),
            process: Some(ProcessPlan {
                argv: ["/bin/sh", "-c", script].iter().map(|text| text.as_bytes().to_vec()).collect(),
                env: vec![b"PATH=/bin".to_vec(), b"A=b".to_vec()],
                capabilities: Some(Capabilities {
                    bounding: all,
                    effective: all,
                    permitted: all,
                    inheritable: 0,
                    ambient: 0,
                }),
                ..ProcessPlan::default()
            }),
            user: Some(UserPlan::default()),
            rootfs: Some(RootfsPlan { directory: self.text("rootfs"), ..RootfsPlan::default() }),
            mounts: vec![
                mount(MountKind::Proc, "/proc", NOSUID | NOEXEC | NODEV, &[]),
                mount(MountKind::Dev, "/dev", NOSUID, &[]),
                mount(MountKind::Devpts, "/dev/pts", NOSUID | NOEXEC, &["newinstance", "ptmxmode=0666", "mode=0620"]),
                mount(MountKind::Mqueue, "/dev/mqueue", NOSUID | NOEXEC | NODEV, &[]),
                mount(MountKind::Sysfs, "/sys", NOSUID | NOEXEC | NODEV | RDONLY, &[]),
                mount(MountKind::Tmpfs, "/dev/shm", NOSUID | NOEXEC | NODEV, &["mode=1777", "size=65536k"]),
            ],
            masked_paths: MASKED.iter().map(|&path| path.to_owned()).collect(),
            readonly_paths: READ_ONLY.iter().map(|&path| path.to_owned()).collect(),
            staging_dir: self.text("staging"),
            ..LaunchPlan::default()
        }
    }

    /// The same root as the only layer of an overlay.
    pub(crate) fn overlay(&self, script: &str) -> LaunchPlan {
        let layers = OverlayLayers {
            lower: vec![self.text("rootfs")],
            upper: self.text("upper"),
            work: self.text("work"),
            by_mount_call: false,
        };
        let rootfs = RootfsPlan { layers: Some(layers), ..RootfsPlan::default() };
        LaunchPlan { rootfs: Some(rootfs), ..self.plan(script) }
    }
}

/// What a launched process did.
pub(crate) struct Ran {
    pub(crate) launched: Launched,
    pub(crate) output: String,
    pub(crate) exit: ExitInfo,
}

/// Launches, reads everything that is written, and waits for the end.
pub(crate) fn run(plan: &LaunchPlan, namespaces: &PodNamespaces) -> Result<Ran, LaunchFailure> {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let pending = begin_init(plan, namespaces, streams(writer.into()))?;
    let launched = pending.finish()?;
    let mut output = String::new();
    reader.read_to_string(&mut output).unwrap();
    let exit = exit_info::wait(&launched.pidfd, true).unwrap();
    Ok(Ran { launched, output, exit })
}

/// The output of a script that must succeed.
pub(crate) fn output(plan: &LaunchPlan) -> String {
    let ran = run(plan, &PodNamespaces::default()).unwrap();
    assert_eq!(ran.exit.code, 0, "{}", ran.output);
    ran.output
}

/// The failure of a launch, after which no process may be left.
pub(crate) fn failure(plan: &LaunchPlan) -> LaunchFailure {
    let failure = run(plan, &PodNamespaces::default()).err().expect("the launch fails");
    no_child_is_left();
    failure
}

pub(crate) fn no_child_is_left() {
    let left = rustix::process::wait(rustix::process::WaitOptions::NOHANG);
    assert_eq!(left.unwrap_err(), rustix::io::Errno::CHILD, "no process is left");
}

pub(crate) fn streams(output: OwnedFd) -> ContainerStdio {
    let stderr = output.as_fd().try_clone_to_owned().unwrap();
    ContainerStdio::Streams { stdin: File::open("/dev/null").unwrap().into(), stdout: output, stderr }
}

pub(crate) fn mount(kind: MountKind, target: &str, attributes: u64, options: &[&str]) -> MountPlan {
    MountPlan {
        kind: kind.into(),
        target: target.into(),
        attributes,
        options: options.iter().map(|&option| option.to_owned()).collect(),
        ..MountPlan::default()
    }
}

pub(crate) fn bind(source: &Path, target: &str, attributes: u64) -> MountPlan {
    MountPlan {
        source: source.to_str().unwrap().to_owned(),
        recursive: true,
        ..mount(MountKind::Bind, target, attributes, &[])
    }
}

/// The value of a line of `/proc/self/status`.
pub(crate) fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim()
}

/// Of the Debian packages in the cache of the test bed.
pub(crate) fn debian(path: &str) -> PathBuf {
    let cache = std::env::var_os("PODWRIGHT_CACHE")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/podwright"));
    let found = cache.join("debian").join(path);
    assert!(found.exists(), "{} is missing: `make test` fills the cache", found.display());
    found
}

/// containerd's.
pub(crate) const MASKED: [&str; 9] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/scsi",
    "/sys/firmware",
];
pub(crate) const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
