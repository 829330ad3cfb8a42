//! Reads a log for the fuzz target: whole, then following while it is rotated.

use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use podwright_agent::feed::PodFeed;
use podwright_agent::host::HostPaths;
use podwright_core::model::Source;
use serde_json::json;
use tokio::time::timeout;

use super::{ContainerLog, LogFiles, LogOptions, LogReader, Pool};
use crate::query::QueryParams;

/// Reads the log with the options of this query. The second half of the log is written after a rotation.
///
/// # Panics
/// If more is returned than the log has, or a reader that follows does not end with the container.
pub async fn fuzz_read(dir: &Path, query: &str, log: &[u8]) {
    let logs = dir.join("default_web_u/c");
    fs::create_dir_all(&logs).expect("created");
    let (first, second) = log.split_at(log.len() / 2);
    let file = logs.join("0.log");
    fs::write(&file, first).expect("written");
    let feed = Arc::<PodFeed>::default();
    show(&feed, &json!({"running": {}}));
    let Some(mut reader) = open(dir, &feed, query).await else { return };
    let mut size = 0;
    let follows = reader.follows();
    // A reader that follows waits for more at the end of the first half.
    while let Ok(Some(part)) = timeout(Duration::from_millis(if follows { 3 } else { 2000 }), reader.next()).await {
        size += part.expect("read").len();
    }
    if follows {
        fs::rename(&file, logs.join("0.log.20240101-000000")).expect("rotated");
        fs::write(&file, second).expect("written");
        show(&feed, &json!({"terminated": {"exitCode": 0}}));
        while let Some(part) = timeout(Duration::from_secs(3), reader.next()).await.expect("the log ends") {
            size += part.expect("read").len();
        }
    }
    // Each line may get a line feed and its time twice as a prefix.
    assert!(size <= 3 * log.len() + 64, "{size} bytes of a log of {} bytes", log.len());
}

/// One pool for all inputs: its threads are kept.
static POOL: OnceLock<Pool> = OnceLock::new();

async fn open(dir: &Path, feed: &Arc<PodFeed>, query: &str) -> Option<LogReader> {
    let paths = HostPaths {
        root_dir: "/r".into(),
        pod_logs_dir: dir.into(),
        container_logs_dir: "/c".into(),
        cgroup_root: "/".into(),
    };
    let options = LogOptions::parse(&mut QueryParams::parse(query)).ok()?;
    let view = feed.by_name("default", "web")?;
    let files = LogFiles { paths, pool: POOL.get_or_init(Pool::default).clone() };
    let log = ContainerLog::new(files, Arc::clone(feed), view, options).ok()?;
    LogReader::open(log).await.ok()
}

fn show(feed: &PodFeed, state: &serde_json::Value) {
    let status = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state});
    let pod = json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "u"},
        "spec": {"containers": [{"name": "c"}]},
        "status": {"containerStatuses": [status]}
    });
    let pod = serde_json::from_value(pod).expect("a pod");
    feed.put_object(Arc::new(pod), Source::File, None);
}
