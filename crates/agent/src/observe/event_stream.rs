//! The runtime's event stream: followed while it lasts, sought again when it ends.
//!
//! ```text
//!   Seeking ──(500 ms without an error, or an event)──▶ Up ──(end)──▶ Down ──(100 ms … 5 s)──▶ Seeking
//!      └──(the runtime has no such stream)──▶ pidfds; asked again each minute: runtimes are upgraded under us
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
    /// Follows the runtime's events until told to stop. One task for the life of the agent.
    pub async fn follow_events(&self, stop: CancellationToken) {
        let follow = async {
            let mut delay = RETRY_MIN;
            loop {
                let (lasted, error) = self.follow_one(self.runtime.container_events()).await;
                let missing = error.as_ref().is_some_and(|error| error.code == Code::Unimplemented);
                if !lasted && error.as_ref().is_some_and(|error| error.code != Code::Unavailable) {
                    // Whatever it says, it gives no events: do without.
                    self.watch_exits.store(true, Ordering::Relaxed);
                }
                delay = match (lasted, missing) {
                    (true, _) => RETRY_MIN,
                    (false, true) => ABSENT_RETRY,
                    (false, false) => (delay * 2).min(RETRY_MAX),
                };
                if let Some(error) = error {
                    tracing::debug!(%error, retry_in = ?delay, "no events from the runtime");
                }
                sleep(delay).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = follow => {}
        }
    }

    /// One subscription to its end. Whether it was up, and what ended it.
    async fn follow_one(&self, mut stream: EventStream) -> (bool, Option<CriError>) {
        // Runtimes answer with their first event, so that silence is the only sign of success.
        let mut next = timeout(SILENCE_IS_UP, stream.next()).await.ok();
        if let Some(Some(Err(_)) | None) = &next {
            return (false, next.flatten().and_then(Result::err));
        }
        self.watch_exits.store(false, Ordering::Relaxed);
        self.exits.clear();
        self.tell(Event::EventStream { up: true }).await;
        let ended = loop {
            let event = match next.take() {
                Some(event) => event,
                None => stream.next().await,
            };
            match event {
                Some(Ok(event)) => {
                    if let Some(uid) = self.owner_of(&event) {
                        let (id, kind) = (&event.container_id, event.container_event_type);
                        tracing::trace!(target: TRACE, %uid, id, kind, "event");
                        if is_news(&event) {
                            self.tell(Event::Hint { uid }).await;
                        }
                    }
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        self.forget_version();
        self.tell(Event::EventStream { up: false }).await;
        (true, ended)
    }

    /// Whose event it is; the sandbox says, or we have seen the id before.
    fn owner_of(&self, event: &v1::ContainerEventResponse) -> Option<PodUid> {
        let sandbox = event.pod_sandbox_status.as_ref();
        if let Some(owner) = sandbox.and_then(|status| Owner::of(&status.labels)) {
            return Some(owner.uid.into());
        }
        let labels = event.containers_statuses.iter().find_map(|status| Owner::of(&status.labels));
        if let Some(owner) = labels {
            return Some(owner.uid.into());
        }
        self.owners.lock().expect("nobody panics with it").get(&event.container_id).cloned()
    }

    async fn tell(&self, event: Event) {
        // Nobody listens only while the agent ends.
        let _ = self.hints.send(event).await;
    }
}

/// What only our own calls bring about is looked at when they return, and their events come at the same moment: looking twice
/// would double the work of every start. An end comes unasked. What nobody told of is found by the safety list.
fn is_news(event: &v1::ContainerEventResponse) -> bool {
    use v1::ContainerEventType::{ContainerCreatedEvent, ContainerDeletedEvent, ContainerStartedEvent};
    let ours = [ContainerCreatedEvent, ContainerStartedEvent, ContainerDeletedEvent];
    !ours.iter().any(|kind| event.container_event_type == i32::from(*kind))
}

/// The moments that benches measure between.
const TRACE: &str = "podwright::trace";
const SILENCE_IS_UP: Duration = Duration::from_millis(500);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// For runtimes without the stream.
const ABSENT_RETRY: Duration = Duration::from_secs(60);
