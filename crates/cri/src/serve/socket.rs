//! A unix socket that is never open to others, not even between its birth and its chmod, and that is taken over from the
//! dead only.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use tokio::net::UnixListener;

/// Why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another server answers there.
    #[error("{path}: another server listens on it")]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else lies there; it is left alone.
    #[error("{path}: is there and is not a socket")]
    NotASocket {
        /// What is in the way.
        path: PathBuf,
    },
    /// The system refused.
    #[error("bind {path}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The file of a bound socket; removed when this goes, unless another has taken its place.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Binds inside a directory of mode 0700 and renames the finished socket into place: the rename also replaces what a
/// dead server left.
pub(super) fn bind(path: &Path) -> Result<(UnixListener, SocketFile), BindError> {
    refuse_the_living(path)?;
    let bound = Nursery::beside(path).and_then(|nursery| {
        let born = nursery.0.join("s");
        let listener = UnixListener::bind(&born)?;
        fs::set_permissions(&born, Permissions::from_mode(0o600))?;
        let meta = fs::symlink_metadata(&born)?;
        fs::rename(&born, path)?;
        Ok((listener, SocketFile { path: path.to_owned(), identity: (meta.dev(), meta.ino()) }))
    });
    bound.map_err(|source| BindError::Io { path: path.to_owned(), source })
}

fn refuse_the_living(path: &Path) -> Result<(), BindError> {
    let path = path.to_owned();
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(BindError::Io { path, source }),
        Ok(meta) if !meta.file_type().is_socket() => Err(BindError::NotASocket { path }),
        Ok(_) => match UnixStream::connect(&path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(source) => Err(BindError::Io { path, source }),
            Ok(_) => Err(BindError::InUse { path }),
        },
    }
}

/// The private directory a socket is born in. Its name is short, since a socket's path is.
struct Nursery(PathBuf);

impl Nursery {
    fn beside(path: &Path) -> io::Result<Self> {
        let parent = path.parent().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let turn = BINDS.fetch_add(1, Ordering::Relaxed);
        let directory = parent.join(format!(".{:x}.{turn:x}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&directory) {
            // Left by a process of the same number that died in here; remove_dir refuses if it is anything more.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let _ = fs::remove_file(directory.join("s"));
                fs::remove_dir(&directory)?;
                DirBuilder::new().mode(0o700).create(&directory)?;
            }
            created => created?,
        }
        Ok(Self(directory))
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0.join("s"));
        let _ = fs::remove_dir(&self.0);
    }
}

/// Keeps the binds of one process out of each other's nursery.
static BINDS: AtomicU32 = AtomicU32::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_private_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("cri.sock");
        let bound = bind(&path).expect("bound");
        let mode = fs::symlink_metadata(&path).expect("there").mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(bind(&path), Err(BindError::InUse { .. })));
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "the nursery is gone");
        drop(bound);
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 0);
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_file_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("cri.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket to be left behind"));
        let (_listener, file) = bind(&path).expect("taken over");

        // One who lost the place does not remove its successor's socket.
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "mine").expect("written");
        drop(file);
        assert!(matches!(bind(&path), Err(BindError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).expect("still there"), "mine");
    }
}
