//! Unpacked layers, one directory per chain id, ready to be lower directories of overlayfs.
//!
//! ```text
//! layers/
//! ├─ <n>/fs/     the files; a short name, because mount options have little space
//! ├─ <n>/meta    which layer this is; written last, so that a directory without it is incomplete
//! └─ new-<n>/    being unpacked; removed at start
//! ```
//!
//! Files are not synced one by one. [`LayerStore::sync`] syncs the file system and then marks the layers; after a reboot those
//! without the mark are unpacked again, because a power loss may have emptied their files.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard};

use podwright_linux::beneath::{RemoveError, remove_path};
use serde::{Deserialize, Serialize};

use crate::chain::ChainId;
use crate::content::{ContentError, ContentStore};
use crate::disk::DiskReserve;
use crate::durable::{DurableFileError, failed, replace};
use crate::images::LayerRecord;
use crate::limits::ImageLimits;
use crate::unpack::{UnpackError, UnpackRequest, unpack};

/// Why a layer is not available.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// It could not be unpacked.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// Its blob is not in the store.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// A layer below is missing.
    #[error("the layer below, {0}, is not unpacked")]
    NoParent(ChainId),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] DurableFileError),
    /// Leftovers could not be removed.
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// A newer version unpacked it; it is left as it is.
    #[error("{} was written by a newer version (format {version})", path.display())]
    NewerVersion {
        /// The layer's note.
        path: PathBuf,
        /// Its format.
        version: u32,
    },
}

/// The unpacked layers of one store.
#[derive(Debug)]
pub(crate) struct LayerStore {
    dir: PathBuf,
    boot_id: String,
    /// Held while the directory of a layer is renamed or marked: none of these while another is under way.
    changing: Mutex<()>,
    /// Never held while the disk is used: pulls ask for layers on threads that must not wait.
    table: Mutex<LayerTable>,
}

#[derive(Debug, Default)]
struct LayerTable {
    next: u64,
    layers: BTreeMap<ChainId, UnpackedLayer>,
}

#[derive(Clone, Debug)]
struct UnpackedLayer {
    number: u64,
    meta: LayerMeta,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct LayerMeta {
    version: u32,
    chain: ChainId,
    /// Bytes of file content.
    bytes: u64,
    /// It survives a power loss.
    synced: bool,
    /// The boot in which it was unpacked.
    boot_id: String,
}

impl LayerStore {
    /// Reads which layers there are. Incomplete ones, and those that a power loss may have damaged, are removed.
    pub(crate) fn open(dir: &Path) -> Result<Self, LayerError> {
        let boot_id = Path::new("/proc/sys/kernel/random/boot_id");
        Self::open_in_boot(dir, fs::read_to_string(boot_id).map_err(failed("read", boot_id))?.trim())
    }

    fn open_in_boot(dir: &Path, boot_id: &str) -> Result<Self, LayerError> {
        fs::create_dir_all(dir).map_err(failed("create", dir))?;
        let mut table = LayerTable::default();
        for entry in fs::read_dir(dir).map_err(failed("read", dir))?.flatten() {
            let number = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
            let usable = |meta: &LayerMeta| meta.version == VERSION && (meta.synced || meta.boot_id == boot_id);
            match (number, read_meta(&entry.path().join("meta"))?.filter(usable)) {
                (Some(number), Some(meta)) => {
                    table.next = table.next.max(number + 1);
                    table.layers.insert(meta.chain, UnpackedLayer { number, meta });
                }
                _ => {
                    tracing::info!(path = %entry.path().display(), "incomplete layer removed");
                    remove_path(&entry.path())?;
                }
            }
        }
        let (dir, boot_id) = (dir.to_owned(), boot_id.to_owned());
        Ok(Self { dir, boot_id, changing: Mutex::default(), table: Mutex::new(table) })
    }

    /// The directory with the files of a layer; `None` if it is not unpacked. Does not block.
    pub(crate) fn path(&self, chain: ChainId) -> Option<PathBuf> {
        self.table().layers.get(&chain).map(|layer| self.numbered(layer.number).join("fs"))
    }

    /// Unpacks the topmost of these layers. Those below must be there already. Blocks; `cancelled` ends it early.
    pub(crate) fn unpack(
        &self,
        content: &ContentStore,
        layer: &LayerRecord,
        chain: &[ChainId],
        limits: &ImageLimits,
        cancelled: &AtomicBool,
    ) -> Result<(), LayerError> {
        let (top, below) = chain.split_last().expect("a layer has a chain id");
        if self.path(*top).is_some() {
            return Ok(());
        }
        let lower = |id: &ChainId| self.path(*id).ok_or(LayerError::NoParent(*id));
        let lowers = below.iter().rev().map(lower).collect::<Result<Vec<_>, _>>()?;
        let number = {
            let mut table = self.table();
            table.next += 1;
            table.next - 1
        };
        let aside = Unfinished(self.dir.join(format!("new-{number}")));
        let root = aside.0.join("fs");
        fs::create_dir_all(&root).map_err(failed("create", &root))?;
        let disk = DiskReserve::new(&self.dir, limits);
        let (blob, diff_id) = (layer.blob, layer.diff_id);
        let request =
            UnpackRequest { layer: blob, diff_id, root: &root, lowers: &lowers, limits, disk: &disk, cancelled };
        let bytes = unpack(content.open_blob(blob)?, &request)?;
        let meta = LayerMeta { version: VERSION, chain: *top, bytes, synced: false, boot_id: self.boot_id.clone() };
        self.publish(&aside, number, meta)
    }

    fn publish(&self, aside: &Unfinished, number: u64, meta: LayerMeta) -> Result<(), LayerError> {
        let file = aside.0.join("meta");
        fs::write(&file, meta.to_json()).map_err(failed("write", &file))?;
        let _changing = self.change();
        // Another pull of the same layer was faster; this copy is removed when it is dropped.
        if self.table().layers.contains_key(&meta.chain) {
            return Ok(());
        }
        fs::rename(&aside.0, self.numbered(number)).map_err(failed("rename", &aside.0))?;
        self.table().layers.insert(meta.chain, UnpackedLayer { number, meta });
        Ok(())
    }

    /// Makes the unpacked layers survive a power loss. Blocks for as long as the disk writes.
    pub(crate) fn sync(&self) -> Result<(), LayerError> {
        let unsynced: Vec<UnpackedLayer> =
            self.table().layers.values().filter(|layer| !layer.meta.synced).cloned().collect();
        if unsynced.is_empty() {
            return Ok(());
        }
        let dir = fs::File::open(&self.dir).map_err(failed("open", &self.dir))?;
        rustix::fs::syncfs(&dir).map_err(|e| failed("sync", &self.dir)(e.into()))?;
        for UnpackedLayer { number, meta } in unsynced {
            // A layer is not renamed into the trash meanwhile.
            let _changing = self.change();
            if self.table().layers.get(&meta.chain).is_none_or(|layer| layer.number != number) {
                continue;
            }
            let synced = LayerMeta { synced: true, ..meta };
            replace(&self.numbered(number).join("meta"), &synced.to_json())?;
            if let Some(layer) = self.table().layers.get_mut(&synced.chain) {
                layer.meta = synced;
            }
        }
        Ok(())
    }

    /// All layers with the bytes of their files.
    pub(crate) fn list(&self) -> Vec<(ChainId, u64)> {
        self.table().layers.iter().map(|(chain, layer)| (*chain, layer.meta.bytes)).collect()
    }

    /// Moves a layer out of the store; the caller deletes it. Missing is fine.
    pub(crate) fn move_to(&self, chain: ChainId, trash: &Path) -> Result<(), DurableFileError> {
        let _changing = self.change();
        // No one is given a path that is about to go.
        let Some(layer) = self.table().layers.remove(&chain) else { return Ok(()) };
        let path = self.numbered(layer.number);
        let renamed = fs::rename(&path, trash).map_err(failed("rename", &path));
        if renamed.is_err() {
            self.table().layers.insert(chain, layer);
        }
        renamed
    }

    fn numbered(&self, number: u64) -> PathBuf {
        self.dir.join(number.to_string())
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().expect("no panic under this lock")
    }

    fn table(&self) -> MutexGuard<'_, LayerTable> {
        self.table.lock().expect("no panic under this lock")
    }
}

impl LayerMeta {
    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data")
    }
}

/// The layer in a directory; `None`: it is incomplete. An error of the disk, or a lack of file descriptors, does not mean that
/// the layer is incomplete, and containers of this boot may use it: such an error is returned.
fn read_meta(path: &Path) -> Result<Option<LayerMeta>, LayerError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(failed("read", path)(e).into()),
    };
    let version = serde_json::from_slice::<serde_json::Value>(&text).ok().and_then(|meta| meta["version"].as_u64());
    match version.and_then(|version| u32::try_from(version).ok()) {
        Some(version) if version > VERSION => Err(LayerError::NewerVersion { path: path.to_owned(), version }),
        _ => Ok(serde_json::from_slice(&text).ok()),
    }
}

/// A layer that is being unpacked; dropped, it is removed unless it was renamed.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Err(error) = remove_path(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "unfinished layer is not removed");
        }
    }
}

/// The format of `meta`.
const VERSION: u32 = 1;
