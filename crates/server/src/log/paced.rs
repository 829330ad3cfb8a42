//! A stream that breaks off when its reader takes too long. The reader of an HTTP/2 stream may stop reading while its connection stays
//! alive, so the time is measured here and not at the connection.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

/// The same parts; what they hold is released after the reader has not taken a part for `patience`. It then gets an error, so that it
/// does not take the parts for all.
pub(crate) fn paced(
    parts: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    patience: Duration,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let (sender, receiver) = mpsc::channel(1);
    let (completed, completion) = oneshot::channel();
    podwright_tasks::spawn("log-stream", async move {
        let mut parts = std::pin::pin!(parts);
        loop {
            let part = tokio::select! {
                part = parts.next() => part,
                () = sender.closed() => None,
            };
            let Some(part) = part else {
                let _ = completed.send(());
                return;
            };
            if sender.send_timeout(part, patience).await.is_err() {
                return;
            }
        }
    });
    let broken = stream::once(completion).filter_map(|completion| async move {
        let message = "the reader took too long";
        completion.is_err().then(|| Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    });
    ReceiverStream::new(receiver).chain(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_releases_the_stream() {
        let held = std::sync::Arc::new(());
        let kept = held.clone();
        let endless = stream::repeat(Bytes::from_static(b"x")).map(move |part| {
            let _kept = &kept;
            Ok(part)
        });
        let mut paced = std::pin::pin!(paced(endless, Duration::from_secs(60)));
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(50)).await;
            assert!(paced.next().await.is_some_and(|part| part.is_ok()));
        }
        assert_eq!(std::sync::Arc::strong_count(&held), 2);
        tokio::time::sleep(Duration::from_secs(70)).await;
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
        let rest: Vec<_> = paced.collect().await;
        assert!(rest.last().unwrap().is_err(), "it does not look complete");
    }

    #[tokio::test]
    async fn a_stream_has_an_error_only_if_it_broke_off() {
        let part = || Ok(Bytes::from_static(b"x"));
        let complete: Vec<_> = paced(stream::iter([part(), part()]), Duration::from_secs(60)).collect().await;
        assert!(complete.len() == 2 && complete.iter().all(Result::is_ok), "{complete:?}");
        let broken = stream::iter([part(), Err(io::Error::other("disk"))]);
        let broken: Vec<_> = paced(broken, Duration::from_secs(60)).collect().await;
        assert_eq!(broken[1].as_ref().unwrap_err().to_string(), "disk");
        assert_eq!(broken.len(), 2);
    }
}
