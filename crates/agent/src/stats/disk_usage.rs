//! The sizes of volumes and logs: measured pod by pod, each under its own keys of the pool and with a time limit. A pod that takes
//! long does not hold up the next one: a volume with a million files or on a dead server makes only its own numbers old.
//!
//! Pods are measured only after requests ([`DiskUsage::request`]), each at most once per `volumeStatsAggPeriod`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Volume;
use podwright_core::model::{Pod, PodUid};
use podwright_linux::beneath::{TreeUsage, tree_usage};
use tokio::sync::{Semaphore, watch};

use super::file_systems::statfs;
use super::sample::{FsSample, PodDisk};
use crate::feed::{PodFeed, PodView};
use crate::host::{Pool, PoolKey};
use crate::pod_spec::{HostPaths, VolumeKind, volume_claim, volume_host_path, volume_kind};

/// The size of one volume.
#[derive(Clone, Debug)]
pub(crate) struct VolumeUsage {
    pub(crate) name: String,
    /// The claim behind it.
    pub(crate) claim: Option<String>,
    /// Counts towards the pod's ephemeral storage.
    pub(crate) ephemeral: bool,
    pub(crate) at: Timestamp,
    pub(crate) used: u64,
    pub(crate) inodes_used: u64,
    /// The last count that was complete.
    pub(crate) last_complete: Option<TreeUsage>,
    pub(crate) fs: FsSample,
}

/// The sizes of all pods' files.
pub(super) struct DiskUsage {
    feed: Arc<PodFeed>,
    paths: HostPaths,
    pool: Pool,
    /// `volumeStatsAggPeriod`; `None`: nothing is measured.
    period: Option<Duration>,
    pods: Mutex<BTreeMap<PodUid, Measured>>,
    /// Held while a pod is measured, for at most `TURN_MAX`.
    turn: Semaphore,
    /// Held by pods that take longer than `TURN_MAX`.
    slow: Semaphore,
    /// The time of the last request.
    requested: watch::Sender<Option<Instant>>,
    /// Counts the pods that were measured.
    done: watch::Sender<u64>,
}

#[derive(Debug)]
struct Measured {
    /// `None`: it is measured for the first time.
    disk: Option<PodDisk>,
    /// When it is measured again; `None` while it is measured.
    due: Option<Instant>,
}

impl DiskUsage {
    /// `period` is `volumeStatsAggPeriod`; `None` switches measuring off.
    pub(super) fn new(feed: Arc<PodFeed>, paths: HostPaths, pool: Pool, period: Option<Duration>) -> Self {
        let (requested, done) = (watch::Sender::new(None), watch::Sender::new(0));
        let (turn, slow) = (Semaphore::new(1), Semaphore::new(SLOW_MAX));
        Self { feed, paths, pool, period, pods: Mutex::default(), turn, slow, requested, done }
    }

    /// Measures pods while there are requests; runs forever.
    pub(super) async fn watch(self: Arc<Self>) {
        let Some(period) = self.period else { return std::future::pending().await };
        let mut requested = self.requested.subscribe();
        loop {
            let wanted = requested.borrow_and_update().is_some_and(|at| at.elapsed() < DEMAND);
            if wanted {
                self.start_due(period);
            }
            tokio::select! {
                _ = requested.changed() => {}
                () = tokio::time::sleep(TICK), if wanted => {}
            }
        }
    }

    /// The last sizes of these pods. Waits a moment for those that were never measured.
    pub(super) async fn request(&self, pods: &BTreeSet<PodUid>) -> BTreeMap<PodUid, PodDisk> {
        if self.period.is_none() {
            return BTreeMap::new();
        }
        let mut done = self.done.subscribe();
        self.requested.send_replace(Some(Instant::now()));
        let missing = || {
            let measured = self.measured();
            pods.iter().any(|uid| measured.get(uid).is_none_or(|pod| pod.disk.is_none()))
        };
        let complete = async { while missing() && done.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(FIRST_WAIT, complete).await;
        let measured = self.measured();
        measured.iter().filter_map(|(uid, pod)| Some((uid.clone(), pod.disk.clone()?))).collect()
    }

    /// Measures all pods now; waits at most `limit` for it.
    pub(super) async fn remeasure(&self, limit: Duration) {
        if self.period.is_none() {
            return;
        }
        let (begun, mut done) = (Timestamp::now(), self.done.subscribe());
        self.measured().values_mut().filter_map(|pod| pod.due.as_mut()).for_each(|due| *due = Instant::now());
        self.requested.send_replace(Some(Instant::now()));
        let views = self.feed.list().1;
        let live: Vec<PodUid> = views.iter().filter(|view| !view.has_ended()).map(|view| view.uid()).collect();
        let missing = || {
            let measured = self.measured();
            let is_new = |pod: &Measured| pod.disk.as_ref().is_some_and(|disk| disk.at >= begun);
            live.iter().any(|uid| !measured.get(uid).is_some_and(is_new))
        };
        let complete = async { while missing() && done.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(limit, complete).await;
    }

    /// The volumes with a claim that were measured last, with their namespaces. Counts as a request.
    pub(super) fn last_volumes(&self) -> Vec<(String, VolumeUsage)> {
        self.requested.send_replace(Some(Instant::now()));
        let views = self.feed.list().1;
        let measured = self.measured();
        let volumes = views.iter().filter_map(|view| Some((view, measured.get(&view.uid())?.disk.as_ref()?)));
        let claims = volumes.flat_map(|(view, disk)| disk.volumes.iter().map(move |volume| (view, volume)));
        let claims = claims.filter(|(_, volume)| volume.claim.is_some());
        claims.map(|(view, volume)| (view.namespace().to_owned(), volume.clone())).collect()
    }

    fn measured(&self) -> MutexGuard<'_, BTreeMap<PodUid, Measured>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to measure the pods that are due. At most one task per pod.
    fn start_due(self: &Arc<Self>, period: Duration) {
        let views = self.feed.list().1;
        let live: BTreeMap<PodUid, &Arc<PodView>> =
            views.iter().filter(|view| !view.has_ended()).map(|view| (view.uid(), view)).collect();
        let mut pods = self.measured();
        pods.retain(|uid, _| live.contains_key(uid));
        for (uid, view) in live {
            let pod = pods.entry(uid).or_insert(Measured { disk: None, due: Some(Instant::now()) });
            if pod.due.is_some_and(|due| due <= Instant::now()) {
                pod.due = None;
                let (this, view) = (Arc::clone(self), Arc::clone(view));
                podwright_tasks::spawn("disk-usage-of-pod", async move { this.measure_in_turn(&view, period).await });
            }
        }
    }

    /// One pod at a time, and [`SLOW_MAX`] that take long.
    async fn measure_in_turn(&self, view: &PodView, period: Duration) {
        let turn = self.turn.acquire().await;
        let begun = Instant::now();
        let mut measured = std::pin::pin!(self.measure_pod(view));
        let disk = match tokio::time::timeout(TURN_MAX, &mut measured).await {
            Ok(disk) => disk,
            Err(_) => tokio::select! {
                disk = &mut measured => disk,
                _slow = self.slow.acquire() => {
                    drop(turn);
                    measured.await
                }
            },
        };
        let uid = view.uid();
        let due = Instant::now() + pause(&uid, period, begun.elapsed());
        self.measured().insert(uid, Measured { disk: Some(disk), due: Some(due) });
        self.done.send_modify(|count| *count += 1);
    }

    async fn measure_pod(&self, view: &PodView) -> PodDisk {
        let uid = view.uid();
        let last = self.measured().get(&uid).and_then(|pod| pod.disk.clone());
        let (mut volumes, mut complete) = (vec![], true);
        for volume in view.object.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let last = last.iter().flat_map(|disk| &disk.volumes).find(|known| known.name == volume.name);
            let (measured, whole) = match self.measure_volume(&view.object, volume, last).await {
                Ok(measured) => measured,
                // What is known is kept: a pod must not gain from a volume that cannot be measured.
                Err(Unmeasured) => (last.cloned(), false),
            };
            volumes.extend(measured);
            complete &= whole || !volume_kind(volume).is_ok_and(|kind| is_local_ephemeral(volume, kind));
        }
        let (paths, pod) = (self.paths.clone(), Arc::clone(&view.object));
        let key = PoolKey::new(format!("sizes of {uid}"), format!("log files of {uid}"));
        let files = self.pool.run(key, WAIT_LIMIT, move || measure_files(&paths, &pod)).await;
        let (logs, own) = files.unwrap_or_else(|error| {
            tracing::debug!(%uid, %error, "measuring log files failed");
            complete = false;
            Default::default()
        });
        complete &= own.complete && logs.values().all(|usage| usage.complete);
        PodDisk { at: Timestamp::now(), volumes, logs, own, complete }
    }

    /// The size, and whether it is that of the whole volume; else a lower bound, but not less than it was when it was measured
    /// completely. `None`: the volume has no size of its own or is not mounted.
    async fn measure_volume(
        &self,
        pod: &Arc<Pod>,
        volume: &Volume,
        last: Option<&VolumeUsage>,
    ) -> Result<(Option<VolumeUsage>, bool), Unmeasured> {
        let kind = volume_kind(volume).ok().filter(|kind| *kind != VolumeKind::HostPath);
        let dir = volume_host_path(&self.paths, pod, &volume.name).ok();
        let (Some(kind), Some(dir)) = (kind, dir) else { return Ok((None, true)) };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let name = volume.name.clone();
        let key = PoolKey::new(format!("sizes of {uid}"), format!("volume {name} of {uid}"));
        let walks = kind != VolumeKind::Claim;
        let measured = self.pool.run(key, WAIT_LIMIT, move || measure_dir(&dir, walks)).await;
        let (counted, fs) = match measured {
            Ok(Ok(measured)) => measured,
            // Not mounted yet, or unmounted already.
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => return Ok((None, true)),
            Ok(Err(error)) => {
                tracing::warn!(uid, volume = name, %error, "measuring a volume failed");
                return Err(Unmeasured);
            }
            Err(error) => {
                tracing::warn!(uid, volume = name, %error, "measuring a volume failed");
                return Err(Unmeasured);
            }
        };
        let complete = last.and_then(|last| last.last_complete);
        if !counted.complete {
            tracing::warn!(uid, volume = name, "volume counted in part, the last complete count holds");
        }
        let TreeUsage { bytes: used, inodes: inodes_used, .. } = counted.or_last(complete);
        let last_complete = Some(counted).filter(|counted| counted.complete).or(complete);
        let claim = volume_claim(pod, volume).map(|claim| claim.name);
        let (ephemeral, at) = (is_local_ephemeral(volume, kind), Timestamp::now());
        let usage = VolumeUsage { name, claim, ephemeral, at, used, inodes_used, last_complete, fs };
        Ok((Some(usage), counted.complete))
    }
}

/// The volume could not be measured, which was logged.
struct Unmeasured;

fn measure_dir(dir: &Path, walks: bool) -> std::io::Result<(TreeUsage, FsSample)> {
    let fs = statfs(dir)?;
    let usage = match walks {
        true => tree_usage(dir, u64::MAX, Instant::now() + WALK_LIMIT)?,
        false => TreeUsage { bytes: fs.used, inodes: fs.inodes.saturating_sub(fs.inodes_free), complete: true },
    };
    Ok((usage, fs))
}

/// The log files of each container, and the files of the pod itself.
fn measure_files(paths: &HostPaths, pod: &Pod) -> (BTreeMap<String, TreeUsage>, TreeUsage) {
    let spec = pod.spec.iter();
    let names = spec.flat_map(|spec| {
        let init = spec.init_containers.iter().flatten().map(|c| &c.name);
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| &c.name);
        init.chain(spec.containers.iter().map(|c| &c.name)).chain(ephemeral)
    });
    let logs = names.map(|name| (name.clone(), files_in(&paths.container_logs(pod, name)))).collect();
    let mut own = files_in(&paths.pod_logs(pod));
    add_file(&mut own, &paths.etc_hosts(pod.metadata.uid.as_deref().unwrap_or_default()));
    (logs, own)
}

/// Kubernetes: `fileMetricsByDir`, the files directly in a directory.
fn files_in(dir: &Path) -> TreeUsage {
    let mut usage = TreeUsage { complete: true, ..TreeUsage::default() };
    let mut entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let files: Vec<PathBuf> = entries.by_ref().take(LOG_FILES_MAX).map(|entry| entry.path()).collect();
    files.iter().for_each(|file| add_file(&mut usage, file));
    usage.complete = entries.next().is_none();
    usage
}

fn add_file(usage: &mut TreeUsage, path: &Path) {
    use std::os::unix::fs::MetadataExt;
    if let Some(file) = path.symlink_metadata().ok().filter(|file| !file.is_dir()) {
        usage.bytes += file.blocks() * 512;
        usage.inodes += 1;
    }
}

/// Kubernetes: `IsLocalEphemeralVolume`.
fn is_local_ephemeral(volume: &Volume, kind: VolumeKind) -> bool {
    let medium = volume.empty_dir.as_ref().and_then(|dir| dir.medium.as_deref()).unwrap_or_default();
    match kind {
        VolumeKind::EmptyDir => medium.is_empty(),
        VolumeKind::ConfigMap => true,
        _ => false,
    }
}

/// The time until a pod is measured again. One with many files is measured less often, so that walks take a small part of the time.
fn pause(uid: &PodUid, period: Duration, took: Duration) -> Duration {
    period.saturating_add(jitter(uid, period)).max(took * PAUSE_FACTOR)
}

/// Up to one period, so that pods that started together are not measured together. Kubernetes: `wait.JitterUntil`.
fn jitter(uid: &PodUid, period: Duration) -> Duration {
    let hash = uid.as_str().bytes().fold(0u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
    period.mul_f64(f64::from(hash % 1000) / 1000.0)
}

/// Pods are measured for this long after a request.
const DEMAND: Duration = Duration::from_secs(300);
/// How often the task looks for pods that are due.
const TICK: Duration = Duration::from_secs(2);
/// For one walk of a volume, checked by its thread.
const WALK_LIMIT: Duration = Duration::from_secs(20);
/// For the caller of the thread.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// A request waits this long for pods that were never measured.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The next pod does not wait longer than this for the one before it.
const TURN_MAX: Duration = Duration::from_secs(1);
/// Pods that take longer than that and are measured at once, in addition to the next one.
const SLOW_MAX: usize = 2;
/// Log files of one container that are counted.
const LOG_FILES_MAX: usize = 1000;
/// A pod is measured for at most this part of the time.
const PAUSE_FACTOR: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_measured_at_different_times_and_large_ones_less_often() {
        let (period, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let pauses: BTreeSet<Duration> =
            ["a", "b", "c"].iter().map(|uid| pause(&(*uid).into(), period, second)).collect();
        assert!(pauses.len() == 3 && pauses.iter().all(|pause| (period..period * 2).contains(pause)), "{pauses:?}");
        assert_eq!(pause(&"a".into(), period, 20 * second), 400 * second);
    }
}
