//! A fork bomb is killed. One test only: its process is the reaper of the bomb.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use podwright_linux::cgroup::{Bound, CgroupPath, CgroupResources, CgroupTree};

/// Seconds; a test that fails leaves nothing for ever.
const BOMB_LIFE: i64 = 20;
const SECOND: Duration = Duration::from_secs(1);

/// Each process ends as soon as it has a child, so that few of those that were listed live when they are signalled. Makes system
/// calls only: it is a fork of a process with several threads.
fn fork_bomb(gate: RawFd) -> ! {
    // SAFETY: system calls with integers, one byte and one structure on the stack.
    unsafe {
        let mut byte = 0u8;
        libc::read(gate, (&raw mut byte).cast(), 1);
        let now = || {
            let mut time = std::mem::zeroed();
            libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);
            time.tv_sec
        };
        let end = now() + BOMB_LIFE;
        while now() < end {
            let (first, second) = (libc::fork(), libc::fork());
            if first > 0 || second > 0 {
                libc::_exit(0);
            }
        }
        libc::_exit(0)
    }
}

#[test]
fn a_fork_bomb_is_killed() {
    // SAFETY: an ignored SIGCHLD runs none of our code: the kernel reaps children and the orphans of this subreaper.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let tree = CgroupTree::detect().unwrap();
    let path = CgroupPath::parse(&format!("/podwright-test-{}-bomb", std::process::id())).unwrap();
    tree.create(&path, &CgroupResources { pids: Some(Bound::At(200)), ..CgroupResources::default() }).unwrap();
    let (gate, mut go) = std::io::pipe().unwrap();
    // SAFETY: the child makes system calls only.
    let first = unsafe { libc::fork() };
    if first == 0 {
        fork_bomb(gate.as_raw_fd());
    }
    for (_, dir) in tree.directories(&path) {
        std::fs::write(dir.join("cgroup.procs"), first.to_string()).unwrap();
    }
    go.write_all(b"g").unwrap();
    let (begun, mut seen) = (Instant::now(), BTreeSet::new());
    while seen.len() < 1000 && begun.elapsed() < 10 * SECOND {
        seen.extend(tree.procs(&path).unwrap());
    }
    let begun = Instant::now();
    let killed = tree.kill_all(&path, 5 * SECOND);
    let took = begun.elapsed();
    // The bomb ends by itself if it was not killed.
    tree.remove(&path, Duration::from_secs(30)).unwrap();
    assert!(seen.len() >= 1000, "the bomb had {} processes", seen.len());
    killed.unwrap();
    println!("killed after {took:?}");
}
