//! The namespaces of a pod, made by a helper that ends before this returns: descriptors keep them.

// SIGCHLD is ignored and pause(2) called in the pid 1 of a shared PID namespace.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use podwright_linux::fsctx::{self, FsContext, MountPropagation, attributes};
use podwright_linux::namespace::{self, flags};
use podwright_linux::{caps, scm};
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::mount::{UnmountFlags, unmount};

use super::finish::enter_pod;
use super::init::become_root_inside;
use super::pending::{send_ready, spawn, spawn_sibling};
use super::{LaunchFailure, LaunchInProgress, LaunchStep, PodNamespaces, reset};
use crate::plan::{IdMapping, ResolvedUser, SetupPlan, Sysctl};

/// Makes the namespaces of a pod in a helper process, which has ended when this returns.
pub fn setup_pod(plan: &SetupPlan) -> Result<PodNamespaces, LaunchFailure> {
    for sysctl in &plan.sysctls {
        check_sysctl(plan, sysctl)?;
    }
    let mut kinds = 0;
    for (wanted, kind) in
        [(plan.new_network, flags::NEWNET), (plan.new_ipc, flags::NEWIPC), (plan.new_uts, flags::NEWUTS)]
    {
        kinds |= if wanted { kind } else { 0 };
    }
    let mapped = !plan.uid_mappings.is_empty();
    kinds |= if mapped { flags::NEWUSER } else { 0 };
    let mut namespaces = PodNamespaces::default();
    if kinds != 0 {
        namespaces = make(plan, kinds, mapped)?;
    }
    if plan.pause {
        start_pause(plan, &mut namespaces)?;
    }
    Ok(namespaces)
}

/// The helper waits for its id maps, then configures; the descriptors are opened while it lives.
fn make(plan: &SetupPlan, kinds: u64, mapped: bool) -> Result<PodNamespaces, LaunchFailure> {
    let pair = || scm::packet_pair().map_err(|e| failed("socket of the helper", &e));
    let (go, wait) = pair()?;
    // The helper closes its copy, so that it ends when this process does.
    let go = Cell::new(Some(go));
    let mut helper = spawn(&reset::clone_into(kinds, None), pair()?, |report| {
        drop(go.take());
        let mut buffer = [0; 8];
        if scm::receive(&wait, &mut buffer).map_err(|e| failed("wait for the id maps", &e))?.is_none() {
            namespace::exit_now(1)
        }
        if mapped {
            become_root_inside()?;
        }
        configure(plan)?;
        send_ready(report, &ResolvedUser::default(), None)?;
        // Until the parent has opened the namespaces and closes its end.
        let _ = scm::receive(&wait, &mut buffer);
        namespace::exit_now(0)
    })?;
    let go = go.take();
    let ready = (|| {
        if mapped {
            write_map(helper.pid(), "uid_map", &plan.uid_mappings)?;
            write_map(helper.pid(), "gid_map", &plan.gid_mappings)?;
        }
        let go = go.as_ref().ok_or_else(|| LaunchFailure::new(LaunchStep::Namespace, "no socket of the helper"))?;
        scm::send(go, b"go", &[]).map_err(|e| failed("start the helper", &e))?;
        helper.wait_ready(SETUP_LIMIT)?;
        open_namespaces(helper.pid(), kinds)
    })();
    drop(go);
    // Its work is done, or has failed.
    helper.kill();
    let _ = helper.finish();
    ready
}

fn configure(plan: &SetupPlan) -> Result<(), LaunchFailure> {
    if plan.new_uts && !plan.hostname.is_empty() {
        rustix::system::sethostname(plan.hostname.as_bytes())
            .map_err(|e| failed(&format!("set the host name {:?}", plan.hostname), &e.into()))?;
    }
    if plan.sysctls.is_empty() {
        return Ok(());
    }
    // A procfs of our own is writable even where the host's is mounted read-only; a user namespace may not have one.
    let proc = FsContext::open("proc").and_then(|context| context.mount(0));
    let proc = proc.or_else(|_| Ok(rustix::fs::open(c"/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?));
    let proc = proc.map_err(|e: io::Error| failed("open /proc", &e))?;
    for sysctl in &plan.sysctls {
        let failed = |e: rustix::io::Errno| {
            LaunchFailure::io(LaunchStep::Sysctl, format!("sysctl {}={}", sysctl.name, sysctl.value), &e.into())
        };
        let path = format!("sys/{}", path_of(&sysctl.name));
        let file = rustix::fs::openat(&proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        rustix::io::write(&file, sysctl.value.as_bytes()).map_err(failed)?;
    }
    Ok(())
}

/// Only settings of a namespace that the pod has for itself: all others are the node's.
fn check_sysctl(plan: &SetupPlan, sysctl: &Sysctl) -> Result<(), LaunchFailure> {
    let path = path_of(&sysctl.name);
    let refuse = |why: &str| Err(LaunchFailure::new(LaunchStep::Sysctl, format!("sysctl {}: {why}", sysctl.name)));
    if path.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return refuse("not a valid name");
    }
    let ipc = path.starts_with("fs/mqueue/")
        || matches!(path.as_str(), "kernel/sem")
        || ["kernel/shm", "kernel/msg"].iter().any(|prefix| path.starts_with(prefix));
    match path.starts_with("net/") {
        true if !plan.new_network => refuse("the pod shares the network namespace of the host"),
        false if ipc && !plan.new_ipc => refuse("the pod shares the IPC namespace of the host"),
        false if !ipc => refuse("it does not belong to a namespace of the pod"),
        _ => Ok(()),
    }
}

/// With slashes: a name that has one already uses dots as parts of names, as sysctl(8) reads it.
fn path_of(name: &str) -> String {
    match name.find(['.', '/']).map(|at| name.as_bytes()[at]) {
        Some(b'/') => name.to_owned(),
        _ => name
            .chars()
            .map(|c| {
                if c == '.' {
                    '/'
                } else if c == '/' {
                    '.'
                } else {
                    c
                }
            })
            .collect(),
    }
}

fn write_map(pid: u32, file: &str, mappings: &[IdMapping]) -> Result<(), LaunchFailure> {
    let lines: String = mappings.iter().map(|map| format!("{} {} {}\n", map.container, map.host, map.size)).collect();
    std::fs::write(format!("/proc/{pid}/{file}"), lines).map_err(|e| failed(&format!("write {file}"), &e))
}

fn open_namespaces(pid: u32, kinds: u64) -> Result<PodNamespaces, LaunchFailure> {
    let open = |name: &str, kind: u64| -> Result<Option<OwnedFd>, LaunchFailure> {
        if kinds & kind == 0 {
            return Ok(None);
        }
        let path = format!("/proc/{pid}/ns/{name}");
        let open = rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        open.map(Some).map_err(|e| failed(&path, &e.into()))
    };
    Ok(PodNamespaces {
        user: open("user", flags::NEWUSER)?,
        net: open("net", flags::NEWNET)?,
        ipc: open("ipc", flags::NEWIPC)?,
        uts: open("uts", flags::NEWUTS)?,
        pid: None,
        pause: None,
    })
}

/// The pid 1 of the pod's PID namespace: it reaps what containers leave behind.
fn start_pause(plan: &SetupPlan, namespaces: &mut PodNamespaces) -> Result<(), LaunchFailure> {
    let reports = scm::packet_pair().map_err(|e| failed("socket of the pause process", &e))?;
    let cgroup = reset::start_cgroup(&plan.pause_cgroups)?;
    let kinds = flags::NEWPID | flags::NEWNS;
    let pending = match &namespaces.user {
        None => spawn(&reset::clone_into(kinds, cgroup.as_ref()), reports, |report| pause(plan, namespaces, report)),
        Some(user) => spawn(&reset::clone_into(0, cgroup.as_ref()), reports, |report| {
            reset::join_cgroups(&plan.pause_cgroups)?;
            namespace::enter(user, flags::NEWUSER).map_err(|e| failed("enter the user namespace", &e))?;
            spawn_sibling(kinds, report, |report| {
                become_root_inside()?;
                pause(&SetupPlan { pause_cgroups: vec![], ..plan.clone() }, namespaces, report)
            })
        }),
    }?;
    let launched = pending.finish_within(SETUP_LIMIT)?;
    let path = format!("/proc/{}/ns/pid", launched.pid);
    let open = rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    namespaces.pid = Some(open.map_err(|e| failed(&path, &e.into()))?);
    namespaces.pause = Some(launched);
    Ok(())
}

/// Containers that may trace see this process: it has an empty root, no descriptors and no rights.
fn pause(plan: &SetupPlan, namespaces: &PodNamespaces, report: BorrowedFd<'_>) -> Result<Infallible, LaunchFailure> {
    reset::inherited_state(None)?;
    reset::join_cgroups(&plan.pause_cgroups)?;
    enter_pod(namespaces)?;
    empty_root()?;
    let _ = rustix::thread::set_name(c"pause");
    rustix::process::setsid().map_err(|e| failed("pause: new session", &e.into()))?;
    rustix::thread::set_no_new_privs(true).map_err(|e| failed("pause: no_new_privs", &e.into()))?;
    send_ready(report, &ResolvedUser::default(), None)?;
    caps::limit_bounding(0).map_err(|e| failed("pause: bounding set", &e))?;
    let (uid, gid) = (Uid::from_raw(UNPRIVILEGED), Gid::from_raw(UNPRIVILEGED));
    rustix::thread::set_thread_groups(&[]).map_err(|e| failed("pause: groups", &e.into()))?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(|e| failed("pause: gid", &e.into()))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(|e| failed("pause: uid", &e.into()))?;
    caps::set(0, 0, 0).map_err(|e| failed("pause: capabilities", &e))?;
    // SAFETY: an ignored SIGCHLD runs none of our code and lets the kernel reap; the process never uses a descriptor again, so
    // that closing all of them under their owners has no effect here; pause(2) has no arguments.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::syscall(libc::SYS_close_range, 0_u32, u32::MAX, 0_u32);
        loop {
            libc::pause();
        }
    }
}

fn empty_root() -> Result<(), LaunchFailure> {
    fsctx::change_root(MountPropagation::Slave).map_err(|e| failed("pause: slave mounts", &e))?;
    let empty = FsContext::open("tmpfs").and_then(|context| context.mount(attributes::RDONLY | attributes::NODEV));
    let empty = empty.map_err(|e| failed("pause: empty root", &e))?;
    // Any directory that always exists will do: it is in this mount namespace only.
    let place = super::targets::open_host("/proc").map_err(|e| failed("pause: /proc", &e.into()))?;
    fsctx::attach(empty.as_fd(), place).map_err(|e| failed("pause: attach the root", &e))?;
    rustix::process::fchdir(&empty).map_err(|e| failed("pause: enter the root", &e.into()))?;
    rustix::process::pivot_root(c".", c".").map_err(|e| failed("pause: pivot_root", &e.into()))?;
    unmount(c".", UnmountFlags::DETACH).map_err(|e| failed("pause: detach the root of the host", &e.into()))?;
    rustix::process::chdir(c"/").map_err(|e| failed("pause: enter the root", &e.into()))
}

fn failed(subject: &str, error: &io::Error) -> LaunchFailure {
    LaunchFailure::io(LaunchStep::Namespace, subject, error)
}

/// A helper makes system calls on namespaces only, none of which waits for a device or server.
const SETUP_LIMIT: Duration = Duration::from_secs(10);
/// As of Kubernetes' pause image.
const UNPRIVILEGED: u32 = 65535;

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(plan: &SetupPlan, name: &str) -> bool {
        check_sysctl(plan, &Sysctl { name: name.into(), value: "1".into() }).is_err()
    }

    #[test]
    fn only_sysctls_of_the_pods_own_namespaces_are_set() {
        let own = SetupPlan { new_network: true, new_ipc: true, ..SetupPlan::default() };
        let allowed = ["net.ipv4.ip_forward", "kernel.shmmax", "kernel.msgmnb", "kernel.sem", "fs.mqueue.msg_max"];
        for name in allowed {
            assert!(!refused(&own, name), "{name}");
            assert!(refused(&SetupPlan::default(), name), "{name}");
        }
        for name in ["kernel.panic", "vm.swappiness", "net.ipv4/../../kernel", "net", "", "kernel/../net/x"] {
            assert!(refused(&own, name), "{name}");
        }
        assert!(!refused(&own, "net/ipv4/conf/eth0.5/rp_filter"));
        assert_eq!(path_of("net.ipv4.conf.eth0/5.rp_filter"), "net/ipv4/conf/eth0.5/rp_filter");
    }
}
