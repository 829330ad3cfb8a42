//! Ends watches whose connection has an old client certificate.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::certificate_pair::{CertificatePair, CurrentCertificate};

/// The body of a response. That of a watch ends when the certificate of its connection has been replaced, so that the caller watches
/// again over a new connection; other bodies end soon anyway.
pub(crate) struct WatchedBody {
    /// `None`: it was ended.
    body: Option<Incoming>,
    replaced: Option<Replaced>,
}

type Replaced = Pin<Box<dyn Future<Output = ()> + Send>>;

impl WatchedBody {
    /// `rotation`: of a watch, the newest certificate and the one of its connection.
    pub(crate) fn new(body: Incoming, rotation: Option<(CurrentCertificate, Option<Arc<CertificatePair>>)>) -> Self {
        Self { body: Some(body), replaced: rotation.map(|(current, used)| replaced(current, used)) }
    }
}

/// Ends when there is another certificate.
fn replaced(mut current: CurrentCertificate, used: Option<Arc<CertificatePair>>) -> Replaced {
    Box::pin(async move {
        if current.wait_for(|current| !is_same(current, &used)).await.is_err() {
            // The rotation has ended: nothing is replaced any more.
            std::future::pending().await
        }
    })
}

/// The same certificate, or none.
pub(crate) fn is_same(one: &Option<Arc<CertificatePair>>, other: &Option<Arc<CertificatePair>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        match self.replaced.as_mut().map(|replaced| replaced.as_mut().poll(cx)) {
            Some(Poll::Ready(())) => {
                // The connection is closed with its last stream.
                self.body = None;
                Poll::Ready(None)
            }
            _ => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}
