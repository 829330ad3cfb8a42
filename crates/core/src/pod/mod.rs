//! The life of one pod on this node, from first sight to forgotten.
//!
//! ```text
//!  waiting ──▶ syncing ── deleted, removed, evicted, ended ──▶ terminating ── nothing runs ──▶ terminated ── cleaned up ──▶ finished
//! ```
//!
//! Nothing here waits, and nothing here remembers how far it got: each event changes what we know, then the plan of the
//! state compares what is wanted with what was seen and asks for the calls that are missing. The state itself is read off
//! the durable record, so that an agent that comes back continues where it was.

mod absorb;
mod answer;
mod bring_up;
mod calls;
mod cgroup;
mod clean_up;
mod kill;
mod probing;
mod sight;
mod story;
mod sync;
mod update;
mod volumes;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::NodeConfig;
use crate::actions::{self, Waiting};
use crate::model::{
    Answer, Call, CallError, CallId, Cause, Effect, Ending, FullName, KubeEvent, Name, Now, Out, Pod, PodRecord,
    PodSeen, PodStatus, PodUid, Record, SandboxId, SavedTime, Seq, Source, Time,
};
use crate::mutate::{self, Mutant};
use crate::status;

pub use story::Story;
pub use waits::Wait;

pub(crate) use calls::jitter;
pub(crate) use kill::GRACE_OF_LABELS;

use calls::Calls;
use kill::Killing;
use probing::Probing;
use sight::Sight;

/// Where a pod is in its life. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Not its turn yet: another pod of its name is still there, or there is no room.
    Waiting,
    /// Being brought up and kept up.
    Syncing,
    /// Its end was asked for.
    Terminating,
    /// Nothing of it runs; its volumes and cgroup go.
    Terminated,
    /// Only its dead containers and logs may be left.
    Finished,
}

/// What every step of a pod may look at and draw from.
pub(crate) struct Ctx<'a> {
    pub(crate) now: Now,
    pub(crate) config: &'a NodeConfig,
    /// The runtime answers.
    pub(crate) runtime_up: bool,
    /// Why pods can have no network, if so.
    pub(crate) no_network: Option<&'a str>,
    /// The runtime's name.
    pub(crate) runtime: &'a str,
    pub(crate) seq: &'a mut Seq,
    pub(crate) last_call: &'a mut u64,
    pub(crate) owners: &'a mut BTreeMap<CallId, PodUid>,
    /// How often the runtime was away.
    pub(crate) outages: u64,
    /// Its source has yet to say whether it is still wanted: what runs goes on, nothing is begun.
    pub(crate) unheard: bool,
}

/// How a kill is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KillOptions {
    /// A shorter time than the pod's own.
    pub grace: Option<Duration>,
    /// Eviction's reason and message.
    pub evicted: Option<(String, String)>,
    /// Who waits for the end.
    pub waiter: Option<u64>,
}

/// One pod's machine.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Machine {
    record: PodRecord,
    unsaved: bool,
    full_name: FullName,
    /// A source wants it. An orphan has none.
    has_config: bool,
    /// Why it isn't its turn: reason and message.
    hold: Option<Waiting>,
    sight: Sight,
    calls: Calls,
    /// Host-side work done by this process: cgroup, directories, volumes.
    setup: sync::Setup,
    bring_up: bring_up::BringUp,
    killing: Killing,
    probing: Probing,
    story: Story,
    /// A bug was met: nothing is done for this pod any more.
    quarantine: Option<String>,
    /// Those who wait for the end of this pod.
    waiters: Vec<u64>,
    /// What is gone already, at the very end.
    cleaned: clean_up::Cleaned,
}

impl Machine {
    /// A pod seen for the first time.
    pub(crate) fn new(uid: PodUid, source: Source, pod: Arc<Pod>, origin: Option<String>, now: Now) -> Self {
        let record = PodRecord {
            uid,
            source,
            pod,
            origin,
            first_seen: now.wall,
            admitted: false,
            cursor: None,
            containers: BTreeMap::new(),
            sandbox_attempts: 0,
            ending: None,
            terminated: false,
            finished: false,
            restart_requested: false,
            resize_refused: false,
            status: None,
            story: vec![],
        };
        let mut machine = Self::from_record(record);
        machine.unsaved = true;
        machine
    }

    /// A pod the journal remembers.
    pub(crate) fn from_record(record: PodRecord) -> Self {
        let (full_name, story) = (full_name(&record.pod), Story::remembered(&record.story));
        Self {
            record,
            unsaved: false,
            full_name,
            has_config: true,
            hold: None,
            sight: Sight::default(),
            calls: Calls::default(),
            setup: sync::Setup::default(),
            bring_up: bring_up::BringUp::default(),
            killing: Killing::default(),
            probing: Probing::default(),
            story,
            quarantine: None,
            waiters: vec![],
            cleaned: clean_up::Cleaned::default(),
        }
    }

    // --- what happened ---

    /// The end is asked for. The first cause stays, the deadline only moves earlier.
    pub(crate) fn kill(&mut self, cause: Cause, options: KillOptions, ctx: &mut Ctx<'_>) {
        self.waiters.extend(options.waiter);
        if self.record.terminated {
            if matches!(cause, Cause::Deleted | Cause::Orphan) {
                self.note_deleted();
            }
            return;
        }
        let before = self.record.ending.take();
        let (grace, shortened) = self.effective_grace(before.as_ref().map(|e| e.grace), options.grace);
        let due = ctx.now.boot + grace;
        let deadline = match &before {
            Some(_) if mutate::made(Mutant::DeadlineMovesLater) => due,
            Some(e) => e.deadline.resume(&ctx.config.boot_id).min(due),
            None => due,
        };
        if before.is_none() || shortened {
            let why = format!("{cause:?}, grace {} s", grace.as_secs());
            self.story.tell(
                ctx.now,
                if before.is_none() { "termination requested" } else { "deadline moved earlier" },
                &why,
            );
        }
        let deleted = matches!(cause, Cause::Deleted | Cause::Orphan);
        let ending = Ending {
            cause: before.as_ref().map_or(cause, |e| e.cause),
            deleted: deleted || before.as_ref().is_some_and(|e| e.deleted),
            grace,
            deadline: self.saved(deadline, ctx),
            status_override: options.evicted.or(before.as_ref().and_then(|e| e.status_override.clone())),
        };
        if before.as_ref() != Some(&ending) {
            self.unsaved = true;
        }
        self.record.ending = Some(ending);
    }

    /// Its source has it no more.
    pub(crate) fn removed(&mut self, cause: Cause, ctx: &mut Ctx<'_>) {
        self.has_config = false;
        self.kill(cause, KillOptions::default(), ctx);
        self.note_deleted();
    }

    /// It was deleted, or left config: its content goes, and a new life under its UID may begin after this one.
    fn note_deleted(&mut self) {
        if let Some(ending) = self.record.ending.as_mut().filter(|e| !e.deleted) {
            ending.deleted = true;
            self.unsaved = true;
        }
    }

    /// Only the runtime knows it: it can only be ended.
    pub(crate) fn orphaned(&mut self, options: KillOptions, ctx: &mut Ctx<'_>) {
        self.has_config = false;
        self.kill(Cause::Orphan, options, ctx);
    }

    /// A new life under this UID was asked for while this one ends.
    pub(crate) fn request_restart(&mut self) {
        self.record.restart_requested = true;
        self.unsaved = true;
    }

    /// A person wants containers to begin anew; of a pod that a person stopped, all of it. An object whose phase is terminal has
    /// no other life: that is for static pods.
    pub(crate) fn restart_containers(&mut self, container: Option<Name>, ctx: &Ctx<'_>) {
        if self.record.ending.as_ref().is_some_and(|e| e.cause == Cause::Stopped) {
            if self.is_static() && !self.record.restart_requested {
                self.story.tell(ctx.now, "a new life requested", "a person asked for it");
                self.note_deleted();
                self.request_restart();
            }
            return;
        }
        let names: BTreeSet<Name> = match container {
            Some(name) => BTreeSet::from([name]),
            None => spec_of(&self.record.pod).containers.iter().map(|c| Name::from(c.name.as_str())).collect(),
        };
        for name in names {
            self.story.tell(ctx.now, &format!("restart of {name} requested"), "a person asked for it");
            self.bring_up.restart_now.insert(name);
        }
        self.calls.forgive();
    }

    /// It may start, or it must wait, and this is why.
    pub(crate) fn hold(&mut self, hold: Option<Waiting>, ctx: &Ctx<'_>) {
        if self.hold != hold {
            match &hold {
                Some(w) => self.story.tell(ctx.now, &format!("waits: {}", w.reason), &w.message),
                None => self.story.tell(ctx.now, "its turn", "nothing holds it back"),
            }
            self.hold = hold;
        }
    }

    pub(crate) fn admitted(&mut self) {
        if !self.record.admitted {
            self.record.admitted = true;
            self.unsaved = true;
        }
    }

    pub(crate) fn hint(&mut self) {
        self.sight.mark_dirty();
    }

    pub(crate) fn absent_from_list(&mut self, seq: Seq) {
        self.sight.absent(seq);
    }

    pub(crate) fn observed(&mut self, seq: Seq, result: Result<PodSeen, CallError>, ctx: &mut Ctx<'_>, out: &mut Out) {
        let unavailable = result.as_ref().is_err_and(|e| e.unavailable);
        if unavailable {
            self.sight.lost(seq);
            return;
        }
        let troubled = self.sight.trouble().is_some();
        if self.sight.observed(seq, result.map_err(|e| e.message), ctx.now.boot) {
            self.absorb(ctx);
        }
        if let Some((2, message)) = self.sight.trouble() {
            let message = format!("the runtime does not tell about this pod: {message}");
            self.event(true, "FailedSync", None, message, out);
        } else if troubled && self.sight.trouble().is_none() {
            self.story.tell(ctx.now, "seen again", "the runtime answers for this pod");
        }
    }

    /// A bug was met in this pod: it is told once, and nothing is done for it any more.
    pub(crate) fn quarantine(&mut self, why: &str, now: Now, out: &mut Out) {
        if self.quarantine.replace(why.to_owned()).is_some() {
            return;
        }
        out.effects.push(Effect::KeepAside { record: Box::new(self.record.clone()) });
        self.record.status = Some(status::quarantined(self.record.status.as_ref(), why, now.wall));
        out.effects.push(Effect::StatusChanged { uid: self.record.uid.clone() });
        self.event(
            true,
            "Quarantined",
            None,
            format!("an internal error was met: {why}; the pod is left as it is"),
            out,
        );
    }

    // --- what follows ---

    /// Compare what is wanted with what was seen, and ask for what is missing. The second half of every event.
    pub(crate) fn step(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        if self.quarantine.is_none() {
            self.calls.runtime_is_back(ctx.outages);
            self.settle_doubts(ctx);
            self.settle_starts(ctx);
            self.absorb_lost(ctx);
            loop {
                let before = self.state();
                self.plan(ctx, out);
                if self.state() == before {
                    break;
                }
                let after = self.state();
                self.story.tell(ctx.now, &format!("{before:?} → {after:?}"), &self.why(after));
            }
            if ctx.runtime_up {
                self.sight.look(&self.record.uid, ctx.seq, ctx.now.boot, &mut out.effects);
            }
            self.publish(ctx, out);
            self.check();
        }
        if self.record.terminated {
            self.release_waiters(out);
        }
        if std::mem::take(&mut self.unsaved) {
            self.record.story = self.story.tail();
            out.records.push(Record::Put(Box::new(self.record.clone())));
        }
    }

    /// Whoever waits for the end is told, exactly once.
    pub(crate) fn release_waiters(&mut self, out: &mut Out) {
        out.effects.extend(self.waiters.drain(..).map(|waiter| Effect::Released { waiter }));
    }

    fn plan(&mut self, ctx: &mut Ctx<'_>, out: &mut Out) {
        match self.state() {
            State::Waiting => {}
            State::Syncing => self.plan_sync(ctx, out),
            State::Terminating => self.plan_kill(ctx, out),
            State::Terminated => self.plan_clean_up(ctx, out),
            State::Finished => self.plan_removal(ctx, out),
        }
    }

    /// Publish what the status is now, if it is news.
    fn publish(&mut self, ctx: &Ctx<'_>, out: &mut Out) {
        let Some(status) = self.new_status(ctx, out) else { return };
        if self.record.status.as_ref() != Some(&status) {
            self.note_phase(&status, ctx);
            self.record.status = Some(status);
            self.unsaved = true;
            out.effects.push(Effect::StatusChanged { uid: self.record.uid.clone() });
        }
    }

    fn new_status(&self, ctx: &Ctx<'_>, out: &mut Out) -> Option<PodStatus> {
        // Before the first look a remembered status is truer than anything computed from nothing.
        if !self.sight.known() && self.record.status.is_some() {
            return None;
        }
        let computed = self.compute_status(ctx);
        match &self.record.status {
            Some(old) => match status::accept(old, computed, &self.record.pod, |name| self.is_replaced(name)) {
                Ok(status) => Some(status),
                Err(illegal) => {
                    self.event(true, "FailedSync", None, format!("status refused: {illegal}"), out);
                    None
                }
            },
            None => Some(computed),
        }
    }

    fn is_replaced(&self, name: &str) -> bool {
        self.record.containers.get(name).is_some_and(|m| m.voided.is_some())
    }

    fn compute_status(&self, ctx: &Ctx<'_>) -> PodStatus {
        let trouble = self.trouble();
        status::pod_status(&status::StatusInput {
            pod: &self.record.pod,
            seen: &self.sight.seen,
            record: &self.record,
            waiting: &self.bring_up.waiting,
            hold: self.hold.as_ref(),
            trouble: trouble.as_deref(),
            host_ips: &ctx.config.host_ips,
            runtime: ctx.runtime,
            now: ctx.now.wall,
            unsure: !self.record.terminated && self.may_run_unseen(),
            is_static: self.is_static(),
        })
    }

    fn may_run_unseen(&self) -> bool {
        !self.sight.fresh() || self.calls.starting() || self.calls.in_doubt()
    }

    fn note_phase(&mut self, status: &PodStatus, ctx: &Ctx<'_>) {
        let old = self.record.status.as_ref().and_then(|s| s.phase.clone());
        if old != status.phase {
            let (old, new) = (old.unwrap_or_else(|| "none".into()), status.phase.clone().unwrap_or_default());
            let cause = status.reason.clone().unwrap_or_else(|| "as its containers are".into());
            self.story.tell(ctx.now, &format!("phase {old} → {new}"), &cause);
        }
    }

    /// The invariants, always on: a panic here is caught at the loop and costs this pod only.
    fn check(&self) {
        let r = &self.record;
        assert!(!r.terminated || r.ending.is_some(), "terminated without an end");
        assert!(!r.finished || r.terminated, "finished before it was terminated");
        assert!(!r.terminated || !self.calls.starting(), "a start is under way in a terminated pod");
    }

    fn why(&self, state: State) -> String {
        match (state, &self.record.ending) {
            (State::Terminating, Some(e)) => format!("{:?}, grace {} s", e.cause, e.grace.as_secs()),
            (State::Terminated, _) => "every container was seen stopped".into(),
            (State::Finished, _) => "volumes and cgroup are gone".into(),
            _ => "nothing holds it back".into(),
        }
    }

    // --- asking ---

    /// Ask for a call unless it is under way, in doubt, or has to wait. The gate every call passes.
    fn ask(&mut self, call: Call, limit: Duration, ctx: &mut Ctx<'_>, out: &mut Out) -> bool {
        self.calls.may_send(&call.key(), ctx.now.boot) && self.send(call, limit, ctx, out)
    }

    /// As `ask`, but also beside a call of the same key: a stop with a shorter time.
    fn send(&mut self, call: Call, limit: Duration, ctx: &mut Ctx<'_>, out: &mut Out) -> bool {
        if call.is_runtime() {
            // A plan on old sight starts containers twice; a stop can only be too late.
            let sighted = call.is_stop() || (self.sight.fresh() && !self.calls.in_doubt());
            if !ctx.runtime_up || !sighted {
                return false;
            }
        }
        *ctx.last_call += 1;
        let id = CallId(*ctx.last_call);
        ctx.owners.insert(id, self.record.uid.clone());
        self.calls.sent(id, call.clone(), ctx.now.boot, limit);
        let (uid, pod) = (self.record.uid.clone(), self.record.pod.clone());
        out.effects.push(Effect::Call { id, uid, pod, call, limit });
        true
    }

    fn cancel(&mut self, test: impl Fn(&Call) -> bool, out: &mut Out) {
        for id in self.calls.cancel(test) {
            out.effects.push(Effect::Cancel { id });
        }
    }

    fn event(&self, warning: bool, reason: &'static str, container: Option<&Name>, message: String, out: &mut Out) {
        out.effects.push(Effect::Event(KubeEvent {
            uid: self.record.uid.clone(),
            pod: self.full_name.clone(),
            container: container.cloned(),
            warning,
            reason,
            message,
        }));
    }

    fn saved(&self, boot: Time, ctx: &Ctx<'_>) -> SavedTime {
        let left = boot.saturating_sub(ctx.now.boot);
        let wall = jiff::SignedDuration::try_from(left).ok().and_then(|left| ctx.now.wall.checked_add(left).ok());
        SavedTime { boot_id: ctx.config.boot_id.clone(), boot, wall: wall.unwrap_or(ctx.now.wall) }
    }

    // --- questions ---

    /// Where it is in its life.
    pub fn state(&self) -> State {
        match &self.record {
            r if r.finished => State::Finished,
            r if r.terminated => State::Terminated,
            r if r.ending.is_some() => State::Terminating,
            // A record from the journal that never had its turn has not got it by the agent's restart.
            r if !r.admitted => State::Waiting,
            _ => State::Syncing,
        }
    }

    /// Its record.
    pub fn record(&self) -> &PodRecord {
        &self.record
    }

    /// What the runtime has of it, as last seen.
    pub fn seen(&self) -> &PodSeen {
        &self.sight.seen
    }

    /// Its story.
    pub fn story(&self) -> &Story {
        &self.story
    }

    /// Namespace and name.
    pub fn full_name(&self) -> &FullName {
        &self.full_name
    }

    /// It ends and its source had it no more at some time since, maybe a former agent's: whoever wants it now wants a new life.
    pub(crate) fn left_config(&self) -> bool {
        let left = self.record.ending.as_ref().is_some_and(|e| e.deleted && self.is_static());
        self.state() >= State::Terminating && (!self.has_config || left)
    }

    /// A source wants it.
    pub fn has_config(&self) -> bool {
        self.has_config
    }

    pub(crate) fn is_static(&self) -> bool {
        self.record.source.is_static()
    }

    /// Its claim on its name: something of it runs, whoever began it; or it had its turn.
    pub(crate) fn claim(&self) -> (bool, bool) {
        (!self.sight.seen.is_stopped(), self.record.admitted)
    }

    pub(crate) fn is_quarantined(&self) -> bool {
        self.quarantine.is_some()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    pub(crate) fn is_held_for(&self, reason: &str) -> bool {
        self.hold.as_ref().is_some_and(|h| h.reason == reason)
    }

    pub(crate) fn sight_at(&self) -> Option<Seq> {
        self.sight.at()
    }

    /// Its dead containers, directories and logs are to go.
    pub(crate) fn content_should_go(&self) -> bool {
        self.record.ending.as_ref().is_some_and(|e| e.cause == Cause::Evicted || (e.deleted && self.record.terminated))
    }

    /// When it wants to be woken, if nothing else happens.
    pub(crate) fn wake(&self, now: Now) -> Option<Time> {
        if self.quarantine.is_some() {
            return None;
        }
        let mine = match self.state() {
            State::Syncing => {
                let mine = [self.bring_up.wake(now.boot), self.probing.wake(&self.calls), self.killing.wake(now.boot)];
                mine.into_iter().flatten().chain(self.active_deadline(now)).min()
            }
            State::Terminating => self.probing.wake(&self.calls).into_iter().chain(self.killing.wake(now.boot)).min(),
            _ => None,
        };
        mine.into_iter().chain(self.calls.wake(now.boot)).chain(self.sight.wake(now.boot)).min()
    }

    /// When `activeDeadlineSeconds` ends it.
    fn active_deadline(&self, now: Now) -> Option<Time> {
        let allowed = spec_of(&self.record.pod).active_deadline_seconds?;
        let start = self.record.status.as_ref()?.start_time.as_ref()?.0;
        let due = start.checked_add(jiff::SignedDuration::from_secs(allowed)).ok()?;
        Some(now.boot + Duration::try_from(due.duration_since(now.wall)).unwrap_or(Duration::ZERO))
    }

    /// The minimum of what is present; the pod's own only if nothing is; at least a second.
    fn effective_grace(&self, current: Option<Duration>, asked: Option<Duration>) -> (Duration, bool) {
        let seconds = |n: i64| Duration::from_secs(u64::try_from(n).unwrap_or(0));
        let deletion = self.record.pod.metadata.deletion_grace_period_seconds.map(seconds);
        let own = self.record.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).map(seconds);
        let grace = [current, deletion, asked].into_iter().flatten().min().or(own).unwrap_or(Duration::from_secs(30));
        let grace = grace.max(Duration::from_secs(1));
        (grace, current.is_some_and(|c| grace < c))
    }

    fn current_sandbox(&self) -> Option<SandboxId> {
        actions::current_sandbox(&self.sight.seen, &self.record).map(|s| s.id.clone())
    }

    fn ips(&self) -> Vec<String> {
        let current = self.current_sandbox();
        self.sight.seen.sandboxes.iter().find(|s| Some(&s.id) == current.as_ref()).map_or(vec![], |s| s.ips.clone())
    }
}

impl Machine {
    /// A call came back.
    pub(crate) fn done(&mut self, id: CallId, result: Result<Answer, CallError>, ctx: &mut Ctx<'_>, out: &mut Out) {
        let Some(sent) = self.calls.returned(id) else { return };
        if sent.call.is_runtime() {
            self.sight.acted(ctx.seq.draw());
        }
        self.answered(sent, result, ctx, out);
    }
}

/// Namespace and name of a pod.
pub fn full_name(pod: &Pod) -> FullName {
    FullName {
        namespace: pod.metadata.namespace.as_deref().unwrap_or("default").into(),
        name: pod.metadata.name.as_deref().unwrap_or_default().into(),
    }
}

pub(crate) fn spec_of(pod: &Pod) -> &crate::model::PodSpec {
    pod.spec.as_ref().expect("a pod without a spec is refused at its source")
}

pub(crate) fn is_terminal(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}
