//! One sandbox, from the request to run it until it is gone.
//!
//! ```text
//!  Creating ──▶ Ready ──▶ Stopping ──▶ NotReady ──▶ Removing ──▶ gone
//!     └── a step failed ─────┘            ▲
//!              Ready ── shim lost for good, pause exited
//! ```
//! `held` is what may exist outside the record. The first record of a sandbox holds everything that is planned, so a crash inside any
//! step is undone too. Every undo can be repeated.

mod transitions;

use std::collections::BTreeSet;
use std::time::Duration;

use super::container::{Found, Gate};
use super::mutate::{MachineMutant, made};
use super::{ContainerId, Failure, Lifecycle, MachineEffect, MachineTime, SandboxId, SandboxKey, WaiterId};
use transitions::SandboxTransitions;

/// What happened to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SandboxEvent {
    /// StopPodSandbox.
    Stop(WaiterId),
    /// RemovePodSandbox.
    Remove(WaiterId),
    /// The caller is gone.
    Abandon(WaiterId),
    /// Result of any step but `Adopt`.
    StepDone(SandboxStep, Result<(), Failure>),
    /// Result of `Adopt`: what was found of each container that was asked for.
    Adopted(Result<Vec<(ContainerId, Found)>, AdoptError>),
    /// The connection to the shim broke.
    ShimLost,
    /// The init of the shared PID namespace ended, and every process in it.
    PauseExited,
}

/// Why no shim could take over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AdoptError {
    /// The namespaces are gone with the last descriptor: the sandbox can not be used any more.
    NamespacesLost,
    /// Anything else. Counts as the loss of a shim.
    Failed(Failure),
}

/// What to do for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SandboxEffect {
    /// Begin a step. At most one of a sandbox is in flight.
    Step(SandboxStep),
    /// Begin [`SandboxStep::Adopt`] after this time, or earlier if the sandbox is stopped meanwhile. In flight from now on.
    AdoptAfter(Duration),
    /// Write the state into the record. A failure is retried; the state counts.
    Persist(SandboxRecordState),
    /// Publish an event of the CRI.
    Publish(Lifecycle),
}

/// The steps of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SandboxStep {
    /// Write the first record, which holds everything planned.
    WriteRecord,
    /// Fork the shim from the zygote and connect to it.
    ForkShim,
    /// Let the shim make the namespaces, and the pause process if one is planned; pin the network namespace.
    SetUpNamespaces,
    /// Connect the network; at the same time write hosts, hostname and resolv.conf, and mount /dev/shm.
    Attach,
    /// Connect to the living shim, or fork a new one and give it the descriptors.
    Adopt,
    /// Kill the pause process.
    EndPause,
    /// Release addresses and ports; with an empty path if the namespace is gone.
    ReleaseNetwork,
    /// Unpin the namespaces and unmount /dev/shm.
    ReleaseNamespaces,
    /// End the shim. One that is gone is a success.
    ShutDownShim,
    /// Remove the files and the record.
    RemoveFiles,
}

/// What a sandbox may have outside its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SandboxResources {
    /// The shim.
    pub shim: bool,
    /// Namespaces and their pins.
    pub namespaces: bool,
    /// Address, ports and interface. Not for hostNetwork.
    pub network: bool,
    /// The mounted /dev/shm.
    pub shm: bool,
    /// The init of a shared PID namespace. It goes before the namespaces.
    pub pause: bool,
}

impl SandboxResources {
    /// Nothing is left.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// The next step on the way to nothing.
    fn next_undo(self) -> Option<SandboxStep> {
        match self {
            Self { pause: true, .. } => Some(SandboxStep::EndPause),
            Self { network: true, .. } => Some(SandboxStep::ReleaseNetwork),
            Self { namespaces: true, .. } | Self { shm: true, .. } => Some(SandboxStep::ReleaseNamespaces),
            Self { shim: true, .. } => Some(SandboxStep::ShutDownShim),
            _ => None,
        }
    }

    fn undone(&mut self, step: SandboxStep) {
        match step {
            SandboxStep::EndPause => self.pause = false,
            SandboxStep::ReleaseNetwork => self.network = made(MachineMutant::NetworkStaysHeld),
            SandboxStep::ReleaseNamespaces => (self.namespaces, self.shm) = (false, false),
            SandboxStep::ShutDownShim => self.shim = false,
            _ => {}
        }
    }

    /// What this step may bring into being.
    fn begun(&mut self, step: SandboxStep, planned: Self) {
        match step {
            SandboxStep::ForkShim => self.shim = planned.shim,
            SandboxStep::SetUpNamespaces => {
                (self.namespaces, self.pause) = (planned.namespaces, planned.pause);
            }
            SandboxStep::Attach if made(MachineMutant::FailedStepNotHeld) => {}
            SandboxStep::Attach => (self.network, self.shm) = (planned.network, planned.shm),
            _ => {}
        }
    }
}

/// The state of a sandbox in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SandboxRecordState {
    /// Run is not complete: to be undone after a crash.
    Creating(SandboxResources),
    /// It can have containers.
    Ready(SandboxResources),
    /// It is, or was being, stopped.
    NotReady(SandboxResources),
}

impl SandboxRecordState {
    /// After a reboot of the host only what is on disk is left: the addresses, which a stop releases. A Run that was not complete is
    /// undone as after any crash.
    #[must_use]
    pub fn after_reboot(self) -> Self {
        let left = |held: SandboxResources| SandboxResources { network: held.network, ..SandboxResources::default() };
        match self {
            Self::Creating(held) => Self::Creating(left(held)),
            Self::Ready(held) | Self::NotReady(held) => Self::NotReady(left(held)),
        }
    }

    /// It may have more than what a reboot leaves.
    pub fn may_run(self) -> bool {
        let (Self::Creating(held) | Self::Ready(held) | Self::NotReady(held)) = self;
        !SandboxResources { network: false, ..held }.is_empty()
    }
}

/// One sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sandbox {
    id: SandboxId,
    key: SandboxKey,
    held: SandboxResources,
    /// The end was published.
    stop_published: bool,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// A step of Run is in flight.
    Creating {
        step: SandboxStep,
        planned: SandboxResources,
        run: Option<WaiterId>,
        /// The shim or the pause process ended meanwhile: the result of the step does not matter.
        broken: bool,
        /// Requests that wait for the end of Run.
        queued: Teardown,
    },
    Ready {
        shim: Shim,
        /// When shims were lost, within the last minute.
        losses: Vec<MachineTime>,
    },
    Stopping {
        phase: StopPhase,
        teardown: Teardown,
    },
    NotReady {
        /// `Adopt` is in flight.
        adopting: bool,
    },
    /// With the callers of the removal, or the Run that failed.
    Removing {
        phase: RemovePhase,
        waiters: BTreeSet<WaiterId>,
        failed_run: Option<FailedRun>,
    },
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shim {
    Connected,
    /// `Adopt` is in flight.
    Adopting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum StopPhase {
    /// Containers are being killed; with `adopting`, `Adopt` is in flight.
    Containers { adopting: bool },
    /// This step is in flight.
    Undo(SandboxStep),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RemovePhase {
    /// Containers are being removed.
    Containers,
    /// `RemoveFiles` is in flight.
    Files,
}

/// The requests that a stop serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Teardown {
    stops: BTreeSet<WaiterId>,
    /// A removal follows, with its callers.
    removal: Option<BTreeSet<WaiterId>>,
    /// A failed Run is being undone.
    failed_run: Option<FailedRun>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FailedRun {
    run: Option<WaiterId>,
    failure: Failure,
}

impl Teardown {
    fn is_requested(&self) -> bool {
        !self.stops.is_empty() || self.removal.is_some()
    }

    fn abandon(&mut self, waiter: WaiterId) {
        self.stops.remove(&waiter);
        self.removal.as_mut().map(|waiters| waiters.remove(&waiter));
        if let Some(failed) = &mut self.failed_run {
            failed.run.take_if(|run| *run == waiter);
        }
    }
}

impl Sandbox {
    pub(super) fn run(
        id: SandboxId,
        key: SandboxKey,
        planned: SandboxResources,
        run: WaiterId,
        out: &mut Vec<MachineEffect>,
    ) -> Self {
        let step = SandboxStep::WriteRecord;
        let queued = Teardown::default();
        let state = State::Creating { step, planned, run: Some(run), broken: false, queued };
        let sandbox = Self { id, key, held: SandboxResources::default(), stop_published: false, state };
        sandbox.emit(SandboxEffect::Step(step), out);
        sandbox
    }

    /// From the record of an earlier agent.
    pub(super) fn restored(
        id: SandboxId,
        key: SandboxKey,
        state: SandboxRecordState,
        out: &mut Vec<MachineEffect>,
    ) -> Self {
        let (held, state, stop_published) = match state {
            SandboxRecordState::Creating(held) => {
                let failure = Failure::new("the agent was restarted during RunPodSandbox");
                let failed_run = Some(FailedRun { run: None, failure });
                let teardown = Teardown { failed_run, ..Teardown::default() };
                (held, State::Stopping { phase: StopPhase::Containers { adopting: false }, teardown }, false)
            }
            SandboxRecordState::Ready(held) => (held, State::Ready { shim: Shim::Adopting, losses: vec![] }, false),
            SandboxRecordState::NotReady(held) => (held, State::NotReady { adopting: false }, true),
        };
        let sandbox = Self { id, key, held, stop_published, state };
        if sandbox.is_adopting() {
            sandbox.emit(SandboxEffect::Step(SandboxStep::Adopt), out);
        }
        sandbox
    }

    /// The id.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// The name.
    pub fn key(&self) -> &SandboxKey {
        &self.key
    }

    /// What may exist outside the record.
    pub fn held(&self) -> SandboxResources {
        self.held
    }

    /// The CRI shows it as SANDBOX_READY.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    /// The CRI shows it: Run is complete, or has failed and could not be undone.
    pub fn is_shown(&self) -> bool {
        match &self.state {
            State::Creating { .. } | State::Gone => false,
            State::Stopping { teardown, .. } => teardown.failed_run.is_none(),
            State::Removing { failed_run, .. } => failed_run.is_none(),
            State::Ready { .. } | State::NotReady { .. } => true,
        }
    }

    pub(super) fn gate(&self) -> Gate {
        match self.state {
            State::Ready { shim: Shim::Connected, .. } => Gate::Ready,
            State::Ready { shim: Shim::Adopting, .. } => Gate::Adopting,
            _ => Gate::NotReady,
        }
    }

    /// Its shim is asked to end.
    pub fn ends_shim(&self) -> bool {
        matches!(&self.state, State::Stopping { phase: StopPhase::Undo(SandboxStep::ShutDownShim), .. })
    }

    /// Its shim, old or new, is not connected yet.
    pub fn is_adopting(&self) -> bool {
        match &self.state {
            State::Ready { shim, .. } => *shim == Shim::Adopting,
            State::Stopping { phase, .. } => *phase == StopPhase::Containers { adopting: true },
            State::NotReady { adopting } => *adopting,
            State::Creating { .. } | State::Removing { .. } | State::Gone => false,
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state == State::Gone
    }

    /// Its containers have to end.
    pub(super) fn stops_containers(&self) -> bool {
        matches!(self.state, State::Stopping { .. })
    }

    /// Its containers have to be removed.
    pub(super) fn removes_containers(&self) -> bool {
        matches!(self.state, State::Removing { phase: RemovePhase::Containers, .. })
    }

    pub(super) fn handle(&mut self, event: SandboxEvent, now: MachineTime, out: &mut Vec<MachineEffect>) {
        SandboxTransitions(self).handle(event, now, out);
    }

    /// A container could not be removed: neither can the sandbox.
    pub(super) fn container_not_removed(&mut self, failure: &Failure, out: &mut Vec<MachineEffect>) {
        SandboxTransitions(self).container_not_removed(failure, out);
    }

    /// Moves on when its containers have ended or are gone. True if it did.
    pub(super) fn containers_changed(&mut self, running: bool, present: bool, out: &mut Vec<MachineEffect>) -> bool {
        SandboxTransitions(self).containers_changed(running, present, out)
    }

    fn emit(&self, effect: SandboxEffect, out: &mut Vec<MachineEffect>) {
        out.push(MachineEffect::Sandbox(self.id.clone(), effect));
    }
}
