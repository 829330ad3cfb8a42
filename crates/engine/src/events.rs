//! The event stream of the CRI.
//!
//! A subscriber that falls [`BEHIND_MAX`] events behind gets its stream ended with an error, and lists again: nothing is dropped
//! silently.

use futures::{Stream, StreamExt, stream};
use podwright_cri::{Code, CriError, EventStream, v1};
use tokio::sync::broadcast::{self, error::RecvError};

/// Distributes events to the subscribers.
#[derive(Debug)]
pub(crate) struct EventHub {
    sender: broadcast::Sender<v1::ContainerEventResponse>,
}

impl Default for EventHub {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(BEHIND_MAX) }
    }
}

impl EventHub {
    /// Without a subscriber an event need not be made.
    pub(crate) fn has_subscribers(&self) -> bool {
        self.sender.receiver_count() > 0
    }

    pub(crate) fn publish(&self, event: v1::ContainerEventResponse) {
        // Without a subscriber there is no one to miss it.
        let _ = self.sender.send(event);
    }

    /// Every event from now on.
    pub(crate) fn subscribe(&self) -> EventStream {
        Box::pin(events(self.sender.subscribe()))
    }
}

fn events(
    receiver: broadcast::Receiver<v1::ContainerEventResponse>,
) -> impl Stream<Item = Result<v1::ContainerEventResponse, CriError>> {
    stream::unfold(Some(receiver), |receiver| async {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Ok(event) => Some((Ok(event), Some(receiver))),
            Err(RecvError::Closed) => None,
            Err(RecvError::Lagged(missed)) => {
                let message = format!("the subscriber is too slow: {missed} events were missed");
                Some((Err(CriError::new(Code::ResourceExhausted, "GetContainerEvents", message)), None))
            }
        }
    })
    .fuse()
}

/// Events that a subscriber may leave unread.
const BEHIND_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_subscriber_that_is_too_far_behind_gets_an_error_and_the_end() {
        let hub = EventHub::default();
        assert!(!hub.has_subscribers());
        let mut stream = hub.subscribe();
        for number in 0..BEHIND_MAX {
            hub.publish(v1::ContainerEventResponse { container_id: number.to_string(), ..Default::default() });
        }
        assert_eq!(stream.next().await.unwrap().unwrap().container_id, "0", "as many may be unread");
        for _ in 0..2 {
            hub.publish(v1::ContainerEventResponse::default());
        }
        assert_eq!(stream.next().await.unwrap().unwrap_err().code, Code::ResourceExhausted);
        assert!(stream.next().await.is_none());
        assert!(!hub.has_subscribers());
    }
}
