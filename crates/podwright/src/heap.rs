//! Keeps the memory usage of the agent low: memory that was freed after the start or a burst is returned to the kernel.

use std::time::Duration;

use podwright_linux::memory;

/// One for each worker thread.
const ARENAS: i32 = 2;
/// How often memory usage is checked.
const PERIOD: Duration = Duration::from_secs(30);
/// The first check, when the agent has usually finished its start.
const FIRST: Duration = Duration::from_secs(5);
/// Growth in bytes since the last trim that causes another.
const MIN_GROWTH: u64 = 256 << 10;

/// Must be called before the first thread is started.
pub(crate) fn limit_malloc_arenas() {
    memory::limit_malloc_arenas(ARENAS);
}

/// Returns free memory to the kernel whenever usage has grown. Ends if usage cannot be read.
pub(crate) async fn trim_heap_periodically() {
    let (mut wait, mut after_trim) = (FIRST, 0);
    loop {
        tokio::time::sleep(wait).await;
        wait = PERIOD;
        let Ok(before) = memory::anonymous_rss() else { return };
        if before > after_trim + MIN_GROWTH {
            memory::trim_heap();
            after_trim = memory::anonymous_rss().unwrap_or(before);
            tracing::debug!(freed_bytes = before.saturating_sub(after_trim), "returned free memory to the kernel");
        }
    }
}
