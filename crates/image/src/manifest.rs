//! The JSON documents of an image: index, manifest and configuration, in the OCI's and in Docker's form.
//!
//! ```text
//! index ──▶ manifest, one per platform ──▶ configuration (its digest is the image id) with the diffIDs of all layers
//!       └─▶ index (bounded depth)      └─▶ layers (compressed tars)
//! ```
//!
//! [`ManifestDocument::parse`] and [`ImageConfiguration::parse`] take bytes of any origin and are entry points for fuzzing.

mod bounded;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize};

use crate::digest::{Digest, excerpt};
use crate::limits::ImageLimits;
use crate::platform::Platform;

/// A reference by content to another document or layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// The kind of content.
    #[serde(default)]
    pub media_type: String,
    /// The digest of the content.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// Of a manifest in an index; `None` if the index does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Free text; archives hold the names of their images here.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// What a registry serves under a tag or digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestDocument {
    /// Manifests for several platforms.
    Index(ImageIndex),
    /// One image.
    Manifest(ImageManifest),
}

/// A list of manifests: an OCI index or Docker's manifest list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageIndex {
    /// In the order of preference.
    #[serde(deserialize_with = "null_is_default")]
    pub manifests: Vec<Descriptor>,
}

/// One image: its configuration and layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageManifest {
    /// The configuration; its digest is the image id.
    pub config: Descriptor,
    /// From the lowest to the topmost.
    #[serde(deserialize_with = "null_is_default")]
    pub layers: Vec<Descriptor>,
}

/// The configuration of an image: what its containers run, and the digests of its uncompressed layers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "ConfigurationFields")]
pub struct ImageConfiguration {
    /// What its programs run on.
    pub platform: Platform,
    /// Defaults for containers.
    pub config: ContainerDefaults,
    /// The file system.
    pub(crate) rootfs: RootFs,
}

/// The document as it is. `serde(flatten)` would keep a copy of the whole history in memory.
#[derive(Deserialize)]
struct ConfigurationFields {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    config: ContainerDefaults,
    rootfs: RootFs,
}

impl From<ConfigurationFields> for ImageConfiguration {
    fn from(fields: ConfigurationFields) -> Self {
        let ConfigurationFields { os, architecture, variant, config, rootfs } = fields;
        Self { platform: Platform { os, architecture, variant }, config, rootfs }
    }
}

/// The digests of the uncompressed layers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct RootFs {
    /// From the lowest to the topmost.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) diff_ids: Vec<Digest>,
}

/// Defaults of an image for its containers. Field names are Docker's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ContainerDefaults {
    /// User name or uid, with an optional `:group`. Empty: root.
    #[serde(deserialize_with = "null_is_default")]
    pub user: String,
    /// `NAME=value`.
    #[serde(deserialize_with = "bounded::list")]
    pub env: Vec<String>,
    /// In front of the command.
    #[serde(deserialize_with = "bounded::list")]
    pub entrypoint: Vec<String>,
    /// The command, or the arguments of the entrypoint.
    #[serde(deserialize_with = "bounded::list")]
    pub cmd: Vec<String>,
    /// Empty: `/`.
    #[serde(deserialize_with = "null_is_default")]
    pub working_dir: String,
    /// A name or number. Empty: SIGTERM.
    #[serde(deserialize_with = "null_is_default")]
    pub stop_signal: String,
    /// Labels of the image.
    #[serde(deserialize_with = "bounded::map")]
    pub labels: BTreeMap<String, String>,
    /// Paths that are volumes.
    #[serde(deserialize_with = "bounded::keys")]
    pub volumes: BTreeSet<String>,
}

/// Why a document can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageManifestError {
    /// The bytes are no JSON of the expected form.
    #[error("{what} is malformed")]
    Malformed {
        /// `manifest`, `image index` or `image configuration`.
        what: &'static str,
        /// The parser's message, with line and column.
        #[source]
        source: serde_json::Error,
    },
    /// More bytes than allowed.
    #[error("{what} has {size} bytes, more than {max}")]
    TooLarge {
        /// The kind of document.
        what: &'static str,
        /// Its length.
        size: u64,
        /// The bound.
        max: u64,
    },
    /// Neither an index nor a manifest.
    #[error("media type {0:?} is not an image manifest or index")]
    MediaType(String),
    /// Docker's first format, which has no digests of layers.
    #[error("the image has a schema 1 manifest, which is not supported: push it again with a newer tool")]
    SchemaOne,
    /// A layer that the registry does not serve.
    #[error("layer {digest} has media type {media_type:?}, a foreign layer, which is not supported")]
    ForeignLayer {
        /// The layer.
        digest: Digest,
        /// Its media type.
        media_type: String,
    },
    /// A layer in an unknown format.
    #[error("layer {digest} has the unsupported media type {media_type:?}")]
    LayerType {
        /// The layer.
        digest: Digest,
        /// Its media type.
        media_type: String,
    },
    /// The configuration is an artifact's, for example a Helm chart's.
    #[error("configuration media type {0:?}: this is an artifact, not a container image")]
    Artifact(String),
    /// Too many layers.
    #[error("the image has {count} layers, more than {max}")]
    LayerCount {
        /// Layers of the manifest.
        count: usize,
        /// The bound.
        max: usize,
    },
    /// A layer that is larger than allowed.
    #[error("layer {digest} has {size} bytes, more than {max}")]
    LayerSize {
        /// The layer.
        digest: Digest,
        /// As the manifest says.
        size: u64,
        /// The bound.
        max: u64,
    },
    /// Manifest and configuration disagree.
    #[error("the manifest has {layers} layers, the configuration {diff_ids} diffIDs (rootfs.diff_ids)")]
    DiffIdCount {
        /// Of the manifest.
        layers: usize,
        /// Of the configuration.
        diff_ids: usize,
    },
    /// Nothing in the index runs here.
    #[error("no image for platform {wanted}; there are {}", list(available))]
    NoPlatform {
        /// This node's.
        wanted: Platform,
        /// The image's.
        available: Vec<Platform>,
    },
    /// Indexes in indexes without end.
    #[error("image indexes are nested deeper than {0}")]
    Depth(u32),
}

impl ManifestDocument {
    /// Reads a manifest or an index. `media_type` is what the registry or the descriptor said; the document's own field wins.
    pub fn parse(bytes: &[u8], media_type: &str, limits: &ImageLimits) -> Result<Self, ImageManifestError> {
        check_size("manifest", bytes, limits.manifest_bytes)?;
        let malformed = |what| move |source| ImageManifestError::Malformed { what, source };
        let head: Head = serde_json::from_slice(bytes).map_err(malformed("manifest"))?;
        if head.schema_version == Some(1) || media_type.contains("docker.distribution.manifest.v1+") {
            return Err(ImageManifestError::SchemaOne);
        }
        let media_type = head.media_type.as_deref().filter(|kind| !kind.is_empty()).unwrap_or(media_type);
        // Both at once is a document that two tools would read differently (CVE-2021-41190).
        let (manifests, layers) = (head.manifests.is_some(), head.layers.is_some() || head.config.is_some());
        match media_type.split(';').next().unwrap_or_default().trim() {
            OCI_INDEX | DOCKER_LIST if !layers => {}
            OCI_MANIFEST | DOCKER_MANIFEST if !manifests => {}
            "" | "application/json" | "application/octet-stream" | "text/plain" if manifests != layers => {}
            other => return Err(ImageManifestError::MediaType(excerpt(other))),
        }
        if manifests {
            let index: ImageIndex = serde_json::from_slice(bytes).map_err(malformed("image index"))?;
            return Ok(Self::Index(index));
        }
        let manifest: ImageManifest = serde_json::from_slice(bytes).map_err(malformed("manifest"))?;
        manifest.check(limits)?;
        Ok(Self::Manifest(manifest))
    }
}

impl ImageIndex {
    /// The manifest or nested index for this host. Attestations (`unknown/unknown`) are never chosen.
    pub fn choose(&self, host: &Platform) -> Result<&Descriptor, ImageManifestError> {
        let unknown =
            |d: &&Descriptor| d.annotations.get(ATTESTATION).is_none_or(|kind| kind != "attestation-manifest");
        let candidates: Vec<&Descriptor> = self.manifests.iter().filter(unknown).collect();
        let rank = |d: &Descriptor| match &d.platform {
            Some(platform) => host.rank(platform),
            // Without a platform the configuration decides: the last choice.
            None => Some(0),
        };
        // The first of equals: the index is in the order of preference.
        let ranked = candidates.iter().rev().filter_map(|d| Some((rank(d)?, *d)));
        let no_platform = || ImageManifestError::NoPlatform {
            wanted: host.clone(),
            available: candidates.iter().filter_map(|d| d.platform.clone()).take(PLATFORMS_SHOWN_MAX).collect(),
        };
        ranked.max_by_key(|(rank, _)| *rank).map(|(_, d)| d).ok_or_else(no_platform)
    }
}

impl ImageManifest {
    /// The kinds, number and sizes of its parts.
    fn check(&self, limits: &ImageLimits) -> Result<(), ImageManifestError> {
        let config = &self.config;
        if config.size > limits.config_bytes {
            let (size, max) = (config.size, limits.config_bytes);
            return Err(ImageManifestError::TooLarge { what: "image configuration", size, max });
        }
        if !matches!(config.media_type.as_str(), "" | OCI_CONFIG | DOCKER_CONFIG | "application/octet-stream") {
            return Err(ImageManifestError::Artifact(excerpt(&config.media_type)));
        }
        if self.layers.len() > limits.layers {
            return Err(ImageManifestError::LayerCount { count: self.layers.len(), max: limits.layers });
        }
        for layer in &self.layers {
            let media_type = layer.media_type.as_str();
            if media_type.contains("foreign") || media_type.contains("nondistributable") {
                let media_type = excerpt(media_type);
                return Err(ImageManifestError::ForeignLayer { digest: layer.digest, media_type });
            }
            if !LAYER_TYPES.contains(&media_type) {
                return Err(ImageManifestError::LayerType { digest: layer.digest, media_type: excerpt(media_type) });
            }
            if layer.size > limits.layer_bytes {
                let (size, max) = (layer.size, limits.layer_bytes);
                return Err(ImageManifestError::LayerSize { digest: layer.digest, size, max });
            }
        }
        Ok(())
    }

    /// A manifest for a configuration and layers that came without one (docker-archive), as it is stored.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let value = serde_json::json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": self.config, "layers": self.layers,
        });
        value.to_string().into_bytes()
    }
}

impl ImageConfiguration {
    /// Reads an image configuration.
    pub fn parse(bytes: &[u8], limits: &ImageLimits) -> Result<Self, ImageManifestError> {
        const WHAT: &str = "image configuration";
        check_size(WHAT, bytes, limits.config_bytes)?;
        serde_json::from_slice(bytes).map_err(|source| ImageManifestError::Malformed { what: WHAT, source })
    }

    /// It runs on this host and fits its manifest.
    pub fn check(&self, manifest: &ImageManifest, host: &Platform) -> Result<(), ImageManifestError> {
        // Old tools leave the platform out; then the image is for the platform it was pulled for.
        let unnamed = self.platform.os.is_empty() && self.platform.architecture.is_empty();
        if !unnamed && host.rank(&self.platform).is_none() {
            let available = vec![self.platform.clone()];
            return Err(ImageManifestError::NoPlatform { wanted: host.clone(), available });
        }
        let (layers, diff_ids) = (manifest.layers.len(), self.rootfs.diff_ids.len());
        if layers != diff_ids { Err(ImageManifestError::DiffIdCount { layers, diff_ids }) } else { Ok(()) }
    }
}

/// The fields that decide what a document is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    #[serde(default)]
    schema_version: Option<u64>,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    manifests: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    layers: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    config: Option<serde::de::IgnoredAny>,
}

fn check_size(what: &'static str, bytes: &[u8], max: u64) -> Result<(), ImageManifestError> {
    let size = bytes.len() as u64;
    if size > max { Err(ImageManifestError::TooLarge { what, size, max }) } else { Ok(()) }
}

/// Go writes empty lists and maps as `null`.
fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn list(platforms: &[Platform]) -> String {
    match platforms {
        [] => "none".into(),
        some => some.iter().map(Platform::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Media types in the `Accept` header of requests for manifests.
pub(crate) const ACCEPTED: [&str; 4] = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST];
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const LAYER_TYPES: [&str; 7] = [
    OCI_LAYER,
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
    // Written by some versions of podman and buildah.
    "application/vnd.docker.image.rootfs.diff.tar+zstd",
];
/// BuildKit marks provenance documents in an index with this annotation.
const ATTESTATION: &str = "vnd.docker.reference.type";
/// Platforms in one error message.
const PLATFORMS_SHOWN_MAX: usize = 16;

#[cfg(test)]
mod tests;
