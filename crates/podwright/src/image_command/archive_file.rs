//! Archives on the disk of the user: read from files, stdin and OCI layouts, written aside and renamed.

use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::fs::CWD;

use crate::special_file::open_special;

/// An archive to load.
pub(super) struct ArchiveInput {
    source: Source,
    error: ReadError,
}

enum Source {
    File(File),
    Stdin(io::Stdin),
    /// A directory with an OCI layout, as a tar that a thread writes. `None`: the thread was joined.
    Layout(PipeReader, Option<JoinHandle<io::Result<()>>>),
}

/// Why an archive could not be read; shared with its reader, which may be on another thread.
#[derive(Clone, Default)]
pub(super) struct ReadError(Arc<Mutex<Option<io::Error>>>);

impl ReadError {
    /// The error, if there was one.
    pub(super) fn take(&self) -> Option<io::Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps the error, and returns one of the same kind.
    fn keep(&self, error: io::Error) -> io::Error {
        let kind = error.kind();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        kind.into()
    }
}

impl ArchiveInput {
    /// `-` is stdin.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let source = if path == Path::new("-") {
            Source::Stdin(io::stdin())
        } else if path.is_dir() {
            let (reader, writer) = io::pipe()?;
            let layout = path.to_owned();
            Source::Layout(reader, Some(thread::spawn(move || write_layout(&layout, writer))))
        } else {
            Source::File(File::open(path)?)
        };
        Ok(Self { source, error: ReadError::default() })
    }

    pub(super) fn read_error(&self) -> ReadError {
        self.error.clone()
    }
}

impl Read for ArchiveInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.source {
            Source::File(file) => file.read(buffer),
            Source::Stdin(stdin) => stdin.read(buffer),
            Source::Layout(reader, thread) => match reader.read(buffer) {
                Ok(0) => thread.take().map_or(Ok(Ok(())), JoinHandle::join).unwrap_or(Ok(())).map(|()| 0),
                read => read,
            },
        };
        read.map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            _ => self.error.keep(error),
        })
    }
}

/// Writes a layout as an archive. One that fails has no end: the builder would write it when it is dropped.
fn write_layout(layout: &Path, writer: PipeWriter) -> io::Result<()> {
    let mut tar = tar::Builder::new(Box::new(writer) as Box<dyn Write>);
    let appended = append_layout(layout, &mut tar);
    if appended.is_err() {
        *tar.get_mut() = Box::new(io::sink());
    }
    appended.and_then(|()| tar.finish())
}

fn append_layout(layout: &Path, tar: &mut tar::Builder<Box<dyn Write>>) -> io::Result<()> {
    for name in ["oci-layout", "index.json"] {
        tar.append_path_with_name(layout.join(name), name)?;
    }
    let blobs = layout.join("blobs/sha256");
    for entry in fs::read_dir(&blobs)? {
        let entry = entry?;
        if entry.path().is_file() {
            tar.append_path_with_name(entry.path(), Path::new("blobs/sha256").join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// An archive that is written. Renamed when it is complete, so that a file of its name is whole; else removed. A device or FIFO is
/// written directly.
pub(super) struct ArchiveFile {
    path: PathBuf,
    /// `None`: the path itself is written.
    aside: Option<PathBuf>,
    file: File,
}

impl ArchiveFile {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        if let Some(file) = open_special(CWD, path)? {
            return Ok(Self { path: path.to_owned(), aside: None, file });
        }
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".{}", std::process::id()));
        let aside = PathBuf::from(aside);
        let file = File::options().write(true).create_new(true).open(&aside)?;
        Ok(Self { path: path.to_owned(), aside: Some(aside), file })
    }

    pub(super) fn writer(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    pub(super) fn complete(self) -> io::Result<()> {
        let Some(aside) = &self.aside else { return Ok(()) };
        // It may replace an older archive, which must not be lost with the power.
        self.file.sync_all()?;
        fs::rename(aside, &self.path)
    }
}

impl Drop for ArchiveFile {
    fn drop(&mut self) {
        if let Some(aside) = &self.aside {
            // Gone if it was renamed.
            let _ = fs::remove_file(aside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FileType, Mode, mknodat};
    use std::os::unix::fs::{FileTypeExt, symlink};

    #[test]
    fn a_fifo_is_written_and_a_file_is_replaced_when_the_archive_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let [fifo, link, file] = ["fifo", "link", "file"].map(|name| dir.path().join(name));
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        symlink(&fifo, &link).unwrap();
        let mut reader = File::options().read(true).write(true).open(&fifo).unwrap();
        for path in [&fifo, &link] {
            let archive = ArchiveFile::create(path).unwrap();
            archive.writer().unwrap().write_all(b"archive").unwrap();
            archive.complete().unwrap();
            assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            let mut content = [0; 7];
            reader.read_exact(&mut content).unwrap();
            assert_eq!(&content, b"archive");
        }
        fs::write(&file, "old").unwrap();
        drop(ArchiveFile::create(&file).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        let archive = ArchiveFile::create(&file).unwrap();
        archive.writer().unwrap().write_all(b"new").unwrap();
        archive.complete().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
