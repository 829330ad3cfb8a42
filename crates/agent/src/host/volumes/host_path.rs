//! hostPath: a path of the node. Nothing is created except with the types `…OrCreate`.

use std::fs::{self, DirBuilder, FileType, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path};

use super::HostPathError;

/// Checks the type of the path, or creates it with `…OrCreate`.
pub(super) fn check(path: &Path, kind: Option<&str>) -> Result<(), HostPathError> {
    if !path.is_absolute() || path.components().any(|c| c == Component::ParentDir) {
        return Err(HostPathError::NotAbsolute(path.into()));
    }
    let (matches, expected): (fn(&FileType) -> bool, _) = match kind.unwrap_or_default() {
        "" => return Ok(()),
        "DirectoryOrCreate" | "Directory" => (FileType::is_dir, "directory"),
        "FileOrCreate" | "File" => (FileType::is_file, "file"),
        "Socket" => (FileTypeExt::is_socket, "socket file"),
        "CharDevice" => (FileTypeExt::is_char_device, "character device"),
        "BlockDevice" => (FileTypeExt::is_block_device, "block device"),
        other => return Err(HostPathError::UnknownType(other.into())),
    };
    match fs::metadata(path) {
        Ok(found) if matches(&found.file_type()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound && kind.is_some_and(|k| k.ends_with("OrCreate")) => {
            create(path, expected == "directory").map_err(|source| HostPathError::Create { path: path.into(), source })
        }
        Ok(_) => Err(HostPathError::WrongType { path: path.into(), expected }),
        Err(source) => Err(HostPathError::Check { path: path.into(), expected, source }),
    }
}

/// Checks the type of an opened path: since [`check`], the path may have been replaced.
pub(super) fn check_opened(opened: impl AsFd, path: &Path, kind: Option<&str>) -> Result<(), HostPathError> {
    use rustix::fs::FileType;
    let (wanted, expected) = match kind.unwrap_or_default() {
        "DirectoryOrCreate" | "Directory" => (FileType::Directory, "directory"),
        "FileOrCreate" | "File" => (FileType::RegularFile, "file"),
        "Socket" => (FileType::Socket, "socket file"),
        "CharDevice" => (FileType::CharacterDevice, "character device"),
        "BlockDevice" => (FileType::BlockDevice, "block device"),
        _ => return Ok(()),
    };
    let found = rustix::fs::fstat(opened);
    let found = found.map_err(|error| HostPathError::Check { path: path.into(), expected, source: error.into() })?;
    match FileType::from_raw_mode(found.st_mode) == wanted {
        true => Ok(()),
        false => Err(HostPathError::WrongType { path: path.into(), expected }),
    }
}

/// As the Go kubelet does: a directory is created with its parents, a file only in an existing directory.
fn create(path: &Path, directory: bool) -> io::Result<()> {
    if directory {
        return DirBuilder::new().recursive(true).mode(0o755).create(path);
    }
    OpenOptions::new().write(true).create_new(true).mode(0o644).open(path).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    #[test]
    fn every_type_accepts_only_paths_of_its_type() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("directory")).unwrap();
        fs::write(at("file"), "").unwrap();
        symlink("directory", at("link")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let block = rustix::fs::makedev(7, 200);
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, at("block"), rustix::fs::FileType::BlockDevice, mode, block).unwrap();
        let things = [
            (at("directory"), "Directory"),
            (at("link"), "Directory"),
            (at("file"), "File"),
            (at("socket"), "Socket"),
            ("/dev/null".into(), "CharDevice"),
            (at("block"), "BlockDevice"),
        ];
        for (path, right) in &things {
            for kind in ["Directory", "File", "Socket", "CharDevice", "BlockDevice"] {
                assert_eq!(check(path, Some(kind)).is_ok(), kind == *right, "{path:?} {kind}");
            }
            check(path, None).unwrap();
        }
        for kind in ["Directory", "File", "Socket", "CharDevice", "BlockDevice"] {
            let error = check(&at("none"), Some(kind)).unwrap_err();
            assert!(error.to_string().contains("hostPath type check failed"), "{error}");
        }
        check(&at("none"), Some("")).unwrap();
        assert!(!at("none").exists());
    }

    #[test]
    fn or_create_creates_a_missing_path() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        check(&at("a/b"), Some("DirectoryOrCreate")).unwrap();
        check(&at("a/b"), Some("DirectoryOrCreate")).unwrap();
        assert!(at("a/b").is_dir());
        check(&at("a/file"), Some("FileOrCreate")).unwrap();
        assert!(at("a/file").is_file());
        assert!(check(&at("x/file"), Some("FileOrCreate")).is_err());
        assert!(check(&at("a/file"), Some("DirectoryOrCreate")).is_err());
        assert!(check(&at("a/b"), Some("FileOrCreate")).is_err());
    }

    #[test]
    fn invalid_paths_and_types_are_rejected() {
        assert!(check(Path::new("relative"), None).is_err());
        assert!(check(Path::new("/a/../etc"), None).is_err());
        assert!(check(Path::new("/"), Some("Door")).unwrap_err().to_string().contains("invalid volume type"));
    }
}
