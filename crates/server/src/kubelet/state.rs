//! The state that all requests share, and the limit on streams.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::KubeletApi;
use super::access::AccessControl;
use crate::health_server::MetricsPage;
use crate::serve::StreamGuard;

/// Shared by all connections.
pub(super) struct ServerState {
    pub(super) api: KubeletApi,
    pub(super) access: AccessControl,
    pub(super) stop: CancellationToken,
    streams: Arc<Semaphore>,
    /// One semaphore per user with open streams.
    shares: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// By page. Held while metrics are collected, so that concurrent scrapes wait for one answer.
    metrics: [tokio::sync::Mutex<Option<(Instant, Bytes)>>; 5],
}

impl ServerState {
    pub(super) fn new(api: KubeletApi, access: AccessControl, stop: CancellationToken) -> Self {
        let streams = Arc::new(Semaphore::new(STREAMS_MAX));
        Self { api, access, stop, streams, shares: Mutex::default(), metrics: Default::default() }
    }

    /// A page of metrics, at most [`METRICS_AGE_MAX`] old.
    pub(super) async fn metrics(&self, page: MetricsPage) -> Bytes {
        let mut last = self.metrics[page as usize].lock().await;
        if let Some((_, text)) = last.as_ref().filter(|(at, _)| at.elapsed() < METRICS_AGE_MAX) {
            return text.clone();
        }
        let text = self.api.status.metrics(page).await;
        *last = Some((Instant::now(), text.clone()));
        text
    }

    /// A permit for a log, exec, attach or port-forward of this user; `None`: there are too many.
    pub(super) fn stream_permit(&self, user: &str) -> Option<StreamGuard> {
        let share = {
            let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
            shares.retain(|_, share| share.available_permits() < USER_STREAMS_MAX);
            Arc::clone(shares.entry(user.into()).or_insert_with(|| Arc::new(Semaphore::new(USER_STREAMS_MAX))))
        };
        let share = share.try_acquire_owned().ok()?;
        let all = Arc::clone(&self.streams).try_acquire_owned().ok()?;
        Some(Box::new((all, share)))
    }
}

/// Logs, execs, attaches and port-forwards at once. One that is not read holds up to 64 KiB to be sent, three parts of 32 KiB of a log
/// and the buffers of its connection, about 200 KiB: 100 MiB for all, until it is closed for that.
const STREAMS_MAX: usize = 512;
/// Of one user. Usually the API server is the only user, on behalf of all others; another user never takes everything.
const USER_STREAMS_MAX: usize = 448;
/// Scrapes are seconds apart.
const METRICS_AGE_MAX: Duration = Duration::from_secs(1);
