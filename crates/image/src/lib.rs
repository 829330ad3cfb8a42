//! Container images: references, registries, archives, the content store, and layers unpacked for overlayfs.
//!
//! ```text
//!  registry ─▶ pull ─┐                                                  ┌─▶ lower directories for overlayfs
//!                    ├─▶ ImageStore: content (blobs) · layers · images ─┤
//!  archive ─▶ load ──┘   garbage collection by reference                └─▶ save
//! ```
//!
//! Everything that comes in is hostile: sizes, depths and times have bounds ([`ImageLimits`]), digests are verified before
//! anything becomes visible, and a layer cannot write outside of its directory.

mod archive;
mod chain;
mod compression;
mod content;
mod digest;
mod disk;
mod durable;
mod flights;
mod images;
mod layers;
mod leases;
mod limits;
mod manifest;
mod platform;
mod progress;
mod pull;
mod reference;
mod registry;
mod store;
mod tar_reader;
mod unpack;

pub use archive::ArchiveError;
pub use chain::ChainId;
pub use content::{ContentError, ContentStore};
pub use digest::{Digest, DigestError};
pub use disk::DiskError;
pub use durable::DurableFileError;
pub use images::{ImageRecord, LayerRecord};
pub use layers::LayerError;
pub use leases::ContentLease;
pub use limits::ImageLimits;
pub use manifest::{
    ContainerDefaults, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, ImageManifestError, ManifestDocument,
};
pub use platform::Platform;
pub use progress::{LayerProgress, ProgressSnapshot};
pub use pull::{PullError, PullErrorKind, Puller};
pub use reference::{ImageReference, ReferenceError, Version};
pub use registry::{
    HostsTomlError, RegistryCredentials, RegistryError, RegistryHost, RegistryOptions, parse_hosts_toml,
};
pub use store::{GcReport, GcRoots, ImageStore, ImageStoreError, StoreUsage};
pub use tar_reader::{TarEntry, TarError, TarKind, TarReader};
pub use unpack::UnpackError;

#[cfg(test)]
mod tests;
