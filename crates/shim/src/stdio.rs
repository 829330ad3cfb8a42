//! The standard streams of containers and execs.
//!
//! ```text
//!  container, pipes      stdin ◀── pipe or /dev/null      stdout, stderr ──▶ FIFOs in the run directory ──▶ log, attached clients
//!  container, terminal   pty slave ◀─▶ master, in the shim; the agent holds a copy
//!  exec                  pipes or a pty whose other ends go to the agent
//! ```
//! A container holds its FIFOs open for reading and writing: without a reader it blocks when 64 KiB are full, instead of dying of
//! SIGPIPE, and a new shim can open them by name. The price: the program never gets EPIPE. The shim opens them for reading only,
//! so that it sees the end when the last writer has closed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use podwright_linux::pty;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, mknodat, open, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::launch::ContainerStdio;
use crate::protocol::{DescriptorKind, StdioPlan};

/// The shim's ends of a container's streams; nonblocking.
#[derive(Debug, Default)]
pub(crate) struct ShimStreams {
    /// Written to. `None`: not connected.
    pub stdin: Option<OwnedFd>,
    /// FIFOs. `None`: a terminal.
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    /// The master of the terminal.
    pub pty: Option<OwnedFd>,
    /// Its slave, held open while the init runs: without any, reading the master fails, though the container may open it again.
    pub pty_slave: Option<OwnedFd>,
}

/// Makes the streams of a container whose run directory is `dir`.
pub(crate) fn container(dir: impl AsFd, plan: StdioPlan) -> io::Result<(ContainerStdio, ShimStreams)> {
    if plan.terminal {
        let (master, slave) = pty::open_pair()?;
        return Ok((ContainerStdio::Terminal(slave), reopen_terminal(master)?));
    }
    let (stdin, shim_stdin) = input(plan.stdin)?;
    if let Some(end) = &shim_stdin {
        rustix::io::ioctl_fionbio(end, true)?;
    }
    let (shim_stdout, stdout) = fifo(&dir, STDOUT)?;
    let (shim_stderr, stderr) = fifo(&dir, STDERR)?;
    let (stdout_end, stderr_end) = (Some(shim_stdout), Some(shim_stderr));
    let ends = ShimStreams { stdin: shim_stdin, stdout: stdout_end, stderr: stderr_end, ..ShimStreams::default() };
    Ok((ContainerStdio::Streams { stdin, stdout, stderr }, ends))
}

/// Opens the FIFOs of a container that another shim has launched. Its standard input is lost.
pub(crate) fn reopen(dir: impl AsFd) -> io::Result<ShimStreams> {
    let (stdout, stderr) = (open_fifo(&dir, STDOUT)?, open_fifo(&dir, STDERR)?);
    Ok(ShimStreams { stdout: Some(stdout), stderr: Some(stderr), ..ShimStreams::default() })
}

/// The shim's ends of a terminal whose master is open.
pub(crate) fn reopen_terminal(master: OwnedFd) -> io::Result<ShimStreams> {
    rustix::io::ioctl_fionbio(&master, true)?;
    let slave = pty::open_slave(&master)?;
    Ok(ShimStreams { pty: Some(master), pty_slave: Some(slave), ..ShimStreams::default() })
}

/// Makes the streams of an exec. All ends but the process' own go to the agent.
pub(crate) fn exec(plan: StdioPlan) -> io::Result<(ContainerStdio, Vec<(DescriptorKind, OwnedFd)>)> {
    if plan.terminal {
        let (master, slave) = pty::open_pair()?;
        return Ok((ContainerStdio::Terminal(slave), vec![(DescriptorKind::Pty, master)]));
    }
    let (stdin, agent_stdin) = input(plan.stdin)?;
    let (agent_stdout, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (agent_stderr, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut ends: Vec<_> = agent_stdin.into_iter().map(|end| (DescriptorKind::Stdin, end)).collect();
    ends.push((DescriptorKind::Stdout, agent_stdout));
    ends.push((DescriptorKind::Stderr, agent_stderr));
    Ok((ContainerStdio::Streams { stdin, stdout, stderr }, ends))
}

/// The process' end, and ours if it is connected.
fn input(connected: bool) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    if connected {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        return Ok((read, Some(write)));
    }
    Ok((open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?, None))
}

/// A new FIFO: our end for reading, and the container's for both.
fn fifo(dir: impl AsFd, name: &str) -> io::Result<(OwnedFd, OwnedFd)> {
    match unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    mknodat(&dir, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    let ours = open_fifo(&dir, name)?;
    let theirs = openat(&dir, name, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    Ok((ours, theirs))
}

fn open_fifo(dir: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    // The directory is root's alone; the check guards against a run directory that was not.
    let kind = FileType::from_raw_mode(statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
    if kind != FileType::Fifo {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{name} is not a FIFO")));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(dir, name, flags, Mode::empty())?)
}

const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    fn streams(stdio: ContainerStdio) -> [File; 3] {
        match stdio {
            ContainerStdio::Streams { stdin, stdout, stderr } => [stdin, stdout, stderr].map(File::from),
            ContainerStdio::Terminal(_) => panic!("a terminal"),
        }
    }

    #[test]
    fn a_container_without_a_reader_does_not_get_sigpipe_and_a_new_reader_gets_its_output() {
        let dir = tempfile::tempdir().unwrap();
        let fd = File::open(dir.path()).unwrap();
        let (stdio, ends) = container(&fd, StdioPlan::default()).unwrap();
        let [mut stdin, mut stdout, stderr] = streams(stdio);
        assert_eq!(stdin.read(&mut [0; 8]).unwrap(), 0, "/dev/null");
        stdout.write_all(b"one").unwrap();
        drop(ends);
        stdout.write_all(b"two").unwrap();
        let ends = reopen(&fd).unwrap();
        let mut ours = File::from(ends.stdout.unwrap());
        let mut buffer = [0; 64];
        assert_eq!(ours.read(&mut buffer).unwrap(), 6);
        assert_eq!(&buffer[..6], b"onetwo");
        assert_eq!(ours.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop((stdout, stderr));
        assert_eq!(ours.read(&mut buffer).unwrap(), 0, "the end, when the last writer has closed");
    }

    #[test]
    fn standard_input_ends_when_our_end_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let plan = StdioPlan { stdin: true, ..StdioPlan::default() };
        let (stdio, ends) = container(File::open(dir.path()).unwrap(), plan).unwrap();
        let [mut stdin, ..] = streams(stdio);
        File::from(ends.stdin.unwrap()).write_all(b"in").unwrap();
        let mut text = String::new();
        stdin.read_to_string(&mut text).unwrap();
        assert_eq!(text, "in");
    }

    #[test]
    fn a_terminal_has_one_master() {
        let dir = tempfile::tempdir().unwrap();
        let plan = StdioPlan { terminal: true, stdin: true, ..StdioPlan::default() };
        let (stdio, ends) = container(File::open(dir.path()).unwrap(), plan).unwrap();
        let ContainerStdio::Terminal(slave) = stdio else { panic!("no terminal") };
        assert!(rustix::termios::isatty(&slave));
        File::from(slave.try_clone().unwrap()).write_all(b"hi\n").unwrap();
        let mut buffer = [0; 16];
        let count = File::from(ends.pty.unwrap()).read(&mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"hi\r\n");
    }

    #[test]
    fn a_file_in_place_of_a_fifo_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("stdout"), "x").unwrap();
        std::fs::write(dir.path().join("stderr"), "x").unwrap();
        let fd = File::open(dir.path()).unwrap();
        assert!(reopen(&fd).is_err());
        container(&fd, StdioPlan::default()).expect("a launch replaces it");
    }
}
