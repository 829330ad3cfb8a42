//! Keeps the agent small: what its start and its bursts took goes back to the machine.

use std::time::Duration;

use podwright_linux::memory;

/// Two heaps are enough for two busy threads.
const HEAPS: i32 = 2;
/// How often to look.
const PERIOD: Duration = Duration::from_secs(30);
/// The start is over by then, mostly.
const START: Duration = Duration::from_secs(5);
/// Growth that is worth the work.
const WORTH: u64 = 256 << 10;

/// Before the first thread.
pub(crate) fn limit_malloc_arenas() {
    memory::limit_heaps(HEAPS);
}

/// Give back what is not needed, whenever there is more of it than last time.
pub(crate) async fn trim_heap_periodically() {
    let (mut wait, mut least) = (START, 0);
    loop {
        tokio::time::sleep(wait).await;
        wait = PERIOD;
        let Ok(before) = memory::anonymous() else { return };
        if before > least + WORTH {
            memory::give_back();
            least = memory::anonymous().unwrap_or(before);
            tracing::debug!(before, after = least, "gave memory back");
        }
    }
}
