//! A container swaps directories and links in its volume while the agent works there: nothing outside may change.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::atomic::{self, DATA, Payload, VolumeFile};
use super::ownership::{self, FsGroup};

/// Each race runs for this time.
const RACE: Duration = Duration::from_millis(700);

/// A volume, and a directory with a file outside of it.
struct RaceFixture {
    dir: tempfile::TempDir,
}

impl RaceFixture {
    fn new() -> Self {
        let fixture = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(fixture.at("volume")).unwrap();
        fs::create_dir(fixture.at("outside")).unwrap();
        fs::write(fixture.at("outside/file"), "x").unwrap();
        fixture
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join(path)
    }

    /// Everything outside that any change would alter: the time of change covers owner, mode, links and content.
    fn outside(&self) -> Vec<(i64, i64, u32, u32, u64)> {
        assert_eq!(fs::read_dir(self.at("outside")).unwrap().count(), 1);
        let state = |path: &str| {
            let found = fs::metadata(self.at(path)).unwrap();
            (found.ctime(), found.ctime_nsec(), found.gid(), found.mode(), found.size())
        };
        vec![state("outside"), state("outside/file")]
    }

    /// Calls `work` again and again while another thread calls `attack`. Returns how often `work` succeeded.
    fn race(&self, attack: impl Fn() + Send, mut work: impl FnMut(usize) -> bool) -> usize {
        let before = self.outside();
        let stop = AtomicBool::new(false);
        let mut succeeded = 0;
        std::thread::scope(|scope| {
            let stop = StopOnDrop(&stop);
            let stopped = stop.0;
            scope.spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    attack();
                }
            });
            let end = Instant::now() + RACE;
            for n in 0.. {
                succeeded += usize::from(work(n));
                if Instant::now() > end {
                    break;
                }
            }
        });
        assert_eq!(self.outside(), before, "something outside of the volume was changed");
        succeeded
    }
}

/// Ends the attack also if an assertion fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn exchange(one: &Path, other: &Path) {
    // Either may be missing for a moment.
    let _ = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
}

#[test]
fn an_fs_group_is_never_applied_outside_while_links_are_swapped() {
    let fixture = RaceFixture::new();
    fs::create_dir(fixture.at("volume/dir")).unwrap();
    fs::write(fixture.at("volume/dir/file"), "").unwrap();
    fs::write(fixture.at("volume/file"), "").unwrap();
    symlink(fixture.at("outside"), fixture.at("volume/dir-link")).unwrap();
    symlink(fixture.at("outside/file"), fixture.at("volume/file-link")).unwrap();
    let attack = || {
        exchange(&fixture.at("volume/dir"), &fixture.at("volume/dir-link"));
        exchange(&fixture.at("volume/file"), &fixture.at("volume/file-link"));
    };
    let applied = fixture.race(attack, |n| {
        let group = FsGroup { gid: 4000 + u32::try_from(n % 1000).unwrap(), only_on_mismatch: false };
        ownership::apply(&fixture.at("volume"), group, false).is_ok()
    });
    assert!(applied > 0);
}

#[test]
fn the_atomic_writer_never_writes_outside_while_links_are_swapped() {
    let fixture = RaceFixture::new();
    let volume = fixture.at("volume");
    symlink(fixture.at("outside"), volume.join("link")).unwrap();
    symlink(fixture.at("outside/file"), volume.join("file-link")).unwrap();
    let attack = || {
        // The version that is being written, the link to it, and a name of a file.
        for entry in fs::read_dir(&volume).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("..2") {
                exchange(&entry.path(), &volume.join("link"));
            }
        }
        exchange(&volume.join(DATA), &volume.join("link"));
        exchange(&volume.join("a"), &volume.join("file-link"));
    };
    let written = fixture.race(attack, |n| {
        let file = |text: String| VolumeFile { content: text.into(), mode: 0o600, owner: Some(1) };
        let payload: Payload = [("a", n.to_string()), ("deep/er/file", "x".repeat(n % 9))]
            .map(|(path, text)| (path.into(), file(text)))
            .into();
        atomic::write(&volume, &payload, || ownership::apply(&volume, GROUP, false)).is_ok()
    });
    assert!(written > 0);
}

const GROUP: FsGroup = FsGroup { gid: 4321, only_on_mismatch: false };
