//! Finds the start of the last lines of a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The offset from which the file has at most this many lines. An incomplete last line counts.
pub(super) fn offset_of_last_lines(file: &File, lines: u64) -> io::Result<u64> {
    let end = file.metadata()?.len();
    if lines == 0 {
        return Ok(end);
    }
    let (mut remaining, mut at) = (lines, end);
    let mut block = vec![0; BLOCK];
    while at > 0 {
        let size = at.min(BLOCK as u64);
        at -= size;
        let block = &mut block[..usize::try_from(size).unwrap_or(BLOCK)];
        file.read_exact_at(block, at)?;
        for (position, _) in block.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let after = at + position as u64 + 1;
            // The line feed at the end of the file starts no line.
            if after == end {
                continue;
            }
            remaining -= 1;
            if remaining == 0 {
                return Ok(after);
            }
        }
    }
    Ok(0)
}

const BLOCK: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_leaves_the_requested_number_of_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let from = |text: &str, lines: u64| {
            std::fs::write(&path, text).unwrap();
            let offset = offset_of_last_lines(&File::open(&path).unwrap(), lines).unwrap();
            text[usize::try_from(offset).unwrap()..].to_owned()
        };
        assert_eq!(from("a\nb\nc\n", 1), "c\n");
        assert_eq!(from("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(from("a\nb\nc\n", 3), "a\nb\nc\n");
        assert_eq!(from("a\nb\nc\n", 9), "a\nb\nc\n");
        assert_eq!(from("a\nb\nc", 1), "c");
        assert_eq!(from("a\n\n", 1), "\n");
        assert_eq!((from("", 5), from("a\n", 0)), (String::new(), String::new()));
        let long = format!("{}\n{}\nend\n", "x".repeat(BLOCK), "y".repeat(3 * BLOCK));
        assert_eq!(from(&long, 2), format!("{}\nend\n", "y".repeat(3 * BLOCK)));
    }
}
