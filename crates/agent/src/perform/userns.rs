//! A range of user ids for every pod with `hostUsers: false`, remembered in the pod's own directory.
//!
//! ```text
//! <root-dir>/pods/<uid>/userns    {"uidMappings":[{"hostId":…,"containerId":0,"length":65536}],"gidMappings":[…]}
//! ```
//! The file is the Go kubelet's. A range is free again when the pod's directory is gone: nothing else keeps count.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use podwright_core::model::{CallError, PodUid};
use serde::{Deserialize, Serialize};

use super::situation::{blocking, read_bounded};
use crate::host::Pool;
use crate::translate::IdRange;

/// CallExecutor ranges out.
pub(super) struct Ranges {
    pods_dir: PathBuf,
    count: u32,
    /// Held while a free range is looked for and written down.
    one_at_a_time: Arc<Mutex<()>>,
}

impl Ranges {
    pub(super) fn new(pods_dir: PathBuf, max_pods: usize) -> Self {
        let count = u32::try_from(max_pods).unwrap_or(u32::MAX).min(u32::MAX / LENGTH - 1);
        Self { pods_dir, count, one_at_a_time: Arc::default() }
    }

    /// The pod's range: the one it has, or a free one that is now its.
    pub(super) async fn range_of(&self, pool: &Pool, uid: &PodUid, limit: Duration) -> Result<IdRange, CallError> {
        let (pods_dir, count, turn) = (self.pods_dir.clone(), self.count, Arc::clone(&self.one_at_a_time));
        let uid = uid.clone();
        blocking(pool, "userns", limit, move || {
            let _turn = turn.lock().map_err(|_| "user namespace ranges are in an unknown state".to_owned())?;
            find_or_take(&pods_dir, uid.as_str(), count)
        })
        .await
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

fn find_or_take(pods_dir: &Path, uid: &str, count: u32) -> Result<IdRange, String> {
    let own = pods_dir.join(uid).join(FILE);
    if let Some(range) = read(&own)? {
        return Ok(range);
    }
    let mut taken = BTreeSet::new();
    let pods = std::fs::read_dir(pods_dir).map_err(|error| format!("list {}: {error}", pods_dir.display()))?;
    for pod in pods.flatten() {
        if let Some(range) = read(&pod.path().join(FILE))? {
            taken.insert(range.host_id / LENGTH);
        }
    }
    // Block 0 is the host's own.
    let free = (1..=count).find(|block| !taken.contains(block)).ok_or("no range of user ids is left on this node")?;
    let range = IdRange { host_id: free * LENGTH, length: LENGTH };
    write(&own, range)?;
    Ok(range)
}

fn read(file: &Path) -> Result<Option<IdRange>, String> {
    let told = |why: String| format!("{}: {why}", file.display());
    let content = match read_bounded(file, FILE_BYTES_MAX) {
        Ok(content) => content,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(told(error.to_string())),
    };
    let mappings: Mappings = serde_json::from_slice(&content).map_err(|error| told(error.to_string()))?;
    let mapping = mappings.uid_mappings.first().ok_or_else(|| told("no mapping in it".into()))?;
    Ok(Some(IdRange { host_id: mapping.host_id, length: mapping.length }))
}

fn write(file: &Path, range: IdRange) -> Result<(), String> {
    let mapping = Mapping { host_id: range.host_id, container_id: 0, length: range.length };
    let mappings = Mappings { uid_mappings: vec![mapping.clone()], gid_mappings: vec![mapping] };
    let told = |error: std::io::Error| format!("write {}: {error}", file.display());
    let new = file.with_extension("new");
    let content = serde_json::to_vec(&mappings).expect("numbers are always JSON");
    std::fs::write(&new, content).map_err(told)?;
    std::fs::File::open(&new).and_then(|written| written.sync_all()).map_err(told)?;
    std::fs::rename(&new, file).map_err(told)
}

const FILE: &str = "userns";

/// Kubernetes: the ids of one pod; what an image may use.
const LENGTH: u32 = 65_536;

const FILE_BYTES_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_come_back_with_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let pods = dir.path();
        for uid in ["a", "b", "c"] {
            std::fs::create_dir(pods.join(uid)).unwrap();
        }
        let take = |uid: &str| find_or_take(pods, uid, 2);
        assert_eq!(take("a").unwrap().host_id, 65_536);
        assert_eq!(take("b").unwrap().host_id, 131_072);
        assert_eq!(take("a").unwrap().host_id, 65_536, "it keeps its own");
        assert!(take("c").unwrap_err().contains("no range"));
        std::fs::remove_dir_all(pods.join("a")).unwrap();
        assert_eq!(take("c").unwrap().host_id, 65_536);
        std::fs::write(pods.join("b").join(FILE), "{").unwrap();
        std::fs::remove_file(pods.join("c").join(FILE)).unwrap();
        assert!(take("c").is_err(), "a range that cannot be read may be any of them");
    }
}
