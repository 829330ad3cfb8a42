//! What a crash, a full disk, damage or another agent may do to the journal.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use podwright_core::model::{Pod, PodRecord, Record, Source};

use super::*;

pub(super) fn record(uid: &str, mark: u32) -> PodRecord {
    let mut pod = Pod::default();
    pod.metadata.name = Some(uid.into());
    pod.metadata.annotations = Some(BTreeMap::from([("filler".to_owned(), "x".repeat(30))]));
    let first_seen = "2026-01-02T03:04:05Z".parse().unwrap();
    PodRecord {
        origin: Some(format!("/manifests/{uid}.yaml")),
        life: podwright_core::model::Life::Syncing,
        sandbox_attempts: mark,
        ..PodRecord::new(uid.into(), Source::File, Arc::new(pod), first_seen)
    }
}

pub(super) fn put(uid: &str, mark: u32) -> Record {
    Record::Put(Box::new(record(uid, mark)))
}

/// A directory in memory where there is one: these tests write thousands of files.
pub(super) fn memory_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

pub(super) fn marks(records: &[PodRecord]) -> Vec<(&str, u32)> {
    records.iter().map(|r| (r.uid.as_str(), r.sandbox_attempts)).collect()
}

/// A journal with one commit of two pods and a second commit of three records, and where the second begins and ends.
fn two_commits(dir: &Path) -> (u64, u64) {
    let (mut journal, ..) = Journal::open(dir).unwrap();
    journal.commit(&[put("a", 1), put("b", 1)]).unwrap();
    let first = fs::metadata(dir.join(FILE)).unwrap().len();
    journal.commit(&[put("a", 2), put("b", 2), put("c", 2)]).unwrap();
    (first, fs::metadata(dir.join(FILE)).unwrap().len())
}

#[test]
fn the_newest_record_of_each_pod_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    {
        let (mut journal, records, warnings) = Journal::open(dir.path()).unwrap();
        assert!(records.is_empty() && warnings.is_empty(), "{warnings:?}");
        journal.commit(&[put("a", 1), put("b", 1)]).unwrap();
        journal.commit(&[put("a", 2), put("c", 7)]).unwrap();
        journal.commit(&[Record::Forget("b".into())]).unwrap();
        journal.commit(&[]).unwrap();
    }
    let (_journal, records, warnings) = Journal::open(dir.path()).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(records, vec![record("a", 2), record("c", 7)]);
    for file in [FILE, "agent.lock"] {
        let mode = fs::metadata(dir.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[test]
fn a_write_torn_at_any_byte_loses_only_its_own_commit() {
    let dir = memory_dir();
    let (first, end) = two_commits(dir.path());
    let whole = fs::read(dir.path().join(FILE)).unwrap();
    for cut in first..end {
        let cut_at = usize::try_from(cut).unwrap();
        // The rest never arrived; or the size did but its pages are zeros; or only later pages arrived.
        let mut zeros = whole.clone();
        zeros[cut_at..].fill(0);
        let mut hole = whole.clone();
        hole[usize::try_from(first).unwrap()..=cut_at].fill(0);
        for (kind, bytes) in [("short", &whole[..cut_at]), ("zeros", &zeros), ("hole", &hole)] {
            fs::write(dir.path().join(FILE), bytes).unwrap();
            let (mut journal, records, warnings) = Journal::open(dir.path()).unwrap();
            assert_eq!(marks(&records), [("a", 1), ("b", 1)], "{kind} at {cut}");
            assert_eq!(warnings.len(), usize::from(bytes.len() as u64 > first), "{kind} at {cut}: {warnings:?}");
            if cut % 97 == 0 || cut == first {
                journal.commit(&[put("d", 9)]).unwrap();
                drop(journal);
                let (_journal, records, warnings) = Journal::open(dir.path()).unwrap();
                assert_eq!(marks(&records), [("a", 1), ("b", 1), ("d", 9)], "{kind} at {cut}");
                assert!(warnings.is_empty(), "{warnings:?}");
            }
        }
    }
}

#[test]
fn adjacent_versions_are_read_and_others_are_renamed() {
    for (version, understood) in [(VERSION - 1, true), (VERSION, true), (VERSION + 1, true), (VERSION + 2, false)] {
        let dir = tempfile::tempdir().unwrap();
        two_commits(dir.path());
        let file = OpenOptions::new().write(true).open(dir.path().join(FILE)).unwrap();
        Header { version, base: Header::SIZE }.write(&file).unwrap();
        let (mut journal, records, warnings) = Journal::open(dir.path()).unwrap();
        assert_eq!(records.len(), if understood { 3 } else { 0 }, "version {version}");
        assert_eq!(warnings.len(), usize::from(!understood), "version {version}: {warnings:?}");
        journal.commit(&[put("z", 1)]).unwrap();
        drop(journal);
        let head: [u8; 24] = fs::read(dir.path().join(FILE)).unwrap()[..24].try_into().unwrap();
        assert_eq!(Header::parse(&head).unwrap().version, VERSION, "it continues in the version of this agent");
        assert_eq!(Journal::open(dir.path()).unwrap().1.len(), if understood { 4 } else { 1 });
    }
}

#[test]
fn files_that_are_no_journal_are_renamed() {
    for bytes in [&b""[..], b"short", b"PK\x03\x04 something else altogether, and longer than a header", &[0; 4096]] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), bytes).unwrap();
        let (_journal, records, warnings) = Journal::open(dir.path()).unwrap();
        assert!(records.is_empty() && warnings.len() == 1, "{warnings:?}");
        assert_eq!(fs::read(dir.path().join("journal.corrupt-1")).unwrap(), bytes);
    }
}

#[test]
fn one_record_that_cannot_be_decoded_loses_one_pod() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, ..) = Journal::open(dir.path()).unwrap();
    journal.commit(&[put("a", 1)]).unwrap();
    let log = journal.log.as_mut().unwrap();
    let mut bytes = Vec::new();
    let frame = Frame { commit: log.commit + 1, index: 0, op: Op::Put, last: true, uid: "odd", body: b"{\"uid\":3}" };
    frame.write(&mut bytes).unwrap();
    log.write_tail(&bytes).unwrap();
    drop(journal);
    let (_journal, records, warnings) = Journal::open(dir.path()).unwrap();
    assert_eq!(marks(&records), [("a", 1)]);
    assert!(warnings.len() == 1 && warnings[0].to_string().contains("pod odd"), "{warnings:?}");
}

#[test]
fn the_log_stays_small_however_often_a_record_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, ..) = Journal::open(dir.path()).unwrap();
    let mut largest = 0;
    for round in 0..400 {
        let all: Vec<_> = (0..40).map(|i| put(&format!("pod-{i}"), round)).collect();
        journal.commit(&all).unwrap();
        largest = largest.max(fs::metadata(dir.path().join(FILE)).unwrap().len());
    }
    drop(journal);
    assert!(largest < 2 * COMPACT_SIZE, "{largest}");
    let (_journal, records, warnings) = Journal::open(dir.path()).unwrap();
    assert!(warnings.is_empty() && records.len() == 40);
    assert!(records.iter().all(|r| r.sandbox_attempts == 399));
}

#[test]
fn a_compaction_cut_short_by_a_crash_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    two_commits(dir.path());
    fs::write(dir.path().join(NEW), "half of something").unwrap();
    let (_journal, records, warnings) = Journal::open(dir.path()).unwrap();
    assert_eq!((records.len(), warnings.len()), (3, 0));
    assert!(!dir.path().join(NEW).exists());
}

#[test]
fn a_second_agent_is_refused_with_the_pid_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let first = Journal::open(dir.path()).unwrap();
    let error = Journal::open(dir.path()).unwrap_err();
    let JournalError::Lock(LockError::Taken { pid, .. }) = &error else { panic!("{error:?}") };
    assert_eq!(*pid, Some(std::process::id()));
    assert!(error.to_string().contains(&format!("(pid {})", std::process::id())), "{error}");
    drop(first);
    Journal::open(dir.path()).expect("the lock is released with its owner");
}

/// A small tmpfs that is unmounted when dropped. Needs root.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(at: &Path, size: &str) -> Self {
        let options = std::ffi::CString::new(format!("size={size}")).unwrap();
        rustix::mount::mount("tmpfs", at, "tmpfs", rustix::mount::MountFlags::empty(), options.as_c_str())
            .expect("mounting a tmpfs needs root");
        Self(at.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).expect("unmount the tmpfs");
    }
}

#[test]
fn a_full_disk_fails_commits_and_loses_nothing_and_free_space_makes_them_work_again() {
    let dir = tempfile::tempdir().unwrap();
    let mounted = Tmpfs::mount(dir.path(), "256k");
    let (mut journal, ..) = Journal::open(dir.path()).unwrap();
    journal.commit(&[put("a", 1), put("b", 1)]).unwrap();
    // Other files leave less than a page and a half.
    fs::write(dir.path().join("filler"), vec![1; 228 << 10]).unwrap();
    let mut refused = None;
    for round in 2..200 {
        let all: Vec<_> = ["a", "b", "c", "d"].iter().map(|uid| put(uid, round)).collect();
        if let Err(error) = journal.commit(&all) {
            assert!(error.is_full(), "{error}");
            refused = Some(round);
            break;
        }
    }
    let refused = refused.expect("the disk fills up");
    assert!(journal.commit(&[put("a", 1000), put("e", 1000), put("f", 1000), put("g", 1000)]).is_err());
    fs::remove_file(dir.path().join("filler")).unwrap();
    journal.commit(&[put("a", 2000)]).expect("there is free space again");
    drop(journal);
    let (journal, records, warnings) = Journal::open(dir.path()).unwrap();
    let before = refused - 1;
    let others: &[_] = if before > 1 { &[("b", before), ("c", before), ("d", before)] } else { &[("b", 1)] };
    assert_eq!(marks(&records), [&[("a", 2000)], others].concat());
    assert!(warnings.is_empty(), "{warnings:?}");
    drop(journal);
    drop(mounted);
}

#[test]
fn a_disk_that_is_full_at_start_only_delays_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let mounted = Tmpfs::mount(dir.path(), "64k");
    let _ = fs::write(dir.path().join("filler"), vec![1; 128 << 10]);
    let (mut journal, records, warnings) = Journal::open(dir.path()).unwrap();
    assert!(records.is_empty() && warnings.len() == 1, "{warnings:?}");
    assert!(journal.commit(&[put("a", 1)]).unwrap_err().is_full());
    fs::remove_file(dir.path().join("filler")).unwrap();
    journal.commit(&[put("a", 2)]).unwrap();
    drop(journal);
    let (journal, records, warnings) = Journal::open(dir.path()).unwrap();
    assert_eq!((marks(&records), warnings.len()), (vec![("a", 2)], 0));
    drop(journal);
    drop(mounted);
}
