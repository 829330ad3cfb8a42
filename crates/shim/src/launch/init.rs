//! The init of a container: the steps in their order.

use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use podwright_linux::fsctx::{self, MountChange, MountPropagation, attributes};
use podwright_linux::namespace::{self, flags};
use podwright_linux::scm;
use rustix::fs::{Gid, Uid};
use rustix::mount::{UnmountFlags, unmount};

use super::finish::{Finish, enter_pod, labels, place_streams, streams};
use super::pending::{end_with_failure, spawn, spawn_sibling};
use super::sources::{self, MountSources};
use super::{ContainerStdio, LaunchFailure, LaunchStep, PendingLaunch, PodNamespaces};
use super::{mounts, reset, rootfs, targets, user};
use crate::plan::{LaunchPlan, PidNamespace, ProcessPlan, ResolvedUser};

/// Starts the init of a container. The cgroups of the plan exist already and have their limits.
pub fn begin_init(
    plan: &LaunchPlan,
    namespaces: &PodNamespaces,
    stdio: ContainerStdio,
) -> Result<PendingLaunch, LaunchFailure> {
    let process = plan.process.as_ref().ok_or_else(|| invalid("no process"))?;
    if namespaces.user.is_some() == plan.uid_mappings.is_empty() {
        return Err(invalid("id mappings and a user namespace belong together"));
    }
    if plan.pid_namespace() == PidNamespace::Joined && namespaces.pid.is_none() {
        return Err(invalid("no PID namespace to join"));
    }
    let needed = [
        (plan.needs_network, &namespaces.net, "no network namespace"),
        (plan.needs_ipc, &namespaces.ipc, "no IPC namespace"),
        (plan.needs_uts, &namespaces.uts, "no UTS namespace"),
    ];
    if let Some((_, _, text)) = needed.iter().find(|(needed, descriptor, _)| *needed && descriptor.is_none()) {
        return Err(invalid(text));
    }
    let launch = InitLaunch { plan, process, namespaces, stdio: &stdio };
    let cgroup = reset::start_cgroup(&plan.cgroups)?;
    let reports = scm::packet_pair().map_err(|e| LaunchFailure::io(LaunchStep::Clone, "report socket", &e))?;
    if namespaces.user.is_some() {
        return spawn(&reset::clone_into(0, cgroup.as_ref()), reports, |report| launch.as_helper(report));
    }
    if let (PidNamespace::Joined, Some(joined)) = (plan.pid_namespace(), &namespaces.pid) {
        let options = reset::clone_into(flags::NEWNS, cgroup.as_ref());
        return spawn(&options, reports, |report| launch.join(joined, report));
    }
    let kinds = flags::NEWNS | if plan.pid_namespace() == PidNamespace::Own { flags::NEWPID } else { 0 };
    spawn(&reset::clone_into(kinds, cgroup.as_ref()), reports, |report| launch.as_init(report))
}

struct InitLaunch<'a> {
    plan: &'a LaunchPlan,
    process: &'a ProcessPlan,
    namespaces: &'a PodNamespaces,
    stdio: &'a ContainerStdio,
}

/// What the steps on the host have made.
struct Prepared {
    proc: OwnedFd,
    sources: MountSources,
    root: OwnedFd,
    user: ResolvedUser,
}

impl InitLaunch<'_> {
    /// Without a user namespace one process does everything.
    fn as_init(&self, report: BorrowedFd<'_>) -> Result<Infallible, LaunchFailure> {
        let prepared = self.prepare()?;
        let staging = self.open_staging()?;
        self.enter(prepared, staging, report)
    }

    /// Other containers see the processes of the PID namespace, and those with CAP_SYS_PTRACE can open their descriptors and root.
    /// So the process there is made when nothing of the host is left.
    fn join(&self, joined: &OwnedFd, report: BorrowedFd<'_>) -> Result<Infallible, LaunchFailure> {
        let Prepared { proc, mut sources, root, user } = self.prepare()?;
        self.enter_namespaces()?;
        self.attach_root(&root, self.open_staging()?)?;
        mounts::make_outside(self.plan, root.as_fd(), &sources)?;
        self.make_working_directory(&root)?;
        self.pivot(&root)?;
        labels(self.process, &proc)?;
        drop(proc);
        let needed = self.plan.mounts.iter().map(|mount| mounts::is_of_proc(self.plan, mount));
        let left = needed.zip(std::mem::take(&mut sources.mounts)).map(|(needed, source)| source.filter(|_| needed));
        sources = MountSources { mounts: left.collect(), nulls: sources.nulls, ..MountSources::default() };
        namespace::enter(joined, flags::NEWPID)
            .map_err(|e| LaunchFailure::io(LaunchStep::Namespace, "enter the PID namespace", &e))?;
        place_streams(self.stdio)?;
        let mut kept: Vec<BorrowedFd<'_>> = streams(self.stdio).into_iter().map(AsFd::as_fd).collect();
        kept.extend(sources.mounts.iter().flatten().map(|source| source.tree.as_fd()));
        kept.extend(sources.nulls.iter().map(AsFd::as_fd).chain([root.as_fd(), report]));
        reset::close_others(&kept)?;
        let made = spawn_sibling(0, report, |report| {
            mounts::make_proc(self.plan, root.as_fd(), &sources)?;
            self.finish(&user, None).execute(report)
        });
        match made {
            // Owners in this process hold descriptors that are closed: it ends here, without dropping them.
            Err(failure) => end_with_failure(report, failure),
            Ok(never) => match never {},
        }
    }

    /// The steps that need the host's privileges; the rest is done by a process that was born inside.
    fn as_helper(&self, report: BorrowedFd<'_>) -> Result<Infallible, LaunchFailure> {
        let prepared = self.prepare()?;
        let failed = |what: &'static str| move |e: std::io::Error| LaunchFailure::io(LaunchStep::Namespace, what, &e);
        let user = self.namespaces.user.as_ref().ok_or_else(|| invalid("no user namespace"))?;
        namespace::enter(user, flags::NEWUSER).map_err(failed("enter the user namespace"))?;
        let mut kinds = flags::NEWNS;
        match (self.plan.pid_namespace(), &self.namespaces.pid) {
            (PidNamespace::Own, _) => kinds |= flags::NEWPID,
            (PidNamespace::Joined, Some(joined)) => {
                namespace::enter(joined, flags::NEWPID).map_err(failed("enter the PID namespace"))?;
            }
            _ => {}
        }
        spawn_sibling(kinds, report, |report| {
            // The root of the namespace may not enter the directories of the engine.
            let staging = self.open_staging()?;
            become_root_inside()?;
            self.enter(prepared, staging, report)
        })
    }

    /// The directory that the root is attached to, in the mount namespace of the container.
    fn open_staging(&self) -> Result<OwnedFd, LaunchFailure> {
        targets::open_host(&self.plan.staging_dir)
            .map_err(|e| LaunchFailure::io(LaunchStep::Pivot, &self.plan.staging_dir, &e.into()))
    }

    /// Steps 1 to 6.
    fn prepare(&self) -> Result<Prepared, LaunchFailure> {
        let plan = self.plan;
        reset::inherited_state(self.process.umask)?;
        let proc = reset::host_proc()?;
        reset::join_cgroups(&plan.cgroups)?;
        reset::oom_score_adj(&proc, plan.oom_score_adj)?;
        let sources = sources::open(plan, self.namespaces, self.stdio)?;
        let rootfs = plan.rootfs.as_ref().ok_or_else(|| invalid("no root"))?;
        let mapped = self.namespaces.user.as_ref().map(AsFd::as_fd);
        let root = rootfs::make(rootfs, plan.rootfs_propagation(), mapped, &plan.staging_dir)?;
        let user = user::resolve(&root, &plan.user.clone().unwrap_or_default())?;
        let unmapped = || LaunchFailure::new(LaunchStep::User, format!("uid {}: not mapped in the pod", user.uid));
        user::own_streams(&streams(self.stdio), user::host_id(&plan.uid_mappings, user.uid).ok_or_else(unmapped)?);
        Ok(Prepared { proc, sources, root, user })
    }

    /// Steps 8 to 17.
    fn enter(&self, prepared: Prepared, staging: OwnedFd, report: BorrowedFd<'_>) -> Result<Infallible, LaunchFailure> {
        let Prepared { proc, sources, root, user } = prepared;
        self.enter_namespaces()?;
        self.attach_root(&root, staging)?;
        mounts::make_all(self.plan, root.as_fd(), &sources)?;
        self.make_working_directory(&root)?;
        drop(sources);
        self.pivot(&root)?;
        drop(root);
        self.finish(&user, Some(&proc)).execute(report)
    }

    fn enter_namespaces(&self) -> Result<(), LaunchFailure> {
        enter_pod(self.namespaces)?;
        if self.plan.new_cgroup_namespace {
            namespace::unshare(flags::NEWCGROUP)
                .map_err(|e| LaunchFailure::io(LaunchStep::Namespace, "new cgroup namespace", &e))?;
        }
        Ok(())
    }

    /// No mount of the container reaches the host. Clones that were made before keep their own peer groups.
    fn attach_root(&self, root: &OwnedFd, staging: OwnedFd) -> Result<(), LaunchFailure> {
        let failed = |what: &'static str| move |e: std::io::Error| LaunchFailure::io(LaunchStep::Pivot, what, &e);
        fsctx::change_root(MountPropagation::Slave).map_err(failed("make the mounts of the host slaves"))?;
        fsctx::attach(root, staging).map_err(failed("attach the root"))
    }

    fn make_working_directory(&self, root: &OwnedFd) -> Result<(), LaunchFailure> {
        match self.process.cwd.as_str() {
            "" => Ok(()),
            cwd => targets::make_all(root.as_fd(), cwd),
        }
    }

    fn finish<'a>(&'a self, user: &'a ResolvedUser, proc: Option<&'a OwnedFd>) -> Finish<'a> {
        let (process, personality, container_id) = (self.process, self.plan.personality, &self.plan.container_id);
        Finish { process, user, personality, container_id, proc, stdio: self.stdio, pty: None }
    }

    /// Step 13. The old root is stacked on the new one and detached: no directory is needed for it.
    fn pivot(&self, root: &OwnedFd) -> Result<(), LaunchFailure> {
        let failed = |what: &'static str| {
            move |e: rustix::io::Errno| LaunchFailure::io(LaunchStep::Pivot, what, &std::io::Error::from(e))
        };
        rustix::process::fchdir(root).map_err(failed("enter the root"))?;
        rustix::process::pivot_root(c".", c".").map_err(failed("pivot_root"))?;
        unmount(c".", UnmountFlags::DETACH).map_err(failed("detach the root of the host"))?;
        rustix::process::chdir(c"/").map_err(failed("enter the root"))?;
        if self.plan.rootfs.as_ref().is_some_and(|rootfs| rootfs.readonly) {
            let change = MountChange { set: attributes::RDONLY, ..MountChange::default() };
            fsctx::change(root, false, &change)
                .map_err(|e| LaunchFailure::io(LaunchStep::Pivot, "make the root read-only", &e))?;
        }
        Ok(())
    }
}

/// In a user namespace we are still the host's root, which has no id there.
pub(super) fn become_root_inside() -> Result<(), LaunchFailure> {
    let failed = |e: rustix::io::Errno| LaunchFailure::io(LaunchStep::Namespace, "become root inside", &e.into());
    rustix::thread::set_thread_groups(&[]).map_err(failed)?;
    let (uid, gid) = (Uid::ROOT, Gid::ROOT);
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(failed)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(failed)
}

fn invalid(text: &str) -> LaunchFailure {
    LaunchFailure::new(LaunchStep::Plan, format!("launch plan: {text}"))
}
