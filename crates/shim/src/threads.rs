//! The rule that zygote and shims have one thread.

/// Panics if this process has a second thread: a fork copies only the calling one, and a lock that another one holds would stay
/// locked in the child.
pub(crate) fn assert_one_thread() {
    let threads = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    assert!(threads.is_ok_and(|count| count == 1), "a process that forks has one thread");
}
