//! Events that concern one pod.

use std::collections::BTreeSet;

use super::pods::Pods;
use crate::model::{Answer, CallError, CallId, Cause, Now, Out, PodSeen, PodUid, Seq};
use crate::pod::{Ctx, KillOptions, Machine};

impl Pods {
    /// Calls a method of one pod's machine; the pod is stepped afterwards.
    pub(super) fn touch(
        &mut self,
        uid: PodUid,
        now: Now,
        out: &mut Out,
        f: impl FnOnce(&mut Machine, &mut Ctx<'_>, &mut Out),
    ) -> BTreeSet<PodUid> {
        self.with(&uid, now, out, f);
        BTreeSet::from([uid])
    }

    pub(super) fn on_observed(
        &mut self,
        uid: PodUid,
        seq: Seq,
        result: Result<PodSeen, CallError>,
        covered: bool,
        now: Now,
        out: &mut Out,
    ) -> BTreeSet<PodUid> {
        // The pod may have been removed since the query: nothing is recorded then.
        let Some(machine) = self.workers.get(&uid) else { return BTreeSet::new() };
        let (first, name) = (machine.observed_at().is_none(), machine.full_name().clone());
        self.runtime.pleg.covered(&uid, covered);
        self.runtime.note_result(&uid, &result, now.boot);
        self.with(&uid, now, out, |machine, ctx, out| machine.observed(seq, result, ctx, out));
        // Other pods of this name may wait until it is known whether this one runs.
        let named = if first { self.workers.of_name(&name).to_vec() } else { vec![] };
        named.into_iter().chain([uid]).collect()
    }

    pub(super) fn on_hint(&mut self, uid: PodUid, now: Now) -> BTreeSet<PodUid> {
        match self.workers.get_mut(&uid) {
            Some(machine) => machine.hint(now.boot),
            // An unknown pod: the list shows what it is.
            None => self.runtime.pleg.request(),
        }
        BTreeSet::from([uid])
    }

    pub(super) fn on_done(
        &mut self,
        id: CallId,
        result: Result<Answer, CallError>,
        now: Now,
        out: &mut Out,
    ) -> BTreeSet<PodUid> {
        let Some(uid) = self.sequences.owners.remove(&id) else { return BTreeSet::new() };
        self.runtime.note_result(&uid, &result, now.boot);
        self.touch(uid, now, out, |machine, ctx, out| machine.done(id, result, ctx, out))
    }

    pub(super) fn on_kill(&mut self, uid: PodUid, options: KillOptions, now: Now, out: &mut Out) -> BTreeSet<PodUid> {
        let cause = if options.evicted.is_some() { Cause::Evicted } else { Cause::Stopped };
        self.touch(uid, now, out, |machine, ctx, out| machine.end_by_others(cause, options, ctx, out))
    }
}
