//! The files of a container in the run directory, which outlive the shim.
//!
//! ```text
//!  pods/<pod>/c/<container>/
//!  ├─ pid           process id, start time and pidfd inode of the init; written before Launch is answered
//!  ├─ exit          512 bytes, made before the launch; overwritten in place when the init has exited: by the shim, or by the agent
//!  │                if its shim is lost
//!  ├─ stop-signal   exists once the stop signal was sent, or was about to be; made before the launch with another name
//!  └─ stdout, stderr   FIFOs (see `stdio`)
//! ```
//! Nothing is synced: after a power loss there is no process left that these files could describe.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use prost::Message;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, mkdirat, openat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;

use crate::protocol::{CONTAINERS_DIR, Exited, ProcessIdentity};

/// Why a file of a container cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunFileError {
    /// The file cannot be opened, read or written.
    #[error("{file} of container {container}")]
    Io {
        /// `exit`, `pid`, ...
        file: &'static str,
        /// Container id.
        container: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The file was not written by a shim, or not completely.
    #[error("{file} of container {container} is damaged")]
    Damaged {
        /// `exit`, `pid`, ...
        file: &'static str,
        /// Container id.
        container: String,
    },
    /// The id cannot be the name of a directory.
    #[error("container id {0:?} is not allowed")]
    Id(String),
}

/// The directory of one container, open.
#[derive(Debug)]
pub struct ContainerDir {
    dir: OwnedFd,
    container: String,
}

/// The `exit` file, open and with its full size: writing it needs no memory on disk.
#[derive(Debug)]
pub(crate) struct ExitFile(File);

impl ContainerDir {
    /// Opens the directory of a container in the run directory of its pod.
    pub fn open(pod_dir: impl AsFd, container: &str) -> Result<Self, RunFileError> {
        check_id(container)?;
        let name = format!("{CONTAINERS_DIR}/{container}");
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(pod_dir, name, flags, Mode::empty()).map_err(|e| error("directory", container, e))?;
        Ok(Self { dir, container: container.to_owned() })
    }

    /// Makes the directory of a container, or opens it if it exists.
    pub(crate) fn make(pod_dir: impl AsFd, container: &str) -> Result<Self, RunFileError> {
        check_id(container)?;
        for name in [CONTAINERS_DIR.to_owned(), format!("{CONTAINERS_DIR}/{container}")] {
            match mkdirat(&pod_dir, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(error("directory", container, e)),
            }
        }
        Self::open(pod_dir, container)
    }

    /// The exit of the container; `None`: it was not recorded (yet).
    pub fn exit(&self) -> Result<Option<Exited>, RunFileError> {
        let Some(bytes) = self.read(EXIT)? else { return Ok(None) };
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        decode_exit(&bytes).map(Some).ok_or_else(|| self.damaged(EXIT))
    }

    /// The init of the container; `None`: it was not launched (yet).
    pub fn process(&self) -> Result<Option<ProcessIdentity>, RunFileError> {
        let Some(bytes) = self.read(PID)? else { return Ok(None) };
        let fields = std::str::from_utf8(&bytes).ok().and_then(|text| text.strip_suffix('\n')).map(|text| {
            let numbers = text.split(' ').map(|n| n.parse::<u64>().ok()).collect::<Option<Vec<u64>>>();
            numbers.unwrap_or_default()
        });
        match fields.as_deref() {
            Some(&[pid, start_time, inode]) if u32::try_from(pid).is_ok() => {
                Ok(Some(ProcessIdentity { pid: u32::try_from(pid).unwrap_or_default(), start_time, inode }))
            }
            _ => Err(self.damaged(PID)),
        }
    }

    /// Whether the stop signal was sent, or was about to be.
    pub fn stop_signal_sent(&self) -> Result<bool, RunFileError> {
        match rustix::fs::statat(&self.dir, STOP_SIGNAL, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(error(STOP_SIGNAL, &self.container, e)),
        }
    }

    /// Makes the `exit` file with its full size. The one of an earlier launch is replaced.
    pub(crate) fn prepare_exit(&self) -> Result<ExitFile, RunFileError> {
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(self.open_file(EXIT, flags)?);
        // Zeros are written, not allocated: the blocks then exist on every file system that overwrites in place.
        file.write_all_at(&[0; EXIT_BYTES], 0).map_err(|e| self.io(EXIT, e))?;
        Ok(ExitFile(file))
    }

    /// Opens the `exit` file of a container that another shim has launched; `None`: it has none.
    pub(crate) fn reopen_exit(&self) -> Result<Option<ExitFile>, RunFileError> {
        match openat(&self.dir, EXIT, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Some(ExitFile(File::from(fd)))),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(error(EXIT, &self.container, e)),
        }
    }

    /// Records the exit of a container whose shim is lost, for the shim that adopts it and for the next agent. What is recorded stays.
    pub fn record_exit(&self, exit: &Exited) -> Result<(), RunFileError> {
        if matches!(self.exit(), Ok(Some(_))) {
            return Ok(());
        }
        let missing = || self.io(EXIT, io::ErrorKind::NotFound.into());
        self.reopen_exit()?.ok_or_else(missing)?.write(exit).map_err(|e| self.io(EXIT, e))
    }

    /// Records the init.
    pub(crate) fn write_process(&self, process: &ProcessIdentity) -> Result<(), RunFileError> {
        let temporary = ".pid";
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(self.open_file(temporary, flags)?);
        let text = format!("{} {} {}\n", process.pid, process.start_time, process.inode);
        file.write_all(text.as_bytes()).map_err(|e| self.io(PID, e))?;
        renameat(&self.dir, temporary, &self.dir, PID).map_err(|e| error(PID, &self.container, e))
    }

    /// Makes the note of the stop signal with the name that it has before: on a full disk it can be renamed, but not made.
    pub(crate) fn prepare_stop_signal(&self) -> Result<(), RunFileError> {
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.open_file(STOP_SIGNAL_PREPARED, flags).map(drop)
    }

    /// Records that the stop signal is about to be sent. `false`: it was recorded before.
    pub fn claim_stop_signal(&self) -> Result<bool, RunFileError> {
        match renameat_with(&self.dir, STOP_SIGNAL_PREPARED, &self.dir, STOP_SIGNAL, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(true),
            Err(Errno::EXIST) => return Ok(false),
            // Claimed before, never prepared, or a file system that does not rename like this.
            Err(_) => {}
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        match openat(&self.dir, STOP_SIGNAL, flags, Mode::RUSR | Mode::WUSR) {
            Ok(_) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(e) => Err(error(STOP_SIGNAL, &self.container, e)),
        }
    }

    /// Removes what an earlier launch of the same id left.
    pub(crate) fn clear(&self) -> Result<(), RunFileError> {
        for name in [PID, STOP_SIGNAL, STOP_SIGNAL_PREPARED, EXIT] {
            match unlinkat(&self.dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(error(name, &self.container, e)),
            }
        }
        Ok(())
    }

    fn open_file(&self, name: &'static str, flags: OFlags) -> Result<OwnedFd, RunFileError> {
        openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR).map_err(|e| error(name, &self.container, e))
    }

    fn read(&self, name: &'static str) -> Result<Option<Vec<u8>>, RunFileError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match openat(&self.dir, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(error(name, &self.container, e)),
        };
        let mut bytes = vec![];
        File::from(fd).take(EXIT_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|e| self.io(name, e))?;
        Ok(Some(bytes))
    }

    fn io(&self, file: &'static str, source: io::Error) -> RunFileError {
        RunFileError::Io { file, container: self.container.clone(), source }
    }

    fn damaged(&self, file: &'static str) -> RunFileError {
        RunFileError::Damaged { file, container: self.container.clone() }
    }
}

impl AsFd for ContainerDir {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl ExitFile {
    /// Overwrites the file: one write, whose success a reader can verify.
    pub(crate) fn write(&self, exit: &Exited) -> io::Result<()> {
        self.0.write_all_at(&encode_exit(exit), 0)
    }
}

/// Length, CRC and message; the rest is zeros.
fn encode_exit(exit: &Exited) -> [u8; EXIT_BYTES] {
    let message = exit.encode_to_vec();
    assert!(message.len() <= EXIT_BYTES - EXIT_HEADER, "an id has at most {ID_BYTES_MAX} bytes");
    let mut bytes = [0; EXIT_BYTES];
    bytes[..4].copy_from_slice(&EXIT_MAGIC);
    bytes[4..8].copy_from_slice(&u32::try_from(message.len()).unwrap_or_default().to_le_bytes());
    bytes[8..12].copy_from_slice(&crc32fast::hash(&message).to_le_bytes());
    bytes[EXIT_HEADER..EXIT_HEADER + message.len()].copy_from_slice(&message);
    bytes
}

/// For the fuzz targets: the reader must not panic.
#[cfg(feature = "fuzzing")]
pub fn read_exit_record(bytes: &[u8]) {
    if let Some(exit) = decode_exit(bytes) {
        assert_eq!(decode_exit(&encode_exit(&exit)).as_ref(), Some(&exit));
    }
}

fn decode_exit(bytes: &[u8]) -> Option<Exited> {
    let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    if bytes.len() != EXIT_BYTES || bytes.get(..4)? != EXIT_MAGIC {
        return None;
    }
    let message = bytes.get(EXIT_HEADER..EXIT_HEADER.checked_add(usize::try_from(number(4)?).ok()?)?)?;
    if crc32fast::hash(message) != number(8)? {
        return None;
    }
    Exited::decode(message).ok()
}

/// An id is the name of a directory: nothing that could leave it.
pub(crate) fn check_id(id: &str) -> Result<(), RunFileError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if id.is_empty() || id.len() > ID_BYTES_MAX || id.starts_with('.') || !id.bytes().all(allowed) {
        return Err(RunFileError::Id(id.chars().take(ID_BYTES_MAX).collect()));
    }
    Ok(())
}

fn error(file: &'static str, container: &str, errno: Errno) -> RunFileError {
    RunFileError::Io { file, container: container.to_owned(), source: errno.into() }
}

const EXIT: &str = "exit";
const PID: &str = "pid";
const STOP_SIGNAL: &str = "stop-signal";
const STOP_SIGNAL_PREPARED: &str = ".stop-signal";

/// Small enough for one block, large enough for an id and some numbers.
const EXIT_BYTES: usize = 512;
const EXIT_HEADER: usize = 12;
/// The last byte is the version of the layout.
const EXIT_MAGIC: [u8; 4] = *b"PWX\x01";

/// Ids have 64 hexadecimal digits; tests use names.
const ID_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ExitReport;
    use proptest::prelude::*;
    use std::fs;

    fn exited() -> Exited {
        let report = ExitReport { code: 137, signal: 9, finished_at: 1_763_352_125_000_000_000, unknown: false };
        Exited { container: "c1".into(), report: Some(report), oom_kills: 2, started_at: 7 }
    }

    fn container() -> (tempfile::TempDir, ContainerDir) {
        let pod = tempfile::tempdir().unwrap();
        let dir = ContainerDir::make(File::open(pod.path()).unwrap(), "c1").unwrap();
        (pod, dir)
    }

    #[test]
    fn an_exit_is_written_in_place_and_read_back() {
        let (pod, dir) = container();
        assert_eq!(dir.exit().unwrap(), None);
        let file = dir.prepare_exit().unwrap();
        let path = pod.path().join("c/c1/exit");
        assert_eq!(fs::metadata(&path).unwrap().len(), 512);
        assert_eq!(dir.exit().unwrap(), None);
        file.write(&exited()).unwrap();
        assert_eq!(dir.exit().unwrap(), Some(exited()));
        assert_eq!(fs::metadata(&path).unwrap().len(), 512);
        let longest = Exited { container: "c".repeat(ID_BYTES_MAX), oom_kills: u64::MAX, ..exited() };
        file.write(&longest).unwrap();
        assert_eq!(dir.exit().unwrap(), Some(longest));
    }

    #[test]
    fn an_exit_is_recorded_once_in_place_of_a_lost_shim() {
        let (_pod, dir) = container();
        assert!(dir.record_exit(&exited()).is_err(), "the container was not launched");
        dir.prepare_exit().unwrap();
        dir.record_exit(&exited()).unwrap();
        dir.record_exit(&Exited { oom_kills: 0, ..exited() }).unwrap();
        assert_eq!(dir.exit().unwrap(), Some(exited()));
    }

    #[test]
    fn an_exit_is_written_on_a_full_disk() {
        let mount = tempfile::tempdir().unwrap();
        let size = podwright_linux::mount::Tmpfs { size: Some(128 << 10), mode: 0o700 };
        podwright_linux::mount::tmpfs(mount.path(), &size).unwrap();
        let dir = ContainerDir::make(File::open(mount.path()).unwrap(), "c1").unwrap();
        let file = dir.prepare_exit().unwrap();
        let full = fs::write(mount.path().join("full"), vec![1; 256 << 10]);
        let written = file.write(&exited());
        let read = dir.exit();
        drop((file, dir));
        podwright_linux::mount::unmount(mount.path()).unwrap();
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        written.unwrap();
        assert_eq!(read.unwrap(), Some(exited()));
    }

    #[test]
    fn the_stop_signal_is_claimed_on_a_full_disk() {
        let mount = tempfile::tempdir().unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", mount.path(), "tmpfs", flags, c"nr_inodes=16").unwrap();
        let dir = ContainerDir::make(File::open(mount.path()).unwrap(), "c1").unwrap();
        dir.prepare_stop_signal().unwrap();
        let full = (0..100).find_map(|n| File::create(mount.path().join(n.to_string())).err());
        let claimed =
            [dir.stop_signal_sent(), dir.claim_stop_signal(), dir.claim_stop_signal(), dir.stop_signal_sent()];
        drop(dir);
        podwright_linux::mount::unmount(mount.path()).unwrap();
        assert_eq!(full.unwrap().kind(), io::ErrorKind::StorageFull);
        assert_eq!(claimed.map(Result::unwrap), [false, true, false, true]);
    }

    #[test]
    fn the_process_is_read_back_and_damage_is_an_error() {
        let (pod, dir) = container();
        assert_eq!(dir.process().unwrap(), None);
        let process = ProcessIdentity { pid: 42, start_time: 99, inode: 7 };
        dir.write_process(&process).unwrap();
        assert_eq!(dir.process().unwrap(), Some(process));
        for text in ["", "42 99 7", "42 99\n", "x y z\n", "4200000000000 1 1\n", "42 99 7\n\n"] {
            fs::write(pod.path().join("c/c1/pid"), text).unwrap();
            assert!(matches!(dir.process(), Err(RunFileError::Damaged { file: "pid", .. })), "{text:?}");
        }
    }

    #[test]
    fn the_stop_signal_is_claimed_once() {
        let (_pod, dir) = container();
        assert!(!dir.stop_signal_sent().unwrap());
        assert!(dir.claim_stop_signal().unwrap());
        assert!(!dir.claim_stop_signal().unwrap());
        assert!(dir.stop_signal_sent().unwrap());
        dir.clear().unwrap();
        assert!(!dir.stop_signal_sent().unwrap());
        dir.prepare_stop_signal().unwrap();
        assert!(!dir.stop_signal_sent().unwrap());
        assert_eq!([dir.claim_stop_signal().unwrap(), dir.claim_stop_signal().unwrap()], [true, false]);
    }

    #[test]
    fn an_id_cannot_leave_its_directory() {
        let pod = tempfile::tempdir().unwrap();
        let fd = File::open(pod.path()).unwrap();
        for id in ["", ".", "..", "../x", "a/b", "a\0b", ".hidden", &"x".repeat(129)] {
            assert!(matches!(ContainerDir::make(&fd, id), Err(RunFileError::Id(_))), "{id:?}");
        }
    }

    proptest! {
        #[test]
        fn a_damaged_exit_is_never_read_as_an_exit(at in 0usize..512, bit in 0u8..8) {
            let mut bytes = encode_exit(&exited());
            bytes[at] ^= 1 << bit;
            let read = decode_exit(&bytes);
            prop_assert!(read.is_none() || read == Some(exited()));
        }
    }
}
