//! Destinations that are written and never replaced: devices, FIFOs, `/dev/stdout`. A rename over `/dev/null` would take it away from
//! the whole host.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

/// Opens what a path names for writing, unless it is a file that can be replaced. `None`: it is missing, or a regular file, or a symbolic
/// link to one of these. A directory is an error.
///
/// Symbolic links are followed, so the path must be one that the user named.
pub(crate) fn open_special(dir: impl AsFd, path: &Path) -> io::Result<Option<File>> {
    // What a descriptor in /proc leads to may be a regular file: `/dev/stdout` of a redirected command.
    let is_descriptor =
        match openat2(&dir, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
            Ok(found) => match FileType::from_raw_mode(fstat(&found)?.st_mode) {
                FileType::RegularFile => return Ok(None),
                FileType::Directory => return Err(Errno::ISDIR.into()),
                _ => false,
            },
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => true,
            Err(error) => return Err(error.into()),
        };
    let mut file = File::from(openat(&dir, path, OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?);
    if file.metadata()?.is_file() {
        if !is_descriptor {
            // Exchanged since; nothing has been written to it.
            return Ok(None);
        }
        // After what the descriptor has written already, as with `>>`.
        file.seek(SeekFrom::End(0))?;
    }
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    use rustix::fs::CWD;

    #[test]
    fn only_files_that_can_be_replaced_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, to_device, to_dir] = ["file", "link", "device", "dir"].map(|name| dir.path().join(name));
        fs::write(&file, "content").unwrap();
        symlink(&file, &link).unwrap();
        symlink("/dev/null", &to_device).unwrap();
        symlink(dir.path(), &to_dir).unwrap();
        for path in [&file, &link, &dir.path().join("missing")] {
            assert!(open_special(CWD, path).unwrap().is_none(), "{}", path.display());
        }
        for path in [Path::new("/dev/null"), &to_device] {
            assert!(open_special(CWD, path).unwrap().is_some(), "{}", path.display());
        }
        for path in [dir.path(), &to_dir] {
            assert_eq!(open_special(CWD, path).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "content");
    }

    #[test]
    fn a_link_to_a_descriptor_is_written_after_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "stdout"].map(|name| dir.path().join(name));
        fs::write(&file, "first, ").unwrap();
        let open = File::open(&file).unwrap();
        symlink(format!("/proc/self/fd/{}", open.as_raw_fd()), &link).unwrap();
        open_special(CWD, &link).unwrap().expect("a descriptor").write_all(b"second").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "first, second");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }
}
