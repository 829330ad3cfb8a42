//! Writes images to a stream: an OCI archive that is a docker-archive too, as docker has written it since version 25.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};

use serde_json::{Value, json};

use super::ArchiveError;
use crate::content::{ContentError, ContentStore};
use crate::digest::{ContentHasher, Digest};
use crate::images::ImageRecord;
use crate::manifest::{OCI_INDEX, OCI_MANIFEST};
use crate::store::ImageStore;

impl ImageStore {
    /// Writes images with all their tags. Every blob is verified while it is sent. Blocks.
    ///
    /// An image may lack a blob of a layer that another image brought from another blob ([`ContentError::Missing`]):
    /// [`crate::Puller::pull_complete`] gets it.
    pub fn save(&self, images: &[ImageRecord], archive: impl Write) -> Result<(), ArchiveError> {
        // An image that is removed meanwhile is still saved whole.
        let mut lease = self.lease();
        images.iter().flat_map(ImageRecord::blobs).for_each(|blob| lease.hold_blob(blob));
        let mut tar = tar::Builder::new(archive);
        append(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        let mut written = BTreeSet::new();
        let (mut entries, mut docker) = (vec![], vec![]);
        for image in images {
            for digest in [image.id, image.manifest].into_iter().chain(image.layers.iter().map(|layer| layer.blob)) {
                if written.insert(digest) {
                    append_blob(self.content(), &mut tar, digest)?;
                }
            }
            entries.extend(index_entries(self.content(), image)?);
            docker.push(docker_entry(image));
        }
        let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries});
        append(&mut tar, "index.json", index.to_string().as_bytes())?;
        append(&mut tar, "manifest.json", Value::from(docker).to_string().as_bytes())?;
        tar.into_inner().and_then(|mut archive| archive.flush()).map_err(ArchiveError::Write)
    }
}

fn index_entries(content: &ContentStore, image: &ImageRecord) -> Result<Vec<Value>, ArchiveError> {
    let size = content.size(image.manifest).ok_or(ContentError::Missing(image.manifest))?;
    let entry = json!({"mediaType": OCI_MANIFEST, "digest": image.manifest, "size": size});
    let named = |name: String, tag: &str| {
        let mut entry = entry.clone();
        entry["annotations"] = json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag});
        entry
    };
    let tags: Vec<Value> = image.tags().map(|name| named(name.to_string(), name.tag().unwrap_or_default())).collect();
    Ok(if tags.is_empty() { vec![entry] } else { tags })
}

fn append_blob(content: &ContentStore, tar: &mut tar::Builder<impl Write>, digest: Digest) -> Result<(), ArchiveError> {
    let size = content.size(digest).ok_or(ContentError::Missing(digest))?;
    let blob = Verified { source: content.open_blob(digest)?.take(size), hasher: ContentHasher::default(), digest };
    let mut header = header(size);
    let path = blob_path(digest);
    tar.append_data(&mut header, path, blob).map_err(ArchiveError::Write)
}

fn docker_entry(image: &ImageRecord) -> Value {
    let tags: Vec<String> = image.tags().map(ToString::to_string).collect();
    let layers: Vec<String> = image.layers.iter().map(|layer| blob_path(layer.blob)).collect();
    json!({"Config": blob_path(image.id), "RepoTags": tags, "Layers": layers})
}

fn blob_path(digest: Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn append(tar: &mut tar::Builder<impl Write>, path: &str, content: &[u8]) -> Result<(), ArchiveError> {
    tar.append_data(&mut header(content.len() as u64), path, content).map_err(ArchiveError::Write)
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Fails at its end if the content is damaged, so that no damaged archive is taken for a good one.
struct Verified<R> {
    source: R,
    hasher: ContentHasher,
    digest: Digest,
}

impl<R: Read> Read for Verified<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        if count == 0 && !buffer.is_empty() && self.hasher.clone().finish() != self.digest {
            return Err(io::Error::other(format!("content {} is damaged in the store", self.digest)));
        }
        Ok(count)
    }
}
