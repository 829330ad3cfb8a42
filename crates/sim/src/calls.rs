//! Calls under way: each call effect of core becomes a pending call that changes the models when it takes effect, and sends its
//! result back.

mod apply;
mod process;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::model::{Answer, Call, CallError, CallId, ContainerId, Event, Pod, PodUid, RuntimeCall};

use crate::check::{Checks, RuntimeView};
use crate::env::{Env, Scheduled, trace};
use crate::faults::CallFate;
use crate::host::Host;
use crate::runtime::{Runtime, container_name, sandbox_name};

/// All calls that did not end yet, by the order in which they began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    pending: BTreeMap<u64, PendingCall>,
    /// Those that core still waits for.
    by_id: BTreeMap<CallId, u64>,
    begun: u64,
    /// The fate of the next runtime call, instead of a random one.
    pub(crate) next_fate: Option<CallFate>,
}

/// The parts of the world that a call changes.
pub(crate) struct CallContext<'a> {
    pub(crate) env: &'a mut Env,
    pub(crate) runtime: &'a mut Runtime,
    pub(crate) host: &'a mut Host,
    pub(crate) checks: &'a mut Checks,
    /// Core can't write records: no rule about times holds.
    pub(crate) journal_full: bool,
}

impl CallContext<'_> {
    fn check_parts(&mut self) -> (&mut Checks, RuntimeView<'_>) {
        (self.checks, RuntimeView::new(&self.env.clock, self.runtime, self.journal_full))
    }
}

/// What a pending call does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallStep {
    /// It takes effect.
    Apply,
    /// It fails without effect.
    Fail,
    /// Its time limit has passed.
    Timeout,
    /// The grace period of a stop is over: KILL.
    KillTimer,
    /// A lifecycle hook ends.
    HookEnds,
    /// The runtime gives up a start whose caller died.
    GiveUpStart,
}

/// One call under way.
#[derive(Clone, Debug)]
struct PendingCall {
    id: CallId,
    uid: PodUid,
    pod: Arc<Pod>,
    call: Call,
    stage: Stage,
    /// The caller has its result, or is dead: later effects of the call are not reported.
    answered: bool,
    /// The name it reserved in the runtime.
    name: Option<String>,
    /// The incarnation of the pod that sent it, see [`Checks::incarnation`].
    incarnation: u32,
    /// Its result is lost: the caller runs into its time limit.
    result_lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// No effect yet.
    Sent,
    /// A stop that waits for its container to exit.
    Stopping,
    /// A lifecycle hook that runs.
    RunningHook,
    /// It took effect, and its result was lost.
    Applied,
    /// A start whose caller died and that will be given up.
    CutOff,
}

impl PendingCall {
    fn needs_runtime(&self) -> bool {
        let images =
            matches!(self.call, Call::Runtime(RuntimeCall::ImageStatus { .. } | RuntimeCall::PullImage { .. }));
        self.call.changes_runtime() || images
    }

    /// The container that the call starts.
    fn started(&self) -> Option<&ContainerId> {
        match &self.call {
            Call::Runtime(RuntimeCall::StartContainer { id, .. }) => Some(id),
            _ => None,
        }
    }

    /// The runtime's name of what the call makes.
    fn reserved_name(&self) -> Option<String> {
        match &self.call {
            Call::Runtime(RuntimeCall::RunSandbox { attempt }) => Some(sandbox_name(&self.uid, *attempt)),
            Call::Runtime(RuntimeCall::CreateContainer { name, attempt, .. }) => {
                Some(container_name(&self.uid, name, *attempt))
            }
            _ => None,
        }
    }
}

impl Calls {
    pub(crate) fn begin(
        &mut self,
        cx: &mut CallContext<'_>,
        id: CallId,
        uid: PodUid,
        pod: Arc<Pod>,
        call: Call,
        limit: Duration,
    ) {
        self.begun += 1;
        let n = self.begun;
        self.by_id.insert(id, n);
        let entry = PendingCall {
            id,
            uid: uid.clone(),
            pod,
            call: call.clone(),
            stage: Stage::Sent,
            answered: false,
            name: None,
            incarnation: cx.checks.incarnation(&uid),
            result_lost: false,
        };
        let needs_runtime = entry.needs_runtime();
        self.pending.insert(n, entry);
        if needs_runtime && cx.runtime.down {
            cx.checks.disturb(&uid);
            let delay = cx.env.rng.millis(0, 5);
            return self.answer(cx.env, n, delay, Err(unavailable()));
        }
        match call {
            Call::Runtime(RuntimeCall::Hook { kind, name, id, .. }) => {
                cx.checks.check_hook_run(&uid, kind, &id);
                self.begin_hook(cx, n, kind, &name, limit);
            }
            Call::Runtime(RuntimeCall::Probe { kind, id, .. }) => self.probe(cx, n, kind, &id),
            Call::Runtime(RuntimeCall::PullImage { .. }) => {
                let fate = cx.env.faults.pull(&mut cx.env.rng);
                self.schedule(cx.env, n, fate, limit);
            }
            Call::Runtime(RuntimeCall::ImageStatus { .. }) => {
                let delay = cx.env.rng.millis(0, 5);
                self.schedule(cx.env, n, CallFate::Succeeds(delay), limit);
            }
            _ if needs_runtime => self.begin_runtime_call(cx, n, limit),
            _ => {
                let fate = cx.env.faults.host_call(limit, &mut cx.env.rng);
                self.schedule(cx.env, n, fate, limit);
            }
        }
    }

    fn begin_runtime_call(&mut self, cx: &mut CallContext<'_>, n: u64, limit: Duration) {
        let Some(f) = self.pending.get_mut(&n) else { return };
        let hung = cx.env.faults.hung_pod.as_ref() == Some(&f.uid);
        let fate = match self.next_fate.take() {
            Some(fate) => fate,
            None if hung => CallFate::Never,
            None => cx.env.faults.runtime_call(limit, &mut cx.env.rng),
        };
        if !matches!(fate, CallFate::Succeeds(_)) {
            cx.checks.disturb(&f.uid);
        }
        if let Some(name) = f.reserved_name() {
            if let Err(message) = cx.runtime.reserve(name.clone()) {
                let delay = cx.env.rng.millis(1, 20);
                cx.checks.check_reserved(&f.uid, &message);
                return self.answer(cx.env, n, delay, Err(CallError::failed(message)));
            }
            f.name = Some(name);
        }
        self.schedule(cx.env, n, fate, limit);
    }

    fn schedule(&mut self, env: &mut Env, n: u64, fate: CallFate, limit: Duration) {
        match fate {
            CallFate::Succeeds(after) => env.after(after, Scheduled::Call(n, CallStep::Apply)),
            CallFate::Fails(after) => env.after(after, Scheduled::Call(n, CallStep::Fail)),
            CallFate::Late(after) => {
                env.after(after, Scheduled::Call(n, CallStep::Apply));
                if let Some(f) = self.pending.get_mut(&n) {
                    f.result_lost = true;
                }
                env.after(limit, Scheduled::Call(n, CallStep::Timeout));
            }
            CallFate::Never => env.after(limit, Scheduled::Call(n, CallStep::Timeout)),
        }
        let stops =
            self.pending.get(&n).is_some_and(|f| matches!(f.call, Call::Runtime(RuntimeCall::StopContainer { .. })));
        if stops && matches!(fate, CallFate::Succeeds(_)) {
            env.after(limit, Scheduled::Call(n, CallStep::Timeout));
        }
    }

    pub(crate) fn step(&mut self, cx: &mut CallContext<'_>, n: u64, step: CallStep) {
        match step {
            CallStep::Apply => self.apply(cx, n),
            CallStep::Fail => self.fail(cx, n),
            CallStep::Timeout => self.time_out(cx, n),
            CallStep::KillTimer => self.kill_timer(cx, n),
            CallStep::HookEnds => self.hook_ends(cx, n),
            CallStep::GiveUpStart => self.give_up_start(cx, n),
        }
    }

    /// Sends the result to the caller, if it still waits.
    fn answer(&mut self, env: &mut Env, n: u64, delay: Duration, result: Result<Answer, CallError>) {
        let Some(f) = self.pending.get_mut(&n) else { return };
        if !std::mem::replace(&mut f.answered, true) {
            let id = f.id;
            self.by_id.remove(&id);
            env.send(delay, Event::Done { id, result });
        }
    }

    /// The call ended with this result, which may be lost on its way.
    fn finish(&mut self, env: &mut Env, n: u64, result: Result<Answer, CallError>) {
        if let Some(f) = self.pending.get_mut(&n).filter(|f| f.result_lost && !f.answered) {
            (f.stage, f.name) = (Stage::Applied, None);
            return;
        }
        let delay = env.rng.millis(0, 2);
        self.answer(env, n, delay, result);
        self.pending.remove(&n);
    }

    /// The call is refused: it had no effect, and its name is free again.
    fn refuse(&mut self, cx: &mut CallContext<'_>, n: u64, message: impl Into<String>) {
        self.answer(cx.env, n, Duration::ZERO, Err(CallError::failed(message)));
        self.discard(cx.runtime, n);
    }

    /// The call ends without further effect and without a result.
    fn discard(&mut self, runtime: &mut Runtime, n: u64) {
        if let Some(name) = self.pending.remove(&n).and_then(|f| f.name) {
            runtime.release(&name);
        }
    }

    fn fail(&mut self, cx: &mut CallContext<'_>, n: u64) {
        let Some(f) = self.pending.get(&n) else { return };
        trace!(cx.env, "   {} {:?} fails", f.uid, f.call.key());
        if let Call::Runtime(RuntimeCall::StartContainer { id, .. }) = &f.call
            && cx.env.rng.chance(500)
        {
            cx.runtime.fail_start(id, cx.env.clock.wall());
            cx.env.hint(&f.uid);
        }
        self.refuse(cx, n, "call failed");
    }

    /// The time limit has passed and the caller does not know the effect. A runtime call continues and may take effect later; a
    /// stop is given up.
    fn time_out(&mut self, cx: &mut CallContext<'_>, n: u64) {
        let Some(f) = self.pending.get(&n).filter(|f| !f.answered) else { return };
        let (runtime, over) = (f.call.changes_runtime(), matches!(f.stage, Stage::Stopping | Stage::Applied));
        trace!(cx.env, "   {} {:?} timed out", f.uid, f.call.key());
        cx.checks.disturb(&f.uid);
        let message = "deadline exceeded".to_owned();
        let error = match runtime {
            true => CallError::InDoubt { reason: None, message },
            false => CallError::failed(message),
        };
        self.answer(cx.env, n, Duration::ZERO, Err(error));
        if over || !runtime {
            self.discard(cx.runtime, n);
        }
    }

    /// Core cancels a call. Runtime calls can't be interrupted; host work may have been done already.
    pub(crate) fn cancel(&mut self, cx: &mut CallContext<'_>, id: CallId) {
        let Some(n) = self.by_id.get(&id).copied() else { return };
        let Some(f) = self.pending.get(&n).filter(|f| !f.call.changes_runtime()) else { return };
        let error = CallError::Cancelled;
        let host = !matches!(
            f.call,
            Call::Runtime(RuntimeCall::Hook { .. } | RuntimeCall::Probe { .. } | RuntimeCall::PullImage { .. })
        );
        if host
            && cx.env.rng.chance(500)
            && let Call::Host(call) = &f.call
        {
            cx.host.apply(&f.uid, call);
        }
        let delay = cx.env.rng.millis(0, 10);
        self.answer(cx.env, n, delay, Err(error));
        self.pending.remove(&n);
    }

    /// All faults ended: calls that hang complete or are given up now.
    pub(crate) fn end_hangs(&mut self, cx: &mut CallContext<'_>) {
        let in_progress = cx.env.calls_in_progress();
        let hung: Vec<u64> = self.pending.keys().filter(|n| !in_progress.contains(n)).copied().collect();
        for n in hung {
            let Some(f) = self.pending.get(&n) else { continue };
            match (&f.call, f.answered) {
                (Call::Runtime(RuntimeCall::PullImage { .. }), _) | (Call::Runtime(RuntimeCall::Hook { .. }), _) => {
                    let delay = cx.env.rng.millis(10, 3000);
                    let step = if f.stage == Stage::RunningHook { CallStep::HookEnds } else { CallStep::Apply };
                    cx.env.after(delay, Scheduled::Call(n, step));
                }
                (_, true) => self.discard(cx.runtime, n),
                // The caller gives it up at its time limit; the runtime releases the name now.
                (_, false) if f.stage != Stage::Stopping => {
                    if let Some(name) = &f.name {
                        cx.runtime.release(name);
                    }
                }
                _ => {}
            }
        }
    }

    /// The agent process died: nothing waits for results any more. The runtime drops a call whose caller disconnected, or
    /// finishes it.
    pub(crate) fn agent_dies(&mut self, cx: &mut CallContext<'_>) {
        self.by_id.clear();
        for n in self.numbers(|_| true) {
            let Some(f) = self.pending.get_mut(&n) else { continue };
            let runtime = f.call.changes_runtime();
            if runtime {
                cx.checks.disturb(&f.uid);
            }
            f.answered = true;
            if f.stage == Stage::Sent && f.started().is_some() && cx.env.rng.chance(cx.env.faults.start_cut_off) {
                f.stage = Stage::CutOff;
                let delay = cx.env.rng.millis(0, 12_000);
                cx.env.after(delay, Scheduled::Call(n, CallStep::GiveUpStart));
                continue;
            }
            if f.stage == Stage::Stopping || !runtime || cx.env.rng.chance(300) {
                self.discard(cx.runtime, n);
            }
        }
    }

    /// The runtime goes down: each of its calls fails, whether it took effect or not.
    pub(crate) fn runtime_dies(&mut self, cx: &mut CallContext<'_>) {
        for n in self.numbers(PendingCall::needs_runtime) {
            if let Some(f) = self.pending.get_mut(&n) {
                f.result_lost = true;
            }
            if cx.env.rng.chance(400) {
                self.apply(cx, n);
            }
            if self.pending.contains_key(&n) {
                let error = CallError::ConnectionLost { message: "transport is closing".into() };
                self.answer(cx.env, n, Duration::from_millis(1), Err(error));
                self.discard(cx.runtime, n);
            }
        }
    }

    /// The host reboots.
    pub(crate) fn discard_all(&mut self, runtime: &mut Runtime) {
        for n in self.numbers(|_| true) {
            self.discard(runtime, n);
        }
    }

    fn numbers(&self, filter: impl Fn(&PendingCall) -> bool) -> Vec<u64> {
        self.pending.iter().filter(|(_, f)| filter(f)).map(|(n, _)| *n).collect()
    }
}

/// The error of a call to a runtime that is down.
pub(crate) fn unavailable() -> CallError {
    CallError::Unavailable { message: "connection refused".into() }
}
