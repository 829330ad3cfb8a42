//! Permits for calls on sandboxes: as many at a time as the runtime completes most of (`core/src/concurrency.rs`).

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use podwright_core::concurrency::ConcurrencyLimit;
use podwright_core::model::CallError;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::CallContext;

/// The permits of one kind of call. First come, first served: tokio's semaphore is fair.
pub(super) struct AdaptivePermits {
    semaphore: Semaphore,
    waiting: AtomicUsize,
    state: Mutex<PermitState>,
    created: Instant,
}

struct PermitState {
    limit: ConcurrencyLimit,
    /// Permits that exist, in use or not.
    total: usize,
}

impl AdaptivePermits {
    pub(super) fn new(limit: ConcurrencyLimit) -> Self {
        let total = limit.limit();
        let (semaphore, state) = (Semaphore::new(total), Mutex::new(PermitState { limit, total }));
        Self { semaphore, waiting: AtomicUsize::new(0), state, created: Instant::now() }
    }

    /// Waits for a permit. If the call is cancelled meanwhile, nothing was sent.
    pub(super) async fn acquire(&self, context: &CallContext) -> Result<AdaptivePermit<'_>, CallError> {
        let _waiting = Counted::new(&self.waiting);
        Ok(AdaptivePermit { permits: self, permit: context.acquire(&self.semaphore).await? })
    }

    /// `completed`: the call did not outlive its permit.
    fn release(&self, permit: SemaphorePermit<'_>, completed: bool) {
        let mut state = self.state.lock().expect("no panic under this lock");
        match completed {
            true => state.limit.completed(self.waiting.load(Ordering::Relaxed) > 0, self.created.elapsed()),
            false => state.limit.abandoned(),
        }
        let limit = state.limit.limit();
        if state.total > limit {
            state.total -= 1;
            permit.forget();
            return;
        }
        self.semaphore.add_permits(limit - state.total);
        state.total = limit;
    }
}

/// One call under way.
pub(super) struct AdaptivePermit<'a> {
    permits: &'a AdaptivePermits,
    permit: SemaphorePermit<'a>,
}

impl AdaptivePermit<'_> {
    /// Holds the permit during the call, for at most [`PERMIT_TIME_MAX`]: a call that takes longer hangs, and must not block others.
    pub(super) async fn hold<T>(self, call: impl Future<Output = T>) -> T {
        let mut call = std::pin::pin!(call);
        match timeout(PERMIT_TIME_MAX, &mut call).await {
            Ok(done) => {
                self.permits.release(self.permit, true);
                done
            }
            Err(_) => {
                self.permits.release(self.permit, false);
                call.await
            }
        }
    }
}

/// Counts a future for as long as it exists.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Far more than a busy runtime takes for a sandbox.
pub(super) const PERMIT_TIME_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;

    use super::*;

    /// Calls of this duration, all requested at once; returns the number of permits afterwards.
    async fn perform(permits: &Arc<AdaptivePermits>, calls: usize, took: impl Fn(usize) -> Duration) -> usize {
        let under_way = Arc::new(AtomicUsize::new(0));
        let all = (0..calls).map(|_| async {
            let context = CallContext { limit: Duration::from_secs(60), cancel: CancellationToken::new() };
            let permit = permits.acquire(&context).await.expect("it is not cancelled");
            let call = async {
                let _one = Counted::new(&under_way);
                tokio::time::sleep(took(under_way.load(Ordering::Relaxed))).await;
            };
            permit.hold(call).await;
        });
        futures::future::join_all(all).await;
        assert_eq!(permits.waiting.load(Ordering::Relaxed), 0);
        let total = permits.state.lock().unwrap().total;
        assert!(permits.semaphore.available_permits() <= total);
        total
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_take_the_same_time_in_any_number_get_more_permits() {
        let permits = Arc::new(AdaptivePermits::new(ConcurrencyLimit::new(4, 64)));
        let total = perform(&permits, 2000, |_| Duration::from_millis(100)).await;
        assert!(total >= 40, "{total}");
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_delay_each_other_get_fewer_permits() {
        let permits = Arc::new(AdaptivePermits::new(ConcurrencyLimit::new(32, 64)));
        let total = perform(&permits, 2000, |n| Duration::from_millis(2 * (n * n) as u64)).await;
        assert!(total <= 8, "{total}");
        assert_eq!(permits.semaphore.available_permits(), total, "no permit is lost");
    }
}
