//! Binds a unix socket that is never accessible to others, not even between bind and chmod, and that replaces only the socket of
//! a server that has exited.

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
    /// Another server accepts connections on it.
    #[error("{path}: another server listens on it")]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// The path exists and is not a socket; it is not replaced.
    #[error("{path}: exists and is not a socket")]
    NotASocket {
        /// The existing file.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("bind {path}")]
    Io {
        /// The socket's path.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
}

/// The file of a bound socket; dropping it removes the file unless another file has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
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

/// Binds inside a directory of mode 0700 and renames the socket to `path`: the rename also replaces the socket of a server that
/// has exited.
pub(super) fn bind(path: &Path) -> Result<(UnixListener, SocketFile), BindError> {
    check_replaceable(path)?;
    let bound = PrivateDir::next_to(path).and_then(|dir| {
        let temporary = dir.0.join("s");
        let listener = UnixListener::bind(&temporary)?;
        fs::set_permissions(&temporary, Permissions::from_mode(0o600))?;
        let meta = fs::symlink_metadata(&temporary)?;
        fs::rename(&temporary, path)?;
        Ok((listener, SocketFile { path: path.to_owned(), identity: (meta.dev(), meta.ino()) }))
    });
    bound.map_err(|source| BindError::Io { path: path.to_owned(), source })
}

/// Fails if `path` is the socket of a running server, or not a socket.
fn check_replaceable(path: &Path) -> Result<(), BindError> {
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

/// The private directory in which a socket is bound. Its name is short, because the path of a socket is limited to 107 bytes.
struct PrivateDir(PathBuf);

impl PrivateDir {
    fn next_to(path: &Path) -> io::Result<Self> {
        let parent = path.parent().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let number = BINDS.fetch_add(1, Ordering::Relaxed);
        let directory = parent.join(format!(".{:x}.{number:x}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&directory) {
            // Left by a process with the same PID that crashed here; remove_dir fails if it has other contents.
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

impl Drop for PrivateDir {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0.join("s"));
        let _ = fs::remove_dir(&self.0);
    }
}

/// Distinguishes the directories of concurrent binds in one process.
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
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "the private directory is removed");
        drop(bound);
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 0);
    }

    #[tokio::test]
    async fn the_socket_of_an_exited_server_is_replaced_and_a_file_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("cri.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket to be left behind"));
        let (_listener, file) = bind(&path).expect("replaced");

        // Dropping a SocketFile whose file was replaced does not remove the new file.
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "mine").expect("written");
        drop(file);
        assert!(matches!(bind(&path), Err(BindError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).expect("still there"), "mine");
    }
}
