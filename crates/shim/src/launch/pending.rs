//! A launch that has begun, its report, and its result.

// A clone goes on with a copy of this process.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use podwright_linux::namespace::{CloneOptions, Cloned, clone3, exit_now, single_threaded};
use podwright_linux::{exit_info, scm};
use prost::Message;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::report::Report;
use super::{LaunchFailure, LaunchInProgress, LaunchStep};
use crate::plan::ResolvedUser;

/// A launch that has not reached `execve` yet. Dropping it kills nothing.
///
/// ```text
///  reports ── the launcher has closed them ──▶ processes without another owner are reaped ──▶ the result
/// ```
#[derive(Debug)]
pub struct PendingLaunch {
    /// The clone: the process of the launch, or a helper that ends before the program starts.
    pid: u32,
    /// `None`: reaped, or given away with the result.
    clone: Option<Rc<OwnedFd>>,
    /// The process that a helper has made.
    sibling: Option<(u32, Rc<OwnedFd>)>,
    reports: Rc<OwnedFd>,
    reports_ended: bool,
    /// Reports that were read.
    count: usize,
    ready: Option<Launched>,
    failure: Option<LaunchFailure>,
    killed: bool,
    /// A process of the launch may become our child before it is reported: no unknown child is to be reaped meanwhile.
    adopts: bool,
}

/// A process that executes its program.
#[derive(Debug)]
pub struct Launched {
    /// A child of the caller, in the caller's PID namespace.
    pub pid: u32,
    /// Readable when the process has exited.
    pub pidfd: OwnedFd,
    /// Inside the container.
    pub uid: u32,
    /// Inside the container.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// `HOME` of the user, for later execs.
    pub home: String,
    /// The master of the terminal that was opened inside the container, in place of the given one.
    pub pty: Option<OwnedFd>,
}

impl Launched {
    fn into_user(self) -> Box<ResolvedUser> {
        let Self { uid, gid, groups, home, .. } = self;
        Box::new(ResolvedUser { uid, gid, groups, home })
    }
}

impl PendingLaunch {
    /// Waits for the result. For callers without an event loop; see [`LaunchInProgress`] for the others.
    pub fn finish(mut self) -> Result<Launched, LaunchFailure> {
        loop {
            match self.advance() {
                Some(result) => return result,
                None => wait_readable(&self.awaited(), None).map_err(|e| lost(&e))?,
            };
        }
    }

    /// As [`PendingLaunch::finish`], but kills a launcher that takes longer.
    pub(super) fn finish_within(mut self, limit: Duration) -> Result<Launched, LaunchFailure> {
        let until = Instant::now() + limit;
        loop {
            if let Some(result) = self.advance() {
                return result;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.kill();
            }
            wait_readable(&self.awaited(), (!self.killed).then_some(left)).map_err(|e| lost(&e))?;
        }
    }

    /// Waits until the process is ready, or has failed. Its result stays for [`PendingLaunch::advance`].
    pub(super) fn wait_ready(&mut self, limit: Duration) -> Result<(), LaunchFailure> {
        let until = Instant::now() + limit;
        loop {
            self.read_reports();
            if let Some(failure) = &self.failure {
                return Err(failure.clone());
            }
            if self.ready.is_some() {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.reports_ended || left.is_zero() {
                return Err(without_report());
            }
            wait_readable(&self.reports, Some(left)).map_err(|e| lost(&e))?;
        }
    }

    /// The clone, in the caller's PID namespace.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    fn read_reports(&mut self) {
        while !self.reports_ended {
            match scm::receive_packet(&*self.reports) {
                Ok(Some(packet)) => {
                    self.count += 1;
                    if self.count > REPORTS_MAX {
                        self.fail(LaunchFailure::new(LaunchStep::Lost, "the launcher reports without end"));
                        self.reports_ended = true;
                    } else if let Err(error) = self.take_report(packet) {
                        self.fail(lost(&error));
                    }
                }
                Ok(None) => self.reports_ended = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.fail(lost(&error));
                    self.reports_ended = true;
                }
            }
        }
    }

    fn take_report(&mut self, packet: scm::Packet) -> io::Result<()> {
        let report = Report::decode(packet.bytes.as_slice()).map_err(io::Error::other)?;
        if let Some(failure) = report.failure {
            self.failure.get_or_insert(failure.into());
            return Ok(());
        }
        let mut fds = packet.fds.into_iter();
        let (Some(pidfd), pty, None) = (fds.next(), fds.next(), fds.next()) else {
            return Err(io::Error::other("a report has a descriptor of a process, and perhaps one of a terminal"));
        };
        let pid = pid_of(&pidfd)?;
        match report.ready {
            Some(ResolvedUser { uid, gid, groups, home }) => {
                self.ready = Some(Launched { pid, pidfd, uid, gid, groups, home, pty });
            }
            None => {
                self.sibling = Some((pid, Rc::new(pidfd)));
                if self.killed {
                    self.kill();
                }
            }
        }
        Ok(())
    }

    fn fail(&mut self, failure: LaunchFailure) {
        self.failure.get_or_insert(failure);
        self.kill();
    }

    /// Reaps the clone if it has ended.
    fn reap_clone(&mut self) {
        if self.clone.as_ref().is_some_and(|pidfd| has_ended(pidfd)) {
            self.clone = None;
        }
    }
}

impl LaunchInProgress for PendingLaunch {
    fn awaited(&self) -> Rc<OwnedFd> {
        let ended = self.reports_ended.then(|| self.clone.as_ref().or(self.sibling.as_ref().map(|(_, pidfd)| pidfd)));
        ended.flatten().unwrap_or(&self.reports).clone()
    }

    fn advance(&mut self) -> Option<Result<Launched, LaunchFailure>> {
        self.read_reports();
        let is_helper = self.sibling.is_some();
        if is_helper {
            self.reap_clone();
        }
        if !self.reports_ended {
            return None;
        }
        // One that was killed may have been ready, or may even have executed its program: it ends all the same.
        if self.failure.is_some() || self.killed || self.ready.is_none() {
            self.kill();
            self.reap_clone();
            if self.sibling.as_ref().is_some_and(|(_, pidfd)| has_ended(pidfd)) {
                self.sibling = None;
            }
            let gone = self.clone.is_none() && self.sibling.is_none();
            return gone.then(|| {
                let failure = self.failure.take().unwrap_or_else(without_report);
                Err(LaunchFailure { user: self.ready.take().map(Launched::into_user), ..failure })
            });
        }
        if is_helper && self.clone.is_some() {
            return None;
        }
        self.ready.take().map(Ok)
    }

    fn kill(&mut self) {
        self.killed = true;
        for pidfd in self.sibling.iter().map(|(_, pidfd)| pidfd).chain(&self.clone) {
            let _ = rustix::process::pidfd_send_signal(&**pidfd, rustix::process::Signal::KILL);
        }
    }

    fn has_process(&self, pid: u32) -> bool {
        let may_adopt = self.adopts && self.clone.is_some() && self.sibling.is_none();
        may_adopt
            || (self.pid == pid && self.clone.is_some())
            || self.sibling.as_ref().is_some_and(|(sibling, _)| *sibling == pid)
    }
}

/// Clones the caller and runs `child` in the clone, whose failure is reported.
pub(super) fn spawn(
    options: &CloneOptions<'_>,
    reports: (OwnedFd, OwnedFd),
    child: impl FnOnce(BorrowedFd<'_>) -> Result<Infallible, LaunchFailure>,
) -> Result<PendingLaunch, LaunchFailure> {
    let failed = |e: &io::Error| LaunchFailure::io(LaunchStep::Clone, "clone", e);
    if !single_threaded().map_err(|e| failed(&e))? {
        return Err(LaunchFailure::new(LaunchStep::Clone, "clone: the launcher needs a process with one thread"));
    }
    let (ours, theirs) = reports;
    rustix::io::ioctl_fionbio(&ours, true).map_err(|e| failed(&e.into()))?;
    // SAFETY: this process has one thread, as was just checked.
    match unsafe { clone3(options) }.map_err(|e| failed(&e))? {
        Cloned::Parent { pid, pidfd } => Ok(PendingLaunch {
            pid,
            clone: Some(Rc::new(pidfd)),
            sibling: None,
            reports: Rc::new(ours),
            reports_ended: false,
            count: 0,
            ready: None,
            failure: None,
            killed: false,
            adopts: false,
        }),
        Cloned::Child => {
            drop(ours);
            run_child(theirs.as_fd(), child)
        }
    }
}

/// As [`spawn`], for a helper whose child becomes a child of the caller when its own parent ends.
pub(super) fn spawn_adopting(
    options: &CloneOptions<'_>,
    reports: (OwnedFd, OwnedFd),
    child: impl FnOnce(BorrowedFd<'_>) -> Result<Infallible, LaunchFailure>,
) -> Result<PendingLaunch, LaunchFailure> {
    Ok(PendingLaunch { adopts: true, ..spawn(options, reports, child)? })
}

/// Reports the process that a helper has made.
pub(super) fn send_sibling(report: BorrowedFd<'_>, process: &OwnedFd) -> Result<(), LaunchFailure> {
    let sent = scm::send(report, &Report::sibling().encode_to_vec(), &[process.as_fd()]);
    sent.map_err(|e| LaunchFailure::io(LaunchStep::Process, "report the process", &e))
}

/// Makes the process that executes the program, as a sibling of the calling helper, which then ends. The sibling waits until the
/// shim can kill it: until a descriptor of it was sent. If the helper is killed before, the sibling ends.
pub(super) fn spawn_sibling(
    flags: u64,
    report: BorrowedFd<'_>,
    child: impl FnOnce(BorrowedFd<'_>) -> Result<Infallible, LaunchFailure>,
) -> Result<Infallible, LaunchFailure> {
    let failed = |e: &io::Error| LaunchFailure::io(LaunchStep::Clone, "clone", e);
    let (gate, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| failed(&e.into()))?;
    let options = CloneOptions { flags: flags | podwright_linux::namespace::flags::PARENT, cgroup: None };
    // SAFETY: the caller is a clone of a process with one thread and has started none.
    match unsafe { clone3(&options) }.map_err(|e| failed(&e))? {
        Cloned::Parent { pidfd, .. } => {
            let sent = scm::send(report, &Report::sibling().encode_to_vec(), &[pidfd.as_fd()]);
            if let Err(error) = sent.and_then(|()| Ok(rustix::io::write(&go, b"g").map(drop)?)) {
                end_with_failure(report, failed(&error));
            }
            exit_now(0)
        }
        Cloned::Child => {
            drop(go);
            if !matches!(rustix::io::retry_on_intr(|| rustix::io::read(&gate, &mut [0; 1])), Ok(1)) {
                exit_now(FAILED);
            }
            drop(gate);
            run_child(report, child)
        }
    }
}

fn run_child(report: BorrowedFd<'_>, child: impl FnOnce(BorrowedFd<'_>) -> Result<Infallible, LaunchFailure>) -> ! {
    let ended = catch_unwind(AssertUnwindSafe(|| child(report)));
    let failure = match ended {
        Ok(Err(failure)) => failure,
        Err(_) => LaunchFailure::new(LaunchStep::Lost, "the launcher panicked"),
        Ok(Ok(never)) => match never {},
    };
    end_with_failure(report, failure)
}

/// Reports a failure and ends this process without dropping anything.
pub(super) fn end_with_failure(report: BorrowedFd<'_>, failure: LaunchFailure) -> ! {
    let report_message = Report { ready: None, failure: Some(failure.into()), sibling: false };
    // If it cannot be sent, the end of the stream without a report is a failure too.
    let _ = scm::send(report, &report_message.encode_to_vec(), &[]);
    exit_now(FAILED)
}

/// Reports that the program is executed next, with a descriptor of this process and the master of a terminal that it has opened.
pub(super) fn send_ready(
    report: BorrowedFd<'_>,
    user: &ResolvedUser,
    pty: Option<&OwnedFd>,
) -> Result<(), LaunchFailure> {
    let own = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty())
        .map_err(|e| LaunchFailure::io(LaunchStep::Process, "report the process", &e.into()))?;
    send_process(report, &own, user, pty)
}

/// Reports that a process executes the program.
pub(super) fn send_process(
    report: BorrowedFd<'_>,
    process: &OwnedFd,
    user: &ResolvedUser,
    pty: Option<&OwnedFd>,
) -> Result<(), LaunchFailure> {
    let failed = |e: &io::Error| LaunchFailure::io(LaunchStep::Process, "report the process", e);
    let message = Report { ready: Some(user.clone()), failure: None, sibling: false };
    let fds: Vec<BorrowedFd<'_>> = std::iter::once(process.as_fd()).chain(pty.map(AsFd::as_fd)).collect();
    scm::send(report, &message.encode_to_vec(), &fds).map_err(|e| failed(&e))
}

/// Whether a child has ended; it is reaped then.
fn has_ended(pidfd: &OwnedFd) -> bool {
    // ECHILD: the supervisor's own reaping was faster.
    exit_info::poll(pidfd, true).map_or(true, |exit| exit.is_some())
}

/// `limit`: `None` waits for ever. Returns early after a signal.
fn wait_readable(fd: &OwnedFd, limit: Option<Duration>) -> io::Result<()> {
    let limit = limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    match poll(&mut [PollFd::new(fd, PollFlags::IN)], limit.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The pid of a descriptor in our own PID namespace.
pub(super) fn pid_of(pidfd: impl AsFd) -> io::Result<u32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_fd().as_raw_fd()))?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    pid.ok_or_else(|| io::Error::other("not the descriptor of a process"))
}

fn lost(error: &io::Error) -> LaunchFailure {
    LaunchFailure::io(LaunchStep::Lost, "read the report of the launcher", error)
}

fn without_report() -> LaunchFailure {
    LaunchFailure::new(LaunchStep::Lost, "the launcher ended without a report")
}

/// The sibling, ready, and a failure. A container that may trace can take the socket of a launcher, and must not keep the shim busy.
const REPORTS_MAX: usize = 3;
/// The exit code of a launcher that failed.
const FAILED: i32 = 128;

#[cfg(test)]
mod tests;
