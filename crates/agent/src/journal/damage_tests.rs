//! Damage of the journal's file loses the damaged records and nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use podwright_core::model::{PodRecord, Record};
use proptest::prelude::*;

use super::replay::{ReadAt, Reader};
use super::tests::{marks, memory_dir, put, record};
use super::*;

/// The newest mark of each pod.
type Marks = BTreeMap<String, u32>;

/// A journal with a compacted base of three pods and four commits, and the byte range of each of the five.
fn base_and_four_commits(dir: &Path) -> Vec<(Vec<Record>, Range<usize>)> {
    let (mut journal, ..) = Journal::open(dir).unwrap();
    let base = vec![put("a", 1), put("b", 1), put("c", 1)];
    journal.commit(&base).unwrap();
    journal.log.as_mut().unwrap().compact().unwrap();
    let len = || usize::try_from(fs::metadata(dir.join(FILE)).unwrap().len()).unwrap();
    let mut parts = vec![(base, usize::try_from(Header::SIZE).unwrap()..len())];
    for commit in
        [vec![put("d", 1)], vec![put("a", 2), put("e", 1)], vec![Record::Forget("b".into())], vec![put("f", 1)]]
    {
        let start = len();
        journal.commit(&commit).unwrap();
        parts.push((commit, start..len()));
    }
    parts
}

/// The marks after all parts but one.
fn replayed(parts: &[(Vec<Record>, Range<usize>)], without: Option<usize>) -> Marks {
    let mut marks = Marks::new();
    for (_, (records, _)) in parts.iter().enumerate().filter(|(i, _)| Some(*i) != without) {
        apply(&mut marks, records);
    }
    marks
}

fn apply(marks: &mut Marks, records: &[Record]) {
    for record in records {
        match record {
            Record::Put(put) => marks.insert(put.uid.as_str().to_owned(), put.sandbox_attempts),
            Record::Forget(uid) => marks.remove(uid.as_str()),
        };
    }
}

/// Opens the journal; its marks and the number of warnings.
fn opened(dir: &Path) -> (Marks, usize) {
    let (_journal, records, warnings) = Journal::open(dir).unwrap();
    (marks(&records).into_iter().map(|(uid, mark)| (uid.to_owned(), mark)).collect(), warnings.len())
}

#[test]
fn a_damaged_byte_loses_only_the_record_or_the_last_commit_it_lies_in() {
    let dir = memory_dir();
    let parts = base_and_four_commits(dir.path());
    let whole = fs::read(dir.path().join(FILE)).unwrap();
    let all = replayed(&parts, None);
    for at in 0..whole.len() {
        let hit = parts.iter().position(|(_, range)| range.contains(&at));
        let without = replayed(&parts, hit);
        let mut bytes = whole.clone();
        bytes[at] ^= [0x01, 0x40, 0xff][at % 3];
        fs::write(dir.path().join(FILE), &bytes).unwrap();
        let (seen, warnings) = opened(dir.path());
        let case = format!("byte {at} of {hit:?}: {seen:?}");
        let mut lost = 0;
        for uid in ["a", "b", "c", "d", "e", "f"] {
            if seen.get(uid) != all.get(uid) {
                lost += 1;
                assert_eq!(seen.get(uid), without.get(uid), "{uid}: {case}");
            }
        }
        assert!(lost <= usize::from(hit.is_some()), "{case}");
        assert_eq!(warnings, 1, "the damage is reported once: {case}");
        assert_eq!(opened(dir.path()), (seen, 0), "the journal is repaired: {case}");
    }
}

#[test]
fn damage_of_many_bytes_loses_no_record_outside_of_it() {
    let dir = memory_dir();
    let parts = base_and_four_commits(dir.path());
    let whole = fs::read(dir.path().join(FILE)).unwrap();
    let all = replayed(&parts, None);
    for (at, len) in (0..whole.len()).step_by(13).flat_map(|at| [(at, 40), (at, 700)]) {
        let range = at..(at + len).min(whole.len());
        let mut bytes = whole.clone();
        bytes[range.clone()].fill(0);
        fs::write(dir.path().join(FILE), &bytes).unwrap();
        let (seen, _) = opened(dir.path());
        let untouched = |uid: &str| !parts.iter().any(|(records, part)| overlap(part, &range) && touches(records, uid));
        for uid in ["a", "b", "c", "d", "e", "f"].into_iter().filter(|uid| untouched(uid)) {
            assert_eq!(seen.get(uid), all.get(uid), "{uid} at {range:?}: {seen:?}");
        }
        assert_eq!(opened(dir.path()), (seen, 0), "the journal is repaired: {range:?}");
    }
    assert_eq!(corrupt_files(dir.path()).len(), CORRUPT_MAX, "the number of kept files is bounded");
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

fn touches(records: &[Record], uid: &str) -> bool {
    records.iter().any(|record| match record {
        Record::Put(put) => put.uid.as_str() == uid,
        Record::Forget(forgotten) => forgotten.as_str() == uid,
    })
}

#[test]
fn damage_is_reported_with_its_extent_and_the_damaged_file_is_kept() {
    let dir = memory_dir();
    let parts = base_and_four_commits(dir.path());
    let mut bytes = fs::read(dir.path().join(FILE)).unwrap();
    let first = parts[1].1.start;
    bytes[first] ^= 1;
    fs::write(dir.path().join(FILE), &bytes).unwrap();
    let (_journal, records, warnings) = Journal::open(dir.path()).unwrap();
    assert_eq!(marks(&records), [("a", 2), ("c", 1), ("e", 1), ("f", 1)]);
    let [JournalWarning::Damaged { damage, copy: Some(copy) }] = &warnings[..] else { panic!("{warnings:?}") };
    let expected = Damage { first: first as u64, places: 1, bytes: parts[1].1.len() as u64, commits: 1 };
    assert_eq!(*damage, expected);
    assert!(warnings[0].is_loss());
    assert_eq!(fs::read(copy).unwrap(), bytes);
}

#[test]
fn damage_in_what_a_compaction_wrote_is_never_taken_for_a_torn_end() {
    let dir = memory_dir();
    let (mut journal, ..) = Journal::open(dir.path()).unwrap();
    journal.commit(&[put("a", 1), put("b", 1)]).unwrap();
    journal.log.as_mut().unwrap().compact().unwrap();
    drop(journal);
    let whole = fs::read(dir.path().join(FILE)).unwrap();
    for bytes in [&whole[..whole.len() - 1], &[whole[..whole.len() - 9].to_vec(), vec![0; 9]].concat()] {
        fs::write(dir.path().join(FILE), bytes).unwrap();
        let (_journal, records, warnings) = Journal::open(dir.path()).unwrap();
        assert_eq!(marks(&records), [("a", 1)]);
        assert!(matches!(&warnings[..], [JournalWarning::Damaged { .. }]), "{warnings:?}");
    }
}

#[test]
fn a_pod_can_not_forge_a_frame_that_damage_would_reveal() {
    let dir = memory_dir();
    // A frame of a later commit, as lossless as a JSON string can hold it.
    let mut forged = Vec::new();
    let frame = Frame { commit: 2, index: 0, op: Op::Put, last: true, uid: "forged", body: b"{}" };
    frame.write(&mut forged).unwrap();
    let mut hostile = record("hostile", 1);
    let latin: String = forged.iter().map(|byte| char::from(*byte)).collect();
    hostile.origin = Some(format!("{}{latin}", String::from_utf8_lossy(&forged)));
    let (mut journal, ..) = Journal::open(dir.path()).unwrap();
    let start = fs::metadata(dir.path().join(FILE)).unwrap().len();
    journal.commit(&[Record::Put(Box::new(hostile))]).unwrap();
    journal.commit(&[put("a", 1)]).unwrap();
    drop(journal);
    let mut bytes = fs::read(dir.path().join(FILE)).unwrap();
    bytes[usize::try_from(start).unwrap()] = 0;
    fs::write(dir.path().join(FILE), &bytes).unwrap();
    let (_journal, records, warnings) = Journal::open(dir.path()).unwrap();
    assert_eq!(marks(&records), [("a", 1)]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

/// A file of which some blocks can't be read.
struct BadBlocks {
    bytes: Vec<u8>,
    bad: Vec<u64>,
}

impl ReadAt for BadBlocks {
    fn fill(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let end = at + buffer.len() as u64;
        if self.bad.iter().any(|block| at < (block + 1) * 4096 && block * 4096 < end) {
            return Err(io::Error::from_raw_os_error(5));
        }
        buffer.copy_from_slice(&self.bytes[usize::try_from(at).unwrap()..usize::try_from(end).unwrap()]);
        Ok(())
    }
}

#[test]
fn blocks_that_can_not_be_read_lose_only_their_records() {
    let dir = memory_dir();
    let (mut journal, ..) = Journal::open(dir.path()).unwrap();
    for n in 0..200 {
        journal.commit(&[put(&format!("pod-{n:03}"), 1)]).unwrap();
    }
    let bytes = fs::read(dir.path().join(FILE)).unwrap();
    let size = bytes.len() as u64;
    let per_block = 4096 / ((size - Header::SIZE) / 200) + 2;
    let disk = BadBlocks { bytes, bad: vec![2, 5] };
    let mut reader = Reader::new(&disk, size);
    reader.read_frames().unwrap();
    let (done, damage) = reader.finish(Header::SIZE);
    let damage = damage.expect("damage");
    assert_eq!(damage.commits, 200 - done.len() as u64);
    assert!(damage.commits > 0 && damage.commits <= 2 * per_block, "{damage}");
    // A device that fails everywhere is given up instead of delaying the start.
    let disk = BadBlocks { bytes: vec![0; 1 << 20], bad: (0..256).collect() };
    assert!(Reader::new(&disk, 1 << 20).read_frames().is_err());
}

/// Commits of a few records each; `None` forgets the pod.
fn commits() -> impl Strategy<Value = Vec<Vec<(u8, Option<u32>)>>> {
    let change = (0..6u8, proptest::option::weighted(0.8, 0..1000u32));
    prop::collection::vec(prop::collection::vec(change, 1..4), 1..12)
}

fn to_records(commit: &[(u8, Option<u32>)]) -> Vec<Record> {
    // One record per pod and commit, as the event loop writes them.
    let newest: BTreeMap<_, _> = commit.iter().copied().collect();
    let records = newest.into_iter().map(|(pod, mark)| match mark {
        Some(mark) => put(&format!("pod-{pod}"), mark),
        None => Record::Forget(format!("pod-{pod}").as_str().into()),
    });
    records.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_committed_is_read_back_and_damage_stays_local(
        commits in commits(),
        compact_after in 0..12usize,
        damage in proptest::option::of((any::<prop::sample::Index>(), 1..300usize, any::<u8>())),
    ) {
        let dir = memory_dir();
        let (mut journal, ..) = Journal::open(dir.path()).unwrap();
        let len = || usize::try_from(fs::metadata(dir.path().join(FILE)).unwrap().len()).unwrap();
        let mut all = Marks::new();
        let mut parts: Vec<(Vec<Record>, Range<usize>)> = Vec::new();
        for (i, commit) in commits.iter().enumerate() {
            let (records, start) = (to_records(commit), len());
            journal.commit(&records).unwrap();
            apply(&mut all, &records);
            parts.push((records, start..len()));
            if i == compact_after {
                journal.log.as_mut().unwrap().compact().unwrap();
                let start = usize::try_from(Header::SIZE).unwrap();
                parts = vec![(all.iter().map(|(uid, mark)| put(uid, *mark)).collect(), start..len())];
            }
        }
        drop(journal);
        let mut bytes = fs::read(dir.path().join(FILE)).unwrap();
        let mut hit = 0..0;
        if let Some((at, len, value)) = damage {
            let at = at.index(bytes.len());
            hit = at..(at + len).min(bytes.len());
            bytes[hit.clone()].fill(value);
            fs::write(dir.path().join(FILE), &bytes).unwrap();
        }
        let (seen, warnings) = opened(dir.path());
        let header = hit.start < usize::try_from(Header::SIZE).unwrap();
        if hit.is_empty() {
            prop_assert_eq!(&seen, &all);
            prop_assert_eq!(warnings, 0);
        } else if !header || !seen.is_empty() {
            for (uid, mark) in &all {
                if !parts.iter().any(|(records, part)| overlap(part, &hit) && touches(records, uid)) {
                    prop_assert_eq!(seen.get(uid), Some(mark), "{} in {:?}", uid, hit);
                }
            }
        }
        prop_assert_eq!(opened(dir.path()), (seen, 0));
    }

    #[test]
    fn any_record_survives_the_journal(uid in "\\PC{1,40}", origin in proptest::option::of("\\PC{0,200}"), mark: u32) {
        let dir = memory_dir();
        let written = PodRecord { origin, ..record(&uid, mark) };
        let (mut journal, ..) = Journal::open(dir.path()).unwrap();
        journal.commit(&[Record::Put(Box::new(written.clone()))]).unwrap();
        drop(journal);
        let (_journal, records, warnings) = Journal::open(dir.path()).unwrap();
        prop_assert!(warnings.is_empty());
        prop_assert_eq!(records, vec![written]);
    }
}
