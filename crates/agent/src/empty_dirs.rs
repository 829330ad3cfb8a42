//! Measures emptyDirs with a `sizeLimit` on disk and reports those above it to core, which evicts the pod. Cuts the files that
//! containers can write outside their volumes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use podwright_core::eviction::LimitedVolume;
use podwright_core::model::{Event, Pod, PodUid};
use podwright_linux::beneath::usage;

use crate::event_loop::Handle;
use crate::feed::{PodFeed, PodView};
use crate::host::{HostPaths, Pool, cut_oversized};
use crate::pod_spec::volume_host_path;

/// As in the Go kubelet.
const PERIOD: Duration = Duration::from_secs(10);
/// For measuring one volume; the thread checks it.
const MEASURE_LIMIT: Duration = Duration::from_secs(5);
/// For the caller of the thread.
const WAIT_LIMIT: Duration = Duration::from_secs(10);

/// The emptyDirs of all pods.
pub struct EmptyDirs {
    feed: Arc<PodFeed>,
    paths: HostPaths,
    pool: Pool,
}

impl EmptyDirs {
    /// For the pods of the feed.
    pub fn new(feed: Arc<PodFeed>, paths: HostPaths, pool: Pool) -> Self {
        Self { feed, paths, pool }
    }

    /// Measures every `PERIOD`, forever.
    pub async fn watch(self, handle: Handle) {
        loop {
            tokio::time::sleep(PERIOD).await;
            for eviction in self.measure().await {
                handle.send(eviction).await;
            }
            self.cut_files().await;
        }
    }

    async fn cut_files(&self) {
        let views = self.feed.list().1;
        let (paths, uids) = (self.paths.clone(), views.iter().map(|view| view.uid()).collect::<Vec<_>>());
        let work = move || cut_oversized(&paths, uids.iter().map(PodUid::as_str));
        if let Err(error) = self.pool.run("files of pods", WAIT_LIMIT, work).await {
            tracing::warn!(%error, "checking the sizes of files of pods failed");
        }
    }

    /// Measures once and returns the evictions. Pods are measured concurrently, so that a slow volume delays no other pod; the
    /// pool bounds the concurrency.
    async fn measure(&self) -> Vec<Event> {
        let views = self.feed.list().1;
        let evictions =
            join_all(views.iter().filter(|view| !view.has_ended()).map(|view| self.measure_pod(view))).await;
        evictions.into_iter().flatten().collect()
    }

    async fn measure_pod(&self, view: &PodView) -> Option<Event> {
        let uid = view.uid();
        for limited in LimitedVolume::of(&view.object, view.source) {
            let bytes = self.used_bytes(&uid, &view.object, &limited).await;
            let end = bytes.and_then(|bytes| limited.check_usage(&uid, bytes));
            if end.is_some() {
                return end;
            }
        }
        None
    }

    async fn used_bytes(&self, uid: &PodUid, pod: &Pod, limited: &LimitedVolume) -> Option<u64> {
        let dir = volume_host_path(&self.paths, pod, &limited.volume).ok()?;
        let enough = limited.limit;
        let work = move || usage(&dir, enough, Instant::now() + MEASURE_LIMIT);
        let counted = match self.pool.run(format!("emptyDir of {uid}"), WAIT_LIMIT, work).await {
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
}

#[cfg(test)]
mod tests {
    use std::fs;

    use podwright_core::model::{PodRecord, PodSnapshot, Source};
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn only_pods_above_their_limit_are_evicted() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let paths = HostPaths {
            root_dir: root.path().to_owned(),
            pod_logs_dir: at("logs"),
            container_logs_dir: at("links"),
            cgroup_root: "/".into(),
        };
        let feed = Arc::new(PodFeed::default());
        for (uid, phase, size) in
            [("much", "Running", 80), ("little", "Running", 20), ("over", "Failed", 80), ("new", "Pending", 0)]
        {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"uid": uid, "name": uid, "namespace": "ns"},
                "spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "64Ki"}}]},
            }))
            .unwrap();
            let dir = volume_host_path(&paths, &pod, "v").unwrap();
            if size > 0 {
                fs::create_dir_all(&dir).unwrap();
                fs::write(dir.join("file"), vec![1; size << 10]).unwrap();
            }
            let status = serde_json::from_value(json!({"phase": phase})).unwrap();
            let record = PodRecord::new(uid.into(), Source::Api, Arc::new(pod), jiff::Timestamp::UNIX_EPOCH);
            feed.publish(&PodSnapshot::of(&PodRecord { status: Some(status), ..record }));
        }
        let ends = EmptyDirs::new(feed, paths, Pool::default()).measure().await;
        assert!(matches!(&ends[..], [Event::Kill { uid, evicted: Some(_), .. }] if uid.as_str() == "much"), "{ends:?}");
    }
}
