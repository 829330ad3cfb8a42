//! The name of a tar entry, taken apart: parts that stay below the root, and what the last one means.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where an entry goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EntryPath {
    /// The root directory itself.
    Root,
    /// An ordinary name: directory and last part.
    Name(PathBuf, PathBuf),
    /// `.wh.<name>`: the name is hidden in the layers below.
    Whiteout(PathBuf, PathBuf),
    /// `.wh..wh..opq`: everything of this directory is hidden in the layers below.
    Opaque(PathBuf),
    /// AUFS's own bookkeeping (`.wh..wh.plnk`), which old images carry along: it hides nothing and is skipped.
    Bookkeeping,
}

/// Takes a name apart. A leading slash means the root of the layer, as in containerd and docker; `..` is refused.
pub(super) fn entry_path(name: &[u8]) -> Result<EntryPath, &'static str> {
    if name.contains(&0) {
        return Err("the name has a zero byte");
    }
    let mut parts: Vec<&OsStr> = vec![];
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("the name has a .. in it"),
            part if part.len() > PART_BYTES_MAX => return Err("a part of the name is longer than 255 bytes"),
            part => parts.push(OsStr::from_bytes(part)),
        }
    }
    if parts.len() > DEPTH_MAX {
        return Err("the name is deeper than 128 directories");
    }
    let Some((last, dir)) = parts.split_last() else { return Ok(EntryPath::Root) };
    if dir.iter().any(|part| part.as_bytes().starts_with(AUFS)) {
        return Ok(EntryPath::Bookkeeping);
    }
    // Below a whiteout there is nothing that a real tool would write.
    if dir.iter().any(|part| part.as_bytes().starts_with(WHITEOUT)) {
        return Err("a directory of the name is a whiteout");
    }
    let dir: PathBuf = dir.iter().collect();
    Ok(match last.as_bytes().strip_prefix(WHITEOUT) {
        None => EntryPath::Name(dir, Path::new(last).to_owned()),
        Some(b".wh..opq") => EntryPath::Opaque(dir),
        Some(b"" | b"." | b"..") => return Err("the whiteout names no file"),
        Some(hidden) if hidden.starts_with(WHITEOUT) => EntryPath::Bookkeeping,
        Some(hidden) => EntryPath::Whiteout(dir, Path::new(OsStr::from_bytes(hidden)).to_owned()),
    })
}

/// AUFS's prefix, which the OCI image specification took over.
const WHITEOUT: &[u8] = b".wh.";
/// AUFS's prefix for its own files.
const AUFS: &[u8] = b".wh..wh.";
/// Linux: `NAME_MAX`.
const PART_BYTES_MAX: usize = 255;
/// Deeper trees could not be removed in bounded time and stack by other tools.
const DEPTH_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let name = |dir: &str, last: &str| Ok(EntryPath::Name(dir.into(), last.into()));
        let rows = [
            ("a", name("", "a")),
            ("./a/b/", name("a", "b")),
            ("/etc/passwd", name("etc", "passwd")),
            ("a//b/./c", name("a/b", "c")),
            ("", Ok(EntryPath::Root)),
            ("./", Ok(EntryPath::Root)),
            ("/", Ok(EntryPath::Root)),
            ("a/.wh.b", Ok(EntryPath::Whiteout("a".into(), "b".into()))),
            ("a/.wh..wh..opq", Ok(EntryPath::Opaque("a".into()))),
            ("...", name("", "...")),
            (".wh..wh.plnk", Ok(EntryPath::Bookkeeping)),
            (".wh..wh.plnk/1.2", Ok(EntryPath::Bookkeeping)),
        ];
        for (text, path) in rows {
            assert_eq!(entry_path(text.as_bytes()), path, "{text}");
        }
    }

    #[test]
    fn names_that_lead_out_or_make_no_sense_are_refused() {
        let (deep, long) = ("a/".repeat(129), "a".repeat(256));
        let rows =
            ["..", "../a", "a/../../b", "/../etc", "a/..", ".wh.", ".wh..", ".wh...", ".wh.a/b", "a\0b", &deep, &long];
        for text in rows {
            assert!(entry_path(text.as_bytes()).is_err(), "{text}");
        }
    }
}
