//! The configuration of a CNI network with Debian's plugins: a bridge with the name and the subnet of the instance.
//!
//! ```text
//! cni/                       configurations
//! cni-leases/<name>/         addresses in use
//! ```

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::scratch::Scratch;

/// The network of an instance.
#[derive(Clone, Debug)]
pub struct CniConfig {
    scratch: Scratch,
    /// Directory of configurations, without any at first.
    pub conf_dir: PathBuf,
    /// Directory of the plugins.
    pub bin_dir: PathBuf,
}

impl CniConfig {
    /// Makes the directory of configurations.
    pub fn new(scratch: &Scratch) -> Result<Self> {
        scratch.uses_cni_plugins()?;
        Ok(Self { scratch: scratch.clone(), conf_dir: scratch.dir("cni")?, bin_dir: Cache::find().cni_plugins()? })
    }

    /// Writes the configuration; `more` are plugins behind the bridge.
    pub fn write(&self, more: &[Value]) -> Result<()> {
        let (name, leases) = (self.scratch.name(), self.scratch.dir("cni-leases")?);
        let ipam = json!({"type": "host-local", "ranges": [[{"subnet": self.scratch.subnet()}]], "dataDir": leases});
        let bridge = json!({"type": "bridge", "bridge": name, "isGateway": true, "ipam": ipam});
        let plugins: Vec<_> = [bridge].into_iter().chain(more.iter().cloned()).collect();
        let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": plugins});
        Ok(fs::write(self.conf_dir.join("10-bridge.conflist"), list.to_string())?)
    }

    /// The addresses in use.
    pub fn leases(&self) -> Vec<IpAddr> {
        let dir = self.scratch.path().join("cni-leases").join(self.scratch.name());
        let files = fs::read_dir(dir).into_iter().flatten().flatten();
        // The cursor and the lock are no addresses.
        files.filter_map(|file| file.file_name().to_str()?.parse().ok()).collect()
    }
}
