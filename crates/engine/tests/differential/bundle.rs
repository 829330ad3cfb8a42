//! OCI bundles: a root with a static shell, and specifications that differ in one thing each.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A bundle on disk. `out` is `/out` of the container.
pub(crate) struct Bundle {
    dir: TempDir,
    pub(crate) config: Value,
}

impl Bundle {
    pub(crate) fn new(change: fn(&mut Value)) -> Self {
        let dir = tempfile::Builder::new().prefix("podwright-differential-").tempdir().unwrap();
        for name in ["rootfs/bin", "rootfs/etc", "rootfs/tmp", "out", "staging", "pod", "host"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let busybox = cache().join("debian/bin/busybox");
        assert!(busybox.exists(), "{} is missing: `make test` fills the cache", busybox.display());
        fs::copy(&busybox, dir.path().join("rootfs/bin/busybox")).unwrap();
        for name in APPLETS.split_whitespace() {
            std::os::unix::fs::symlink("busybox", dir.path().join("rootfs/bin").join(name)).unwrap();
        }
        fs::write(dir.path().join("rootfs/etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
        fs::write(dir.path().join("rootfs/etc/group"), "root:x:0:\n").unwrap();
        fs::write(dir.path().join("rootfs/probe.sh"), include_str!("probe.sh")).unwrap();
        fs::write(dir.path().join("host/file"), "text\n").unwrap();
        open_to_all(dir.path());
        let mut bundle = Self { dir, config: Value::Null };
        bundle.config = config(&bundle);
        change(&mut bundle.config);
        let texts = serde_json::to_string_pretty(&bundle.config).unwrap().replace("BUNDLE", &bundle.text(""));
        bundle.config = serde_json::from_str(&texts).unwrap();
        bundle
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().trim_end_matches('/').to_owned()
    }

    /// What the probe of a process has printed; empty if it has not ended.
    pub(crate) fn printed(&self, process: &str) -> String {
        match self.path("out").join(process).exists() {
            true => fs::read_to_string(self.path("out").join(format!("{process}.part"))).unwrap(),
            false => String::new(),
        }
    }

    /// Empties what a run leaves behind, for the next one.
    pub(crate) fn clean(&self) {
        for name in ["out", "rootfs/tmp"] {
            fs::remove_dir_all(self.path(name)).unwrap();
            fs::create_dir(self.path(name)).unwrap();
        }
        open_to_all(self.dir.path());
    }
}

fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    for name in ["", "out", "rootfs/tmp"] {
        let mode = if name.is_empty() { 0o755 } else { 0o777 };
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
}

pub(crate) fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/podwright");
    std::env::var_os("PODWRIGHT_CACHE").map_or_else(home, PathBuf::from)
}

/// As containerd writes it for a container of Kubernetes.
fn config(bundle: &Bundle) -> Value {
    let capabilities: Vec<String> = DEFAULT_CAPABILITIES.split(' ').map(|name| format!("CAP_{name}")).collect();
    let mount = |target: &str, kind: &str, options: &[&str]| json!({"destination": target, "type": kind, "source": kind, "options": options});
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0, "additionalGids": [0, 10]},
            "args": ["/bin/sh", "-c", "sh /probe.sh init; while [ ! -e /out/stop ]; do sleep 0.1; done"],
            "env": ["PATH=/bin", "A=b", "HOME=/root"],
            "cwd": "/",
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            "oomScoreAdj": 500,
        },
        "root": {"path": bundle.text("rootfs")},
        "hostname": "differential",
        "mounts": [
            mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
            mount("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
            mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
            mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
            mount("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
            {"destination": "/out", "type": "bind", "source": bundle.text("out"), "options": ["rbind", "rw"]},
        ],
        "linux": {
            "cgroupsPath": "",
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"}],
            "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}

const APPLETS: &str = "sh cat cut grep ls stat awk env sort hostname id readlink mount umount unshare true chroot mknod chown \
    chmod mkdir rmdir ln date adjtimex swapon dmesg insmod nice renice ionice taskset kill nsenter pivot_root sysctl setpriv head \
    ip ping fallocate linux32 uname sleep echo test wc rm touch pwd";
const DEFAULT_CAPABILITIES: &str = "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE \
                                    SYS_CHROOT KILL AUDIT_WRITE";
