//! Mutants: deliberate bugs, one at a time, that the checkers of the model must find. They exist in tests alone.

/// One deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MachineMutant {
    /// The recorded stop signal of a container without a shim is ignored.
    SignalAgain,
    /// The deadline of a caller that went away still counts.
    AbandonKeepsDeadline,
    /// A caller that goes away escalates its stop.
    AbandonKills,
    /// Starts are accepted in a sandbox that is being stopped.
    LaunchWhileStopping,
    /// Only one of the callers that wait for an exit is answered.
    OneWaiterAnswered,
    /// A removal that is joined is answered twice.
    JoinedTwice,
    /// The network still counts as held after its release.
    NetworkStaysHeld,
    /// The failure of a cleanup is not noticed.
    CleanupHangs,
    /// A later exit replaces the first one.
    LastExitWins,
    /// A stop is answered when the kill was sent.
    AnsweredAtKill,
    /// A start that was lost with its shim has failed, whatever was found.
    LostStartFailed,
    /// A step that failed is not undone.
    FailedStepNotHeld,
    /// A stop during a start is forgotten when the container runs.
    StopLostInStart,
    /// A stopping sandbox does not wait for its containers.
    SandboxDoesNotWait,
    /// A container whose shim was lost is not watched when it is stopped.
    NotWatched,
    /// A lost launch is aborted a second time as if its shim lived, and then forgotten.
    LostLaunchForgotten,
}

#[cfg(test)]
thread_local! {
    static MADE: std::cell::Cell<Option<MachineMutant>> = const { std::cell::Cell::new(None) };
}

/// Activates a mutant, or none, on this thread.
#[cfg(test)]
pub(crate) fn make(mutant: Option<MachineMutant>) {
    MADE.set(mutant);
}

/// This mutant is active.
#[cfg(test)]
pub(crate) fn made(mutant: MachineMutant) -> bool {
    MADE.get() == Some(mutant)
}

/// Always false outside tests.
#[cfg(not(test))]
pub(crate) const fn made(_: MachineMutant) -> bool {
    false
}
