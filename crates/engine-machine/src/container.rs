//! One container, from the request to create it until it is gone.
//!
//! ```text
//!  Creating ──▶ Created ──▶ Starting ──▶ Running ──▶ Exited ──▶ Removing ──▶ gone
//!                  │           │  shim lost │  ▲ adopted  ▲         ▲
//!                  │           └────────────┴▶ Unknown ───┘         │
//!                  └────────────────────────────────────────────────┘
//! ```
//! The CRI shows Creating not at all, Created and Starting as CREATED, Removing as CREATED or EXITED, as it was before.

mod transitions;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::stop::Stop;
use super::{ContainerId, ContainerKey, ExitRecord, Failure, Lifecycle, MachineEffect, MachineTime, Moment, WaiterId};
use transitions::ContainerTransitions;

/// What happened to a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ContainerEvent {
    /// StartContainer.
    Start(WaiterId),
    /// StopContainer with its timeout.
    Stop(WaiterId, Duration),
    /// RemoveContainer.
    Remove(WaiterId),
    /// The caller is gone.
    Abandon(WaiterId),
    /// Result of `Create`. A create that failed has undone itself.
    CreateDone(Result<(), Failure>),
    /// Result of `Launch`: the program runs.
    Launched,
    /// Result of `Launch`: the program was not executed.
    LaunchFailed(Failure),
    /// The exit was observed, by the shim or by the agent's own watch.
    Exited(ExitRecord),
    /// Result of `Watch`.
    Watched(Found),
    /// Result of `Cleanup`.
    Cleaned(Result<(), Failure>),
    /// The time of the last `WakeAt` has come.
    Wake,
    /// The shim of the sandbox was lost. With `adopting`, a new shim will look for the container.
    ShimLost {
        /// The sandbox has requested a new shim.
        adopting: bool,
    },
    /// The new shim, or the living shim after a restart of the agent, has looked for it.
    Adopted(Found),
    /// No new shim will look for it any more.
    AdoptionEnded,
    /// The sandbox is being stopped.
    ForceStop,
    /// The sandbox is being removed.
    ForceRemove,
}

/// What a look for the process of a container found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// The process lives, and its exit will be reported.
    Alive {
        /// The stop signal is recorded as sent.
        stop_signal_sent: bool,
    },
    /// It has exited, and there is a record.
    Exited(ExitRecord),
    /// There is neither a process nor a record.
    Gone,
    /// Its shim lives and has not received the launch, which ended with the former agent.
    NotLaunched,
}

/// What to do for a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ContainerEffect {
    /// Step: write record, configuration and writable layer.
    Create,
    /// Step: start the process through the shim.
    Launch,
    /// End the launch that is in flight. Its result still comes.
    AbortLaunch,
    /// Step: look for the process without a shim, and observe its exit.
    Watch,
    /// Send the stop signal, unless it is recorded as sent; the record is written first.
    StopSignal(SignalPath),
    /// SIGKILL by the agent's own pidfd.
    Kill,
    /// SIGKILL to whatever is left in the container's cgroup.
    KillCgroup,
    /// Step: remove cgroup, writable layer and record.
    Cleanup,
    /// Write the state into the record.
    Persist(ContainerRecordState),
    /// Publish an event of the CRI.
    Publish(Lifecycle),
    /// Send `Wake` at this time. Replaces an earlier time.
    WakeAt(MachineTime),
}

/// Who sends the stop signal, and keeps the note that it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SignalPath {
    /// The shim.
    Shim,
    /// The agent, by its own pidfd: there is no shim.
    Pidfd,
}

/// The state of a container in its record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ContainerRecordState {
    /// Not started yet.
    Created,
    /// A launch may have happened.
    Starting,
    /// It was started.
    Running,
    /// Final.
    Exited(ExitRecord),
}

impl ContainerRecordState {
    /// After a reboot of the host nothing runs: what may have run has ended without a known status.
    #[must_use]
    pub fn after_reboot(self, wall_ns: i64) -> Self {
        match self {
            Self::Starting | Self::Running => Self::Exited(ExitRecord::unknown(wall_ns)),
            Self::Created | Self::Exited(_) => self,
        }
    }

    /// It was launched, or may have been, and has not ended as far as the record knows.
    pub fn may_run(&self) -> bool {
        matches!(self, Self::Starting | Self::Running)
    }
}

/// The state that the CRI shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShownContainer {
    /// CONTAINER_CREATED.
    Created,
    /// CONTAINER_RUNNING.
    Running,
    /// CONTAINER_EXITED.
    Exited,
    /// CONTAINER_UNKNOWN.
    Unknown,
}

impl fmt::Display for ShownContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "CONTAINER_CREATED",
            Self::Running => "CONTAINER_RUNNING",
            Self::Exited => "CONTAINER_EXITED",
            Self::Unknown => "CONTAINER_UNKNOWN",
        })
    }
}

/// What the sandbox allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Starts are possible.
    Ready,
    /// The sandbox is ready, but its new shim is not connected yet.
    Adopting,
    /// Nothing is started here any more.
    NotReady,
}

/// One container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Container {
    id: ContainerId,
    key: ContainerKey,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// `Create` is in flight.
    Creating {
        create: Option<WaiterId>,
        stops: BTreeSet<WaiterId>,
        /// Requested removal and its callers.
        removal: Option<BTreeSet<WaiterId>>,
    },
    Created,
    Starting {
        start: Option<WaiterId>,
        launch: Launch,
        stop: Stop,
    },
    Running {
        stop: Stop,
    },
    /// The shim is lost; the process may live.
    Unknown {
        stop: Stop,
        search: Search,
    },
    Exited(ExitRecord),
    /// `Cleanup` is in flight. `None`: it was never started.
    Removing {
        record: Option<ExitRecord>,
        waiters: BTreeSet<WaiterId>,
    },
    Gone,
}

/// Where the result of a launch will come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Launch {
    /// From the shim.
    InFlight,
    /// From the new shim.
    Adopting,
    /// From `Watch`, which is in flight.
    Watching,
}

/// How far the search for the process of a container without a shim got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Search {
    /// A new shim will report.
    Adopting,
    /// No search is under way, because there is no stop that needs one.
    Idle,
    /// `Watch` is in flight.
    Watching,
    /// The process lives and its exit will be reported.
    Attached { stop_signal_sent: bool },
}

impl Container {
    pub(super) fn create(id: ContainerId, key: ContainerKey, waiter: WaiterId, out: &mut Vec<MachineEffect>) -> Self {
        let state = State::Creating { create: Some(waiter), stops: BTreeSet::new(), removal: None };
        let container = Self { id, key, state };
        container.emit(ContainerEffect::Create, out);
        container
    }

    /// From the record of an earlier agent. With `adopting`, the shim of the sandbox will look for the process.
    pub(super) fn restored(
        id: ContainerId,
        key: ContainerKey,
        state: ContainerRecordState,
        adopting: bool,
        out: &mut Vec<MachineEffect>,
    ) -> Self {
        let (stop, search) = (Stop::default(), if adopting { Search::Adopting } else { Search::Idle });
        let state = match state {
            ContainerRecordState::Created => State::Created,
            ContainerRecordState::Starting => State::Starting { start: None, launch: Launch::InFlight, stop },
            ContainerRecordState::Running => State::Unknown { stop, search },
            ContainerRecordState::Exited(record) => State::Exited(record),
        };
        let mut container = Self { id, key, state };
        ContainerTransitions(&mut container).shim_lost(adopting, out);
        container
    }

    /// The id.
    pub fn id(&self) -> &ContainerId {
        &self.id
    }

    /// The sandbox, name and attempt.
    pub fn key(&self) -> &ContainerKey {
        &self.key
    }

    /// The state that the CRI shows; `None` while the container is being created.
    pub fn shown(&self) -> Option<ShownContainer> {
        match self.state {
            State::Creating { .. } | State::Gone => None,
            // One that is removed without having been started has not exited: it would be an exit with code 0.
            State::Created | State::Starting { .. } | State::Removing { record: None, .. } => {
                Some(ShownContainer::Created)
            }
            // The agent kills what is unknown to it: a container whose new shim is on the way is not.
            State::Running { .. } | State::Unknown { search: Search::Adopting, .. } => Some(ShownContainer::Running),
            State::Unknown { .. } => Some(ShownContainer::Unknown),
            State::Exited(_) | State::Removing { record: Some(_), .. } => Some(ShownContainer::Exited),
        }
    }

    /// Its shim is connected.
    #[cfg(test)]
    pub(super) fn has_shim(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// Its cleanup is in flight.
    pub fn is_removing(&self) -> bool {
        matches!(self.state, State::Removing { .. })
    }

    /// How it ended; `None` while it has not, and for one that is removed without having been started.
    pub fn exit(&self) -> Option<&ExitRecord> {
        match &self.state {
            State::Exited(record) | State::Removing { record: Some(record), .. } => Some(record),
            _ => None,
        }
    }

    /// It was killed: an exec would hang while its cgroup is frozen.
    pub fn refuses_exec(&self) -> bool {
        match &self.state {
            State::Running { stop } => stop.is_killed(),
            _ => true,
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state == State::Gone
    }

    /// It may have a process.
    pub(super) fn may_run(&self) -> bool {
        matches!(self.state, State::Starting { .. } | State::Running { .. } | State::Unknown { .. })
    }

    /// The stop of its sandbox has not reached it yet.
    pub(super) fn needs_forced_stop(&self) -> bool {
        match &self.state {
            State::Starting { stop, .. } | State::Running { stop } | State::Unknown { stop, .. } => !stop.is_forced(),
            _ => false,
        }
    }

    /// The removal of its sandbox has not reached it yet.
    pub(super) fn needs_forced_removal(&self) -> bool {
        match &self.state {
            State::Creating { removal, .. } => removal.is_none(),
            State::Created | State::Exited(_) => true,
            State::Starting { stop, .. } | State::Running { stop } | State::Unknown { stop, .. } => !stop.is_removal(),
            State::Removing { .. } | State::Gone => false,
        }
    }

    pub(super) fn handle(&mut self, event: ContainerEvent, gate: Gate, now: Moment, out: &mut Vec<MachineEffect>) {
        ContainerTransitions(self).handle(event, gate, now, out);
    }

    fn emit(&self, effect: ContainerEffect, out: &mut Vec<MachineEffect>) {
        out.push(MachineEffect::Container(self.id.clone(), effect));
    }
}
