//! The file format of the journal.
//!
//! ```text
//! header  magic 8 · version u32 · crc32 of the rest u32 · base u64
//! frame   magic u32 · crc32 of what follows u32 · body length u32 · uid length u16 · op u8 · last u8 · commit u64 · uid · body
//! ```
//! Little endian. The first `base` bytes were synced before the file was renamed into place: an error there is damage. All
//! frames of a commit carry its number and the final one is marked `last`: without it, none of them is applied. The number
//! also distinguishes a torn write (the last commit before a crash) from damage (a broken frame before complete frames of
//! later commits).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The first bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Header {
    pub(super) version: u32,
    /// The size of the file when it was renamed into place, in bytes.
    pub(super) base: u64,
}

impl Header {
    pub(super) const SIZE: u64 = 24;

    pub(super) fn write(self, file: &File) -> io::Result<()> {
        file.write_all_at(&self.bytes(), 0)
    }

    pub(super) fn parse(bytes: &[u8; Self::SIZE as usize]) -> Option<Self> {
        let base = u64::from_le_bytes(bytes[16..].try_into().expect("eight bytes"));
        let header = Self { version: u32_at(bytes, 8), base };
        (header.bytes() == *bytes).then_some(header)
    }

    fn bytes(self) -> [u8; Self::SIZE as usize] {
        let mut bytes = [0; Self::SIZE as usize];
        bytes[..8].copy_from_slice(FILE_MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[16..].copy_from_slice(&self.base.to_le_bytes());
        let crc = crc32fast::hash(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// What a frame does to its pod's record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Op {
    Put,
    Forget,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Frame<'a> {
    pub(super) commit: u64,
    pub(super) op: Op,
    /// The last frame of the commit.
    pub(super) last: bool,
    pub(super) uid: &'a str,
    pub(super) body: &'a [u8],
}

impl<'a> Frame<'a> {
    pub(super) const HEAD: usize = 24;

    /// Appends the frame and returns its checksum; `None`: it is too large.
    pub(super) fn write(&self, to: &mut Vec<u8>) -> Option<u32> {
        let body_len = u32::try_from(self.body.len()).ok().filter(|len| *len <= BODY_MAX)?;
        let uid_len = u16::try_from(self.uid.len()).ok()?;
        let start = to.len();
        to.extend_from_slice(&FRAME_MAGIC.to_le_bytes());
        to.extend_from_slice(&[0; 4]);
        to.extend_from_slice(&body_len.to_le_bytes());
        to.extend_from_slice(&uid_len.to_le_bytes());
        to.push(match self.op {
            Op::Put => 1,
            Op::Forget => 2,
        });
        to.push(self.last.into());
        to.extend_from_slice(&self.commit.to_le_bytes());
        to.extend_from_slice(self.uid.as_bytes());
        to.extend_from_slice(self.body);
        let crc = crc32fast::hash(&to[start + 8..]);
        to[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
        Some(crc)
    }

    /// The size of the frame with this head; `None`: it is not a head.
    pub(super) fn size(head: &[u8]) -> Option<usize> {
        let known = head.len() >= Self::HEAD && u32_at(head, 0) == FRAME_MAGIC && u32_at(head, 8) <= BODY_MAX;
        known.then(|| Self::HEAD + usize::from(u16::from_le_bytes([head[12], head[13]])) + u32_at(head, 8) as usize)
    }

    /// The frame in exactly these bytes; `None`: it is incomplete or damaged.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<(Self, u32)> {
        let crc = (bytes.len() >= Self::HEAD).then(|| u32_at(bytes, 4))?;
        Self::check(bytes, crc).map(|frame| (frame, crc))
    }

    /// As [`Frame::parse`], with a known checksum.
    pub(super) fn check(bytes: &'a [u8], crc: u32) -> Option<Self> {
        if Self::size(bytes)? != bytes.len() || crc32fast::hash(&bytes[8..]) != crc {
            return None;
        }
        let op = match bytes[14] {
            1 => Op::Put,
            2 => Op::Forget,
            _ => return None,
        };
        let commit = u64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes"));
        let (uid, body) = bytes[Self::HEAD..].split_at(usize::from(u16::from_le_bytes([bytes[12], bytes[13]])));
        Some(Self { commit, op, last: bytes[15] == 1, uid: std::str::from_utf8(uid).ok()?, body })
    }

    /// Whether these bytes contain a complete frame of a later commit.
    pub(super) fn any_after(bytes: &[u8], commit: u64) -> bool {
        let magic = FRAME_MAGIC.to_le_bytes();
        (0..bytes.len().saturating_sub(Frame::HEAD - 1)).filter(|at| bytes[*at..*at + 4] == magic).any(|at| {
            let rest = &bytes[at..];
            let whole = Frame::size(rest).and_then(|size| rest.get(..size)).and_then(Frame::parse);
            whole.is_some_and(|(frame, _)| frame.commit > commit)
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

const FILE_MAGIC: &[u8; 8] = b"podwrjnl";
const FRAME_MAGIC: u32 = 0x7265_6370;
/// In bytes. A manifest has at most 10 MiB; with status, defaults and JSON escapes its record is smaller than this.
const BODY_MAX: u32 = 64 << 20;
