//! Reads the journal at the start: the newest record of each pod.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, BufReader, Read};
use std::path::Path;

use podwright_core::model::{PodRecord, PodUid};

use super::frame::{Frame, Header, Op};
use super::{Log, VERSION};

/// The position of a pod's newest record in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) at: u64,
    pub(super) size: u64,
    pub(super) crc: u32,
}

/// The result of reading the file.
pub(super) enum Replay {
    /// There is no journal.
    Absent,
    /// Its records, and the log to append to.
    Read(ReadBack),
    /// It is damaged or of an unknown version.
    Unusable(String),
}

pub(super) struct ReadBack {
    pub(super) log: Log,
    pub(super) version: u32,
    pub(super) records: Vec<PodRecord>,
    pub(super) warnings: Vec<String>,
}

/// Reads the journal at this path.
pub(super) fn read(path: &Path) -> io::Result<Replay> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Replay::Absent),
        Err(error) => return Err(error),
    };
    let size = file.metadata()?.len();
    let mut input = BufReader::with_capacity(64 << 10, &file);
    let mut head = [0; Header::SIZE as usize];
    if size < Header::SIZE {
        return Ok(Replay::Unusable("it has no header".into()));
    }
    input.read_exact(&mut head)?;
    let Some(Header { version, base }) = Header::parse(&head) else {
        return Ok(Replay::Unusable("its header is damaged".into()));
    };
    if version.abs_diff(VERSION) > 1 {
        return Ok(Replay::Unusable(format!(
            "it has version {version}, this agent reads {VERSION} and the adjacent ones"
        )));
    }
    let mut reader = Reader::new(input, base, size);
    while reader.next_frame()? {}
    if reader.is_damaged()? {
        return Ok(Replay::Unusable(format!("it is damaged at byte {}", reader.at)));
    }
    let Reader { done, end, commit, .. } = reader;
    let mut warnings = Vec::new();
    if end < size {
        warnings.push(format!("the journal's last {} bytes were not committed: truncated", size - end));
    }
    let dir = path.parent().expect("the journal lies in a directory");
    let mut log = Log { end, commit, ragged: end < size, ..Log::empty(dir, file) };
    let mut records = Vec::with_capacity(done.len());
    for (uid, (slot, body)) in done {
        match serde_json::from_slice::<PodRecord>(&body) {
            Ok(record) if record.uid == uid => {
                records.push(record);
                log.set_slot(uid, Some(slot));
            }
            Ok(_) => warnings.push(format!("the journal's record of pod {uid} carries another uid: dropped")),
            Err(error) => warnings.push(format!("the journal's record of pod {uid} can't be decoded: {error}")),
        }
    }
    Ok(Replay::Read(ReadBack { log, version, records, warnings }))
}

/// A record's position and content.
type Body = (Slot, Vec<u8>);

/// Reads the frames; those of a commit are applied after its last one.
struct Reader<R> {
    input: R,
    base: u64,
    size: u64,
    /// The offset of the next frame.
    at: u64,
    /// The end of the last complete commit.
    end: u64,
    commit: u64,
    done: BTreeMap<PodUid, Body>,
    open: Vec<(PodUid, Option<Body>)>,
    /// Bytes that were read and are not a frame.
    broken: Vec<u8>,
}

impl<R: Read> Reader<R> {
    fn new(input: R, base: u64, size: u64) -> Self {
        let at = Header::SIZE;
        let (done, open, broken) = Default::default();
        Self { input, base, size, at, end: at, commit: 0, done, open, broken }
    }

    /// Reads one frame; false at the end, or if no complete frame follows.
    fn next_frame(&mut self) -> io::Result<bool> {
        let left = self.size - self.at;
        let mut bytes = vec![0; usize::try_from(left.min(Frame::HEAD as u64)).expect("a few bytes")];
        self.input.read_exact(&mut bytes)?;
        if let Some(size) = Frame::size(&bytes).filter(|size| *size as u64 <= left) {
            bytes.resize(size, 0);
            self.input.read_exact(&mut bytes[Frame::HEAD..])?;
        }
        let Some((frame, crc)) = Frame::parse(&bytes).filter(|(frame, _)| self.follows(frame)) else {
            self.broken = bytes;
            return Ok(false);
        };
        let slot = Slot { at: self.at, size: bytes.len() as u64, crc };
        let (commit, last) = (frame.commit, frame.last);
        self.open.push((frame.uid.into(), (frame.op == Op::Put).then(|| (slot, frame.body.to_vec()))));
        self.at += slot.size;
        if last {
            self.end = self.at;
            self.commit = commit;
            for (uid, state) in self.open.drain(..) {
                match state {
                    Some(state) => self.done.insert(uid, state),
                    None => self.done.remove(&uid),
                };
            }
        }
        Ok(true)
    }

    /// Commits are numbered consecutively; frames of a compaction have number 0.
    fn follows(&self, frame: &Frame<'_>) -> bool {
        frame.commit == if self.at < self.base { 0 } else { self.commit + 1 }
    }

    /// Whether the unreadable part is damage and not a torn write: it was synced before, or later commits follow it.
    fn is_damaged(&mut self) -> io::Result<bool> {
        self.input.read_to_end(&mut self.broken)?;
        Ok(self.end < self.base || Frame::any_after(&self.broken, self.commit + 1))
    }
}
