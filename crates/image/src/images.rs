//! The list of images: `images.json`, replaced as a whole and synced at each change.
//!
//! An image is identified by the digest of its configuration. It has any number of names (tags and repository digests); a name
//! belongs to one image. An image that lost its last name to another one stays until it is removed by its id, as in containerd.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::chain::ChainId;
use crate::digest::Digest;
use crate::durable::{self, DurableFileError, failed};
use crate::reference::ImageReference;

/// One image of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The digest of the configuration.
    pub id: Digest,
    /// Each name, with the digest that the registry had under it: of an index or of the manifest.
    pub names: BTreeMap<ImageReference, Digest>,
    /// The manifest for this node's platform.
    pub manifest: Digest,
    /// From the lowest to the topmost.
    pub layers: Vec<LayerRecord>,
    /// When it was last pulled or loaded.
    pub stored_at: Timestamp,
    /// Never removed to free space.
    #[serde(default)]
    pub pinned: bool,
}

/// One layer of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// The tar as it came, compressed or not.
    pub blob: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// The digest of the uncompressed tar.
    pub diff_id: Digest,
}

impl ImageRecord {
    /// Its names by tag, in order.
    pub fn tags(&self) -> impl Iterator<Item = &ImageReference> {
        self.names.keys().filter(|name| name.tag().is_some())
    }

    /// Its names by digest, in order.
    pub fn repo_digests(&self) -> impl Iterator<Item = &ImageReference> {
        self.names.keys().filter(|name| name.digest().is_some())
    }

    /// The names of its unpacked layers, from the lowest to the topmost.
    pub fn chain(&self) -> Vec<ChainId> {
        ChainId::of_layers(&self.layers.iter().map(|layer| layer.diff_id).collect::<Vec<_>>())
    }

    /// Bytes of its layers as they were pulled.
    pub fn size(&self) -> u64 {
        self.layers.iter().map(|layer| layer.size).sum()
    }

    /// The documents and layers it consists of. Those of other platforms in its index are not stored.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = Digest> {
        let documents = self.names.values().copied().chain([self.id, self.manifest]);
        documents.chain(self.layers.iter().map(|layer| layer.blob))
    }
}

/// All images, as on disk. A change waits for the disk; who only reads takes [`ImageTable::published`] once and never waits.
#[derive(Debug)]
pub(crate) struct ImageTable {
    path: PathBuf,
    images: Arc<ImageList>,
    published: PublishedImages,
}

/// The images of one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct ImageList(BTreeMap<Digest, ImageRecord>);

/// The images as they were written last.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublishedImages(Arc<Mutex<Arc<ImageList>>>);

impl PublishedImages {
    /// Does not wait for a change that is being written.
    pub(crate) fn get(&self) -> Arc<ImageList> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, images: Arc<ImageList>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = images;
    }
}

impl ImageList {
    /// All images, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ImageRecord> {
        self.0.values()
    }

    pub(crate) fn by_id(&self, id: Digest) -> Option<&ImageRecord> {
        self.0.get(&id)
    }

    pub(crate) fn by_name(&self, name: &ImageReference) -> Option<&ImageRecord> {
        self.0.values().find(|image| image.names.contains_key(name))
    }
}

#[derive(Serialize, Deserialize)]
struct ImagesFile {
    version: u32,
    images: Vec<ImageRecord>,
}

#[derive(Deserialize)]
struct FileVersion {
    version: u32,
}

impl ImageTable {
    /// Reads the file. A damaged one is renamed (`images.json.corrupt-<n>`) and reported: images are pulled again then,
    /// and garbage collection deletes nothing until that file is removed.
    pub(crate) fn open(path: &Path) -> Result<Self, DurableFileError> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::new(path, vec![]));
            }
            Err(e) => return Err(failed("read", path)(e)),
        };
        // First: the rest of a file of another version may have any form.
        if let Ok(FileVersion { version }) = serde_json::from_slice(&text)
            && version != VERSION
        {
            let source = io::Error::other(format!("version {version} is not supported, only {VERSION}"));
            return Err(failed("read", path)(source));
        }
        let images = match serde_json::from_slice::<ImagesFile>(&text) {
            Ok(file) => file.images,
            Err(error) => {
                let aside = (0..).map(|n| path.with_extension(format!("json.corrupt-{n}"))).find(|p| !p.exists());
                let aside = aside.expect("some number is free");
                tracing::error!(path = %path.display(), moved_to = %aside.display(), %error, "image list is damaged");
                fs::rename(path, &aside).map_err(failed("rename", path))?;
                vec![]
            }
        };
        Ok(Self::new(path, images))
    }

    fn new(path: &Path, images: Vec<ImageRecord>) -> Self {
        let images = Arc::new(ImageList(images.into_iter().map(|image| (image.id, image)).collect()));
        let published = PublishedImages::default();
        published.set(Arc::clone(&images));
        Self { path: path.into(), images, published }
    }

    /// The images for readers, now and later.
    pub(crate) fn published(&self) -> PublishedImages {
        self.published.clone()
    }

    /// All images.
    pub(crate) fn list(&self) -> &ImageList {
        &self.images
    }

    /// Adds an image. Its names are taken from the images that had them; names it has already stay.
    pub(crate) fn put(&mut self, mut image: ImageRecord) -> Result<ImageRecord, DurableFileError> {
        let id = image.id;
        self.change(|images| {
            for other in images.values_mut() {
                other.names.retain(|name, _| !image.names.contains_key(name));
            }
            if let Some(before) = images.remove(&id) {
                image.names.extend(before.names);
                image.pinned |= before.pinned;
            }
            images.insert(id, image);
        })?;
        Ok(self.images.0[&id].clone())
    }

    /// Removes an image with all its names; `None` if there is no such image.
    pub(crate) fn remove(&mut self, id: Digest) -> Result<Option<ImageRecord>, DurableFileError> {
        let Some(found) = self.images.by_id(id).cloned() else { return Ok(None) };
        self.change(|images| drop(images.remove(&id)))?;
        Ok(Some(found))
    }

    /// Changes one image, if it is there.
    pub(crate) fn edit(&mut self, id: Digest, edit: impl FnOnce(&mut ImageRecord)) -> Result<bool, DurableFileError> {
        if self.images.by_id(id).is_none() {
            return Ok(false);
        }
        self.change(|images| {
            if let Some(image) = images.get_mut(&id) {
                edit(image);
            }
        })?;
        Ok(true)
    }

    /// On disk first: after a failure nothing has changed.
    fn change(&mut self, change: impl FnOnce(&mut BTreeMap<Digest, ImageRecord>)) -> Result<(), DurableFileError> {
        let mut images = self.images.0.clone();
        change(&mut images);
        let file = ImagesFile { version: VERSION, images: images.values().cloned().collect() };
        let text = serde_json::to_vec(&file).expect("records are plain data");
        durable::replace(&self.path, &text)?;
        self.images = Arc::new(ImageList(images));
        self.published.set(Arc::clone(&self.images));
        Ok(())
    }
}

/// Begins the names of damaged lists.
pub(crate) const DAMAGED_PREFIX: &str = "images.json.corrupt-";
/// The format of `images.json`.
const VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: u8, names: &[&str]) -> ImageRecord {
        let digest = Digest::of(&[n]);
        let names = names.iter().map(|name| (name.parse().unwrap(), digest)).collect();
        let layers = vec![LayerRecord { blob: digest, size: 3, diff_id: digest }];
        ImageRecord { id: digest, names, manifest: digest, layers, stored_at: Timestamp::UNIX_EPOCH, pinned: false }
    }

    #[test]
    fn a_name_moves_to_the_newest_image_and_the_old_one_stays_by_id() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("images.json");
        let mut table = ImageTable::open(&path).unwrap();
        table.put(record(1, &["a:1", "a:2"])).unwrap();
        table.put(record(2, &["a:2"])).unwrap();
        table.put(record(1, &["b:1"])).unwrap();
        let reopened = ImageTable::open(&path).unwrap();
        for table in [table, reopened] {
            let names: Vec<_> = table.list().by_id(Digest::of(&[1])).unwrap().tags().map(ToString::to_string).collect();
            assert_eq!(names, ["docker.io/library/a:1", "docker.io/library/b:1"]);
            assert_eq!(table.list().by_name(&"a:2".parse().unwrap()).unwrap().id, Digest::of(&[2]));
        }
    }

    #[test]
    fn a_change_that_cannot_be_written_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("images.json");
        let mut table = ImageTable::open(&path).unwrap();
        table.put(record(1, &["a:1"])).unwrap();
        fs::create_dir(dir.path().join("images.new")).unwrap();
        assert!(table.put(record(2, &["a:1"])).is_err());
        assert!(table.remove(Digest::of(&[1])).is_err());
        assert_eq!(table.list().by_name(&"a:1".parse().unwrap()).unwrap().id, Digest::of(&[1]));
    }

    #[test]
    fn a_damaged_file_is_renamed_and_a_newer_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("images.json");
        fs::write(&path, b"{\"version\":1,\"ima").unwrap();
        assert_eq!(ImageTable::open(&path).unwrap().list().iter().count(), 0);
        assert!(dir.path().join("images.json.corrupt-0").exists());
        for newer in [r#"{"version":2,"images":[]}"#, r#"{"version":2,"by_digest":{}}"#] {
            fs::write(&path, newer).unwrap();
            assert!(ImageTable::open(&path).is_err(), "{newer}");
            assert_eq!(fs::read_to_string(&path).unwrap(), newer, "it stays for the newer version");
        }
    }
}
