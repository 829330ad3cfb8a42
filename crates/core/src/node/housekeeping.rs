//! What nobody else cleans up: pods the runtime has and nobody wants, records whose source has them no more, leftovers on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Node;
use crate::model::{CallError, Cause, Effect, FullName, Now, Out, Pod, PodSpec, PodUid, Seq, Source, Time};
use crate::mutate::{self, Mutant};
use crate::pod::{GRACE_OF_LABELS, KillOptions, Machine, State};

/// At least this often.
const EVERY: Duration = Duration::from_secs(60);
/// Wanted rounds keep this distance.
const APART: Duration = Duration::from_secs(2);
/// A static pod that found no room asks again.
const HELD: Duration = Duration::from_secs(10);

/// When the next round is due.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Housekeeping {
    last: Time,
    wanted: bool,
    under_way: Option<Seq>,
    held: Option<Time>,
}

impl Housekeeping {
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    pub(super) fn retry_held(&mut self, now: Time) {
        self.held.get_or_insert(now + HELD);
    }

    /// It is time for held pods to ask again.
    pub(super) fn held_due(&mut self, now: Time) -> bool {
        self.held.take_if(|at| *at <= now).is_some()
    }

    fn due(&self) -> Time {
        self.last + if self.wanted { APART } else { EVERY }
    }

    pub(super) fn begin(&mut self, seq: &mut Seq, now: Time) -> Option<Seq> {
        if self.under_way.is_some() || self.due() > now {
            return None;
        }
        (self.last, self.wanted) = (now, false);
        self.under_way = Some(seq.draw());
        self.under_way
    }

    pub(super) fn wake(&self) -> Option<Time> {
        let round = self.under_way.is_none().then(|| self.due());
        round.into_iter().chain(self.held).min()
    }
}

impl Node {
    /// Records whose pod is desired no more, and whose source has spoken, are orphans and end.
    pub(super) fn sync_known(&mut self, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        let gate = !mutate::made(Mutant::GateOverAllSources) || self.all_ready();
        let orphan =
            |m: &Machine| gate && self.source_synced(m.record().source) && self.sources.get(&m.record().uid).is_none();
        let orphans = self.workers.iter().filter(|(_, m)| m.has_config() && orphan(m));
        let orphans: BTreeSet<PodUid> = orphans.map(|(uid, _)| uid.clone()).collect();
        for uid in &orphans {
            self.with(uid, now, out, |machine, ctx, _| machine.removed(Cause::Removed, ctx));
        }
        if self.all_ready() {
            self.workers.mark_synced();
        }
        orphans
    }

    /// Pods the runtime has and nobody knows get a machine that can only end them, once their source has spoken.
    pub(super) fn adopt_orphans(&mut self, now: Now) -> BTreeSet<PodUid> {
        let unknown = self.pleg.listing.pods.iter().filter(|(uid, _)| self.workers.get(uid).is_none());
        let spoken = unknown.filter(|(_, listed)| {
            // Whose source nobody knows makes room for a pod that is wanted; a source that has yet to speak may want its own.
            let awaited = || self.is_awaited(&listed.full_name) || self.all_ready();
            listed.source.map_or_else(awaited, |s| self.source_synced(s))
        });
        let orphans: Vec<_> = spoken.map(|(uid, l)| (uid.clone(), l.full_name.clone(), l.source)).collect();
        let mut touched = BTreeSet::new();
        for (uid, name, source) in orphans {
            let pod = Arc::new(skeleton(&uid, &name));
            let mut machine = Machine::new(uid.clone(), source.unwrap_or(Source::File), pod, None, now);
            machine.look_again();
            self.workers.insert(uid.clone(), machine);
            // One that stands in the way of a pod of its name ends as that pod would: with its own grace.
            let grace = if self.is_awaited(&name) { GRACE_OF_LABELS } else { Duration::from_secs(1) };
            let options = KillOptions { grace: Some(grace), ..KillOptions::default() };
            let mut out = Out::default();
            self.with(&uid, now, &mut out, |machine, ctx, _| machine.orphaned(options, ctx));
            touched.insert(uid);
        }
        // A pod that waits for a stranger of its name may see it now.
        touched.extend(self.held());
        touched
    }

    /// A static pod of this name is wanted.
    fn is_awaited(&self, name: &FullName) -> bool {
        let waits =
            |uid: &PodUid| self.sources.get(uid).is_some() && self.workers.get(uid).is_some_and(Machine::is_static);
        self.workers.of_name(name).iter().any(waits)
    }

    /// A pod of this name that is in the runtime and has no machine yet is ended first.
    pub(super) fn conflicting_runtime_pod(&self, uid: &PodUid) -> Option<crate::actions::Waiting> {
        let machine = self.workers.get(uid).filter(|m| m.is_static())?;
        let mut listed = self.pleg.listing.pods.iter();
        listed
            .find(|(other, l)| {
                *other != uid
                    && l.full_name == *machine.full_name()
                    && l.is_active()
                    // Known now and not yet looked at: it may have had its turn.
                    && self.workers.get(other).is_none_or(|m| m.sight_at().is_none() && m.state() < State::Finished)
            })
            .map(|(other, _)| crate::actions::Waiting {
                reason: "WaitingForPredecessor".into(),
                message: format!("waiting for a pod of the same name with UID {other}, which runs"),
            })
    }

    /// Remove what pods nobody knows have left on this machine.
    pub(super) fn sweep(&mut self, seq: Seq, found: Result<BTreeSet<PodUid>, CallError>, out: &mut Out) {
        if self.housekeeping.under_way == Some(seq) {
            self.housekeeping.under_way = None;
        }
        // An older list may lack a pod that was made since.
        let listed = self.pleg.as_of.is_some() && self.health.up;
        if let (Ok(found), true, true) = (found, listed, self.all_ready()) {
            for uid in found {
                let known = self.workers.get(&uid).is_some() || self.sources.get(&uid).is_some();
                if !known && !self.pleg.listing.pods.contains_key(&uid) {
                    out.effects.push(Effect::Sweep { uid });
                }
            }
        }
    }

    /// A source has said what it wants. One that is switched off never will: what it had belongs to nobody, once all others have spoken.
    pub(super) fn source_synced(&self, source: Source) -> bool {
        match self.config.sources.contains(&source) {
            true => self.sources.is_ready(source),
            false => self.all_ready(),
        }
    }

    pub(super) fn all_ready(&self) -> bool {
        self.config.sources.iter().all(|s| self.sources.is_ready(*s))
    }
}

/// All that is known of a pod without a spec.
fn skeleton(uid: &PodUid, name: &FullName) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(name.name.to_string()),
            namespace: Some(name.namespace.to_string()),
            uid: Some(uid.to_string()),
            annotations: Some(BTreeMap::new()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec::default()),
        status: None,
    }
}
