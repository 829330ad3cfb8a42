//! A range of host user ids for every pod with `hostUsers: false`, stored in the pod's directory.
//!
//! ```text
//! <root-dir>/pods/<uid>/userns    {"uidMappings":[{"hostId":…,"containerId":0,"length":65536}],"gidMappings":[…]}
//! ```
//! The file format is that of the Go kubelet. A range is free when no pod directory contains it; there is no other bookkeeping.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use podwright_core::model::{CallError, PodUid};
use serde::{Deserialize, Serialize};

use super::files::{blocking, read_bounded};
use super::subordinate_ids::{BLOCK_IDS, IdBlocks, SubordinateIds, SubordinateIdsError};
use crate::host::Pool;
use crate::translate::IdRange;

/// Allocates ranges.
pub(super) struct UserNamespaceRanges {
    pods_dir: PathBuf,
    ids: SubordinateIds,
    /// Once they are known.
    blocks: Arc<OnceLock<IdBlocks>>,
    /// Held while a free range is searched and written.
    allocation: Arc<Mutex<()>>,
}

impl UserNamespaceRanges {
    pub(super) fn new(pods_dir: PathBuf, max_pods: usize) -> Self {
        Self { pods_dir, ids: SubordinateIds::new(max_pods), blocks: Arc::default(), allocation: Arc::default() }
    }

    /// The range of the pod; allocates one if it has none.
    pub(super) async fn range_of(&self, pool: &Pool, uid: &PodUid, limit: Duration) -> Result<IdRange, CallError> {
        let (pods_dir, ids, uid) = (self.pods_dir.clone(), self.ids.clone(), uid.clone());
        let (blocks, allocation) = (Arc::clone(&self.blocks), Arc::clone(&self.allocation));
        blocking(pool, "userns", limit, move || {
            let _guard = allocation.lock().map_err(|_| RangeError::Poisoned)?;
            find_or_allocate(&pods_dir, uid.as_str(), || match blocks.get() {
                Some(known) => Ok(*known),
                None => ids.blocks().map(|found| *blocks.get_or_init(|| found)),
            })
        })
        .await
    }
}

/// Why a pod has no range.
#[derive(Debug, thiserror::Error)]
enum RangeError {
    #[error("user namespace ranges are in an unknown state")]
    Poisoned,
    #[error("list {}: {source}", path.display())]
    List { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error("{}: it contains no mapping", path.display())]
    NoMapping { path: PathBuf },
    #[error("write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("ids for user namespaces: {0}")]
    Ids(#[from] SubordinateIdsError),
    #[error("no range of user ids is left on this node")]
    Exhausted,
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

fn find_or_allocate(
    pods_dir: &Path,
    uid: &str,
    blocks: impl FnOnce() -> Result<IdBlocks, SubordinateIdsError>,
) -> Result<IdRange, RangeError> {
    let own = pods_dir.join(uid).join(FILE);
    if let Some(range) = read(&own)? {
        return Ok(range);
    }
    let mut taken = BTreeSet::new();
    let failed = |source| RangeError::List { path: pods_dir.to_owned(), source };
    for pod in std::fs::read_dir(pods_dir).map_err(failed)? {
        // The range of a pod that is missing in the list would be taken for free.
        let pod = pod.map_err(failed)?;
        if let Some(range) = read(&pod.path().join(FILE))? {
            taken.insert(range.host_id / BLOCK_IDS);
        }
    }
    let IdBlocks { first, count } = blocks()?;
    let free = (first..first + count).find(|block| !taken.contains(block)).ok_or(RangeError::Exhausted)?;
    let range = IdRange { host_id: free * BLOCK_IDS, length: BLOCK_IDS };
    write(&own, range)?;
    Ok(range)
}

fn read(file: &Path) -> Result<Option<IdRange>, RangeError> {
    let path = || file.to_owned();
    let content = match read_bounded(file, FILE_BYTES_MAX) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(RangeError::Read { path: path(), source }),
    };
    let mappings: Mappings =
        serde_json::from_slice(&content).map_err(|source| RangeError::Parse { path: path(), source })?;
    let mapping = mappings.uid_mappings.first().ok_or_else(|| RangeError::NoMapping { path: path() })?;
    Ok(Some(IdRange { host_id: mapping.host_id, length: mapping.length }))
}

fn write(file: &Path, range: IdRange) -> Result<(), RangeError> {
    let mapping = Mapping { host_id: range.host_id, container_id: 0, length: range.length };
    let mappings = Mappings { uid_mappings: vec![mapping.clone()], gid_mappings: vec![mapping] };
    let failed = |source| RangeError::Write { path: file.to_owned(), source };
    let new = file.with_extension("new");
    let content = serde_json::to_vec(&mappings).expect("numbers are valid JSON");
    std::fs::write(&new, content).map_err(failed)?;
    std::fs::File::open(&new).and_then(|written| written.sync_all()).map_err(failed)?;
    std::fs::rename(&new, file).map_err(failed)
}

const FILE: &str = "userns";

const FILE_BYTES_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_are_free_when_the_pod_directory_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let pods = dir.path();
        for uid in ["a", "b", "c"] {
            std::fs::create_dir(pods.join(uid)).unwrap();
        }
        let range = |uid: &str| find_or_allocate(pods, uid, || Ok(IdBlocks { first: 1, count: 2 }));
        assert_eq!(range("a").unwrap().host_id, 65_536);
        assert_eq!(range("b").unwrap().host_id, 131_072);
        assert_eq!(range("a").unwrap().host_id, 65_536, "a pod keeps its range");
        assert!(range("c").unwrap_err().to_string().contains("no range"));
        std::fs::remove_dir_all(pods.join("a")).unwrap();
        assert_eq!(range("c").unwrap().host_id, 65_536);
        std::fs::write(pods.join("b").join(FILE), "{").unwrap();
        std::fs::remove_file(pods.join("c").join(FILE)).unwrap();
        assert!(range("c").is_err(), "an unreadable file may contain any range");
        std::fs::remove_file(pods.join("b").join(FILE)).unwrap();
        let granted = |uid: &str| find_or_allocate(pods, uid, || Ok(IdBlocks { first: 7, count: 1 }));
        assert_eq!(granted("b").unwrap().host_id, 7 * 65_536, "in the range of the node");
    }
}
