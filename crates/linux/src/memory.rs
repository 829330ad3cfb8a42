//! The process' own memory: how much it takes, and giving back what it no longer needs.
//!
//! An allocator keeps what was freed for the next burst. An agent has one burst, at its start, and then idles for months: what
//! it took then belongs to the pods.

// glibc has no safe way to its own settings.
#![allow(unsafe_code)]

use std::io;

/// Let threads share this many heaps, instead of eight for each core. Heaps that are made stay: call it before the first thread.
pub fn limit_heaps(count: i32) -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt reads its two integers and changes a setting under glibc's own lock; any value is valid, what it
        // can't use is refused by its answer.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, count) == 1 }
    }
    #[cfg(not(target_env = "gnu"))]
    {
        let _ = count;
        false
    }
}

/// Give freed memory back to the machine. True if there was any.
pub fn give_back() -> bool {
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

/// The memory that is this process' alone (`RssAnon`), in bytes.
pub fn anonymous() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("no RssAnon in /proc/self/status"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_freed_is_given_back() {
        assert!(limit_heaps(2) || cfg!(not(target_env = "gnu")));
        // Small pieces with one in between that stays: nothing the allocator returns by itself.
        let mut pieces: Vec<Vec<u8>> = (0..20_000).map(|n| vec![1; 1000 + n % 7]).collect();
        let last = pieces.pop();
        let full = anonymous().unwrap();
        drop(pieces);
        let held = anonymous().unwrap();
        give_back();
        let after = anonymous().unwrap();
        assert!(last.is_some() && full > 19 << 20);
        if cfg!(target_env = "gnu") {
            assert!(held > full / 2 && after + (10 << 20) < held, "full {full}, held {held}, after {after}");
        }
    }
}
