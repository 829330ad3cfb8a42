//! The seam between the event loop and the launcher, so that tests of the one do not depend on the other.

use std::os::fd::BorrowedFd;

use crate::launch::{
    ContainerStdio, LaunchFailure, LaunchInProgress, PodNamespaces, begin_exec, begin_external_exec,
    begin_external_init, begin_init, setup_pod,
};
use crate::plan::{ExecPlan, LaunchPlan, SetupPlan};

/// Makes processes. The caller has one thread; nothing of this waits for long.
pub trait Launcher {
    /// Makes the namespaces of a pod.
    fn setup(&self, plan: &SetupPlan) -> Result<PodNamespaces, LaunchFailure>;
    /// Begins the launch of a container's init.
    fn init(
        &self,
        plan: &LaunchPlan,
        namespaces: &PodNamespaces,
        stdio: ContainerStdio,
    ) -> Result<Box<dyn LaunchInProgress>, LaunchFailure>;
    /// Begins the launch of a process in the container of `init`, a pidfd.
    fn exec(
        &self,
        plan: &ExecPlan,
        init: BorrowedFd<'_>,
        stdio: ContainerStdio,
    ) -> Result<Box<dyn LaunchInProgress>, LaunchFailure>;
}

/// The launcher of this crate.
#[derive(Debug)]
pub(crate) struct KernelLauncher;

impl Launcher for KernelLauncher {
    fn setup(&self, plan: &SetupPlan) -> Result<PodNamespaces, LaunchFailure> {
        setup_pod(plan)
    }

    fn init(
        &self,
        plan: &LaunchPlan,
        namespaces: &PodNamespaces,
        stdio: ContainerStdio,
    ) -> Result<Box<dyn LaunchInProgress>, LaunchFailure> {
        Ok(Box::new(match &plan.runtime {
            Some(runtime) => begin_external_init(plan, runtime, namespaces, stdio)?,
            None => begin_init(plan, namespaces, stdio)?,
        }))
    }

    fn exec(
        &self,
        plan: &ExecPlan,
        init: BorrowedFd<'_>,
        stdio: ContainerStdio,
    ) -> Result<Box<dyn LaunchInProgress>, LaunchFailure> {
        Ok(Box::new(match &plan.runtime {
            Some(runtime) => begin_external_exec(plan, runtime, stdio)?,
            None => begin_exec(plan, init, stdio)?,
        }))
    }
}
