//! Measures emptyDirs with a `sizeLimit` on disk and reports those above it to core, which evicts the pod. Cuts the files that
//! containers can write outside their volumes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use podwright_core::eviction::LimitedVolume;
use podwright_core::model::{Event, Pod, PodUid};
use podwright_linux::beneath::{TreeUsage, tree_usage};

use crate::event_loop::Handle;
use crate::feed::{PodFeed, PodView};
use crate::host::{HostPaths, Pool, cut_oversized};
use crate::pod_spec::volume_host_path;

/// As in the Go kubelet.
const PERIOD: Duration = Duration::from_secs(10);
/// For the caller of the thread, in addition to the time of the count.
const WAIT_LIMIT: Duration = Duration::from_secs(5);
/// A volume that takes long is counted for at most this part of the time.
const SLOW_PAUSE_FACTOR: u32 = 4;

/// The emptyDirs of all pods.
pub struct EmptyDirs {
    feed: Arc<PodFeed>,
    paths: HostPaths,
    pool: Pool,
    /// For counting one volume in a round; the thread checks it.
    limit: Duration,
    /// For counting one that takes longer, beside the rounds.
    slow_limit: Duration,
    /// Pods and volumes whose last count was incomplete.
    incomplete: Mutex<BTreeSet<VolumeKey>>,
}

type VolumeKey = (PodUid, String);

impl EmptyDirs {
    /// For the pods of the feed.
    pub fn new(feed: Arc<PodFeed>, paths: HostPaths, pool: Pool) -> Self {
        let (limit, slow_limit) = (Duration::from_secs(5), Duration::from_secs(120));
        Self { feed, paths, pool, limit, slow_limit, incomplete: Mutex::default() }
    }

    /// Measures every `PERIOD`, forever; volumes only if their limits are enforced (`localStorageCapacityIsolation`).
    pub async fn watch(self, handle: Handle, enforced: bool) {
        futures::join!(self.run_rounds(&handle, enforced), self.count_slow_ones(&handle));
    }

    async fn run_rounds(&self, handle: &Handle, enforced: bool) {
        loop {
            tokio::time::sleep(PERIOD).await;
            if enforced {
                for exceeded in self.measure().await {
                    handle.send(exceeded).await;
                }
            }
            self.cut_files().await;
        }
    }

    /// One at a time, in turn: a pod that takes long delays only others that do.
    async fn count_slow_ones(&self, handle: &Handle) {
        loop {
            tokio::time::sleep(PERIOD).await;
            let keys = self.incomplete().clone();
            for key in keys {
                let begun = Instant::now();
                if let Some(exceeded) = self.measure_slow(key).await {
                    handle.send(exceeded).await;
                }
                tokio::time::sleep(begun.elapsed() * SLOW_PAUSE_FACTOR).await;
            }
        }
    }

    async fn cut_files(&self) {
        let views = self.feed.list().1;
        let (paths, uids) = (self.paths.clone(), views.iter().map(|view| view.uid()).collect::<Vec<_>>());
        let work = move || cut_oversized(&paths, uids.iter().map(PodUid::as_str));
        if let Err(error) = self.pool.run("files of pods", 2 * WAIT_LIMIT, work).await {
            tracing::warn!(%error, "checking the sizes of files of pods failed");
        }
    }

    /// Measures once and returns the evictions. Pods are measured concurrently, so that a slow volume delays no other pod; the
    /// pool bounds the concurrency.
    async fn measure(&self) -> Vec<Event> {
        let views = self.feed.list().1;
        let known: BTreeSet<PodUid> = views.iter().filter(|view| !view.has_ended()).map(|view| view.uid()).collect();
        self.incomplete().retain(|(uid, _)| known.contains(uid));
        let evictions =
            join_all(views.iter().filter(|view| !view.has_ended()).map(|view| self.measure_pod(view))).await;
        evictions.into_iter().flatten().collect()
    }

    async fn measure_pod(&self, view: &PodView) -> Option<Event> {
        let uid = view.uid();
        for limited in LimitedVolume::of(&view.object, view.source) {
            let Some(usage) = self.count(&uid, &view.object, &limited, self.limit).await else { continue };
            // An incomplete count is a lower bound.
            if usage.bytes > limited.limit {
                return Some(Event::EmptyDirExceeded { uid, volume: limited.volume });
            }
            let key = (uid.clone(), limited.volume.clone());
            if usage.complete {
                self.incomplete().remove(&key);
            } else if self.incomplete().insert(key) {
                tracing::warn!(%uid, volume = limited.volume, "emptyDir takes long to count, its limit is checked less often");
            }
        }
        None
    }

    /// Measures a volume that was counted only in part before.
    async fn measure_slow(&self, (uid, volume): VolumeKey) -> Option<Event> {
        let views = self.feed.list().1;
        let view = views.iter().find(|view| view.uid() == uid && !view.has_ended())?;
        let limited =
            LimitedVolume::of(&view.object, view.source).into_iter().find(|limited| limited.volume == volume)?;
        let usage = self.count(&uid, &view.object, &limited, self.slow_limit).await?;
        if usage.bytes > limited.limit {
            return Some(Event::EmptyDirExceeded { uid, volume });
        }
        if !usage.complete {
            tracing::warn!(%uid, volume, "emptyDir counted in part, its size limit is not enforced");
        }
        None
    }

    async fn count(&self, uid: &PodUid, pod: &Pod, limited: &LimitedVolume, limit: Duration) -> Option<TreeUsage> {
        let dir = volume_host_path(&self.paths, pod, &limited.volume).ok()?;
        let enough = limited.limit;
        let work = move || tree_usage(&dir, enough, Instant::now() + limit);
        let key = format!("emptyDir of {uid} in {} s", limit.as_secs());
        let counted = match self.pool.run(key, limit + WAIT_LIMIT, work).await {
            // Not created yet, or removed already.
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Ok(counted) => counted.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let failed = |error: &String| {
            tracing::warn!(%uid, volume = limited.volume, error, "measuring an emptyDir failed");
        };
        counted.inspect_err(failed).ok()
    }

    fn incomplete(&self) -> MutexGuard<'_, BTreeSet<VolumeKey>> {
        self.incomplete.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use podwright_core::model::{PodRecord, PodSnapshot, Source};
    use serde_json::json;

    use super::*;

    fn paths(root: &Path) -> HostPaths {
        let at = |name: &str| root.join(name);
        HostPaths {
            root_dir: root.to_owned(),
            pod_logs_dir: at("logs"),
            container_logs_dir: at("links"),
            cgroup_root: "/".into(),
        }
    }

    fn publish(feed: &PodFeed, uid: &str, phase: &str, limit: &str) -> Pod {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"uid": uid, "name": uid, "namespace": "ns"},
            "spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {"sizeLimit": limit}}]},
        }))
        .unwrap();
        let status = serde_json::from_value(json!({"phase": phase})).unwrap();
        let record = PodRecord::new(uid.into(), Source::Api, Arc::new(pod.clone()), jiff::Timestamp::UNIX_EPOCH);
        feed.publish(&PodSnapshot::of(&PodRecord { status: Some(status), ..record }));
        pod
    }

    fn exceeded(event: Event) -> String {
        match event {
            Event::EmptyDirExceeded { uid, volume } if volume == "v" => uid.as_str().to_owned(),
            other => format!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn only_pods_above_their_limit_are_evicted() {
        let root = tempfile::tempdir().unwrap();
        let (paths, feed) = (paths(root.path()), Arc::new(PodFeed::default()));
        for (uid, phase, limit, kib) in [
            ("much", "Running", "64Ki", 80),
            ("little", "Running", "64Ki", 20),
            ("over", "Failed", "64Ki", 80),
            ("new", "Pending", "64Ki", 0),
            ("deep", "Running", "2Mi", 3000),
        ] {
            let pod = publish(&feed, uid, phase, limit);
            let dir = volume_host_path(&paths, &pod, "v").unwrap();
            if kib > 0 {
                // No number of levels hides a file.
                let dir = if uid == "deep" { dir.join("d/".repeat(200)) } else { dir };
                fs::create_dir_all(&dir).unwrap();
                fs::write(dir.join("file"), vec![1; kib << 10]).unwrap();
            }
        }
        let ends = EmptyDirs::new(feed, paths, Pool::default()).measure().await;
        let ends: BTreeSet<String> = ends.into_iter().map(exceeded).collect();
        assert_eq!(ends, ["deep".to_owned(), "much".to_owned()].into());
    }

    #[tokio::test]
    async fn a_volume_that_takes_too_long_for_a_round_is_counted_beside_it() {
        let root = tempfile::tempdir().unwrap();
        let (paths, feed) = (paths(root.path()), Arc::new(PodFeed::default()));
        let pod = publish(&feed, "many", "Running", "2Mi");
        let dir = volume_host_path(&paths, &pod, "v").unwrap();
        fs::create_dir_all(&dir).unwrap();
        for n in 0..600 {
            fs::write(dir.join(n.to_string()), vec![1; 4096]).unwrap();
        }
        let dirs = EmptyDirs { limit: Duration::ZERO, ..EmptyDirs::new(feed, paths, Pool::default()) };
        assert!(dirs.measure().await.is_empty(), "the round had no time");
        let key = dirs.incomplete().first().cloned().expect("it is counted again");
        assert_eq!(dirs.measure_slow(key).await.map(exceeded), Some("many".to_owned()));
    }
}
