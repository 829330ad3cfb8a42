//! The process that forks shims.
//!
//! ```text
//!  agent ── exec of a read-only clone of its own executable ──▶ zygote (descriptor 0: control socket)
//!            ForkRequest + connection + run directory ──▶       │ fork
//!            ForkReply + pidfd ◀──                              └──▶ shim
//! ```
//! A fork of this small process costs 0.1 ms and shares its memory; executing the agent's binary for each pod would cost 4 ms and
//! 0.8 MiB. It has one thread and no state: the agent starts another one when it ends, and it ends with the agent.
//!
//! The clone of the executable is read-only, so that a container that gets hold of `/proc/<pid>/exe` of a launcher cannot overwrite
//! the agent (CVE-2019-5736).
#![allow(unsafe_code)]

mod start;

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use podwright_linux::scm::{self, Packet};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::launch;
use crate::launcher::{KernelLauncher, Launcher};
use crate::protocol::{ForkReply, ForkRequest, decode, encode};
use crate::supervise;
use crate::threads::assert_one_thread;

pub use start::{ForkedShim, Zygote, ZygoteError, ZygoteOptions};

/// The first argument of a zygote's command line; the second one, if present, is [`ZygoteOptions::open_files`]. Not for users.
pub(crate) const ZYGOTE_VERB: &str = "shim-zygote";

/// Whether these arguments, with the name of the program first, are those of a zygote. Must be called first, before
/// threads are started and the allocator or logging is set up.
pub fn is_zygote<I: IntoIterator<Item: AsRef<OsStr>>>(arguments: I) -> bool {
    arguments.into_iter().nth(1).is_some_and(|verb| verb.as_ref() == ZYGOTE_VERB)
}

/// Serves the control socket until the agent closes it. In a shim, which is a fork of this, it does not return.
pub fn main() -> ExitCode {
    main_with(&KernelLauncher)
}

/// As [`main`], for tests that need processes but no containers.
pub fn main_with(launcher: &'static dyn Launcher) -> ExitCode {
    assert_one_thread();
    // SAFETY: descriptor 0 is the control socket, passed by `Zygote::start`; nothing else in this process owns it.
    let control = unsafe { OwnedFd::from_raw_fd(0) };
    // SAFETY: SIG_IGN is a valid handler. Shims that end are reaped by the kernel.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let _ = rustix::thread::set_name(c"pw-zygote");
    if let Some(limit) = std::env::args().nth(2).and_then(|limit| limit.parse().ok()) {
        launch::set_open_files(limit);
    }
    // Fails without CAP_SYS_RESOURCE; the value stays as it is.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-999");
    loop {
        match scm::receive_packet(&control) {
            Ok(Some(packet)) => match fork_shim(launcher, packet, control.as_fd()) {
                Ok(reply) => reply,
                Err(error) => answer(control.as_fd(), error.raw_os_error().unwrap_or(libc::EPROTO)),
            },
            Ok(None) => return ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("podwright {ZYGOTE_VERB}: read the control socket: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
}

/// Forks a shim. The error is sent to the agent.
fn fork_shim(launcher: &'static dyn Launcher, packet: Packet, control: BorrowedFd<'_>) -> io::Result<()> {
    let request: ForkRequest = decode(&packet.bytes).map_err(|_| io::Error::from_raw_os_error(libc::EPROTO))?;
    let fds = <[OwnedFd; 2]>::try_from(packet.fds);
    let [connection, pod_dir] = fds.map_err(|_| io::Error::from_raw_os_error(libc::EPROTO))?;
    assert_one_thread();
    // SAFETY: this process has one thread, so the child may go on with the whole of its memory.
    let pid = unsafe { libc::fork() };
    match u32::try_from(pid) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(0) => become_shim(launcher, request.pod, connection, pod_dir),
        Ok(number) => {
            let pidfd = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())).expect("not 0")?;
            let reply = ForkReply { pid: Some(number), errno: 0 };
            // The agent is gone if it fails; the next receive ends this process.
            let _ = scm::send(control, &encode(&reply), &[pidfd.as_fd()]);
            Ok(())
        }
    }
}

fn answer(control: BorrowedFd<'_>, errno: i32) {
    let _ = scm::send(control, &encode(&ForkReply { pid: None, errno }), &[]);
}

/// The child of the zygote: never returns.
fn become_shim(launcher: &'static dyn Launcher, pod: String, connection: OwnedFd, pod_dir: OwnedFd) -> ! {
    let result = catch_unwind(AssertUnwindSafe(|| {
        detach(&pod)?;
        supervise::run(launcher, pod, pod_dir, connection).map_err(io::Error::other)
    }));
    let code = match result {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            eprintln!("podwright shim: {error}: {cause}");
            1
        }
        // The panic has printed its message.
        Err(_) => 101,
    };
    std::process::exit(code)
}

/// The name of a pod's shim as `/proc/<pid>/comm` has it, within the kernel's 15 bytes.
pub fn process_name(pod: &str) -> String {
    format!("shim:{}", pod.chars().filter(|c| c.is_ascii_graphic()).take(10).collect::<String>())
}

/// Leaves what belongs to the zygote: control socket, session, name.
fn detach(pod: &str) -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::process::setsid()?;
    rustix::thread::set_name(&CString::new(process_name(pod)).expect("printable characters hold no NUL"))?;
    Ok(())
}
