//! Images in files: docker-archive and OCI archive, to load and to save.
//!
//! An archive is a stream, and its table of contents may come last. So every file of it goes into the content store under its own
//! digest while it is read, bounded and leased; then the table of contents says which images there are. What no image uses is
//! garbage afterwards.
//!
//! ```text
//! docker-archive   manifest.json → configuration, layers (by path)       docker save, podman save, bazel
//! OCI archive      oci-layout, index.json → blobs/sha256/…               skopeo, buildah, docker save since 25
//! ```

mod save;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use serde::Deserialize;

use crate::compression::decompress;
use crate::content::{ContentError, ExpectedContent};
use crate::digest::{Digest, excerpt};
use crate::durable::DurableFileError;
use crate::images::ImageRecord;
use crate::layers::LayerError;
use crate::leases::ContentLease;
use crate::manifest::{
    Descriptor, ImageConfiguration, ImageIndex, ImageManifest, ImageManifestError, ManifestDocument,
};
use crate::manifest::{OCI_CONFIG, OCI_LAYER};
use crate::reference::{ImageReference, ReferenceError};
use crate::store::{ImageStore, ImageStoreError, NewImage, layer_records};
use crate::tar_reader::{TarError, TarKind, TarReader};

/// Why an archive was not loaded or written.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The stream is no usable tar.
    #[error("read the archive")]
    Tar(#[from] TarError),
    /// The source can't be read.
    #[error(transparent)]
    File(#[from] DurableFileError),
    /// The archive can't be written.
    #[error("write the archive")]
    Write(#[source] io::Error),
    /// More bytes than allowed.
    #[error("the archive has more than {max} bytes uncompressed")]
    TooLarge {
        /// The bound.
        max: u64,
    },
    /// Neither `index.json` nor `manifest.json`.
    #[error("this is not an image archive: it has neither index.json nor manifest.json")]
    NotAnArchive,
    /// `index.json` or `manifest.json` can't be read.
    #[error("{file} is malformed")]
    Malformed {
        /// The file in the archive.
        file: &'static str,
        /// The parser's message.
        #[source]
        source: serde_json::Error,
    },
    /// A file that the table of contents names is missing.
    #[error("{file} names {path:?}, which is not in the archive")]
    Missing {
        /// The file that names it.
        file: &'static str,
        /// The path or digest, shortened.
        path: String,
    },
    /// There is no image for this platform, or none at all.
    #[error("the archive has no image")]
    Empty,
    /// A name in the archive is no image reference.
    #[error("name of an image in the archive")]
    Name(#[source] ReferenceError),
    /// A document of the image can't be used.
    #[error(transparent)]
    Manifest(#[from] ImageManifestError),
    /// Content could not be stored or read.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// A layer could not be unpacked.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The store failed otherwise.
    #[error(transparent)]
    Store(#[from] ImageStoreError),
}

impl ImageStore {
    /// Loads all images of a docker-archive or OCI archive, compressed or not. Blocks; `cancelled` ends it early.
    ///
    /// Images become visible one by one; after an error those before it stay.
    pub fn load(&self, archive: impl Read, cancelled: &AtomicBool) -> Result<Vec<ImageRecord>, ArchiveError> {
        let mut lease = self.lease();
        let files = ArchiveFiles::read(self, archive, &mut lease)?;
        let loader = Loader { store: self, cancelled };
        let loaded = match (files.get("index.json"), files.get("manifest.json")) {
            (Some(index), _) => loader.oci_index(&loader.small(index)?, &mut lease)?,
            (None, Some(manifest)) => loader.docker(&loader.small(manifest)?, &files, &mut lease)?,
            (None, None) => return Err(ArchiveError::NotAnArchive),
        };
        self.sync()?;
        Ok(loaded)
    }
}

/// The files of an archive: path → digest in the store.
struct ArchiveFiles {
    files: BTreeMap<PathBuf, Digest>,
    /// docker wrote a layer that occurs twice as a symlink to the first one.
    links: BTreeMap<PathBuf, PathBuf>,
}

impl ArchiveFiles {
    fn read(store: &ImageStore, archive: impl Read, lease: &mut ContentLease) -> Result<Self, ArchiveError> {
        let limits = store.limits();
        let plain = decompress(archive).map_err(TarError::Read)?;
        let mut tar = TarReader::new(plain, limits.archive_entries);
        let (mut files, mut links) = (BTreeMap::new(), BTreeMap::new());
        let mut left = limits.archive_bytes;
        let mut buffer = vec![0; 64 << 10];
        while let Some(entry) = tar.next_entry()? {
            let path = normal(&PathBuf::from(String::from_utf8_lossy(&entry.path).as_ref()));
            match entry.kind {
                TarKind::File => {
                    left = left.checked_sub(entry.size).ok_or(ArchiveError::TooLarge { max: limits.archive_bytes })?;
                    let mut ingest = store.content().ingest(ExpectedContent::AtMost(entry.size))?;
                    loop {
                        match tar.read(&mut buffer).map_err(TarError::Read)? {
                            0 => break,
                            count => ingest.write(&buffer[..count])?,
                        }
                    }
                    let digest = ingest.commit_leased(lease)?;
                    files.insert(path, digest);
                }
                TarKind::Symlink(target) | TarKind::HardLink(target) => {
                    let target = PathBuf::from(String::from_utf8_lossy(&target).as_ref());
                    let dir = path.parent().unwrap_or(Path::new("")).to_owned();
                    links.insert(path, normal(&dir.join(target)));
                }
                _ => {}
            }
        }
        Ok(Self { files, links })
    }

    fn get(&self, path: &str) -> Option<Digest> {
        let path = normal(Path::new(path));
        let target = self.links.get(&path).unwrap_or(&path);
        self.files.get(target).copied()
    }
}

/// The path without `.` and `..`; it is only a key, never a name on disk.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::Normal(name) => parts.push(name),
            std::path::Component::ParentDir => drop(parts.pop()),
            _ => {}
        }
    }
    parts
}

struct Loader<'a> {
    store: &'a ImageStore,
    cancelled: &'a AtomicBool,
}

/// One image of docker's `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

impl Loader<'_> {
    /// A document of the archive.
    fn small(&self, digest: Digest) -> Result<Vec<u8>, ContentError> {
        self.store.content().read(digest, self.store.limits().manifest_bytes)
    }

    fn oci_index(&self, bytes: &[u8], lease: &mut ContentLease) -> Result<Vec<ImageRecord>, ArchiveError> {
        const FILE: &str = "index.json";
        let index: ImageIndex =
            serde_json::from_slice(bytes).map_err(|source| ArchiveError::Malformed { file: FILE, source })?;
        let mut loaded: Vec<ImageRecord> = vec![];
        for descriptor in index.manifests.iter().take(IMAGES_MAX) {
            let name = image_name(descriptor)?;
            let Some((digest, manifest)) = self.resolve(descriptor, FILE, lease)? else { continue };
            let names = name.iter().flat_map(|name| {
                let by_digest = (name.with_digest(descriptor.digest), descriptor.digest);
                [(name.clone(), descriptor.digest), by_digest]
            });
            let image = self.finish(digest, &manifest, names.collect(), lease)?;
            loaded.retain(|before| before.id != image.id);
            loaded.push(image);
        }
        if loaded.is_empty() { Err(ArchiveError::Empty) } else { Ok(loaded) }
    }

    /// The manifest for this platform; `None` for another platform's manifest in the archive's own index.
    fn resolve(
        &self,
        descriptor: &Descriptor,
        file: &'static str,
        lease: &mut ContentLease,
    ) -> Result<Option<(Digest, ImageManifest)>, ArchiveError> {
        let limits = self.store.limits();
        if descriptor.platform.as_ref().is_some_and(|platform| self.store.platform().rank(platform).is_none()) {
            return Ok(None);
        }
        let mut next = descriptor.clone();
        for _ in 0..=limits.index_depth {
            self.hold(&next, file, lease)?;
            let bytes = self.store.content().read(next.digest, limits.manifest_bytes)?;
            match ManifestDocument::parse(&bytes, &next.media_type, limits)? {
                ManifestDocument::Manifest(manifest) => return Ok(Some((next.digest, manifest))),
                ManifestDocument::Index(index) => next = index.choose(self.store.platform())?.clone(),
            }
        }
        Err(ImageManifestError::Depth(limits.index_depth).into())
    }

    fn docker(
        &self,
        bytes: &[u8],
        files: &ArchiveFiles,
        lease: &mut ContentLease,
    ) -> Result<Vec<ImageRecord>, ArchiveError> {
        const FILE: &str = "manifest.json";
        let images: Vec<DockerImage> =
            serde_json::from_slice(bytes).map_err(|source| ArchiveError::Malformed { file: FILE, source })?;
        let find = |path: &str, media_type: &str| {
            let digest = files.get(path).ok_or_else(|| ArchiveError::Missing { file: FILE, path: excerpt(path) })?;
            let size = self.store.content().size(digest).ok_or(ContentError::Missing(digest))?;
            Ok::<_, ArchiveError>(Descriptor {
                media_type: media_type.into(),
                digest,
                size,
                platform: None,
                annotations: BTreeMap::new(),
            })
        };
        let mut loaded = vec![];
        for image in images.into_iter().take(IMAGES_MAX) {
            let layers = image.layers.unwrap_or_default();
            let layers = layers.iter().map(|path| find(path, OCI_LAYER)).collect::<Result<_, _>>()?;
            let manifest = ImageManifest { config: find(&image.config, OCI_CONFIG)?, layers };
            let json = manifest.to_json();
            // The bounds of a manifest hold for one that is made here, too.
            ManifestDocument::parse(&json, "", self.store.limits())?;
            lease.hold_blob(Digest::of(&json));
            let digest = self.store.content().write(&json)?;
            let mut names = BTreeMap::new();
            for tag in image.repo_tags.unwrap_or_default().iter().take(IMAGES_MAX) {
                names.insert(tag.parse::<ImageReference>().map_err(ArchiveError::Name)?, digest);
            }
            loaded.push(self.finish(digest, &manifest, names, lease)?);
        }
        if loaded.is_empty() { Err(ArchiveError::Empty) } else { Ok(loaded) }
    }

    /// Checks the configuration, unpacks the layers and makes the image visible.
    fn finish(
        &self,
        digest: Digest,
        manifest: &ImageManifest,
        names: BTreeMap<ImageReference, Digest>,
        lease: &mut ContentLease,
    ) -> Result<ImageRecord, ArchiveError> {
        const FILE: &str = "the manifest";
        let limits = self.store.limits();
        self.hold(&manifest.config, FILE, lease)?;
        let bytes = self.store.content().read(manifest.config.digest, limits.config_bytes)?;
        let configuration = ImageConfiguration::parse(&bytes, limits)?;
        configuration.check(manifest, self.store.platform())?;
        let layers = layer_records(manifest, &configuration);
        for chain in crate::chain::ChainId::of_layers(&configuration.rootfs.diff_ids) {
            lease.hold_layer(chain);
        }
        for (index, descriptor) in manifest.layers.iter().enumerate() {
            self.hold(descriptor, FILE, lease)?;
            self.store.unpack(&layers[..=index], self.cancelled)?;
        }
        Ok(self.store.add(NewImage { names, manifest: digest, id: manifest.config.digest, layers })?)
    }

    /// Keeps a blob of the archive that a document refers to.
    fn hold(&self, descriptor: &Descriptor, file: &'static str, lease: &mut ContentLease) -> Result<(), ArchiveError> {
        let (digest, expected) = (descriptor.digest, descriptor.size);
        lease.hold_blob(digest);
        match self.store.content().size(digest) {
            Some(actual) if actual == expected => Ok(()),
            Some(actual) => Err(ContentError::Size { digest, expected, actual }.into()),
            None => Err(ArchiveError::Missing { file, path: digest.to_string() }),
        }
    }
}

/// The name that an index gives to an image: containerd's annotation, or the OCI's, which may be a tag only.
fn image_name(descriptor: &Descriptor) -> Result<Option<ImageReference>, ArchiveError> {
    let name = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
    let text = name.iter().find_map(|key| descriptor.annotations.get(*key));
    // A bare tag names no repository: the image is then known by its id.
    let text = text.filter(|text| text.contains(['/', ':']));
    text.map(|text| text.parse().map_err(ArchiveError::Name)).transpose()
}

/// Images and names of one archive.
const IMAGES_MAX: usize = 1000;

#[cfg(test)]
mod tests;
