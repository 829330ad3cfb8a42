//! A process in a running container: a helper enters all its namespaces at once, by the pidfd of its init, and leaves a sibling there.
//!
//! Processes of the container see the sibling, and those with CAP_SYS_PTRACE can open its descriptors through `/proc`. So everything
//! that needs the host is done by the helper, which is in the PID namespace of the host, and no descriptor of the host is left when
//! the sibling is made (CVE-2016-9962).

use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use podwright_linux::namespace::{self, flags};
use podwright_linux::{pty, scm};
use rustix::fs::Uid;

use super::finish::{Finish, labels, place_streams, streams};
use super::init::become_root_inside;
use super::pending::{end_with_failure, spawn, spawn_sibling};
use super::{ContainerStdio, LaunchFailure, LaunchStep, PendingLaunch, reset, user};
use crate::plan::{ExecPlan, ProcessPlan, ResolvedUser};

/// Starts a process in the container of `init`, a pidfd.
pub fn begin_exec(
    plan: &ExecPlan,
    init: BorrowedFd<'_>,
    stdio: ContainerStdio,
) -> Result<PendingLaunch, LaunchFailure> {
    let missing = |what: &str| LaunchFailure::new(LaunchStep::Plan, format!("exec plan: no {what}"));
    let process = plan.process.as_ref().ok_or_else(|| missing("process"))?;
    let user = plan.user.as_ref().ok_or_else(|| missing("user"))?;
    let spawn_in = |cgroup: Option<OwnedFd>| {
        let reports = scm::packet_pair().map_err(|e| LaunchFailure::io(LaunchStep::Clone, "report socket", &e))?;
        let options = reset::clone_into(0, cgroup.as_ref());
        spawn(&options, reports, |report| enter(plan, process, user, init, &stdio, report))
    };
    match reset::start_cgroup(&plan.cgroups).and_then(spawn_in) {
        // The cgroup was removed, or has controllers for cgroups below: the container manages its own (runc #2416, #5101).
        Err(failure) if matches!(failure.errno, Some(libc::ENOENT | libc::ENODEV | libc::EBUSY)) => {
            spawn_in(Some(reset::present_cgroup(init).ok_or(failure)?))
        }
        result => result,
    }
}

fn enter(
    plan: &ExecPlan,
    process: &ProcessPlan,
    user: &ResolvedUser,
    init: BorrowedFd<'_>,
    stdio: &ContainerStdio,
    report: BorrowedFd<'_>,
) -> Result<Infallible, LaunchFailure> {
    reset::inherited_state(process.umask)?;
    let proc = reset::host_proc()?;
    reset::join_cgroups(&plan.cgroups)?;
    reset::oom_score_adj(&proc, plan.oom_score_adj)?;
    let unmapped = || LaunchFailure::new(LaunchStep::User, format!("uid {}: not mapped in the pod", user.uid));
    user::own_streams(&streams(stdio), user::host_id(&plan.uid_mappings, user.uid).ok_or_else(unmapped)?);
    let mapped = !plan.uid_mappings.is_empty();
    // The kernel refuses to enter the user namespace in which one already is.
    let kinds = EVERY | if mapped { flags::NEWUSER } else { 0 };
    namespace::enter(init, kinds)
        .map_err(|e| LaunchFailure::io(LaunchStep::Namespace, "enter the namespaces of the container", &e))?;
    if mapped {
        become_root_inside()?;
    }
    let (inside, pty) = terminal_inside(&proc, user.uid, stdio).unzip();
    let stdio = inside.as_ref().unwrap_or(stdio);
    // For the program that is executed next; a clone inherits them.
    labels(process, &proc)?;
    drop(proc);
    // Those of the shim may be files of the host.
    place_streams(stdio)?;
    let mut kept: Vec<BorrowedFd<'_>> = streams(stdio).into_iter().map(AsFd::as_fd).collect();
    kept.extend(pty.as_ref().map(AsFd::as_fd));
    kept.push(report);
    reset::close_others(&kept)?;
    let entered = spawn_sibling(0, report, |report| {
        let (container_id, personality) = (&plan.container_id, plan.personality);
        Finish { process, user, personality, container_id, proc: None, stdio, pty: pty.as_ref() }.execute(report)
    });
    match entered {
        // Owners in this process hold descriptors that are closed: it ends here, without dropping them.
        Err(failure) => end_with_failure(report, failure),
        Ok(never) => match never {},
    }
}

/// A terminal of the container's own devpts in place of the host's: programs find its name below `/dev/pts`. `None`: there is no
/// terminal, or the container has no devpts.
fn terminal_inside(proc: &OwnedFd, uid: u32, stdio: &ContainerStdio) -> Option<(ContainerStdio, OwnedFd)> {
    let ContainerStdio::Terminal(_) = stdio else { return None };
    let (master, slave) = pty::open_named_pair(proc).ok()?;
    rustix::fs::fchown(&slave, Some(Uid::from_raw(uid)), None).ok()?;
    Some((ContainerStdio::Terminal(slave), master))
}

const EVERY: u64 = flags::NEWNS | flags::NEWPID | flags::NEWNET | flags::NEWIPC | flags::NEWUTS | flags::NEWCGROUP;
