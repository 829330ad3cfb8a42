//! The usage of a very deep tree. One test only: it lowers the limit of open files of its process.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use podwright_linux::beneath::{TreeUsage, remove_path, tree_usage};
use podwright_linux::rlimit::{self, Rlimit};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

const LEVELS: u64 = 5000;
const THREADS: usize = 16;
/// Of one walk, with some to spare.
const DESCRIPTORS: u64 = 20;

#[test]
fn sixteen_threads_count_a_file_below_5000_directories_with_few_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    std::fs::create_dir(&top).unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = openat(CWD, &top, flags, Mode::empty()).unwrap();
    for _ in 0..LEVELS {
        // Entries before and behind the way down.
        for name in ["a", "d", "z"] {
            mkdirat(&here, name, Mode::from_raw_mode(0o755)).unwrap();
        }
        here = openat(&here, "d", flags, Mode::empty()).unwrap();
    }
    let file = openat(&here, "file", OFlags::WRONLY | OFlags::CREATE, Mode::from_raw_mode(0o600)).unwrap();
    std::fs::File::from(file).write_all(&vec![1; 10 << 20]).unwrap();
    drop(here);
    let usages = with_open_files(DESCRIPTORS * THREADS as u64 + 20, || {
        std::thread::scope(|scope| {
            let walks: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| counted(&top))).collect();
            walks.into_iter().map(|walk| walk.join().unwrap()).collect::<Vec<_>>()
        })
    });
    remove_path(&top).unwrap();
    for usage in usages {
        assert!(usage.complete && usage.inodes == 3 * LEVELS + 2 && usage.bytes >= 10 << 20, "{usage:?}");
    }
}

fn counted(top: &Path) -> TreeUsage {
    tree_usage(top, u64::MAX, Instant::now() + Duration::from_secs(60)).unwrap()
}

fn with_open_files<T>(soft: u64, work: impl FnOnce() -> T) -> T {
    let before = rlimit::get(rlimit::NOFILE).unwrap();
    rlimit::set(rlimit::NOFILE, Rlimit { soft, hard: before.hard }).unwrap();
    let result = work();
    rlimit::set(rlimit::NOFILE, before).unwrap();
    result
}
