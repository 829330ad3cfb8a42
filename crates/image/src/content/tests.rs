//! Which content becomes visible, and which files are left.

use super::*;

fn store() -> (tempfile::TempDir, ContentStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = ContentStore::open(dir.path(), &ImageLimits::default()).unwrap();
    (dir, store)
}

fn ingests(dir: &tempfile::TempDir) -> usize {
    fs::read_dir(dir.path().join("ingest")).unwrap().count()
}

#[test]
fn verified_content_becomes_visible_at_commit_and_not_before() {
    let (dir, store) = store();
    let digest = Digest::of(b"hello");
    let mut ingest = store.ingest(ExpectedContent::Exact(digest, 5)).unwrap();
    ingest.write(b"hel").unwrap();
    ingest.write(b"lo").unwrap();
    assert_eq!((store.size(digest), ingests(&dir)), (None, 1));
    assert_eq!(ingest.commit().unwrap(), digest);
    assert_eq!((store.size(digest), ingests(&dir)), (Some(5), 0));
    assert_eq!(store.read(digest, 5).unwrap(), b"hello");
    assert!(matches!(store.read(digest, 4), Err(ContentError::TooLarge { max: 4 })));
}

#[test]
fn wrong_digests_and_sizes_leave_nothing_behind() {
    let (dir, store) = store();
    let digest = Digest::of(b"hello");
    let ingest = |text: &[u8]| {
        let mut ingest = store.ingest(ExpectedContent::Exact(digest, 5))?;
        ingest.write(text)?;
        ingest.commit()
    };
    assert!(matches!(ingest(b"jello"), Err(ContentError::Digest { .. })));
    assert!(matches!(ingest(b"hell"), Err(ContentError::Size { actual: 4, .. })));
    assert!(matches!(ingest(b"hello!"), Err(ContentError::Size { actual: 6, .. })));
    drop(store.ingest(ExpectedContent::AtMost(1)).unwrap());
    assert_eq!((store.list().unwrap(), ingests(&dir)), (vec![], 0));
}

#[test]
fn a_restarted_ingest_counts_and_hashes_from_the_first_byte() {
    let (_dir, store) = store();
    let digest = Digest::of(b"hello");
    let mut ingest = store.ingest(ExpectedContent::Exact(digest, 5)).unwrap();
    ingest.write(b"xyz").unwrap();
    ingest.restart().unwrap();
    ingest.write(b"hello").unwrap();
    assert_eq!(ingest.commit().unwrap(), digest);
}

#[test]
fn damaged_content_is_noticed_when_it_is_read() {
    let (_dir, store) = store();
    let digest = store.write(b"hello").unwrap();
    fs::write(store.path(digest), b"jello").unwrap();
    assert!(matches!(store.read(digest, 10), Err(ContentError::Digest { .. })));
    store.remove(digest).unwrap();
    store.remove(digest).unwrap();
    assert!(matches!(store.read(digest, 10), Err(ContentError::Missing(_))));
}

#[test]
fn unfinished_content_of_an_earlier_process_is_removed_at_start() {
    let (dir, store) = store();
    let mut ingest = store.ingest(ExpectedContent::AtMost(10)).unwrap();
    ingest.write(b"part").unwrap();
    std::mem::forget(ingest);
    ContentStore::open(dir.path(), &ImageLimits::default()).unwrap();
    assert_eq!(ingests(&dir), 0);
}
