//! Reads the journal at the start: the newest record of each pod.
//!
//! Damage loses only the records it lies in. A record is applied if it is known to have been synced: it was written by a
//! compaction, its commit is complete, or a later commit follows it. What remains at the end of the file is a torn write and is
//! truncated.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use podwright_core::model::{PodRecord, PodUid};

use super::frame::{Head, Header, Op};
use super::warning::{Damage, JournalWarning};
use super::{Log, VERSION};

/// The position of a pod's newest record in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) at: u64,
    pub(super) size: u64,
    pub(super) crc: u32,
}

/// The result of reading the file.
pub(super) enum JournalReplay {
    /// There is no journal.
    Absent,
    /// Its records, and the log to append to.
    Read(ReadBack),
    /// It has no readable record, or an unknown version.
    Unusable(String),
}

pub(super) struct ReadBack {
    pub(super) log: Log,
    pub(super) version: u32,
    pub(super) records: Vec<PodRecord>,
    /// Parts of the file that had been synced and can't be read.
    pub(super) damage: Option<Damage>,
    pub(super) warnings: Vec<JournalWarning>,
}

/// Reads the journal at this path.
pub(super) fn read(path: &Path) -> io::Result<JournalReplay> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(JournalReplay::Absent),
        Err(error) => return Err(error),
    };
    let size = file.metadata()?.len();
    if size < Header::SIZE {
        return Ok(JournalReplay::Unusable("it has no header".into()));
    }
    let mut head = [0; Header::SIZE as usize];
    let header = file.read_exact_at(&mut head, 0).ok().and_then(|()| Header::parse(&head));
    let version = header.map_or(VERSION, |header| header.version);
    if version.abs_diff(VERSION) > 1 {
        return Ok(JournalReplay::Unusable(format!(
            "it has version {version}, this agent reads {VERSION} and the adjacent ones"
        )));
    }
    let mut reader = Reader::new(&file, size);
    if header.is_none() {
        reader.skip(0, Header::SIZE);
    }
    reader.read_frames()?;
    let read_nothing = reader.end == Header::SIZE;
    if header.is_none() && read_nothing {
        return Ok(JournalReplay::Unusable("its header is damaged and it has no readable record".into()));
    }
    let (end, commit) = (reader.end, reader.commit);
    let base = header.map_or(Header::SIZE, |header| header.base);
    let (done, damage) = reader.finish(base);
    let mut warnings = Vec::new();
    if base <= end && end < size {
        warnings.push(JournalWarning::Torn { bytes: size - end });
    }
    // A damaged file is kept as it is: the caller writes a new one. What can't be truncated now, the next commit truncates.
    let ragged = end < size && (damage.is_some() || file.set_len(end).is_err());
    let dir = path.parent().expect("the journal lies in a directory");
    let mut log = Log { end, commit, ragged, ..Log::empty(dir, file) };
    let mut records = Vec::with_capacity(done.len());
    for (uid, (slot, body)) in done {
        match serde_json::from_slice::<PodRecord>(&body) {
            Ok(record) if record.uid == uid => {
                records.push(record);
                log.set_slot(uid, Some(slot));
            }
            Ok(record) => warnings.push(JournalWarning::OtherUid { uid, found: record.uid }),
            Err(source) => warnings.push(JournalWarning::Undecodable { uid, source }),
        }
    }
    Ok(JournalReplay::Read(ReadBack { log, version, records, damage, warnings }))
}

/// The bytes of the journal.
pub(super) trait ReadAt {
    /// Fills the buffer from this offset on.
    fn fill(&self, buffer: &mut [u8], at: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn fill(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.read_exact_at(buffer, at)
    }
}

/// A record's position and content.
type Body = (Slot, Vec<u8>);
/// The newest record of each pod.
pub(super) type Bodies = BTreeMap<PodUid, Body>;

/// Reads the frames; those of a commit are applied when it is known that the commit was synced.
pub(super) struct Reader<'a, R> {
    file: &'a R,
    size: u64,
    /// The end of the last frame that was applied.
    pub(super) end: u64,
    /// The number of the last commit that was applied.
    pub(super) commit: u64,
    done: Bodies,
    open: OpenCommit,
    /// Before `end`.
    damage: Damage,
    /// After `end`: damage if a commit follows, else part of a torn write.
    undecided: Damage,
    read_errors: usize,
}

/// The frames of a commit that is not known to be complete.
#[derive(Default)]
struct OpenCommit {
    number: u64,
    frames: Vec<(PodUid, Option<Body>)>,
    /// The end of the last one.
    end: u64,
    /// No frame before the next one is missing.
    whole: bool,
}

impl<'a, R: ReadAt> Reader<'a, R> {
    pub(super) fn new(file: &'a R, size: u64) -> Self {
        let (done, open, damage, undecided) = Default::default();
        Self { file, size, end: Header::SIZE, commit: 0, done, open, damage, undecided, read_errors: 0 }
    }

    /// Reads all frames of the file. Fails if the file can't be read in many places.
    pub(super) fn read_frames(&mut self) -> io::Result<()> {
        let mut at = Header::SIZE;
        while at < self.size {
            let next = match self.head_at(at)? {
                Some(head) => {
                    let next = at + head.frame_size();
                    if !self.read_frame(at, head)? {
                        self.skip(at, next);
                    }
                    next
                }
                None => {
                    let next = self.find_head(at + 1)?;
                    self.skip(at, next);
                    next
                }
            };
            at = next;
        }
        Ok(())
    }

    /// The head at this offset, if its frame lies within the file.
    fn head_at(&mut self, at: u64) -> io::Result<Option<Head>> {
        let mut bytes = [0; Head::SIZE];
        if self.size - at < bytes.len() as u64 || !self.read_bytes(&mut bytes, at)? {
            return Ok(None);
        }
        Ok(Head::parse(&bytes).filter(|head| head.frame_size() <= self.size - at))
    }

    /// The offset of the first head at or after this offset, or the size of the file.
    fn find_head(&mut self, from: u64) -> io::Result<u64> {
        let mut at = from;
        let mut bytes = [0; SEARCH_SIZE];
        while self.size - at >= Head::SIZE as u64 {
            let len = usize::try_from(self.size - at).map_or(SEARCH_SIZE, |left| left.min(SEARCH_SIZE));
            if !self.read_bytes(&mut bytes[..len], at)? {
                // After a block that can't be read, the search continues.
                at = (at / BLOCK_SIZE + 1).saturating_mul(BLOCK_SIZE).min(self.size);
                continue;
            }
            let found = bytes[..len].windows(Head::SIZE).position(|window| Head::parse(window).is_some());
            if let Some(offset) = found {
                return Ok(at + offset as u64);
            }
            at += (len - Head::SIZE + 1) as u64;
        }
        Ok(self.size)
    }

    /// Reads the rest of the frame; false if it is damaged or out of order.
    fn read_frame(&mut self, at: u64, head: Head) -> io::Result<bool> {
        let mut payload = vec![0; head.payload_size()];
        if !self.read_bytes(&mut payload, at + Head::SIZE as u64)? {
            return Ok(false);
        }
        let Some((uid, _)) = head.split(&payload) else { return Ok(false) };
        let (uid, uid_len) = (PodUid::from(uid), uid.len());
        payload.drain(..uid_len);
        let slot = Slot { at, size: head.frame_size(), crc: head.crc };
        let state = (head.op == Op::Put).then_some((slot, payload));
        Ok(self.add(head, uid, state, at + slot.size))
    }

    /// Adds a frame; false if its number is smaller than one before it, or has no successor.
    fn add(&mut self, head: Head, uid: PodUid, state: Option<Body>, end: u64) -> bool {
        if head.commit == 0 && self.commit == 0 && self.open.frames.is_empty() {
            // Written by a compaction, and synced before the file got its name.
            self.apply([(uid, state)], end);
            return true;
        }
        let in_order = head.commit > self.commit && head.commit >= self.open.number;
        if !in_order || head.commit == u64::MAX {
            return false;
        }
        if head.commit != self.open.number {
            self.close_open_commit();
            self.lose_commits(head.commit - self.commit - 1);
            self.open = OpenCommit { number: head.commit, whole: true, ..OpenCommit::default() };
        }
        self.open.whole &= head.index as usize == self.open.frames.len();
        self.open.frames.push((uid, state));
        self.open.end = end;
        if head.last && self.open.whole {
            let OpenCommit { number, frames, end, .. } = std::mem::take(&mut self.open);
            self.apply(frames, end);
            self.commit = number;
        }
        true
    }

    /// A later commit follows, so that this one was synced: its intact frames are true, though others are missing.
    fn close_open_commit(&mut self) {
        let OpenCommit { number, frames, end, .. } = std::mem::take(&mut self.open);
        if frames.is_empty() {
            return;
        }
        self.apply(frames, end);
        self.lose_commits(1);
        self.commit = number;
    }

    fn lose_commits(&mut self, count: u64) {
        self.damage.commits = self.damage.commits.saturating_add(count);
    }

    fn apply(&mut self, frames: impl IntoIterator<Item = (PodUid, Option<Body>)>, end: u64) {
        for (uid, state) in frames {
            match state {
                Some(state) => self.done.insert(uid, state),
                None => self.done.remove(&uid),
            };
        }
        self.end = end;
        self.damage.add(std::mem::take(&mut self.undecided));
    }

    /// Records bytes that are not part of an intact frame.
    pub(super) fn skip(&mut self, from: u64, to: u64) {
        self.undecided.add(Damage { first: from, places: 1, bytes: to - from, commits: 0 });
    }

    /// False if the device can't read these bytes.
    fn read_bytes(&mut self, buffer: &mut [u8], at: u64) -> io::Result<bool> {
        match self.file.fill(buffer, at) {
            Ok(()) => Ok(true),
            Err(_) if self.read_errors < READ_ERRORS_MAX => {
                self.read_errors += 1;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The records, and the damage before the torn end.
    pub(super) fn finish(mut self, base: u64) -> (Bodies, Option<Damage>) {
        if self.end < base {
            self.damage.add(self.undecided);
        }
        (self.done, (!self.damage.is_empty()).then_some(self.damage))
    }
}

/// In bytes, of a search for the next frame.
const SEARCH_SIZE: usize = 4096;
/// In bytes; what a device fails to read at once.
const BLOCK_SIZE: u64 = 4096;
/// A device may take seconds to report an error: with more of them, the start would hang.
const READ_ERRORS_MAX: usize = 16;
