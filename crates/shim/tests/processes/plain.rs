//! A launcher for tests of the event loop: plain children in the namespaces and file system of the host.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::rc::Rc;

use podwright_linux::pidfd::PidFd;
use podwright_linux::scm;
use podwright_shim::launch::{
    ContainerStdio, LaunchFailure, LaunchInProgress, LaunchStep, Launched, PodNamespaces, begin_exec, begin_init,
    setup_pod,
};
use podwright_shim::launcher::Launcher;
use podwright_shim::plan::{ExecPlan, LaunchPlan, ProcessPlan, SetupPlan};

pub(crate) struct PlainLauncher;

impl Launcher for PlainLauncher {
    fn setup(&self, plan: &SetupPlan) -> Result<PodNamespaces, LaunchFailure> {
        setup_pod(plan)
    }

    fn init(
        &self,
        plan: &LaunchPlan,
        namespaces: &PodNamespaces,
        stdio: ContainerStdio,
    ) -> Result<Box<dyn LaunchInProgress>, LaunchFailure> {
        if plan.container_id == REAL {
            return Ok(Box::new(begin_init(plan, namespaces, stdio)?));
        }
        spawn(plan.process.as_ref().unwrap(), stdio)
    }

    fn exec(
        &self,
        plan: &ExecPlan,
        init: BorrowedFd<'_>,
        stdio: ContainerStdio,
    ) -> Result<Box<dyn LaunchInProgress>, LaunchFailure> {
        if plan.container_id == REAL {
            return Ok(Box::new(begin_exec(plan, init, stdio)?));
        }
        spawn(plan.process.as_ref().unwrap(), stdio)
    }
}

fn spawn(plan: &ProcessPlan, stdio: ContainerStdio) -> Result<Box<dyn LaunchInProgress>, LaunchFailure> {
    let argv: Vec<OsString> = plan.argv.iter().map(|part| OsString::from_vec(part.clone())).collect();
    if argv[0] == OsStr::new(HANGS) || argv[0] == OsStr::new(UNKILLABLE) {
        return Ok(hang(argv[0] == OsStr::new(UNKILLABLE)));
    }
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).env_clear().env("PATH", "/usr/bin:/bin");
    let terminal = matches!(stdio, ContainerStdio::Terminal(_));
    match stdio {
        ContainerStdio::Streams { stdin, stdout, stderr } => command.stdin(stdin).stdout(stdout).stderr(stderr),
        ContainerStdio::Terminal(slave) => {
            let copy = || slave.try_clone().unwrap();
            command.stdin(copy()).stdout(copy()).stderr(copy())
        }
    };
    // SAFETY: the closure only makes system calls.
    unsafe {
        command.pre_exec(move || {
            reset(terminal);
            Ok(())
        })
    };
    let child = command.spawn().map_err(|error| LaunchFailure {
        step: LaunchStep::Exec,
        errno: error.raw_os_error(),
        text: format!("exec {}: {}", argv[0].display(), error.to_string().to_lowercase()),
        user: None,
    })?;
    let pid = child.id();
    let pidfd = PidFd::open(pid).unwrap().into_fd();
    let launched = Launched {
        pid,
        pidfd: pidfd.try_clone().unwrap(),
        uid: 0,
        gid: 0,
        groups: vec![],
        home: "/".into(),
        pty: None,
    };
    // Its other end is closed: readable at once.
    let reports = Rc::new(scm::packet_pair().unwrap().0);
    Ok(Box::new(PlainLaunch { pid, pidfd, reports, child, launched: Some(launched), unkillable: false }))
}

#[derive(Debug)]
struct PlainLaunch {
    pid: u32,
    pidfd: OwnedFd,
    reports: Rc<OwnedFd>,
    child: Child,
    /// `None`: it waits for ever.
    launched: Option<Launched>,
    /// As in an uninterruptible sleep.
    unkillable: bool,
}

impl LaunchInProgress for PlainLaunch {
    fn awaited(&self) -> Rc<OwnedFd> {
        self.reports.clone()
    }

    fn advance(&mut self) -> Option<Result<Launched, LaunchFailure>> {
        if let Some(launched) = self.launched.take() {
            return Some(Ok(launched));
        }
        let ended = self.child.try_wait().unwrap();
        ended.map(|_| Err(LaunchFailure { step: LaunchStep::Lost, errno: None, text: "killed".into(), user: None }))
    }

    fn kill(&mut self) {
        if self.unkillable {
            return;
        }
        rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL).unwrap();
    }

    fn has_process(&self, pid: u32) -> bool {
        self.pid == pid
    }
}

/// A launcher that waits for ever, as for a file system that hangs.
fn hang(unkillable: bool) -> Box<dyn LaunchInProgress> {
    let (reports, theirs) = scm::packet_pair().unwrap();
    let child = Command::new("/bin/sleep").arg("1000").stdin(theirs).spawn().unwrap();
    let pid = child.id();
    let pidfd = PidFd::open(pid).unwrap().into_fd();
    Box::new(PlainLaunch { pid, pidfd, reports: Rc::new(reports), child, launched: None, unkillable })
}

/// What every launcher resets: session, terminal, signals.
fn reset(terminal: bool) {
    // SAFETY: no pointers but the set, which is initialised and outlives its use.
    unsafe {
        libc::setsid();
        if terminal {
            libc::ioctl(0, libc::TIOCSCTTY, 0);
        }
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        for signal in 1..32 {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// The id of a container that the launcher of the product starts.
pub(crate) const REAL: &str = "real";

/// The program of a launch that does not end.
pub(crate) const HANGS: &str = "/hangs";

/// The program of a launch that does not end when it is killed.
pub(crate) const UNKILLABLE: &str = "/unkillable";
