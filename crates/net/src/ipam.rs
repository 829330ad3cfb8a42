//! Addresses of pods: one file per address, in the layout of CNI's `host-local`, so that both can take over from each other.
//!
//! ```text
//! <dir>/10.244.0.7            "<sandbox id>\r\neth0"
//! <dir>/last_reserved_ip.0    the last address given of the first range
//! <dir>/lock                  flock: one change at a time
//! ```
//! The next address is searched from the last one given, so that a freed one is not used again at once: peers may still have it in
//! their caches.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use rustix::fs::{FlockOperation, OFlags, flock};

/// The interface in every pod; `host-local` records it with the owner.
pub(crate) const POD_INTERFACE: &str = "eth0";
/// A lease holds an id and an interface name; longer files are not ours.
const LEASE_LEN_MAX: u64 = 1024;

/// Why an address could not be reserved or freed.
#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    /// Every address of the range is taken.
    #[error("no free address in {range}: all {taken} are taken; stop pods or give a larger range")]
    Exhausted {
        /// The range.
        range: IpNet,
        /// How many addresses are reserved.
        taken: usize,
    },
    /// A lease could not be read or written.
    #[error("address leases in {dir}")]
    Io {
        /// The directory of leases.
        dir: PathBuf,
        /// The system call's error.
        #[source]
        source: io::Error,
    },
}

/// A reserved address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Lease {
    pub(crate) address: IpAddr,
    /// Empty if the file was never completed.
    pub(crate) owner: String,
}

/// The directory of leases of one network.
#[derive(Debug)]
pub(crate) struct Ipam {
    dir: PathBuf,
}

impl Ipam {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Ipam { dir }
    }

    /// Reserves the next free address of each range for a sandbox, all or none.
    pub(crate) fn reserve(&self, owner: &str, ranges: &[IpNet]) -> Result<Vec<IpAddr>, IpamError> {
        let _lock = self.lock()?;
        let taken = self.leases()?.into_iter().map(|lease| lease.address).collect();
        let mut reserved = vec![];
        for (position, range) in ranges.iter().enumerate() {
            match self.reserve_one(owner, position, *range, &taken) {
                Ok(address) => reserved.push(address),
                Err(e) => {
                    reserved.iter().for_each(|address: &IpAddr| drop(fs::remove_file(self.path(*address))));
                    return Err(e);
                }
            }
        }
        Ok(reserved)
    }

    fn reserve_one(
        &self,
        owner: &str,
        position: usize,
        range: IpNet,
        taken: &BTreeSet<IpAddr>,
    ) -> Result<IpAddr, IpamError> {
        let last_file = self.dir.join(format!("last_reserved_ip.{position}"));
        let last = fs::read_to_string(&last_file).ok().and_then(|text| text.trim().parse().ok());
        let mut candidate = last.filter(|last| range.contains(last)).unwrap_or_else(|| gateway(range));
        // More steps than there are files in the way: a free one is found, or the range is exhausted.
        let files = fs::read_dir(&self.dir).map_err(|e| self.error(e))?.count();
        for _ in 0..=files + UNUSABLE {
            candidate = next_in(range, candidate);
            if candidate == gateway(range) || !is_host(range, candidate) || taken.contains(&candidate) {
                continue;
            }
            match self.create(candidate, owner) {
                // Not a lease, but in the way: a directory, or a file of another program.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(self.error(e)),
                Ok(()) => {}
            }
            if let Err(e) = fs::write(&last_file, candidate.to_string()) {
                let _ = fs::remove_file(self.path(candidate));
                return Err(self.error(e));
            }
            return Ok(candidate);
        }
        let taken = taken.iter().filter(|address| range.contains(*address)).count();
        Err(IpamError::Exhausted { range, taken })
    }

    fn create(&self, address: IpAddr, owner: &str) -> io::Result<()> {
        let path = self.path(address);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(format!("{owner}\r\n{POD_INTERFACE}").as_bytes()).inspect_err(|_| drop(fs::remove_file(&path)))
    }

    /// All leases. Files whose name is no address in its usual form, directories and links are ignored.
    pub(crate) fn leases(&self) -> Result<Vec<Lease>, IpamError> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            Err(e) => return Err(self.error(e)),
        };
        let mut leases = vec![];
        for entry in entries {
            let entry = entry.map_err(|e| self.error(e))?;
            let name = entry.file_name();
            let Some(address) = name.to_str().and_then(lease_address) else { continue };
            if let Some(owner) = read_owner(&entry.path()) {
                leases.push(Lease { address, owner });
            }
        }
        leases.sort_by_key(|lease| lease.address);
        Ok(leases)
    }

    /// The addresses of a sandbox.
    pub(crate) fn addresses_of(&self, owner: &str) -> Result<Vec<IpAddr>, IpamError> {
        Ok(self.leases()?.into_iter().filter(|lease| lease.owner == owner).map(|lease| lease.address).collect())
    }

    /// Frees all addresses of a sandbox and returns how many.
    pub(crate) fn release(&self, owner: &str) -> Result<usize, IpamError> {
        let _lock = self.lock()?;
        let addresses = self.addresses_of(owner)?;
        for address in &addresses {
            match fs::remove_file(self.path(*address)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(self.error(e)),
                _ => {}
            }
        }
        Ok(addresses.len())
    }

    fn path(&self, address: IpAddr) -> PathBuf {
        self.dir.join(address.to_string())
    }

    fn lock(&self) -> Result<File, IpamError> {
        let lock = || -> io::Result<File> {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.dir)?;
            let flags = OFlags::NOFOLLOW.bits().cast_signed();
            let mut options = OpenOptions::new();
            let file = options
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(flags)
                .open(self.dir.join("lock"))?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        };
        lock().map_err(|e| self.error(e))
    }

    fn error(&self, source: io::Error) -> IpamError {
        IpamError::Io { dir: self.dir.clone(), source }
    }
}

/// Addresses of a range that no pod gets: network, gateway, broadcast.
const UNUSABLE: usize = 3;

/// The node's address in a range: the first one.
pub(crate) fn gateway(range: IpNet) -> IpAddr {
    next_in(range, range.network())
}

/// An address is a lease's name only in the form in which it is written.
fn lease_address(name: &str) -> Option<IpAddr> {
    name.parse().ok().filter(|address: &IpAddr| address.to_string() == name)
}

/// `None` if it is no regular file.
fn read_owner(path: &Path) -> Option<String> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().ok().filter(fs::Metadata::is_file)?;
    let mut bytes = vec![];
    file.take(LEASE_LEN_MAX).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Whether an interface can have the address: IPv4 reserves the first and the last one, IPv6 the first.
fn is_host(range: IpNet, address: IpAddr) -> bool {
    address != range.network() && (address.is_ipv6() || address != range.broadcast())
}

/// The address after `address`; the range's first after its last.
fn next_in(range: IpNet, address: IpAddr) -> IpAddr {
    if address >= range.broadcast() {
        return range.network();
    }
    match address {
        IpAddr::V4(v4) => (u32::from(v4) + 1).to_be_bytes().into(),
        IpAddr::V6(v6) => (u128::from(v6) + 1).to_be_bytes().into(),
    }
}

#[cfg(test)]
mod tests;
