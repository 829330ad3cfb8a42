//! Reviews by the API server: whose token it is, and whether a user may do something. Failed ones are repeated within a time limit.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use podwright_cri::BoxFuture;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

/// An authenticated user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UserInfo {
    /// `system:anonymous` for requests without credentials.
    pub name: String,
    /// Empty unless the API server knows it.
    pub uid: String,
    /// With `system:authenticated` or `system:unauthenticated`.
    pub groups: Vec<String>,
    /// Such as the hash of the client certificate.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// May a user access a subresource of the Node object?
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccessReview {
    /// Who asks.
    pub user: Arc<UserInfo>,
    /// Name of the Node object.
    pub node: String,
    /// May be empty.
    pub verb: &'static str,
    /// Such as `proxy`.
    pub subresource: &'static str,
}

/// Why there is no review.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ReviewError {
    /// For the log.
    pub message: String,
    /// Another try may succeed.
    pub retry: bool,
    /// The API server rejected the token with an error. Any client can cause that.
    pub rejected: bool,
}

/// The API server as the judge of tokens and permissions.
pub trait Reviewer: Send + Sync + 'static {
    /// A TokenReview; `None`: the token is not valid. The groups are as the API server returns them.
    fn review_token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<UserInfo>, ReviewError>>;
    /// A SubjectAccessReview.
    fn review_access<'a>(&'a self, review: &'a AccessReview) -> BoxFuture<'a, Result<bool, ReviewError>>;
}

/// Repeats reviews that failed, a few at a time.
pub(super) struct BoundedReviewer {
    reviewer: Arc<dyn Reviewer>,
    /// Apart from reviews of access: any client may send tokens, and must not delay users that are known.
    tokens: Semaphore,
    accesses: Semaphore,
    /// Token reviews that wait or are under way, by the address of the client; none is zero.
    pending: Mutex<HashMap<IpAddr, usize>>,
}

/// A token review that waits or is under way.
struct PendingReview<'a> {
    reviewer: &'a BoundedReviewer,
    client: IpAddr,
}

impl Drop for PendingReview<'_> {
    fn drop(&mut self) {
        let mut pending = self.reviewer.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = pending.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                pending.remove(&self.client);
            }
        }
    }
}

impl BoundedReviewer {
    pub(super) fn new(reviewer: Arc<dyn Reviewer>) -> Self {
        let (tokens, accesses) = (Semaphore::new(PARALLEL_MAX), Semaphore::new(PARALLEL_MAX));
        Self { reviewer, tokens, accesses, pending: Mutex::default() }
    }

    /// `None`: the client has too many token reviews pending.
    pub(super) async fn token(&self, client: IpAddr, token: &str) -> Option<Result<Option<UserInfo>, ReviewError>> {
        let _pending = self.pending(client)?;
        Some(self.repeat(&self.tokens, || self.reviewer.review_token(token)).await)
    }

    pub(super) async fn access(&self, review: &AccessReview) -> Result<bool, ReviewError> {
        self.repeat(&self.accesses, || self.reviewer.review_access(review)).await
    }

    fn pending(&self, client: IpAddr) -> Option<PendingReview<'_>> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let own = pending.get(&client).copied().unwrap_or(0);
        if own >= CLIENT_PENDING_MAX {
            return None;
        }
        pending.insert(client, own + 1);
        Some(PendingReview { reviewer: self, client })
    }

    async fn repeat<'a, T>(
        &'a self,
        parallel: &Semaphore,
        review: impl Fn() -> BoxFuture<'a, Result<T, ReviewError>>,
    ) -> Result<T, ReviewError> {
        let deadline = Instant::now() + REVIEW_TIMEOUT;
        let late = |_| {
            let message = format!("no review within {REVIEW_TIMEOUT:?}");
            ReviewError { message, retry: true, rejected: false }
        };
        let _permit = timeout_at(deadline, parallel.acquire()).await.map_err(late)?;
        let mut pause = PAUSE_FIRST;
        for attempt in 1..=ATTEMPTS_MAX {
            match timeout_at(deadline, review()).await.map_err(late)? {
                Err(error) if error.retry && attempt < ATTEMPTS_MAX && Instant::now() + pause < deadline => {
                    tracing::debug!(attempt, %error, "review failed: repeated");
                    sleep(pause).await;
                    pause = pause.mul_f64(PAUSE_FACTOR);
                }
                done => return done,
            }
        }
        unreachable!("the last attempt returns")
    }
}

/// For one review, with all its attempts.
pub(super) const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Reviews of a kind under way at once; clients with bad tokens must not flood the API server.
const PARALLEL_MAX: usize = 16;
/// Token reviews of one client, waiting or under way: half of [`PARALLEL_MAX`], so that others do not wait for one client.
const CLIENT_PENDING_MAX: usize = 8;
/// Kubernetes (webhook back-off of the delegated authorizer): 5 attempts, 500 ms, factor 1.5.
const ATTEMPTS_MAX: u32 = 5;
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_FACTOR: f64 = 1.5;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    struct Failing {
        asked: AtomicU32,
        succeeds_at: u32,
        retry: bool,
        hang: bool,
    }

    impl Reviewer for Failing {
        fn review_token<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<UserInfo>, ReviewError>> {
            Box::pin(async {
                if self.hang {
                    std::future::pending::<()>().await;
                }
                let error = ReviewError { message: "no".into(), retry: self.retry, rejected: false };
                let done = self.asked.fetch_add(1, Ordering::SeqCst) + 1 == self.succeeds_at;
                if done { Ok(Some(UserInfo::default())) } else { Err(error) }
            })
        }
        fn review_access<'a>(&'a self, _: &'a AccessReview) -> BoxFuture<'a, Result<bool, ReviewError>> {
            Box::pin(async { Ok(false) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_reviews_are_repeated_five_times_and_end_in_time() {
        for (succeeds_at, retry, hang, asked, ok) in [
            (3, true, false, 3, true),
            (9, true, false, 5, false),
            (2, false, false, 1, false),
            (1, true, true, 0, false),
        ] {
            let failing = Arc::new(Failing { asked: 0.into(), succeeds_at, retry, hang });
            let began = Instant::now();
            let reviewed = BoundedReviewer::new(failing.clone()).token(CLIENT, "t").await.unwrap();
            assert_eq!((reviewed.is_ok(), failing.asked.load(Ordering::SeqCst)), (ok, asked));
            assert!(began.elapsed() <= REVIEW_TIMEOUT, "{:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_many_tokens_delays_no_other_review() {
        let hanging = Arc::new(Failing { asked: 0.into(), succeeds_at: 1, retry: true, hang: true });
        let reviewer = Arc::new(BoundedReviewer::new(hanging));
        let client = |n: u8| IpAddr::from([10, 0, 0, n]);
        let pending = |client: IpAddr| {
            let reviewer = Arc::clone(&reviewer);
            tokio::spawn(async move { reviewer.token(client, "t").await.is_some() })
        };
        let flood: Vec<_> = (0..20).map(|n| pending(client(n / 10))).collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(reviewer.token(client(0), "t").await.is_none());
        let access = AccessReview { user: Arc::default(), node: "n".into(), verb: "get", subresource: "pods" };
        let began = Instant::now();
        assert_eq!(reviewer.access(&access).await, Ok(false));
        assert_eq!(began.elapsed(), Duration::ZERO, "it does not wait for reviews of tokens");
        let reviewed =
            futures::future::join_all(flood).await.into_iter().filter(|done| *done.as_ref().unwrap()).count();
        assert_eq!(reviewed, 2 * CLIENT_PENDING_MAX);
        assert!(reviewer.pending.lock().unwrap().is_empty());
    }
}
