//! Looks at the emptyDirs on disk that have a limit. Who takes more is told of to core, which ends the pod.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use podwright_core::eviction::LimitedVolume;
use podwright_core::model::{Event, Pod, PodUid};
use podwright_linux::beneath::usage;

use crate::event_loop::Handle;
use crate::feed::{PodFeed, PodView};
use crate::host::{HostPaths, Pool};
use crate::pod_spec::volume_host_path;

/// As often as the kubelet looks.
const PERIOD: Duration = Duration::from_secs(10);
/// For one volume. A thread that is still at it then ends soon after.
const COUNT_MAX: Duration = Duration::from_secs(5);
/// The same for whoever waits for it.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The emptyDirs of all pods.
pub struct EmptyDirs {
    feed: Arc<PodFeed>,
    paths: HostPaths,
    pool: Pool,
}

impl EmptyDirs {
    /// Of these pods, in these directories.
    pub fn new(feed: Arc<PodFeed>, paths: HostPaths, pool: Pool) -> Self {
        Self { feed, paths, pool }
    }

    /// Look from time to time for as long as the agent lives.
    pub async fn watch(self, handle: Handle) {
        loop {
            tokio::time::sleep(PERIOD).await;
            for end in self.look().await {
                handle.send(end).await;
            }
        }
    }

    /// One look: the ends that follow from it. Nobody's slow volume holds another pod's up; the pool bounds how many are counted.
    pub async fn look(&self) -> Vec<Event> {
        let views = self.feed.list().1;
        let ends = join_all(views.iter().filter(|view| !view.has_ended()).map(|view| self.look_at(view))).await;
        ends.into_iter().flatten().collect()
    }

    async fn look_at(&self, view: &PodView) -> Option<Event> {
        let uid = view.uid();
        for limited in LimitedVolume::of(&view.object, view.source) {
            let bytes = self.taken(&uid, &view.object, &limited).await;
            let end = bytes.and_then(|bytes| limited.check_usage(&uid, bytes));
            if end.is_some() {
                return end;
            }
        }
        None
    }

    async fn taken(&self, uid: &PodUid, pod: &Pod, limited: &LimitedVolume) -> Option<u64> {
        let dir = volume_host_path(&self.paths, pod, &limited.volume).ok()?;
        let enough = limited.limit;
        let work = move || usage(&dir, enough, Instant::now() + COUNT_MAX);
        let counted = match self.pool.run(&format!("emptyDir of {uid}"), ANSWER_MAX, work).await {
            // It is not there yet, or not any more.
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Ok(counted) => counted.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let failed = |error: &String| {
            tracing::warn!(%uid, volume = limited.volume, error, "what an emptyDir takes can't be counted");
        };
        counted.inspect_err(failed).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use podwright_core::model::{PodRecord, Source};
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn only_who_takes_more_than_its_limit_is_told_of() {
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
            feed.put_record(&PodRecord { status: Some(status), ..record });
        }
        let ends = EmptyDirs::new(feed, paths, Pool::default()).look().await;
        assert!(matches!(&ends[..], [Event::Kill { uid, evicted: Some(_), .. }] if uid.as_str() == "much"), "{ends:?}");
    }
}
