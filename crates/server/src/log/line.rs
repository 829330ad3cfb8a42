//! One line of a log file in the CRI format: time, stream, tags, content.

use jiff::Timestamp;

/// One parsed line.
#[derive(Debug, PartialEq)]
pub(super) struct LogLine<'a> {
    pub(super) time: &'a str,
    pub(super) stream: &'a str,
    /// With its line feed, unless the line continues in the next one.
    pub(super) content: &'a [u8],
}

impl<'a> LogLine<'a> {
    /// `None` if the line is not in the CRI format. `raw` ends with a line feed.
    pub(super) fn parse(raw: &'a [u8]) -> Option<Self> {
        let mut parts = raw.splitn(4, |byte| *byte == b' ');
        let mut field = || std::str::from_utf8(parts.next()?).ok();
        let (time, stream, tags) = (field()?, field()?, field()?);
        let content = parts.next()?;
        if !matches!(stream, "stdout" | "stderr") {
            return None;
        }
        // Tags are separated by colons; P: the line is partial.
        let partial = tags.split(':').next() == Some("P");
        let content = if partial { content.strip_suffix(b"\n").unwrap_or(content) } else { content };
        Some(Self { time, stream, content })
    }

    pub(super) fn is_before(&self, since: Timestamp) -> bool {
        self.time.parse::<Timestamp>().is_ok_and(|time| time < since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cri_lines_are_parsed_and_others_rejected() {
        let line = LogLine::parse(b"2024-01-01T00:00:00.5Z stdout F a b\n").unwrap();
        assert_eq!((line.stream, line.content), ("stdout", &b"a b\n"[..]));
        assert_eq!(LogLine::parse(b"2024-01-01T00:00:00Z stderr P part\n").unwrap().content, b"part");
        assert_eq!(LogLine::parse(b"2024-01-01T00:00:00Z stderr P:x \n").unwrap().content, b"");
        assert_eq!(LogLine::parse(b"2024-01-01T00:00:00Z stdout F \xff\n").unwrap().content, b"\xff\n");
        for garbage in [&b""[..], b"\n", b"hello\n", b"2024 stdin F x\n", b"2024 stdout F\n", b"{\"log\":\"x\"}\n"] {
            assert_eq!(LogLine::parse(garbage), None);
        }
        let since: Timestamp = "2024-01-01T00:00:01Z".parse().unwrap();
        assert!(line.is_before(since) && !line.is_before("2024-01-01T00:00:00.4Z".parse().unwrap()));
    }
}
