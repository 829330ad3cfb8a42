//! Packs files of this host as the tar stream that `tar` in a container unpacks.
//!
//! The files belong to root in the stream, so that they get the owner of the process in the container, as with docker and podman;
//! kubectl copies the numbers of the host's users.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

/// Directories inside of each other.
const DEPTH_MAX: usize = 256;

/// Why a copy to a container failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PackError {
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} has more than {DEPTH_MAX} directories inside of each other", .0.display())]
    TooDeep(PathBuf),
    #[error("{} became shorter while it was read: the copy is not complete", .0.display())]
    Changed(PathBuf),
}

/// Writes the tar stream. A reader that has gone is no error here: the exit code of `tar` says why.
pub(super) fn pack(source: &Path, name: &Path, to: impl Write) -> Result<(), PackError> {
    let mut packer = Packer { tar: Builder::new(to), reader_gone: false };
    // A link that the user named is followed; links below are copied as links.
    let about = fs::metadata(source).map_err(|error| PackError::Read { path: source.to_owned(), source: error })?;
    packer.add(source, name, &about, 0)?;
    if !packer.reader_gone {
        let _ = packer.tar.finish();
    }
    Ok(())
}

struct Packer<W: Write> {
    tar: Builder<W>,
    reader_gone: bool,
}

impl<W: Write> Packer<W> {
    fn add(&mut self, source: &Path, name: &Path, about: &Metadata, depth: usize) -> Result<(), PackError> {
        if self.reader_gone {
            return Ok(());
        }
        if depth > DEPTH_MAX {
            return Err(PackError::TooDeep(source.to_owned()));
        }
        let failed = |error| PackError::Read { path: source.to_owned(), source: error };
        let kind = about.file_type();
        if kind.is_dir() {
            self.write(name, header(EntryType::Directory, about, 0), io::empty());
            let mut entries = fs::read_dir(source).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(failed)?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let path = entry.path();
                let about = entry.metadata().map_err(|error| PackError::Read { path: path.clone(), source: error })?;
                self.add(&path, &name.join(entry.file_name()), &about, depth + 1)?;
            }
        } else if kind.is_file() {
            let file = File::open(source).map_err(failed)?;
            let mut content = Padded { file, missing: false };
            self.write(name, header(EntryType::Regular, about, about.len()), (&mut content).take(about.len()));
            if content.missing {
                return Err(PackError::Changed(source.to_owned()));
            }
        } else if kind.is_symlink() {
            let to = fs::read_link(source).map_err(failed)?;
            let mut link = header(EntryType::Symlink, about, 0);
            self.reader_gone |= self.tar.append_link(&mut link, name, to).is_err();
        } else {
            eprintln!("podwright: {} was not copied: it is neither a file nor a directory", source.display());
        }
        Ok(())
    }

    fn write(&mut self, name: &Path, mut header: Header, content: impl Read) {
        self.reader_gone |= self.tar.append_data(&mut header, name, content).is_err();
    }
}

fn header(kind: EntryType, about: &Metadata, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(about.permissions().mode() & 0o777);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(
        about.modified().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok()).map_or(0, |at| at.as_secs()),
    );
    header
}

/// A file that is followed by zeros: the stream stays valid if the file becomes shorter than its header says.
struct Padded {
    file: File,
    missing: bool,
}

impl Read for Padded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.file.read(buffer) {
            Ok(0) if !buffer.is_empty() => {
                self.missing = true;
                buffer.fill(0);
                Ok(buffer.len())
            }
            // The copy continues with zeros, and is reported as incomplete.
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                self.missing = true;
                buffer.fill(0);
                Ok(buffer.len())
            }
            read => read,
        }
    }
}
