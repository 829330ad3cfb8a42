//! Mutants: deliberate bugs, one at a time, that the simulation must find. They exist only with the feature `mutants`.

/// One deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Plans are made on observations from before our last call.
    StaleObservation,
    /// Sidecars wait for each other beyond the deadline, so that each gets its own last two seconds.
    FloorPerContainer,
    /// Nothing is cleaned up before every source has synced.
    GateOverAllSources,
    /// A second kill resets the deadline.
    DeadlineMovesLater,
    /// Exits are not journaled, and dead containers are removed all the same.
    ExitNotRecorded,
    /// Pods of one name do not wait for each other.
    NoStaticOrder,
    /// A call with an unknown result counts as never sent.
    DoubtIsFailure,
    /// Sidecars are stopped in start order.
    SidecarsForward,
    /// The start of a preStop hook is not journaled.
    HookNotJournaled,
    /// A kill during the start of a pod is overwritten by the next update.
    KillIsLost,
    /// The object of a deleted pod is deleted before it has a terminal phase.
    DeletedEarly,
    /// The response of a store is not the base of the next patch.
    StaleBase,
    /// The result of an image check is used for another image.
    StaleImageStatus,
    /// A pod gets its grace period twice.
    GraceTwice,
    /// A runtime event counts as an observation: older observations count as fresh.
    HintIsObservation,
    /// The exit of an interrupted start counts as the container's.
    CutOffIsExit,
    /// The runtime counts as down as soon as one pod can't be observed.
    UnavailableIsDown,
    /// A pod that can't be observed is observed again at once.
    ObservedAtOnce,
    /// A sandbox is stopped when the deadline has passed, however late the stops of its containers were sent.
    NoTimeAfterOutage,
    /// `activeDeadlineSeconds` is ignored.
    NoActiveDeadline,
    /// An ephemeral container that ended is started again.
    EphemeralRestarts,
    /// Pods of a source that is switched off are kept.
    OffSourceKept,
    /// An annotation of a user selects the source of a pod.
    SourceByUser,
    /// Pods are evicted for a full disk before dead containers and unused images are removed.
    EvictedBeforeReclaim,
}

/// All of them.
pub const ALL: [Mutant; 24] = [
    Mutant::StaleObservation,
    Mutant::FloorPerContainer,
    Mutant::GateOverAllSources,
    Mutant::DeadlineMovesLater,
    Mutant::ExitNotRecorded,
    Mutant::NoStaticOrder,
    Mutant::DoubtIsFailure,
    Mutant::SidecarsForward,
    Mutant::HookNotJournaled,
    Mutant::KillIsLost,
    Mutant::DeletedEarly,
    Mutant::StaleBase,
    Mutant::StaleImageStatus,
    Mutant::GraceTwice,
    Mutant::HintIsObservation,
    Mutant::CutOffIsExit,
    Mutant::UnavailableIsDown,
    Mutant::ObservedAtOnce,
    Mutant::NoTimeAfterOutage,
    Mutant::NoActiveDeadline,
    Mutant::EphemeralRestarts,
    Mutant::OffSourceKept,
    Mutant::SourceByUser,
    Mutant::EvictedBeforeReclaim,
];

#[cfg(feature = "mutants")]
thread_local! {
    static MADE: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Activates a mutant, or none, on this thread.
#[cfg(feature = "mutants")]
pub fn activate(mutant: Option<Mutant>) {
    MADE.set(mutant);
}

/// This mutant is active.
#[cfg(feature = "mutants")]
pub(crate) fn is_active(mutant: Mutant) -> bool {
    MADE.get() == Some(mutant)
}

/// Always false without the feature.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn is_active(_: Mutant) -> bool {
    false
}
