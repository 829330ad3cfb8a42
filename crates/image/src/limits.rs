//! Bounds on what a registry, an archive or a layer may make this node do.

/// Bounds that hold for every image. The defaults are far above what real images need.
#[derive(Clone, Debug)]
pub struct ImageLimits {
    /// Bytes of a manifest or an index. Registries accept 4 MiB (`distribution`: `maxManifestBodySize`).
    pub manifest_bytes: u64,
    /// Bytes of an image configuration.
    pub config_bytes: u64,
    /// Layers of one image.
    pub layers: usize,
    /// Indexes inside of indexes.
    pub index_depth: u32,
    /// Bytes of one layer, compressed or not.
    pub layer_bytes: u64,
    /// Entries of one layer's tar.
    pub layer_entries: u64,
    /// Bytes of an archive that is loaded, uncompressed.
    pub archive_bytes: u64,
    /// Files of an archive that is loaded.
    pub archive_entries: u64,
    /// Bytes that stay free on the disk; on a small disk 5 % of it, if that is less.
    pub disk_reserve_bytes: u64,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self {
            manifest_bytes: 4 << 20,
            config_bytes: 8 << 20,
            layers: 256,
            index_depth: 2,
            layer_bytes: 50 << 30,
            layer_entries: 4_000_000,
            archive_bytes: 100 << 30,
            archive_entries: 20_000,
            disk_reserve_bytes: 1 << 30,
        }
    }
}
