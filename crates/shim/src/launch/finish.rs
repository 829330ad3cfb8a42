//! Steps 14 to 17: limits, session, privileges, working directory, and the program. The same for init and exec.

// dup2, personality and execve have no safe wrappers.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use podwright_linux::rlimit::Rlimit;
use podwright_linux::{caps, keyring, pty, rlimit, seccomp_bpf};
use rustix::fs::{Gid, Mode, OFlags, Uid};

use super::pending::{end_with_failure, send_ready};
use super::{ContainerStdio, LaunchFailure, LaunchStep, reset};
use crate::plan::{ProcessPlan, ResolvedUser};

/// What is known when the process is in its place.
pub(super) struct Finish<'a> {
    pub(super) process: &'a ProcessPlan,
    pub(super) user: &'a ResolvedUser,
    pub(super) personality: Option<i32>,
    pub(super) container_id: &'a str,
    /// The host's `/proc`; `None`: the labels are set already.
    pub(super) proc: Option<&'a OwnedFd>,
    pub(super) stdio: &'a ContainerStdio,
    /// The master of a terminal that was opened inside.
    pub(super) pty: Option<&'a OwnedFd>,
}

impl Finish<'_> {
    /// Becomes the program.
    pub(super) fn execute(self, report: BorrowedFd<'_>) -> Result<Infallible, LaunchFailure> {
        let program = ExecProgram::new(self.process, self.user)?;
        self.limits()?;
        self.session()?;
        send_ready(report, self.user, self.pty)?;
        self.privileges()?;
        if let Some(proc) = self.proc {
            labels(self.process, proc)?;
        }
        // Afterwards owners in this process hold descriptors that are closed: it ends here, without dropping them.
        // To mark the others is not enough: the path of the program, e.g. `/proc/self/fd/7/../bin/sh`, is resolved while marked
        // descriptors are still open (CVE-2024-21626). The report is closed by `execve`.
        let filtered = reset::close_others(&[report])
            .and_then(|()| if self.process.no_new_privileges { self.seccomp() } else { Ok(()) });
        let failure = filtered.err().unwrap_or_else(|| program.execute());
        end_with_failure(report, failure)
    }

    fn limits(&self) -> Result<(), LaunchFailure> {
        for limit in &self.process.rlimits {
            rlimit::set(limit.resource, Rlimit { soft: limit.soft, hard: limit.hard })
                .map_err(|e| LaunchFailure::io(LaunchStep::Limit, format!("resource limit {}", limit.resource), &e))?;
        }
        let name = CString::new(format!("_ses.{}", self.container_id)).unwrap_or_default();
        match keyring::join_new_session(&name) {
            // The quota of keys of this user is used up, or a filter of the node forbids the call: runc goes on too.
            Err(e) if !matches!(e.raw_os_error(), Some(libc::EDQUOT | libc::EPERM | libc::EACCES)) => {
                return Err(LaunchFailure::io(LaunchStep::Process, "new session keyring", &e));
            }
            _ => {}
        }
        if let Some(personality) = self.personality {
            // SAFETY: an integer only; the memory of the process is not touched.
            if unsafe { libc::personality(u64::from(personality.cast_unsigned())) } < 0 {
                return Err(LaunchFailure::io(LaunchStep::Process, "personality", &io::Error::last_os_error()));
            }
        }
        Ok(())
    }

    fn session(&self) -> Result<(), LaunchFailure> {
        let failed = |e: &io::Error| LaunchFailure::io(LaunchStep::Terminal, "new session", e);
        rustix::process::setsid().map_err(|e| failed(&e.into()))?;
        place_streams(self.stdio)?;
        if let ContainerStdio::Terminal(slave) = self.stdio {
            let failed = |e: &io::Error| LaunchFailure::io(LaunchStep::Terminal, "controlling terminal", e);
            pty::make_controlling(slave).map_err(|e| failed(&e))?;
            let size = |value| u16::try_from(value).unwrap_or(u16::MAX);
            let (rows, columns) = (size(self.process.terminal_rows), size(self.process.terminal_columns));
            if rows > 0 && columns > 0 {
                pty::resize(slave, rows, columns).map_err(|e| failed(&e))?;
            }
        }
        Ok(())
    }

    /// In runc's order. What is dropped must have been used before: SETPCAP for the bounding set, SYS_ADMIN for a filter without
    /// `no_new_privs`, SETGID and SETUID for the ids.
    fn privileges(&self) -> Result<(), LaunchFailure> {
        let failed = |what: &'static str| move |e: io::Error| LaunchFailure::io(LaunchStep::Privileges, what, &e);
        let raw = |what: &'static str| move |e: rustix::io::Errno| failed(what)(e.into());
        if self.process.no_new_privileges {
            rustix::thread::set_no_new_privs(true).map_err(raw("no_new_privs"))?;
        }
        let wanted = self.process.capabilities.unwrap_or_default();
        let present = caps::bounding().map_err(failed("read the bounding set"))?;
        caps::limit_bounding(wanted.bounding).map_err(failed("bounding set"))?;
        if !self.process.no_new_privileges {
            self.seccomp()?;
        }
        // As root first: a directory that only root can enter is allowed, as in runc.
        let entered = self.change_directory().is_ok();
        rustix::thread::set_keep_capabilities(true).map_err(raw("keep capabilities"))?;
        let groups: Vec<Gid> = self.user.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
        rustix::thread::set_thread_groups(&groups).map_err(raw("set groups"))?;
        let (uid, gid) = (Uid::from_raw(self.user.uid), Gid::from_raw(self.user.gid));
        rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(raw("set gid"))?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(raw("set uid"))?;
        rustix::thread::set_keep_capabilities(false).map_err(raw("keep capabilities"))?;
        caps::set(wanted.effective & present, wanted.permitted & present, wanted.inheritable & present)
            .map_err(failed("capabilities"))?;
        caps::set_ambient(wanted.ambient & present).map_err(failed("ambient capabilities"))?;
        if !entered {
            self.change_directory()?;
        }
        // A directory outside of the root, reached by a leaked descriptor, has no absolute name (CVE-2024-21626).
        let cwd = std::env::current_dir();
        if !cwd.as_ref().is_ok_and(|cwd| cwd.is_absolute() && !cwd.starts_with("(unreachable)")) {
            let text = format!("chdir {}: not inside the root of the container", self.cwd());
            return Err(LaunchFailure::new(LaunchStep::WorkingDirectory, text));
        }
        Ok(())
    }

    fn cwd(&self) -> &str {
        if self.process.cwd.is_empty() { "/" } else { &self.process.cwd }
    }

    fn change_directory(&self) -> Result<(), LaunchFailure> {
        rustix::process::chdir(self.cwd())
            .map_err(|e| LaunchFailure::io(LaunchStep::WorkingDirectory, format!("chdir {}", self.cwd()), &e.into()))
    }

    fn seccomp(&self) -> Result<(), LaunchFailure> {
        if self.process.seccomp.is_empty() {
            return Ok(());
        }
        seccomp_bpf::install(&self.process.seccomp, self.process.seccomp_flags)
            .map_err(|e| LaunchFailure::io(LaunchStep::Seccomp, "install the seccomp filter", &e))
    }
}

/// Makes the streams descriptors 0 to 2.
pub(super) fn place_streams(stdio: &ContainerStdio) -> Result<(), LaunchFailure> {
    let failed = |e: &io::Error| LaunchFailure::io(LaunchStep::Terminal, "standard streams", e);
    let streams = match stdio {
        ContainerStdio::Streams { stdin, stdout, stderr } => [stdin, stdout, stderr],
        ContainerStdio::Terminal(slave) => [slave, slave, slave],
    };
    // Copies above 2 first: one of the given descriptors may itself be 0, 1 or 2.
    let copies: Vec<OwnedFd> = streams
        .iter()
        .map(|stream| rustix::io::fcntl_dupfd_cloexec(stream, 3))
        .collect::<Result<_, _>>()
        .map_err(|e| failed(&e.into()))?;
    for (copy, number) in copies.iter().zip(0..) {
        // SAFETY: the numbers 0 to 2 are standard streams, which no owner in this process closes.
        if unsafe { libc::dup2(copy.as_raw_fd(), number) } < 0 {
            return Err(failed(&io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// The labels of the program that this process, or a clone of it, executes next.
pub(super) fn labels(process: &ProcessPlan, proc: &OwnedFd) -> Result<(), LaunchFailure> {
    let write = |path: &str, text: &str| -> io::Result<()> {
        let file = rustix::fs::openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, text.as_bytes())?;
        Ok(())
    };
    let profile = &process.apparmor_profile;
    if !profile.is_empty() {
        let text = format!("exec {profile}");
        write("thread-self/attr/apparmor/exec", &text)
            .or_else(|_| write("thread-self/attr/exec", &text))
            .map_err(|e| LaunchFailure::io(LaunchStep::Label, format!("AppArmor profile {profile}"), &e))?;
    }
    let label = &process.selinux_label;
    if !label.is_empty() {
        write("thread-self/attr/exec", label)
            .map_err(|e| LaunchFailure::io(LaunchStep::Label, format!("SELinux label {label}"), &e))?;
    }
    Ok(())
}

/// The program with its arguments, ready before anything can fail.
struct ExecProgram {
    name: String,
    candidates: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl ExecProgram {
    fn new(process: &ProcessPlan, user: &ResolvedUser) -> Result<Self, LaunchFailure> {
        let text = |bytes: &Vec<u8>| {
            CString::new(bytes.clone())
                .map_err(|_| LaunchFailure::new(LaunchStep::Plan, "an argument or variable has a NUL byte"))
        };
        let argv: Vec<CString> = process.argv.iter().map(text).collect::<Result<_, _>>()?;
        let mut env: Vec<CString> = process.env.iter().map(text).collect::<Result<_, _>>()?;
        let Some(first) = argv.first().filter(|first| !first.is_empty()) else {
            return Err(LaunchFailure::new(LaunchStep::Plan, "no program to execute"));
        };
        let variable = |name: &[u8]| process.env.iter().rev().find_map(|entry| entry.strip_prefix(name));
        if variable(b"HOME=").is_none() {
            let home = if user.home.is_empty() { "/" } else { &user.home };
            env.push(text(&format!("HOME={home}").into_bytes())?);
        }
        let candidates = if first.as_bytes().contains(&b'/') {
            vec![first.clone()]
        } else {
            let path = variable(b"PATH=").unwrap_or(DEFAULT_PATH);
            let full = |directory: &[u8]| CString::new([directory, b"/", first.as_bytes()].concat()).ok();
            path.split(|&byte| byte == b':').filter(|directory| !directory.is_empty()).filter_map(full).collect()
        };
        Ok(Self { name: first.to_string_lossy().into_owned(), candidates, argv, env })
    }

    /// Returns only if it failed.
    fn execute(&self) -> LaunchFailure {
        let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
            texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (argv, env) = (pointers(&self.argv), pointers(&self.env));
        let mut refused = None;
        for candidate in &self.candidates {
            // SAFETY: the strings and both null-terminated arrays live until the call returns, which it does only on an error.
            unsafe { libc::execve(candidate.as_ptr(), argv.as_ptr(), env.as_ptr()) };
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                // Another directory of the path may have one that can be executed.
                Some(libc::EACCES) => refused = Some((candidate, error)),
                _ => return failed(candidate, &error),
            }
        }
        match (refused, self.candidates.as_slice()) {
            (Some((candidate, error)), _) => failed(candidate, &error),
            (None, [only]) if self.name.contains('/') => failed(only, &io::Error::from_raw_os_error(libc::ENOENT)),
            _ => {
                let text = format!("exec: {:?}: executable file not found in $PATH", self.name);
                LaunchFailure { errno: Some(libc::ENOENT), ..LaunchFailure::new(LaunchStep::Exec, text) }
            }
        }
    }
}

fn failed(program: &CString, error: &io::Error) -> LaunchFailure {
    LaunchFailure::io(LaunchStep::Exec, format!("exec {}", program.to_string_lossy()), error)
}

/// All streams of a process, for the change of their owner.
pub(super) fn streams(stdio: &ContainerStdio) -> Vec<&OwnedFd> {
    match stdio {
        ContainerStdio::Streams { stdin, stdout, stderr } => vec![stdin, stdout, stderr],
        ContainerStdio::Terminal(slave) => vec![slave],
    }
}

/// Enters the namespaces of a pod except user and PID.
pub(super) fn enter_pod(namespaces: &super::PodNamespaces) -> Result<(), LaunchFailure> {
    use podwright_linux::namespace::{enter, flags};
    let all = [
        ("network", &namespaces.net, flags::NEWNET),
        ("IPC", &namespaces.ipc, flags::NEWIPC),
        ("UTS", &namespaces.uts, flags::NEWUTS),
    ];
    for (name, descriptor, kind) in all {
        let Some(descriptor) = descriptor else { continue };
        enter(descriptor.as_fd(), kind)
            .map_err(|e| LaunchFailure::io(LaunchStep::Namespace, format!("enter the {name} namespace"), &e))?;
    }
    Ok(())
}

/// As the shell's and runc's.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
