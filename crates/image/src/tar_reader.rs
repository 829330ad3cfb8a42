//! Reads tar streams entry by entry, with bounds on everything a header may announce.
//!
//! The headers themselves are read by the `tar` crate. Its own iterator is not used: it reads long names and pax records into
//! memory without a bound.

use std::collections::BTreeMap;
use std::io::{self, Read};

use tar::{EntryType, Header, PaxExtensions};

/// Why a stream is no tar that can be used.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The stream ended early, or its compression is damaged.
    #[error("read the tar stream")]
    Read(#[source] io::Error),
    /// A header's fields or checksum are wrong.
    #[error("tar header {number}: {field} is invalid")]
    Header {
        /// Counted from 1, extension headers included.
        number: u64,
        /// The field.
        field: &'static str,
    },
    /// A long name or pax record of unusual size.
    #[error("tar header {number}: {field} has {size} bytes, more than {max}")]
    TooLong {
        /// Counted from 1.
        number: u64,
        /// The field.
        field: &'static str,
        /// As announced.
        size: u64,
        /// The bound.
        max: u64,
    },
    /// Sparse files and other extensions that images don't use.
    #[error("tar entry {path:?} has the unsupported type {kind:?}")]
    Unsupported {
        /// Its name.
        path: String,
        /// The type byte.
        kind: char,
    },
    /// More entries than allowed.
    #[error("the tar has more than {0} entries")]
    Entries(u64),
}

/// One entry, without its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TarEntry {
    /// As written, without interpretation.
    pub path: Vec<u8>,
    /// The kind of file.
    pub kind: TarKind,
    /// Permission bits.
    pub mode: u32,
    /// The numeric owner; names are ignored.
    pub uid: u32,
    /// The numeric group.
    pub gid: u32,
    /// Bytes of content that follow; only of regular files.
    pub size: u64,
    /// Seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// Extended attributes by name.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// The kind of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TarKind {
    /// A regular file.
    #[default]
    File,
    /// A directory.
    Directory,
    /// A symbolic link to this text.
    Symlink(Vec<u8>),
    /// Another name of this path.
    HardLink(Vec<u8>),
    /// A character device: major, minor.
    CharDevice(u32, u32),
    /// A block device: major, minor.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
}

/// A tar stream.
pub struct TarReader<R> {
    source: R,
    /// Content of the current entry that was not read yet, and the padding behind it.
    content: u64,
    padding: u64,
    headers: u64,
    entries: u64,
    entries_max: u64,
}

/// No file is larger; the sum with its padding can't overflow.
const SIZE_MAX: u64 = 1 << 60;

/// What extension headers say about the entry that follows them.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    pax: BTreeMap<String, Vec<u8>>,
}

impl<R: Read> TarReader<R> {
    /// Reads a stream with at most this many entries.
    pub fn new(source: R, entries_max: u64) -> Self {
        Self { source, content: 0, padding: 0, headers: 0, entries: 0, entries_max }
    }

    /// The next entry; `None` at the end. What is left of the previous content is skipped.
    pub fn next_entry(&mut self) -> Result<Option<TarEntry>, TarError> {
        let mut extensions = Extensions::default();
        loop {
            let rest = self.content + self.padding;
            self.skip(rest)?;
            let Some(header) = self.header()? else { return Ok(None) };
            if self.headers > self.entries_max.saturating_mul(3) {
                return Err(TarError::Entries(self.entries_max));
            }
            match header.entry_type() {
                EntryType::GNULongName => extensions.path = Some(self.text(&header, "name", NAME_BYTES_MAX)?),
                EntryType::GNULongLink => extensions.link = Some(self.text(&header, "link name", NAME_BYTES_MAX)?),
                EntryType::XHeader => {
                    let records = self.text(&header, "pax header", PAX_BYTES_MAX)?;
                    // The last one counts, as in Go: the sum of all would not be bounded.
                    extensions.pax = self.records(&records)?;
                }
                // Defaults for all entries: a comment of git, in practice.
                EntryType::XGlobalHeader => drop(self.text(&header, "pax header", PAX_BYTES_MAX)?),
                _ => {
                    self.entries += 1;
                    if self.entries > self.entries_max {
                        return Err(TarError::Entries(self.entries_max));
                    }
                    return self.entry(&header, extensions).map(Some);
                }
            }
        }
    }

    /// The rest of the stream after its end, so that a digest covers it.
    pub fn into_rest(self) -> R {
        self.source
    }

    fn entry(&mut self, header: &Header, extensions: Extensions) -> Result<TarEntry, TarError> {
        let Extensions { path, link, mut pax } = extensions;
        let path = pax.remove("path").or(path).unwrap_or_else(|| header.path_bytes().into_owned());
        let link = pax.remove("linkpath").or(link);
        let link = link.or_else(|| header.link_name_bytes().map(|name| name.into_owned())).unwrap_or_default();
        if path.len() as u64 > NAME_BYTES_MAX || link.len() as u64 > NAME_BYTES_MAX {
            let (field, size) = ("name", path.len().max(link.len()) as u64);
            return Err(TarError::TooLong { number: self.headers, field, size, max: NAME_BYTES_MAX });
        }
        let size = match number(&pax, "size") {
            Some(size) => size.map_err(|()| self.invalid("size"))?,
            None => header.entry_size().map_err(|_| self.invalid("size"))?,
        };
        if size > SIZE_MAX {
            return Err(self.invalid("size"));
        }
        let kind = self.kind(header, &path, link, &pax)?;
        // A link may announce the size of its target; no content follows it then.
        (self.content, self.padding) = if kind == TarKind::File { (size, padding(size)) } else { (0, 0) };
        let id = |key: &'static str, raw: &[u8], read: io::Result<u64>| {
            let id = number(&pax, key).unwrap_or_else(|| or_blank(raw, read));
            // The last number means "unchanged" to chown.
            let id = id.and_then(|id| u32::try_from(id).map_err(drop)).map_err(|()| self.invalid(key))?;
            if id == u32::MAX { Err(self.invalid(key)) } else { Ok(id) }
        };
        let fields = header.as_old();
        let (uid, gid) = (id("uid", &fields.uid, header.uid())?, id("gid", &fields.gid, header.gid())?);
        let mtime = match pax.get("mtime") {
            Some(text) => seconds(text).ok_or_else(|| self.invalid("mtime"))?,
            // Times before 1970 and other oddities are not worth a failed pull.
            None => (header.mtime().ok().and_then(|s| i64::try_from(s).ok()).unwrap_or(0), 0),
        };
        let mode = or_blank(&fields.mode, header.mode()).map_err(|()| self.invalid("mode"))? & 0o7777;
        let xattr = |(key, value): (String, Vec<u8>)| Some((key.strip_prefix("SCHILY.xattr.")?.to_owned(), value));
        let size = self.content;
        Ok(TarEntry { path, kind, mode, uid, gid, size, mtime, xattrs: pax.into_iter().filter_map(xattr).collect() })
    }

    fn kind(
        &self,
        header: &Header,
        path: &[u8],
        link: Vec<u8>,
        pax: &BTreeMap<String, Vec<u8>>,
    ) -> Result<TarKind, TarError> {
        let unsupported = |kind: u8| {
            let path = crate::digest::excerpt(&String::from_utf8_lossy(path));
            TarError::Unsupported { path, kind: kind.into() }
        };
        let device = || {
            let part = |read: io::Result<Option<u32>>| read.ok().flatten().ok_or_else(|| self.invalid("device"));
            Ok((part(header.device_major())?, part(header.device_minor())?))
        };
        if pax.keys().any(|key| key.starts_with("GNU.sparse.")) {
            return Err(unsupported(b'S'));
        }
        Ok(match header.entry_type() {
            // Before POSIX, a directory was a regular file whose name ends in a slash.
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") => TarKind::Directory,
            EntryType::Regular | EntryType::Continuous => TarKind::File,
            EntryType::Directory => TarKind::Directory,
            EntryType::Symlink => TarKind::Symlink(link),
            EntryType::Link => TarKind::HardLink(link),
            EntryType::Char => device().map(|(major, minor)| TarKind::CharDevice(major, minor))?,
            EntryType::Block => device().map(|(major, minor)| TarKind::BlockDevice(major, minor))?,
            EntryType::Fifo => TarKind::Fifo,
            other => return Err(unsupported(other.as_byte())),
        })
    }

    /// The next header; `None` at the end of the archive or of the stream.
    fn header(&mut self) -> Result<Option<Header>, TarError> {
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        let mut filled = 0;
        while filled < block.len() {
            match self.source.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(TarError::Read(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => filled += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(TarError::Read(e)),
            }
        }
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        self.headers += 1;
        // The checksum counts its own field as spaces.
        let sum = block[..148].iter().chain(&block[156..]).map(|byte| u32::from(*byte)).sum::<u32>() + 8 * 32;
        match header.cksum() {
            Ok(announced) if announced == sum => Ok(Some(header)),
            _ => Err(self.invalid("checksum")),
        }
    }

    /// The content of an extension header.
    fn text(&mut self, header: &Header, field: &'static str, max: u64) -> Result<Vec<u8>, TarError> {
        let size = header.entry_size().map_err(|_| self.invalid("size"))?;
        if size > max {
            return Err(TarError::TooLong { number: self.headers, field, size, max });
        }
        let mut text = vec![0; usize::try_from(size).expect("it has a small bound")];
        self.source.read_exact(&mut text).map_err(TarError::Read)?;
        (self.content, self.padding) = (0, padding(size));
        // Long names end with a zero byte.
        if header.entry_type() != EntryType::XHeader {
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            text.truncate(end);
        }
        Ok(text)
    }

    fn records(&self, text: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, TarError> {
        let mut records = BTreeMap::new();
        for record in PaxExtensions::new(text) {
            let record = record.map_err(|_| self.invalid("pax record"))?;
            let key = record.key().map_err(|_| self.invalid("pax key"))?;
            records.insert(key.to_owned(), record.value_bytes().to_owned());
        }
        Ok(records)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), TarError> {
        let skipped = io::copy(&mut self.source.by_ref().take(bytes), &mut io::sink()).map_err(TarError::Read)?;
        (self.content, self.padding) = (0, 0);
        if skipped == bytes { Ok(()) } else { Err(TarError::Read(io::ErrorKind::UnexpectedEof.into())) }
    }

    fn invalid(&self, field: &'static str) -> TarError {
        TarError::Header { number: self.headers, field }
    }
}

/// The content of the current entry.
impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bound = buffer.len().min(usize::try_from(self.content).unwrap_or(usize::MAX));
        if bound == 0 {
            return Ok(0);
        }
        let count = self.source.read(&mut buffer[..bound])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.content -= count as u64;
        Ok(count)
    }
}

fn padding(size: u64) -> u64 {
    (BLOCK_BYTES - size % BLOCK_BYTES) % BLOCK_BYTES
}

/// Some writers leave a numeric field blank, which is zero (Go: `parseNumeric`).
fn or_blank<T: Default>(raw: &[u8], read: io::Result<T>) -> Result<T, ()> {
    match read {
        Ok(value) => Ok(value),
        Err(_) if raw.iter().all(|byte| matches!(byte, 0 | b' ')) => Ok(T::default()),
        Err(_) => Err(()),
    }
}

/// A decimal number of a pax record, if there is one.
fn number(pax: &BTreeMap<String, Vec<u8>>, key: &str) -> Option<Result<u64, ()>> {
    let text = pax.get(key)?;
    Some(std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(()))
}

/// A decimal number of seconds with an optional fraction: `-1.25` is 0.75 s after the second −2.
fn seconds(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let nanos: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    if whole.starts_with('-') && nanos > 0 {
        return Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos));
    }
    Some((seconds, nanos))
}

const BLOCK_BYTES: u64 = 512;
/// Linux: `PATH_MAX`.
const NAME_BYTES_MAX: u64 = 4096;
/// Room for large extended attributes; as in Go's `archive/tar` (`maxSpecialFileSize`).
const PAX_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests;
