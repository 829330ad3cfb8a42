//! Follows the runtime's event stream (CRI GetContainerEvents) and reconnects when it ends.
//!
//! ```text
//!   Connecting ──(500 ms without an error, or an event)──▶ Up ──(end)──▶ Down ──(100 ms … 5 s)──▶ Connecting
//!      └──(the runtime has no such stream)──▶ pidfds; retried every minute, since the runtime may be upgraded
//! ```

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use podwright_core::model::{Event, PodUid};
use podwright_cri::labels::Owner;
use podwright_cri::{Code, CriError, EventStream, v1};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Observer;

impl Observer {
    /// Follows the runtime's events until `stop` is cancelled. Runs in one task for as long as the agent runs.
    pub async fn follow_events(&self, stop: CancellationToken) {
        let follow = async {
            let mut delay = RETRY_MIN;
            loop {
                let (lasted, error) = self.follow_one(self.runtime.container_events()).await;
                let missing = error.as_ref().is_some_and(|error| error.code == Code::Unimplemented);
                if !lasted && error.as_ref().is_some_and(|error| error.code != Code::Unavailable) {
                    // Whatever the error, there are no events: watch pidfds instead.
                    self.watch_exits.store(true, Ordering::Relaxed);
                }
                delay = match (lasted, missing) {
                    (true, _) => RETRY_MIN,
                    (false, true) => ABSENT_RETRY,
                    (false, false) => (delay * 2).min(RETRY_MAX),
                };
                if let Some(error) = error {
                    tracing::debug!(%error, retry_in_ms = delay.as_millis(), "event stream of the runtime ended");
                }
                sleep(delay).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = follow => {}
        }
    }

    /// Follows one subscription to its end. Returns whether it was up, and the error that ended it.
    async fn follow_one(&self, mut stream: EventStream) -> (bool, Option<CriError>) {
        // Runtimes send response headers with the first event only, so silence is the only sign of success.
        let mut next = timeout(CONNECT_TIME, stream.next()).await.ok();
        if let Some(Some(Err(_)) | None) = &next {
            return (false, next.flatten().and_then(Result::err));
        }
        self.watch_exits.store(false, Ordering::Relaxed);
        self.exits.clear();
        self.send(Event::EventStream { up: true }).await;
        let ended = loop {
            let event = match next.take() {
                Some(event) => event,
                None => stream.next().await,
            };
            match event {
                Some(Ok(event)) => {
                    if let Some(uid) = self.owner_of(&event) {
                        let (id, kind) = (&event.container_id, event.container_event_type);
                        tracing::trace!(target: TRACE, %uid, container_id = id, kind, "event");
                        if needs_observation(&event) {
                            self.send(Event::Hint { uid }).await;
                        }
                    }
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        self.forget_version();
        self.send(Event::EventStream { up: false }).await;
        (true, ended)
    }

    /// The pod of an event: from its labels, or from an id that was observed before.
    fn owner_of(&self, event: &v1::ContainerEventResponse) -> Option<PodUid> {
        let sandbox = event.pod_sandbox_status.as_ref();
        if let Some(owner) = sandbox.and_then(|status| Owner::of(&status.labels)) {
            return Some(owner.uid.into());
        }
        let labels = event.containers_statuses.iter().find_map(|status| Owner::of(&status.labels));
        if let Some(owner) = labels {
            return Some(owner.uid.into());
        }
        self.owners.lock().expect("no panic under this lock").get(&event.container_id).cloned()
    }

    async fn send(&self, event: Event) {
        // Fails only while the agent shuts down.
        let _ = self.hints.send(event).await;
    }
}

/// Creation, start and removal come from this agent's own calls, after which the pod is observed anyway: a second observation would
/// double the work of every start. Exits come unexpectedly. Changes made by others are found by the periodic list.
fn needs_observation(event: &v1::ContainerEventResponse) -> bool {
    use v1::ContainerEventType::{ContainerCreatedEvent, ContainerDeletedEvent, ContainerStartedEvent};
    let own = [ContainerCreatedEvent, ContainerStartedEvent, ContainerDeletedEvent];
    !own.iter().any(|kind| event.container_event_type == i32::from(*kind))
}

/// Log target of the events that benchmarks measure.
const TRACE: &str = "podwright::trace";
/// A subscription without an error for this long is up.
const CONNECT_TIME: Duration = Duration::from_millis(500);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Retry interval for runtimes without the stream.
const ABSENT_RETRY: Duration = Duration::from_secs(60);
