//! Names and ranges of the builtin network. The ranges of a node may come later than its engine, from its Node object.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use ipnet::IpNet;

use crate::model::NetworkError;

/// Names and ranges of the builtin network. Two instances on one node need different ones.
#[derive(Clone, Debug)]
pub struct BridgeSettings {
    /// Name of the bridge, at most 15 bytes.
    pub bridge: String,
    /// Name of the nf_tables table of family inet.
    pub table: String,
    /// At most one range per family; the first one is that of the primary address. Empty: not known yet, and no pod can be connected.
    pub ranges: Vec<IpNet>,
    /// Where ranges are kept that replace these ([`crate::Network::set_ranges`]). `None`: they can not be replaced.
    pub ranges_file: Option<PathBuf>,
    /// `None`: that of the link with the default route.
    pub mtu: Option<u32>,
    /// Directory of the address leases.
    pub leases: PathBuf,
}

impl BridgeSettings {
    pub(crate) fn validate(&self) -> Result<(), NetworkError> {
        let invalid = |text: String| Err(NetworkError::Invalid(text));
        let plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        if self.bridge.is_empty() || self.bridge.len() > 15 || !plain(&self.bridge) {
            return invalid(format!(
                "{:?} is not a valid name of a bridge: up to 15 letters, digits, - and _",
                self.bridge
            ));
        }
        if self.table.is_empty() || self.table.len() > 64 || !plain(&self.table) {
            return invalid(format!(
                "{:?} is not a valid name of a table: up to 64 letters, digits, - and _",
                self.table
            ));
        }
        if self.ranges.is_empty() && self.ranges_file.is_some() {
            return Ok(());
        }
        validate_ranges(&self.ranges)
    }
}

/// One range, or one of each family, with addresses for pods.
pub(crate) fn validate_ranges(ranges: &[IpNet]) -> Result<(), NetworkError> {
    let invalid = |text: String| Err(NetworkError::Invalid(text));
    let v4 = ranges.iter().filter(|range| range.addr().is_ipv4()).count();
    if ranges.is_empty() || v4 > 1 || ranges.len() - v4 > 1 {
        return invalid("the pod network needs one address range, or one of each family".to_owned());
    }
    match ranges.iter().find(|range| range.max_prefix_len() - range.prefix_len() < 2) {
        Some(range) => invalid(format!("the range {range} has no addresses for pods")),
        None => Ok(()),
    }
}

/// The ranges that are in use, and where those are kept that came later.
#[derive(Debug)]
pub(crate) struct PodRanges {
    current: RwLock<Vec<IpNet>>,
    file: Option<PathBuf>,
}

impl PodRanges {
    /// Those of the file, else the given ones. A file with other content is ignored: it is written again.
    pub(crate) fn open(given: &[IpNet], file: Option<PathBuf>) -> Self {
        let text = file.as_ref().and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        let kept: Result<Vec<IpNet>, _> = text.trim().split(',').map(str::parse::<IpNet>).collect();
        let kept = kept.ok().filter(|ranges| validate_ranges(ranges).is_ok());
        let ranges = kept.unwrap_or_else(|| given.to_vec()).iter().map(IpNet::trunc).collect();
        Self { current: RwLock::new(ranges), file }
    }

    pub(crate) fn get(&self) -> Vec<IpNet> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces them, on disk first.
    pub(crate) fn replace(&self, ranges: &[IpNet]) -> io::Result<()> {
        let file = self.file.as_ref().ok_or_else(|| io::Error::other("the ranges are configured"))?;
        let text = ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        write_file(file, &text)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = ranges.to_vec();
        Ok(())
    }
}

fn write_file(path: &Path, text: &str) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let temporary = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}
