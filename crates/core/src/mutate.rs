//! Deliberate mistakes, one at a time, that the simulation must catch. Without the feature `mutants` none can be made.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Any sight will do, however old: a plan may be made on what was there before our own last call.
    OldSight,
    /// Sidecars wait their turn beyond the deadline, so that each gets its own last two seconds.
    FloorPerContainer,
    /// Nothing is cleaned up before every source has reported.
    GateOverAllSources,
    /// A second kill sets the deadline anew.
    DeadlineMovesLater,
    /// Ends are not written down, and dead containers go all the same.
    ExitNotRecorded,
    /// Pods of one name do not wait for each other.
    NoStaticOrder,
    /// A call in doubt counts as one that never was.
    DoubtIsFailure,
    /// Sidecars end in the order they began.
    SidecarsForward,
    /// That a preStop hook has begun is not written down.
    HookNotJournaled,
    /// A kill that comes while the pod is being brought up is overwritten by the next update.
    KillIsLost,
    /// The object of a deleted pod goes before its end is known.
    DeletedEarly,
    /// What a store answers is not what the next patch is made from.
    BaseIsOld,
    /// What was asked of an image holds for the one that took its place.
    ImageOfBefore,
    /// A pod gets its grace period twice.
    GraceTwice,
    /// An event of the runtime is taken for a look: what was seen before it counts as new.
    HintIsSight,
}

/// All of them.
pub const ALL: [Mutant; 15] = [
    Mutant::OldSight,
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
    Mutant::BaseIsOld,
    Mutant::ImageOfBefore,
    Mutant::GraceTwice,
    Mutant::HintIsSight,
];

#[cfg(feature = "mutants")]
thread_local! {
    static MADE: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// From now on this thread makes this mistake, or none.
#[cfg(feature = "mutants")]
pub fn make(mutant: Option<Mutant>) {
    MADE.set(mutant);
}

/// This mistake is being made.
#[cfg(feature = "mutants")]
pub(crate) fn made(mutant: Mutant) -> bool {
    MADE.get() == Some(mutant)
}

/// This mistake is being made: never, in what is shipped.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn made(_: Mutant) -> bool {
    false
}
