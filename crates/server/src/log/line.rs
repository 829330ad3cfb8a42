//! One line of a log file, as runtimes write it: time, stream, tags, words.

use jiff::Timestamp;

/// What one line says.
#[derive(Debug, PartialEq)]
pub(super) struct Line<'a> {
    pub(super) time: &'a str,
    pub(super) stream: &'a str,
    /// With its line feed, unless the line goes on.
    pub(super) words: &'a [u8],
}

impl<'a> Line<'a> {
    /// `None` for what no runtime writes. `raw` ends with a line feed.
    pub(super) fn read(raw: &'a [u8]) -> Option<Self> {
        let mut parts = raw.splitn(4, |byte| *byte == b' ');
        let mut word = || std::str::from_utf8(parts.next()?).ok();
        let (time, stream, tags) = (word()?, word()?, word()?);
        let words = parts.next()?;
        if !matches!(stream, "stdout" | "stderr") {
            return None;
        }
        // Tags are separated by colons; P: it goes on in the next line.
        let goes_on = tags.split(':').next() == Some("P");
        let words = if goes_on { words.strip_suffix(b"\n").unwrap_or(words) } else { words };
        Some(Self { time, stream, words })
    }

    pub(super) fn is_before(&self, since: Timestamp) -> bool {
        self.time.parse::<Timestamp>().is_ok_and(|time| time < since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_garbage_is_none() {
        let line = Line::read(b"2024-01-01T00:00:00.5Z stdout F a b\n").unwrap();
        assert_eq!((line.stream, line.words), ("stdout", &b"a b\n"[..]));
        assert_eq!(Line::read(b"2024-01-01T00:00:00Z stderr P part\n").unwrap().words, b"part");
        assert_eq!(Line::read(b"2024-01-01T00:00:00Z stderr P:x \n").unwrap().words, b"");
        assert_eq!(Line::read(b"2024-01-01T00:00:00Z stdout F \xff\n").unwrap().words, b"\xff\n");
        for garbage in [&b""[..], b"\n", b"hello\n", b"2024 stdin F x\n", b"2024 stdout F\n", b"{\"log\":\"x\"}\n"] {
            assert_eq!(Line::read(garbage), None);
        }
        let since: Timestamp = "2024-01-01T00:00:01Z".parse().unwrap();
        assert!(line.is_before(since) && !line.is_before("2024-01-01T00:00:00.4Z".parse().unwrap()));
    }
}
