//! The file format of the journal.
//!
//! ```text
//! header  magic 8 · version u32 · crc32 of the rest u32 · base u64
//! frame   head · uid · body
//! head    magic 4 · crc32 of what follows in the head u32 · crc32 of uid and body u32 · body length u32
//!         · index u32 · uid length u16 · op u8 · last u8 · commit u64
//! ```
//! Little endian. The first `base` bytes were synced before the file was renamed into place: an error there is damage. All
//! frames of a commit carry its number and their index in it, and the final one is marked `last`: a commit is complete if no
//! index is missing. The number also distinguishes a torn write (the last commit before a crash) from damage (a broken frame
//! before frames of later commits).
//!
//! A reader that meets damage finds the next frame by its magic. The magic has bytes that UTF-8 does not have, so no uid and no
//! record can contain it. The head has its own checksum: the length in an intact head is true even if the body is damaged, which
//! makes the search linear.

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

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Head {
    /// Of uid and body.
    pub(super) crc: u32,
    body_len: u32,
    /// Position of the frame in its commit, from 0.
    pub(super) index: u32,
    uid_len: u16,
    pub(super) op: Op,
    /// The last frame of the commit.
    pub(super) last: bool,
    pub(super) commit: u64,
}

impl Head {
    pub(super) const SIZE: usize = 32;

    /// The head in the first bytes; `None`: there is none, or it is damaged.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..Self::SIZE).filter(|bytes| bytes[..4] == FRAME_MAGIC)?;
        if crc32fast::hash(&bytes[8..]) != u32_at(bytes, 4) {
            return None;
        }
        let op = match bytes[22] {
            1 => Op::Put,
            2 => Op::Forget,
            _ => return None,
        };
        let head = Self {
            crc: u32_at(bytes, 8),
            body_len: u32_at(bytes, 12),
            index: u32_at(bytes, 16),
            uid_len: u16::from_le_bytes([bytes[20], bytes[21]]),
            op,
            last: bytes[23] == 1,
            commit: u64::from_le_bytes(bytes[24..].try_into().expect("eight bytes")),
        };
        (head.body_len <= BODY_MAX).then_some(head)
    }

    fn bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&FRAME_MAGIC);
        bytes[8..12].copy_from_slice(&self.crc.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.body_len.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.index.to_le_bytes());
        bytes[20..22].copy_from_slice(&self.uid_len.to_le_bytes());
        bytes[22] = match self.op {
            Op::Put => 1,
            Op::Forget => 2,
        };
        bytes[23] = self.last.into();
        bytes[24..].copy_from_slice(&self.commit.to_le_bytes());
        let crc = crc32fast::hash(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Bytes of uid and body.
    pub(super) fn payload_size(&self) -> usize {
        usize::from(self.uid_len) + self.body_len as usize
    }

    /// Bytes of the whole frame.
    pub(super) fn frame_size(&self) -> u64 {
        (Self::SIZE + self.payload_size()) as u64
    }

    /// The uid and the body in this payload; `None`: it is damaged.
    pub(super) fn split<'a>(&self, payload: &'a [u8]) -> Option<(&'a str, &'a [u8])> {
        if payload.len() != self.payload_size() || crc32fast::hash(payload) != self.crc {
            return None;
        }
        let (uid, body) = payload.split_at(usize::from(self.uid_len));
        Some((std::str::from_utf8(uid).ok()?, body))
    }
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Frame<'a> {
    pub(super) commit: u64,
    pub(super) index: u32,
    pub(super) op: Op,
    /// The last frame of the commit.
    pub(super) last: bool,
    pub(super) uid: &'a str,
    pub(super) body: &'a [u8],
}

impl Frame<'_> {
    /// Appends the frame and returns the checksum of uid and body; `None`: it is too large.
    pub(super) fn write(&self, to: &mut Vec<u8>) -> Option<u32> {
        let Self { commit, index, op, last, uid, body } = *self;
        let body_len = u32::try_from(body.len()).ok().filter(|len| *len <= BODY_MAX)?;
        let uid_len = u16::try_from(uid.len()).ok()?;
        let mut crc = crc32fast::Hasher::new();
        crc.update(uid.as_bytes());
        crc.update(body);
        let head = Head { crc: crc.finalize(), body_len, index, uid_len, op, last, commit };
        to.extend_from_slice(&head.bytes());
        to.extend_from_slice(uid.as_bytes());
        to.extend_from_slice(body);
        Some(head.crc)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

const FILE_MAGIC: &[u8; 8] = b"podwrjnl";
/// The outer bytes occur in no UTF-8 text.
const FRAME_MAGIC: [u8; 4] = [0xff, b'p', b'r', 0xfe];
/// In bytes. A manifest has at most 10 MiB; with status, defaults and JSON escapes its record is smaller than this.
const BODY_MAX: u32 = 64 << 20;
