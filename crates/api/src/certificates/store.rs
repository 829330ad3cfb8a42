//! The files of a certificate, in the layout of the Go kubelet:
//!
//! ```text
//!  kubelet-client-2026-01-31-12-00-00.pem    certificates, then the key; mode 0600
//!  kubelet-client-current.pem                a symbolic link to the newest
//!  kubelet-client-updated.pem                the link before it is renamed to -current
//! ```
//!
//! Each step is durable before the next one: after a crash at any point `-current` names a complete file, or a lone `-updated` does.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use secrecy::ExposeSecret;

use super::CertificateKind;
use crate::certificate_pair::{CertificatePair, PairError};

/// The files of one certificate of the node.
#[derive(Clone, Debug)]
pub struct CertificateStore {
    dir: PathBuf,
    kind: CertificateKind,
    /// Files of certificate and key that are read while nothing was issued.
    configured: Option<(PathBuf, PathBuf)>,
}

/// Why files of a certificate cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CertificateFileError {
    /// A system call failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// The system call.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Its error.
        source: std::io::Error,
    },
    /// The content of a file cannot be used.
    #[error("{}: {source}", path.display())]
    Content {
        /// The file of the certificate.
        path: PathBuf,
        /// What is wrong with it.
        source: PairError,
    },
    /// A file is where a symbolic link belongs.
    #[error("{} is not a symbolic link: move it away", .0.display())]
    NotALink(PathBuf),
}

impl CertificateStore {
    /// In this directory. Nothing is read yet. `configured`: files of certificate and key to read while nothing was issued.
    pub fn new(dir: PathBuf, kind: CertificateKind, configured: Option<(PathBuf, PathBuf)>) -> Self {
        Self { dir, kind, configured }
    }

    /// The kind of certificate.
    pub fn kind(&self) -> CertificateKind {
        self.kind
    }

    /// The link to the newest file.
    pub fn current_path(&self) -> PathBuf {
        self.path("current")
    }

    /// The certificate to use at this time: of those that can be read, the first that has not expired. Logs the others.
    pub fn read(&self, now: Timestamp) -> Option<CertificatePair> {
        if let Err(error) = self.recover() {
            tracing::warn!(%error, "certificate files cannot be recovered");
        }
        let current = self.current_path();
        let plain = |end: &str| self.dir.join(format!("{}.{end}", self.kind.file_prefix()));
        let files = [Some((current.clone(), current)), self.configured.clone(), Some((plain("crt"), plain("key")))];
        let mut expired = None;
        for (certificate, key) in files.into_iter().flatten() {
            match read_pair(&certificate, &key) {
                Ok(pair) if !pair.facts().is_expired(now) => return Some(pair),
                Ok(pair) => {
                    tracing::warn!(path = %certificate.display(), not_after = %pair.facts().not_after, "certificate has expired");
                    expired = expired.or(Some(pair));
                }
                Err(CertificateFileError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(%error, "certificate cannot be used"),
            }
        }
        expired
    }

    /// Makes a certificate the current one.
    pub fn write(&self, pair: &CertificatePair, now: Timestamp) -> Result<(), CertificateFileError> {
        let failed = |source| CertificateFileError::Io { operation: "create", path: self.dir.clone(), source };
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.dir).map_err(failed)?;
        let (current, updated) = (self.current_path(), self.path("updated"));
        for link in [&current, &updated] {
            if fs::symlink_metadata(link).is_ok_and(|about| !about.is_symlink()) {
                return Err(CertificateFileError::NotALink(link.clone()));
            }
        }
        let path = self.path(&now.strftime("%Y-%m-%d-%H-%M-%S").to_string());
        // A file of this name may be the current one: it is replaced as a whole.
        let new = path.with_extension("pem.new");
        remove(&new)?;
        write_private(&new, pair.file_content().expose_secret())?;
        rename(&new, &path)?;
        sync_dir(&self.dir)?;
        remove(&updated)?;
        let target = std::path::absolute(&path).unwrap_or(path);
        let failed = |source| CertificateFileError::Io { operation: "link", path: updated.clone(), source };
        symlink(&target, &updated).map_err(failed)?;
        sync_dir(&self.dir)?;
        rename(&updated, &current)?;
        sync_dir(&self.dir)?;
        self.remove_old(&target);
        Ok(())
    }

    /// A crash may have left `-updated` alone.
    fn recover(&self) -> Result<(), CertificateFileError> {
        let (current, updated) = (self.current_path(), self.path("updated"));
        let is_link = fs::symlink_metadata(&updated).is_ok_and(|about| about.is_symlink());
        if !is_link || fs::metadata(&current).is_ok() {
            return Ok(());
        }
        rename(&updated, &current)?;
        tracing::info!(path = %current.display(), "interrupted rotation is completed");
        sync_dir(&self.dir)
    }

    /// The Go kubelet keeps all; short-lived certificates would fill the disk.
    fn remove_old(&self, current: &Path) {
        let prefix = format!("{}-", self.kind.file_prefix());
        let is_old = |name: &str| {
            let stamp = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".pem"));
            stamp.is_some_and(|stamp| {
                stamp.len() == STAMP_LENGTH && stamp.bytes().all(|b| b.is_ascii_digit() || b == b'-')
            })
        };
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut old: Vec<String> = names.filter(|name| is_old(name)).collect();
        old.sort();
        let surplus = old.len().saturating_sub(KEPT);
        for path in old.into_iter().take(surplus).map(|name| self.dir.join(name)).filter(|path| path != current) {
            if let Err(error) = remove(&path) {
                tracing::debug!(%error, "old certificate stays");
            }
        }
    }

    fn path(&self, part: &str) -> PathBuf {
        self.dir.join(format!("{}-{part}.pem", self.kind.file_prefix()))
    }
}

/// A certificate and its key from files, which may be the same.
pub(crate) fn read_pair(certificate: &Path, key: &Path) -> Result<CertificatePair, CertificateFileError> {
    let (certificates, keys) = (read(certificate)?, read(key)?);
    CertificatePair::parse(&certificates, &keys)
        .map_err(|source| CertificateFileError::Content { path: certificate.to_owned(), source })
}

fn read(path: &Path) -> Result<Vec<u8>, CertificateFileError> {
    let failed = |source| CertificateFileError::Io { operation: "read", path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(FILE_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Creates a file that only its owner can read, and waits until it is on the disk.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<(), CertificateFileError> {
    let failed = |source| CertificateFileError::Io { operation: "write", path: path.to_owned(), source };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(content.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), CertificateFileError> {
    fs::rename(from, to).map_err(|source| CertificateFileError::Io {
        operation: "rename",
        path: from.to_owned(),
        source,
    })
}

/// A file that does not exist is removed.
pub(crate) fn remove(path: &Path) -> Result<(), CertificateFileError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(CertificateFileError::Io { operation: "remove", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

pub(crate) fn sync_dir(path: &Path) -> Result<(), CertificateFileError> {
    let failed = |source| CertificateFileError::Io { operation: "sync", path: path.to_owned(), source };
    File::open(path).and_then(|dir| dir.sync_all()).map_err(failed)
}

/// Real files have a few kilobytes.
const FILE_MAX: u64 = 1 << 20;
/// `2026-01-31-12-00-00`
const STAMP_LENGTH: usize = 19;
/// Files of former certificates that stay, the current one included.
const KEPT: usize = 5;

#[cfg(test)]
mod tests;
