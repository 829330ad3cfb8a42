//! Closures of any type as one type, so that the code of the pool exists once instead of once for each closure.

use std::sync::{Arc, Mutex, PoisonError};

use super::PoolError;

/// A closure that keeps its own result.
pub(super) type Closure = Box<dyn FnOnce() + Send>;

/// Where a closure puts its result.
pub(super) struct ClosureResult<T>(Arc<Mutex<Option<T>>>);

/// Boxes a closure. The result is dropped with it if it is not taken.
pub(super) fn erase<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> (Closure, ClosureResult<T>) {
    let result = ClosureResult(Arc::default());
    let of_closure = Arc::clone(&result.0);
    let closure = move || {
        let value = work();
        *of_closure.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
    };
    (Box::new(closure), result)
}

impl<T> ClosureResult<T> {
    /// The result of a closure that has ended without a panic.
    pub(super) fn take(self) -> Result<T, PoolError> {
        let value = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        value.ok_or_else(|| PoolError::Panicked("the closure has no result".into()))
    }
}
