//! One test instance: a directory and the names derived from its number.
//!
//! ```text
//! /tmp/pw/<n>/        short, because a unix socket's path holds 107 bytes
//! ├─ owner            locked while the owner runs: the kernel releases the lock, however the owner ends
//! ├─ pids             started programs: pid and start time
//! ├─ keep             present: belongs to `testbed up`, not removed by a sweep
//! ├─ log/             output of the programs
//! ├─ manifests/ root/ run/ logs/pods/ logs/containers/        the agent's directories
//! └─ containerd/ …    one directory per peer
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use crate::host_settings::restore_host;
use crate::nat_tables::{restore_nat_tables, save_nat_tables};
use crate::{host_state, network_state};

/// Instances that can exist at the same time; each has a /24 of 10.200.0.0/16.
const MAX_INSTANCES: u32 = 250;

/// An instance for one set of peers. Clones share it; dropping the last one removes everything.
#[derive(Clone, Debug)]
pub struct Scratch {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    instance: Instance,
    kept: AtomicBool,
    _owner: File,
}

/// An instance's number, from which all of its names follow.
#[derive(Clone, Copy, Debug)]
struct Instance {
    number: u32,
}

impl Scratch {
    /// Takes the first free number, after removing what killed runs have left behind.
    pub fn new() -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "a test instance needs root: cgroups, mounts and network namespaces"
        );
        fs::DirBuilder::new().recursive(true).mode(0o755).create(base())?;
        Self::sweep();
        // Locked before it gets its number: a sweep never finds a numbered directory without an owner.
        let (unnumbered, owner) = unnumbered_dir()?;
        for number in 1..=MAX_INSTANCES {
            let instance = Instance { number };
            if instance.subnet_taken() || instance.taken_elsewhere() {
                continue;
            }
            match fs::rename(&unnumbered, instance.path()) {
                Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty) => {
                    continue;
                }
                named => named.with_context(|| format!("create {}", instance.path().display()))?,
            }
            host_state::make_cgroup(&instance.name())?;
            return Ok(Self { inner: Arc::new(Inner { instance, kept: false.into(), _owner: owner }) });
        }
        fs::remove_dir_all(&unnumbered)?;
        bail!("all {MAX_INSTANCES} test instances are in use below {}", base().display())
    }

    /// Removes the instances of runs whose owner has exited.
    pub fn sweep() {
        for instance in Instance::all() {
            if !instance.path().join("keep").exists()
                && let Ok(Some(_owner)) = instance.lock()
            {
                instance.destroy();
            }
        }
    }

    /// The directories of the instances that were kept with [`Scratch::keep`].
    pub fn kept() -> Vec<PathBuf> {
        Instance::all().iter().map(|instance| instance.path()).filter(|path| path.join("keep").exists()).collect()
    }

    /// Removes a kept instance.
    pub fn remove_kept(dir: &Path) {
        let kept = Instance::all().into_iter().filter(|instance| instance.path() == dir && dir.join("keep").exists());
        kept.for_each(|instance| instance.destroy());
    }

    /// Leaves everything running when this process exits, until [`Scratch::remove_kept`].
    pub fn keep(&self) -> Result<()> {
        fs::write(self.path().join("keep"), "")?;
        self.inner.kept.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The instance's directory.
    pub fn path(&self) -> PathBuf {
        self.inner.instance.path()
    }

    /// A directory in it, created if needed.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.path().join(name);
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(dir)
    }

    /// The instance's name, also that of its bridge and its CNI network.
    pub fn name(&self) -> String {
        self.inner.instance.name()
    }

    /// The agent's cgroup root, in the form of KubeletConfiguration.
    pub fn cgroup_root(&self) -> String {
        format!("/{}", self.name())
    }

    /// The pods' subnet.
    pub fn subnet(&self) -> String {
        format!("10.200.{}.0/24", self.inner.instance.number)
    }

    /// The directory of static pod manifests.
    pub fn manifests(&self) -> Result<PathBuf> {
        self.dir("manifests")
    }

    /// The agent's root directory.
    pub fn root_dir(&self) -> Result<PathBuf> {
        self.dir("root")
    }

    /// The agent's run directory.
    pub fn run_dir(&self) -> Result<PathBuf> {
        self.dir("run")
    }

    /// `podLogsDir`.
    pub fn pod_logs(&self) -> Result<PathBuf> {
        self.dir("logs/pods")
    }

    /// The directory of links to container logs.
    pub fn log_links(&self) -> Result<PathBuf> {
        self.dir("logs/containers")
    }

    /// Writes a manifest as editors do: outside the directory, then renamed into it.
    pub fn put_manifest(&self, name: &str, pod: &serde_json::Value) -> Result<()> {
        let aside = self.dir("manifests-aside")?.join(name);
        fs::write(&aside, serde_json::to_vec_pretty(pod)?)?;
        Ok(fs::rename(&aside, self.manifests()?.join(name))?)
    }

    /// Remove a manifest.
    pub fn remove_manifest(&self, name: &str) -> Result<()> {
        Ok(fs::remove_file(self.manifests()?.join(name))?)
    }

    /// Before a CNI plugin runs in this instance: what plugins leave in tables that the whole host shares is removed with the last instance.
    pub(crate) fn uses_cni_plugins(&self) -> Result<()> {
        save_nat_tables(&base())
    }

    /// Records a child process, so that a later run can kill it if this one can't.
    pub(crate) fn remember_pid(&self, pid: u32) -> Result<()> {
        let mut pids = OpenOptions::new().create(true).append(true).open(self.path().join("pids"))?;
        writeln!(pids, "{pid} {}", host_state::start_time(pid).unwrap_or_default())?;
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !*self.kept.get_mut() {
            self.instance.destroy();
        }
    }
}

impl Instance {
    fn all() -> Vec<Self> {
        let entries = fs::read_dir(base()).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some(Self { number: entry.file_name().to_str()?.parse().ok()? })).collect()
    }

    fn path(self) -> PathBuf {
        base().join(self.number.to_string())
    }

    fn name(self) -> String {
        format!("pw{}", self.number)
    }

    /// Takes the owner's lock; `None`: another process holds it.
    fn lock(self) -> Result<Option<File>> {
        lock(&self.path())
    }

    /// Whether an instance below another temporary directory has these names: cgroups and bridges are shared by the whole host.
    fn taken_elsewhere(self) -> bool {
        !self.path().exists() && host_state::hierarchies().iter().any(|hierarchy| hierarchy.join(self.name()).exists())
    }

    /// Whether the host routes this subnet elsewhere (our own bridge, left by a killed run, doesn't count).
    fn subnet_taken(self) -> bool {
        let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
        let wanted = u32::from_be_bytes([10, 200, u8::try_from(self.number).unwrap_or_default(), 0]);
        routes.lines().skip(1).any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| Some(u32::from_str_radix(fields.get(at)?, 16).ok()?.swap_bytes());
            let (Some(destination), Some(mask)) = (number(1), number(7)) else { return false };
            // The table is in network order; a default route has mask 0 and is ignored.
            mask != 0 && wanted & mask == destination & mask && fields[0] != self.name()
        })
    }

    /// Removes everything in dependency order.
    fn destroy(self) {
        let (path, name) = (self.path(), self.name());
        for line in fs::read_to_string(path.join("pids")).unwrap_or_default().lines() {
            let mut numbers = line.split(' ').filter_map(|word| word.parse::<u64>().ok());
            if let (Some(pid), started) = (numbers.next().and_then(|pid| u32::try_from(pid).ok()), numbers.next())
                && host_state::start_time(pid) == started
            {
                host_state::kill9_and_wait(pid);
            }
        }
        host_state::kill_containers(&name, &path);
        restore_host(&path);
        remove_shim_sockets(&path);
        host_state::unmount_below(&path);
        host_state::remove_cgroup(&name);
        host_state::delete_link(&name);
        network_state::delete_table(&name);
        host_state::delete_nat_rules(&name);
        if Self::all().len() == 1 {
            host_state::delete_empty_nat_chains();
        }
        restore_nat_tables(&base(), || Self::all().len() > 1);
        for file in host_state::cni_results(&name).into_iter().chain(host_state::log_links_into(&path)) {
            let _ = fs::remove_file(&file);
            // If it is empty then, the Go kubelet created it for these links.
            let _ = file.parent().map(fs::remove_dir);
        }
        if let Err(error) = fs::remove_dir_all(&path) {
            eprintln!("testbed: remove {}: {error}", path.display());
        }
    }
}

/// Removes the sockets of killed shims, which are in a directory that all containerds share.
pub(crate) fn remove_shim_sockets(dir: &Path) {
    let tasks = dir.join("containerd/state/io.containerd.runtime.v2.task");
    let bundles = fs::read_dir(tasks).into_iter().flatten().flatten().flat_map(|ns| fs::read_dir(ns.path())).flatten();
    for bundle in bundles.flatten() {
        let address = fs::read_to_string(bundle.path().join("address")).unwrap_or_default();
        if let Some(socket) = address.trim().strip_prefix("unix://").filter(|at| at.starts_with("/run/containerd/s/")) {
            let _ = fs::remove_file(socket);
        }
    }
}

fn lock(dir: &Path) -> Result<Option<File>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join("owner"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Creates a directory that has an owner but no number yet.
fn unnumbered_dir() -> Result<(PathBuf, File)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let dir = base().join(format!("new-{pid}-{count}"));
    fs::DirBuilder::new().mode(0o755).create(&dir)?;
    let owner = lock(&dir)?.context("a new directory has no owner")?;
    write!(&owner, "{pid}")?;
    Ok((dir, owner))
}

fn base() -> PathBuf {
    std::env::temp_dir().join("pw")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_separate_and_removed_completely() {
        let (one, two) = (Scratch::new().expect("first"), Scratch::new().expect("second"));
        assert_ne!(one.subnet(), two.subnet());
        let (path, name) = (one.path(), one.name());
        assert!(host_state::hierarchies().iter().all(|hierarchy| hierarchy.join(&name).exists()));
        let mut sleeper = std::process::Command::new("sleep");
        let process = crate::Process::start(&one, "sleeper", sleeper.arg("600")).expect("sleep");
        let pid = process.pid();
        std::mem::forget(process); // as if the test had been killed
        drop(one);
        assert!(!path.exists());
        assert!(!host_state::hierarchies().iter().any(|hierarchy| hierarchy.join(&name).exists()));
        assert!(!host_state::container_processes(&name, &path).contains(&pid));
        assert!(two.path().exists());
    }

    #[test]
    fn names_in_use_elsewhere_are_not_taken() {
        let elsewhere = Instance { number: MAX_INSTANCES };
        host_state::make_cgroup(&elsewhere.name()).expect("made");
        assert!(elsewhere.taken_elsewhere());
        host_state::remove_cgroup(&elsewhere.name());
        assert!(!elsewhere.taken_elsewhere());
    }

    #[test]
    fn a_sweep_does_not_remove_instances_in_use() {
        let in_use = Scratch::new().expect("an instance");
        Scratch::sweep();
        assert!(in_use.path().exists());
    }
}
