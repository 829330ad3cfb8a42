//! Writes the Go kubelet's files with the resources of pods, so that it can take the node over (`podwright_core::resource_state`).

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::resource_state::{
    ACTUATED_FILE, ALLOCATED_FILE, PodResourceInfoMap, actuated, allocated, decode, encode,
};

use crate::feed::PodFeed;
use crate::host::Pool;

/// At most one write in this time, however many pods change.
const INTERVAL: Duration = Duration::from_secs(1);
/// For reading one file.
const IO_LIMIT: Duration = Duration::from_secs(30);

/// The files below the root directory.
pub struct ResourceStateFiles {
    feed: Arc<PodFeed>,
    root_dir: PathBuf,
    pool: Pool,
    /// What was written last, or found at the start.
    written: [PodResourceInfoMap; 2],
    /// Pods that the feed had: only of these it is known that they are gone.
    seen: BTreeSet<String>,
}

const FILES: [&str; 2] = [ALLOCATED_FILE, ACTUATED_FILE];

impl ResourceStateFiles {
    /// For the pods of the feed.
    pub fn new(feed: Arc<PodFeed>, root_dir: PathBuf, pool: Pool) -> Self {
        Self { feed, root_dir, pool, written: Default::default(), seen: BTreeSet::new() }
    }

    /// Writes the files when resources change, forever.
    pub async fn run(mut self) {
        self.read_files().await;
        let mut changes = self.feed.subscribe();
        // The feed is never closed: it lives here too.
        while changes.changed().await.is_ok() {
            self.write_changes().await;
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// What the Go kubelet has written stays until the pods are known here.
    async fn read_files(&mut self) {
        for (index, name) in FILES.into_iter().enumerate() {
            let path = self.root_dir.join(name);
            let read = self.pool.run(name, IO_LIMIT, move || std::fs::read_to_string(path)).await;
            if let Ok(Ok(text)) = read {
                self.written[index] = decode(&text).unwrap_or_default();
            }
        }
    }

    async fn write_changes(&mut self) {
        let views = self.feed.list().1;
        self.seen.extend(views.iter().map(|view| view.uid().to_string()));
        let mut now = self.written.clone();
        now.iter_mut().for_each(|pods| pods.retain(|uid, _| !self.seen.contains(uid)));
        for view in views.iter().filter(|view| !view.has_ended()) {
            now[0].insert(view.uid().to_string(), allocated(&view.object));
            now[1].insert(view.uid().to_string(), actuated(&view.object, view.status.as_deref()));
        }
        self.seen = views.iter().map(|view| view.uid().to_string()).collect();
        for (index, name) in FILES.into_iter().enumerate() {
            if now[index] == self.written[index] {
                continue;
            }
            let text = match encode(&now[index]) {
                Ok(text) => text,
                Err(error) => {
                    tracing::warn!(path = name, %error, "resources of pods can't be written for the Go kubelet");
                    continue;
                }
            };
            let path = self.root_dir.join(name);
            let write = move || replace(&path, &text);
            // To its end: a second write to the same file must not begin before.
            match self.pool.run_to_end(name, write).await {
                Ok(Ok(())) => self.written[index].clone_from(&now[index]),
                Ok(Err(error)) => tracing::warn!(path = name, %error, "resources of pods were not written"),
                Err(error) => tracing::warn!(path = name, %error, "resources of pods were not written"),
            }
        }
    }
}

/// A reader finds the old content or the new one.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let aside = path.with_extension("new");
    let mut file = std::fs::File::create(&aside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&aside, path)
}

#[cfg(test)]
mod tests {
    use podwright_core::model::{Pod, PodRecord, PodSnapshot, Source};
    use serde_json::json;

    use super::*;
    use crate::host::PoolLimits;

    #[tokio::test]
    async fn live_pods_are_written_and_the_file_follows_them() {
        let root = tempfile::tempdir().unwrap();
        let feed = Arc::new(PodFeed::default());
        let put = |uid: &str, cpu: &str, phase: &str| {
            let resources = json!({"requests": {"cpu": cpu}});
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"uid": uid, "name": uid, "namespace": "ns"},
                "spec": {"containers": [{"name": "c", "resources": resources}]},
            }))
            .unwrap();
            let mut record = PodRecord::new(uid.into(), Source::Api, Arc::new(pod), jiff::Timestamp::UNIX_EPOCH);
            record.status = Some(serde_json::from_value(json!({"phase": phase})).unwrap());
            feed.publish(&PodSnapshot::of(&record));
        };
        let mut files =
            ResourceStateFiles::new(Arc::clone(&feed), root.path().to_owned(), Pool::new(PoolLimits::default()));
        let read = |name: &str| decode(&std::fs::read_to_string(root.path().join(name)).unwrap()).unwrap();
        put("runs", "1", "Running");
        put("over", "1", "Succeeded");
        files.write_changes().await;
        for name in [ALLOCATED_FILE, ACTUATED_FILE] {
            assert_eq!(json!(read(name)), json!({"runs": {"c": {"requests": {"cpu": "1"}}}}), "{name}");
        }
        put("runs", "2", "Running");
        files.write_changes().await;
        assert_eq!(json!(read(ALLOCATED_FILE)), json!({"runs": {"c": {"requests": {"cpu": "2"}}}}));
    }
}
