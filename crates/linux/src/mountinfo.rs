//! Reads the mounts from `/proc/self/mountinfo`.
//!
//! The kernel produces this file without calling the mounted file systems. `stat` on a mount point hangs as long as its file
//! system does.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount id; reused by later mounts.
    pub id: u64,
    /// The id of the parent mount.
    pub parent: u64,
    /// Device number, `major:minor`.
    pub device: String,
    /// The directory of the file system that is mounted (not `/` for a bind mount of a part).
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// Options of this mount.
    pub options: String,
    /// `ext4`, `tmpfs`, …
    pub fstype: String,
    /// The device, or another name of the source.
    pub source: PathBuf,
    /// Options of the file system.
    pub super_options: String,
}

/// Why the mounts can't be read.
#[derive(Debug, thiserror::Error)]
pub enum MountInfoError {
    /// The file can't be read.
    #[error("read /proc/self/mountinfo")]
    Read(#[source] std::io::Error),
    /// A line is not what the kernel documents.
    #[error("line {0} of mountinfo is malformed")]
    Malformed(usize),
}

/// All mounts of this process's mount namespace, in the order of mounting.
pub fn read() -> Result<Vec<Mount>, MountInfoError> {
    parse(&std::fs::read("/proc/thread-self/mountinfo").map_err(MountInfoError::Read)?)
}

/// Parses the text of the file.
pub fn parse(text: &[u8]) -> Result<Vec<Mount>, MountInfoError> {
    text.split(|&b| b == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(i, line)| parse_line(line).ok_or(MountInfoError::Malformed(i + 1)))
        .collect()
}

/// The mounts at or below a path, deepest and then newest first: the order in which they can be unmounted.
pub fn under<'a>(mounts: &'a [Mount], prefix: &Path) -> Vec<&'a Mount> {
    let mut found: Vec<_> = mounts.iter().rev().filter(|m| m.point.starts_with(prefix)).collect();
    // Ids are reused, so a parent may follow its child in the file. The sort is stable.
    found.sort_by_key(|m| std::cmp::Reverse(m.point.components().count()));
    found
}

/// The mount that contains a path, by comparing the paths only.
pub fn holding<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    // Of several mounts on the same point the newest is visible; `max_by_key` returns the last of equals.
    mounts.iter().filter(|m| path.starts_with(&m.point)).max_by_key(|m| m.point.as_os_str().len())
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = text(fields.next()?)?;
    let root = path(fields.next()?);
    let point = path(fields.next()?);
    let options = text(fields.next()?)?;
    // Any number of optional fields, terminated by a dash.
    fields.find(|f| *f == b"-")?;
    let fstype = text(fields.next()?)?;
    let source = path(fields.next()?);
    let super_options = text(fields.next()?)?;
    Some(Mount { id, parent, device, root, point, options, fstype, source, super_options })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn text(field: &[u8]) -> Option<String> {
    String::from_utf8(unescape(field)).ok()
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

/// Blank, tab, newline, backslash and `#` are escaped as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        if let [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] = rest {
            out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = tail;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"\
22 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
30 22 0:5 /a\\040b /mnt/with\\040blank\\134and\\011more rw - tmpfs tmp\\043fs rw,size=4k
31 22 0:6 / /mnt/x rw - tmpfs none rw
32 31 0:7 / /mnt/x/deep rw - nfs4 server:/export rw
33 22 0:8 / /mnt/xy rw - tmpfs none rw
";

    #[test]
    fn escapes_and_optional_fields() {
        let mounts = parse(SAMPLE).unwrap();
        assert_eq!(mounts.len(), 5);
        assert_eq!(mounts[0].super_options, "rw,discard");
        assert_eq!(mounts[1].root, Path::new("/a b"));
        assert_eq!(mounts[1].point, Path::new("/mnt/with blank\\and\tmore"));
        assert_eq!(mounts[1].source, Path::new("tmp#fs"));
        assert_eq!((mounts[3].id, mounts[3].parent, mounts[3].fstype.as_str()), (32, 31, "nfs4"));
    }

    #[test]
    fn under_is_deepest_first_and_compares_whole_names() {
        let mounts = parse(SAMPLE).unwrap();
        let points: Vec<_> = under(&mounts, Path::new("/mnt/x")).iter().map(|m| m.id).collect();
        assert_eq!(points, [32, 31]);
    }

    #[test]
    fn holding_is_the_longest_prefix() {
        let mounts = parse(SAMPLE).unwrap();
        assert_eq!(holding(&mounts, Path::new("/mnt/x/deep/er")).unwrap().id, 32);
        assert_eq!(holding(&mounts, Path::new("/mnt/xyz")).unwrap().id, 22);
    }

    #[test]
    fn a_malformed_line_is_reported_with_its_number() {
        let bad = b"22 1 254:0 / / rw - ext4 /dev/vda rw\nnonsense\n";
        assert!(matches!(parse(bad), Err(MountInfoError::Malformed(2))));
        assert!(matches!(parse(b"1 2 3:4 / / rw shared:1"), Err(MountInfoError::Malformed(1))));
    }

    #[test]
    fn the_host_has_a_root_mount() {
        assert!(read().unwrap().iter().any(|m| m.point == Path::new("/")));
    }
}
