//! Core's requests to the object store, and their failures.

use std::time::Duration;

use podwright_core::model::{
    Event, ObjectError, ObjectRef, ObjectRequest, ObjectResult, Pod, PodStatus, RequestId, full_name,
};
use podwright_core::status_sync::patch;

use super::{ObjectStore, StoreEvent, phase, strategic_merge, uid_of, version};
use crate::check::{self, Checks, reverted_termination};
use crate::env::{Env, Scheduled, trace};
use crate::runtime::Runtime;

/// What happens to a request.
#[derive(Clone, Copy, PartialEq)]
enum RequestFate {
    Served,
    /// Not served; the client is asked to retry.
    Busy,
    /// Not served; the connection broke.
    Lost,
    /// Served; the answer was lost.
    AnswerLost,
    Refused,
}

impl ObjectStore {
    /// A request is sent.
    pub(crate) fn request(&mut self, env: &mut Env, id: RequestId, request: ObjectRequest) {
        let (delay, epoch) = (env.rng.millis(0, 10), env.epoch());
        env.after(delay, Scheduled::Store(StoreEvent::Request { epoch, id, request }));
    }

    /// A request arrives.
    pub(crate) fn answer(
        &mut self,
        env: &mut Env,
        checks: &mut Checks,
        runtime: &Runtime,
        id: RequestId,
        request: ObjectRequest,
    ) {
        let unavailable = |message: &str, after| Err(ObjectError::Unavailable { message: message.into(), after });
        let result = match self.draw_fate(env) {
            RequestFate::Served => self.serve(env, checks, runtime, request),
            RequestFate::Busy => unavailable("429", Some(Duration::from_secs(1))),
            RequestFate::Lost => unavailable("connection refused", None),
            RequestFate::Refused => Err(ObjectError::Refused("422".into())),
            RequestFate::AnswerLost => {
                let _ = self.serve(env, checks, runtime, request);
                unavailable("connection reset", None)
            }
        };
        let late = env.rng.chance(env.faults.watch_late);
        let delay = if late { env.rng.millis(0, 3000) } else { env.rng.millis(0, 5) };
        env.send(delay, Event::ObjectAnswered { id, result });
    }

    fn draw_fate(&self, env: &mut Env) -> RequestFate {
        if self.unreachable {
            return RequestFate::Lost;
        }
        if env.rng.chance(env.faults.api_answer_lost) {
            return RequestFate::AnswerLost;
        }
        if env.rng.chance(env.faults.api_fails) {
            let failures = [RequestFate::Busy, RequestFate::Lost, RequestFate::Lost, RequestFate::Refused];
            return failures[env.rng.index(4)];
        }
        RequestFate::Served
    }

    fn serve(&mut self, env: &mut Env, checks: &mut Checks, runtime: &Runtime, request: ObjectRequest) -> ObjectResult {
        match request {
            ObjectRequest::PatchStatus { object, base, status, .. } => {
                self.patch_status(env, checks, runtime, &object, &base, &status)
            }
            ObjectRequest::Delete { object } => {
                let pod = self.find(&object)?;
                check::check_final_delete(checks, runtime, env.clock.now, &pod);
                self.remove(env, &pod);
                Ok(None)
            }
            ObjectRequest::DeleteMirror { object } => {
                let pod = self.find(&object)?;
                check::check_mirror_delete(checks, &pod);
                self.remove(env, &pod);
                Ok(None)
            }
            ObjectRequest::CreateMirror { .. } if self.is_local() => {
                checks.violate("8 submitted pods have no mirrors", "a mirror is requested".into());
                Err(ObjectError::Refused("submitted pods have no mirrors".into()))
            }
            ObjectRequest::CreateMirror { pod } => self.create_mirror(env, &pod),
        }
    }

    fn patch_status(
        &mut self,
        env: &mut Env,
        checks: &mut Checks,
        runtime: &Runtime,
        object: &ObjectRef,
        base: &PodStatus,
        status: &PodStatus,
    ) -> ObjectResult {
        let pod = self.find(object)?;
        let before = pod.status.clone().unwrap_or_default();
        if self.is_local() {
            check::check_patched(checks, runtime, &pod, &before, status);
            return Ok(Some(self.replace_status(env, &pod, status)));
        }
        let Some(patch) = patch(&object.uid, base, status) else { return Ok(Some(pod)) };
        let after = strategic_merge::status(&before, &patch["status"]);
        if after == before {
            return Ok(Some(pod));
        }
        if let Some(name) = pod.spec.as_ref().and_then(|spec| reverted_termination(spec, &before, &after)) {
            return Err(ObjectError::Refused(format!("422 {name} may not be transitioned to non-terminated state")));
        }
        check::check_patched(checks, runtime, &pod, &before, &after);
        let pod = self.store_silently(Pod { status: Some(after), ..Pod::clone(&pod) });
        trace!(env, "   API {} is {:?} at version {}", object.uid, phase(&pod), version(&pod));
        self.show(env, &pod);
        Ok(Some(pod))
    }

    fn create_mirror(&mut self, env: &mut Env, pod: &Pod) -> ObjectResult {
        if self.objects.contains_key(&full_name(pod)) {
            return Err(ObjectError::OtherUid);
        }
        self.mirrors_created += 1;
        let mut pod = pod.clone();
        pod.metadata.uid = Some(format!("mirror{}", self.mirrors_created));
        pod.status = Some(PodStatus { phase: Some("Pending".into()), ..PodStatus::default() });
        let pod = self.store_silently(pod);
        trace!(env, "   API mirror {} of {} created", uid_of(&pod), full_name(&pod));
        self.show(env, &pod);
        Ok(Some(pod))
    }
}
