//! The log of a container, in the format of CRI.
//!
//! ```text
//!  2026-11-17T04:22:05.123456789Z stdout F a whole line
//!  2026-11-17T04:22:05.123456789Z stderr P a piece of a line that goes on
//! ```
//! A line longer than 16 KiB is written in pieces; an unfinished line at the end of a stream is a piece too, as in containerd. How
//! the output was cut into reads does not show: a line is written when its end was read. Output that cannot be written is
//! discarded, never kept: a full disk must not stop the container. One line tells how much was lost once writing works again.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use jiff::Timestamp;
use rustix::fs::{Mode, OFlags};

/// The output streams of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// The log of one container. Lines of both streams are written to one file.
#[derive(Debug)]
pub(crate) struct LogWriter {
    /// `None`: output is discarded.
    path: Option<PathBuf>,
    file: Option<File>,
    stdout: Tail,
    stderr: Tail,
    lost: Option<Lost>,
}

/// The unfinished line of a stream: at most [`PIECE_BYTES`]. Without memory while there is none.
#[derive(Debug, Default)]
struct Tail(Vec<u8>);

/// Output was lost since the last successful write.
#[derive(Debug)]
struct Lost {
    bytes: u64,
    /// The file ends within a line.
    torn: bool,
    error: io::Error,
}

impl LogWriter {
    /// Opens the file at `path`, which is created if it is missing; an empty path discards all output.
    pub(crate) fn open(path: &str) -> io::Result<Self> {
        let path = (!path.is_empty()).then(|| PathBuf::from(path));
        let file = path.as_ref().map(open_file).transpose()?;
        Ok(Self { path, file, stdout: Tail::default(), stderr: Tail::default(), lost: None })
    }

    /// Opens the file at the same path again. After an error the file in use stays in use.
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            self.file = Some(open_file(path)?);
            if let Some(lost) = &mut self.lost {
                lost.torn = false;
            }
        }
        Ok(())
    }

    /// Adds what was read from a stream. The error is that of the first write that failed after one that worked.
    pub(crate) fn append(&mut self, stream: OutputStream, read: &[u8], now: Timestamp) -> Result<(), io::Error> {
        if self.file.is_none() {
            return Ok(());
        }
        let header = LineHeader::new(stream, now);
        let tail = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        let mut lines = Vec::with_capacity(read.len() + read.len() / 8 + 128);
        tail.take(read, &header, &mut lines);
        self.write(lines, now)
    }

    /// The stream has ended: writes its unfinished line.
    pub(crate) fn end(&mut self, stream: OutputStream, now: Timestamp) -> Result<(), io::Error> {
        let tail = match stream {
            OutputStream::Stdout => std::mem::take(&mut self.stdout),
            OutputStream::Stderr => std::mem::take(&mut self.stderr),
        };
        if tail.0.is_empty() || self.file.is_none() {
            return Ok(());
        }
        let mut lines = vec![];
        LineHeader::new(stream, now).line(Tag::Partial, &[&tail.0], &mut lines);
        self.write(lines, now)
    }

    fn write(&mut self, lines: Vec<u8>, now: Timestamp) -> Result<(), io::Error> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if lines.is_empty() {
            return Ok(());
        }
        if let Some(lost) = &self.lost {
            let marker = lost.marker(now);
            match write_whole(file, &marker) {
                Ok(()) => self.lost = None,
                Err(failed) => {
                    let lost = self.lost.as_mut().expect("checked above");
                    lost.torn |= failed.written > 0;
                    lost.bytes += lines.len() as u64;
                    return Ok(());
                }
            }
        }
        write_whole(file, &lines).map_err(|failed| {
            let error = io::Error::from(failed.error.kind());
            let report = failed.error.raw_os_error().map_or(error, io::Error::from_raw_os_error);
            let torn = failed.written > 0 && lines[failed.written - 1] != b'\n';
            self.lost = Some(Lost { bytes: (lines.len() - failed.written) as u64, torn, error: failed.error });
            report
        })
    }
}

impl Tail {
    /// Cuts `read` into lines and pieces. What is unfinished stays here.
    fn take(&mut self, mut read: &[u8], header: &LineHeader, lines: &mut Vec<u8>) {
        while let Some(end) = read.iter().position(|&byte| byte == b'\n') {
            self.pieces(&mut &read[..end], header, lines, |tail, rest, lines| {
                header.line(Tag::Full, &[tail, rest], lines);
            });
            read = &read[end + 1..];
        }
        let mut kept = vec![];
        self.pieces(&mut &*read, header, lines, |tail, rest, _| {
            kept.extend_from_slice(tail);
            kept.extend_from_slice(rest);
        });
        self.0 = kept;
    }

    /// Writes pieces while more than one piece is there; `last` gets the rest, in two parts.
    fn pieces(
        &mut self,
        text: &mut &[u8],
        header: &LineHeader,
        lines: &mut Vec<u8>,
        last: impl FnOnce(&[u8], &[u8], &mut Vec<u8>),
    ) {
        let mut tail = std::mem::take(&mut self.0);
        while tail.len() + text.len() > PIECE_BYTES {
            let (piece, rest) = text.split_at(PIECE_BYTES - tail.len());
            header.line(Tag::Partial, &[&tail, piece], lines);
            tail.clear();
            *text = rest;
        }
        last(&tail, text, lines);
    }
}

impl Lost {
    fn marker(&self, now: Timestamp) -> Vec<u8> {
        let mut marker = vec![];
        if self.torn {
            marker.push(b'\n');
        }
        let text = format!("[podwright: {} bytes of the log were lost: {}]", self.bytes, self.error);
        LineHeader::new(OutputStream::Stderr, now).line(Tag::Full, &[text.as_bytes()], &mut marker);
        marker
    }
}

#[derive(Clone, Copy)]
enum Tag {
    Full,
    Partial,
}

/// `<time> <stream> `, the same for all lines of one read.
struct LineHeader(String);

impl LineHeader {
    fn new(stream: OutputStream, now: Timestamp) -> Self {
        // Nine digits always, so that lines have the same columns.
        Self(format!("{now:.9} {} ", stream.name()))
    }

    fn line(&self, tag: Tag, text: &[&[u8]], lines: &mut Vec<u8>) {
        lines.extend_from_slice(self.0.as_bytes());
        lines.extend_from_slice(match tag {
            Tag::Full => b"F ",
            Tag::Partial => b"P ",
        });
        for part in text {
            lines.extend_from_slice(part);
        }
        lines.push(b'\n');
    }
}

struct WriteFailed {
    written: usize,
    error: io::Error,
}

fn write_whole(file: &mut File, bytes: &[u8]) -> Result<(), WriteFailed> {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return Err(WriteFailed { written, error: io::ErrorKind::WriteZero.into() }),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(WriteFailed { written, error }),
        }
    }
    Ok(())
}

/// Never truncated: what was logged stays. A symbolic link in its place is refused: the directory belongs to the pod's owner.
fn open_file(path: &PathBuf) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    // A FIFO in its place must not block the shim; regular files do not know the flag.
    let fd = rustix::fs::open(path, flags | OFlags::NONBLOCK, Mode::from_raw_mode(0o640))?;
    let file = File::from(fd);
    let kind = file.metadata()?.file_type();
    use std::os::unix::fs::FileTypeExt;
    if kind.is_fifo() || kind.is_socket() || kind.is_block_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the log is not a regular file"));
    }
    Ok(file)
}

/// The longest text of a line, as in containerd (`max_container_log_line_size`).
const PIECE_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests;
