//! Streams of a container, honest and hostile.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

use rustix::fs::{CWD, mknodat};
use tar::{Builder, EntryType, Header};

use super::*;

/// An entry with any name: the library refuses hostile ones.
fn entry(tar: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, link: &str, content: &str) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o4751);
    header.set_size(content.len() as u64);
    let fields = header.as_gnu_mut().expect("a GNU header");
    fields.name[..name.len()].copy_from_slice(name.as_bytes());
    fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    tar.append(&header, content.as_bytes()).unwrap();
}

fn stream(entries: &[(EntryType, &str, &str, &str)]) -> Vec<u8> {
    let mut tar = Builder::new(vec![]);
    for (kind, name, link, content) in entries {
        entry(&mut tar, *kind, name, link, content);
    }
    tar.into_inner().unwrap()
}

/// Unpacks what should be `data` into the directory `out`, next to the file `secret`.
struct Destination(tempfile::TempDir);

impl Destination {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("out")).unwrap();
        fs::write(dir.path().join("secret"), "untouched").unwrap();
        Self(dir)
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    fn unpack(&self, entries: &[(EntryType, &str, &str, &str)]) -> Result<u64, CopyError> {
        let target = LocalTarget { dir: self.path("out"), name: Some("copy".into()), strip: Some("data".into()) };
        unpack(&stream(entries)[..], &target)
    }

    /// Everything outside of `out/copy`.
    fn assert_confined(&self, case: &str) {
        let names = |dir: PathBuf| {
            let mut names: Vec<OsString> =
                fs::read_dir(dir).unwrap().flatten().map(|entry| entry.file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(self.path("")), ["out", "secret"], "{case}");
        assert!(names(self.path("out")).iter().all(|name| name == "copy"), "{case}");
        assert_eq!(fs::read_to_string(self.path("secret")).unwrap(), "untouched", "{case}");
    }
}

use EntryType as T;

#[test]
fn a_tree_is_written_under_its_new_name() {
    let to = Destination::new();
    fs::create_dir(to.path("out/copy")).unwrap();
    fs::write(to.path("out/copy/old"), "of an earlier copy").unwrap();
    let written = to.unpack(&[
        (T::Directory, "./data/", "", ""),
        (T::Regular, "./data/a", "", "one"),
        (T::Regular, "data/deep/er/b", "", "two"),
        (T::Link, "data/c", "./data/deep/er/b", ""),
        (T::Symlink, "data/deep/up", "../a", ""),
        (T::Regular, "data/old", "", "new"),
    ]);
    assert_eq!(written.unwrap(), 6);
    for (file, content) in [("a", "one"), ("deep/er/b", "two"), ("c", "two"), ("deep/up", "one"), ("old", "new")] {
        assert_eq!(fs::read_to_string(to.path("out/copy").join(file)).unwrap(), content, "{file}");
    }
    let mode = fs::metadata(to.path("out/copy/a")).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o751, "set-user-ID is not taken over");
    to.assert_confined("a tree");
    let one = Destination::new();
    assert_eq!(one.unpack(&[(T::Regular, "./data", "", "file")]).unwrap(), 1);
    assert_eq!(fs::read_to_string(one.path("out/copy")).unwrap(), "file");
}

#[test]
fn the_content_of_a_directory_is_written_into_the_destination() {
    let to = Destination::new();
    let target = LocalTarget { dir: to.path("out/copy"), name: None, strip: None };
    let entries = [(T::Directory, "./", "", ""), (T::Regular, "./a", "", "one")];
    assert_eq!(unpack(&stream(&entries)[..], &target).unwrap(), 2);
    assert_eq!(fs::read_to_string(to.path("out/copy/a")).unwrap(), "one");
    to.assert_confined("content");
}

#[test]
fn entries_that_are_not_part_of_the_copy_are_refused() {
    for name in ["../secret", "data/../../secret", "/secret", "other/x", "datax", "..", "out/../data"] {
        let to = Destination::new();
        let failed = to.unpack(&[(T::Directory, "data", "", ""), (T::Regular, name, "", "evil")]);
        assert!(matches!(failed, Err(CopyError::Foreign(_))), "{name}: {failed:?}");
        to.assert_confined(name);
    }
    // Something below the copy before the copy itself.
    let to = Destination::new();
    assert!(matches!(to.unpack(&[(T::Regular, "data/x", "", "evil")]), Err(CopyError::Foreign(_))));
    to.assert_confined("no directory");
}

#[test]
fn links_do_not_lead_out_of_the_copy() {
    let dir = (T::Directory, "data", "", "");
    for (case, entries) in [
        ("the copy is a link", vec![(T::Symlink, "data", "..", ""), (T::Regular, "data/secret", "", "evil")]),
        ("up", vec![dir, (T::Symlink, "data/l", "../..", ""), (T::Regular, "data/l/secret", "", "evil")]),
        ("over a link", vec![dir, (T::Symlink, "data/l", "../../secret", ""), (T::Regular, "data/l", "", "evil")]),
        (
            "two steps",
            vec![
                dir,
                (T::Directory, "data/d", "", ""),
                (T::Symlink, "data/d/l", "..", ""),
                (T::Symlink, "data/m", "d/l/../..", ""),
                (T::Regular, "data/m/secret", "", "evil"),
            ],
        ),
        ("a hard link", vec![dir, (T::Link, "data/l", "../../secret", "")]),
        ("a hard link to a link", vec![dir, (T::Symlink, "data/l", "a", ""), (T::Link, "data/m", "data/l", "")]),
        ("a device", vec![dir, (T::Fifo, "data/f", "", "")]),
    ] {
        let to = Destination::new();
        // Some are refused and some are left out: what counts is that nothing outside was changed.
        let _ = to.unpack(&entries);
        to.assert_confined(case);
        assert!(!to.path("out/copy/f").exists(), "{case}");
        let outside = fs::read_to_string(to.path("out/copy/m"));
        assert!(outside.is_err(), "{case}: {outside:?}");
    }
}

#[test]
fn links_in_the_destination_are_replaced_and_not_followed() {
    let to = Destination::new();
    fs::create_dir(to.path("out/copy")).unwrap();
    symlink(to.path("secret"), to.path("out/copy/file")).unwrap();
    symlink(to.path(""), to.path("out/copy/dir")).unwrap();
    assert_eq!(to.unpack(&[(T::Directory, "data", "", ""), (T::Regular, "data/file", "", "new")]).unwrap(), 2);
    assert_eq!(fs::read_to_string(to.path("out/copy/file")).unwrap(), "new");
    let failed = to.unpack(&[(T::Directory, "data", "", ""), (T::Regular, "data/dir/secret", "", "evil")]);
    assert!(matches!(failed, Err(CopyError::Write { .. })), "{failed:?}");
    to.assert_confined("links");
    let linked = Destination::new();
    symlink("..", linked.path("out/copy")).unwrap();
    let failed = linked.unpack(&[(T::Directory, "data", "", ""), (T::Regular, "data/secret", "", "evil")]);
    assert!(matches!(failed, Err(CopyError::Write { .. })), "{failed:?}");
    linked.assert_confined("the copy is a link");
}

#[test]
fn a_damaged_stream_is_an_error() {
    let to = Destination::new();
    let target = LocalTarget { dir: to.path("out"), name: Some("copy".into()), strip: Some("data".into()) };
    let mut cut = stream(&[(T::Regular, "data", "", "0123456789")]);
    cut.truncate(515);
    assert!(unpack(&cut[..], &target).is_err());
    assert!(matches!(unpack(&[b'x'; 600][..], &target), Err(CopyError::Tar(_))));
    assert_eq!(unpack(&[][..], &target).unwrap(), 0);
}

fn make_fifo(path: &Path) -> File {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    // Both ends: no open of it blocks.
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn a_fifo_that_the_user_named_is_written_and_stays() {
    let to = Destination::new();
    let mut fifo = make_fifo(&to.path("out/copy"));
    let link = Destination::new();
    symlink(to.path("out/copy"), link.path("out/copy")).unwrap();
    for (case, destination) in [("a FIFO", &to), ("a link to a FIFO", &link)] {
        assert_eq!(destination.unpack(&[(T::Regular, "data", "", "content")]).unwrap(), 1, "{case}");
        assert!(fs::symlink_metadata(to.path("out/copy")).unwrap().file_type().is_fifo(), "{case}");
        assert!(fs::symlink_metadata(link.path("out/copy")).unwrap().is_symlink(), "{case}");
        let mut content = [0; 7];
        fifo.read_exact(&mut content).unwrap();
        assert_eq!(&content, b"content", "{case}");
        destination.assert_confined(case);
    }
}

#[test]
fn a_fifo_below_a_copied_directory_is_neither_replaced_nor_written() {
    for kind in [T::Regular, T::Symlink] {
        let to = Destination::new();
        fs::create_dir(to.path("out/copy")).unwrap();
        let _fifo = make_fifo(&to.path("out/copy/f"));
        symlink("f", to.path("out/copy/l")).unwrap();
        let failed = to.unpack(&[(T::Directory, "data", "", ""), (kind, "data/f", "x", "")]);
        assert!(matches!(failed, Err(CopyError::Write { .. })), "{failed:?}");
        assert!(fs::symlink_metadata(to.path("out/copy/f")).unwrap().file_type().is_fifo());
        assert_eq!(to.unpack(&[(T::Directory, "data", "", ""), (T::Regular, "data/l", "", "new")]).unwrap(), 2);
        assert!(fs::symlink_metadata(to.path("out/copy/l")).unwrap().is_file(), "the link is replaced, not followed");
    }
}

#[test]
fn a_copy_that_fails_leaves_the_file_that_was_there() {
    let to = Destination::new();
    fs::write(to.path("out/copy"), "of the user").unwrap();
    let target = LocalTarget { dir: to.path("out"), name: Some("copy".into()), strip: Some("data".into()) };
    let mut cut = stream(&[(T::Regular, "data", "", "0123456789")]);
    cut.truncate(515);
    assert!(unpack(&cut[..], &target).is_err());
    assert_eq!(fs::read_to_string(to.path("out/copy")).unwrap(), "of the user");
    to.assert_confined("a cut stream");
}
