//! The memory of this process: how much it uses, and returning freed memory to the kernel.
//!
//! An allocator keeps freed memory for the next burst. An agent has one burst, at its start, and then idles for months: the memory
//! should then be available to pods.

// glibc's settings have no safe wrapper.
#![allow(unsafe_code)]

use std::io;

/// Limits malloc to this many arenas for all threads, instead of eight per core. Existing arenas stay: call it before the first
/// thread starts. Returns whether the limit was set.
pub fn limit_malloc_arenas(count: i32) -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt reads its two integers and changes a setting under glibc's own lock; any value is valid, one that it
        // can't use is refused by the return value.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, count) == 1 }
    }
    #[cfg(not(target_env = "gnu"))]
    {
        let _ = count;
        false
    }
}

/// Returns freed memory to the kernel. True if there was any.
pub fn trim_heap() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim takes glibc's locks like any free() and returns only pages that hold no allocation; zero is
        // the padding to keep.
        unsafe { libc::malloc_trim(0) == 1 }
    }
    #[cfg(not(target_env = "gnu"))]
    {
        false
    }
}

/// The anonymous resident memory of this process (`RssAnon`), in bytes.
pub fn anonymous_rss() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("no RssAnon in /proc/self/status"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_is_returned_to_the_kernel() {
        assert!(limit_malloc_arenas(2) || cfg!(not(target_env = "gnu")));
        // Small allocations with a live one at the end: the allocator does not return them without a trim.
        let mut pieces: Vec<Vec<u8>> = (0..20_000).map(|n| vec![1; 1000 + n % 7]).collect();
        let last = pieces.pop();
        let full = anonymous_rss().unwrap();
        drop(pieces);
        let held = anonymous_rss().unwrap();
        trim_heap();
        let after = anonymous_rss().unwrap();
        assert!(last.is_some() && full > 19 << 20);
        if cfg!(target_env = "gnu") {
            assert!(held > full / 2 && after + (10 << 20) < held, "full {full}, held {held}, after {after}");
        }
    }
}
