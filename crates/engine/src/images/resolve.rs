//! From a reference to what a container is created from.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use podwright_image::{ChainId, ContainerDefaults, ContentLease, ImageStore, ImageStoreError};

/// An image that a container can be created from.
///
/// Keep it until the record of the container is written: until then only its lease protects the layers from garbage collection.
#[derive(Debug)]
pub struct ResolvedImage {
    /// `sha256:<digest of the configuration>`: `Container.image_id`, `Container.image_ref` and `ContainerStatus.image_id`.
    pub id: String,
    /// The first name with a digest, else the id: `ContainerStatus.image_ref`.
    pub image_ref: String,
    /// The first name with a tag; `None` if it has none: `ContainerStatus.image`.
    pub tag: Option<String>,
    /// What the image says about the process.
    pub defaults: ContainerDefaults,
    /// The directories of the unpacked layers, the topmost first, as overlayfs wants them.
    pub lower_dirs: Vec<PathBuf>,
    /// The same layers by chain id, the lowest first: for `GcRoots::container_layers`.
    pub chain: Vec<ChainId>,
    /// Holds the layers while it exists.
    pub lease: ContentLease,
}

/// Finds an image by name, id or unique beginning of an id, and unpacks layers that a power loss has removed. Blocks.
pub fn resolve_image(store: &Arc<ImageStore>, reference: &str) -> Result<ResolvedImage, ImageStoreError> {
    // Held before it is looked up again: garbage collection sees the lease, or has removed the image before.
    let find = || store.find(reference)?.ok_or_else(|| ImageStoreError::NoImage(reference.to_owned()));
    let mut lease = store.lease();
    let image = loop {
        let found = find()?;
        lease.hold_blob(found.id);
        found.chain().into_iter().for_each(|chain| lease.hold_layer(chain));
        if find()?.chain() == found.chain() {
            break found;
        }
    };
    store.ensure_unpacked(&image, &AtomicBool::new(false))?;
    let id = image.id.to_string();
    Ok(ResolvedImage {
        image_ref: image.repo_digests().next().map_or_else(|| id.clone(), ToString::to_string),
        tag: image.tags().next().map(ToString::to_string),
        defaults: store.configuration(&image)?.config,
        lower_dirs: store.lower_dirs(&image)?,
        chain: image.chain(),
        id,
        lease,
    })
}
