//! Layers unpacked into a directory, and hostile layers.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use tar::EntryType;

use super::*;
use crate::tests::TestLayer;

/// A layer's root inside of a directory with a secret outside of the root.
struct UnpackFixture {
    dir: tempfile::TempDir,
    root: PathBuf,
}

impl UnpackFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("layer/fs");
        fs::create_dir_all(&root).unwrap();
        fs::write(dir.path().join("secret"), "untouched").unwrap();
        Self { dir, root }
    }

    fn unpack(&self, layer: &TestLayer) -> Result<u64, UnpackError> {
        self.unpack_over(layer, &[], &ImageLimits::default())
    }

    fn unpack_over(&self, layer: &TestLayer, lowers: &[PathBuf], limits: &ImageLimits) -> Result<u64, UnpackError> {
        let tar = layer.tar();
        self.unpack_bytes(&tar, Digest::of(&tar), Digest::of(&tar), lowers, limits)
    }

    fn unpack_bytes(
        &self,
        blob: &[u8],
        layer: Digest,
        diff_id: Digest,
        lowers: &[PathBuf],
        limits: &ImageLimits,
    ) -> Result<u64, UnpackError> {
        let disk = DiskReserve::new(&self.root, limits);
        let cancelled = AtomicBool::new(false);
        let request =
            UnpackRequest { layer, diff_id, root: &self.root, lowers, limits, disk: &disk, cancelled: &cancelled };
        unpack(blob, &request)
    }

    /// The layer is refused with this reason, and nothing outside of the root has changed.
    fn refuses(&self, layer: &TestLayer, reason: &str) {
        let error = self.unpack(layer).unwrap_err().to_string();
        assert!(error.contains(reason), "{error:?} lacks {reason:?}");
        assert_eq!(fs::read_to_string(self.dir.path().join("secret")).unwrap(), "untouched");
        let mut names: Vec<_> = fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["layer", "secret"]);
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.root.join(name)).unwrap()
    }

    fn about(&self, name: &str) -> fs::Metadata {
        fs::symlink_metadata(self.root.join(name)).unwrap()
    }
}

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 256];
    let length = rustix::fs::lgetxattr(path, name, value.as_mut_slice()).ok()?;
    Some(value[..length].to_vec())
}

#[test]
fn owners_modes_times_links_and_devices_are_as_in_the_tar() {
    let fixture = UnpackFixture::new();
    let layer = TestLayer::new()
        .dir("./", 0o711, 5)
        .dir("d/", 0o1777, 1000)
        .entry(EntryType::Regular, "d/setuid", "", b"text", |h| {
            h.set_mode(0o4755);
            h.set_uid(3);
            h.set_gid(4);
        })
        .hard_link("hard", "/d/setuid")
        .symlink("soft", "/etc/passwd")
        .entry(EntryType::Char, "null", "", b"", |h| {
            h.set_mode(0o666);
            h.set_device_major(1).unwrap();
            h.set_device_minor(3).unwrap();
        })
        .entry(EntryType::Fifo, "fifo", "", b"", |_| {});
    assert_eq!(fixture.unpack(&layer).unwrap(), 4);
    let file = fixture.about("d/setuid");
    assert_eq!((file.mode() & 0o7777, file.uid(), file.gid(), file.mtime()), (0o4755, 3, 4, 1_000_000_000));
    assert_eq!((file.nlink(), fixture.about("hard").ino()), (2, file.ino()));
    let dir = fixture.about("d");
    assert_eq!((dir.mode() & 0o7777, dir.uid(), dir.mtime()), (0o1777, 1000, 1_000_000_000));
    assert_eq!((fixture.about("").mode() & 0o7777, fixture.about("").uid()), (0o711, 5));
    assert_eq!(fs::read_link(fixture.root.join("soft")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(fixture.about("soft").mtime(), 1_000_000_000);
    let null = fixture.about("null");
    assert!(null.file_type().is_char_device() && null.rdev() == 0x103 && null.mode() & 0o777 == 0o666);
    assert!(fixture.about("fifo").file_type().is_fifo());
}

#[test]
fn whiteouts_and_opaque_directories_are_overlayfs_own() {
    let fixture = UnpackFixture::new();
    let layer = TestLayer::new()
        .file("a/.wh.gone", "")
        .file("b/.wh..wh..opq", "")
        .file("b/new", "1")
        .file(".wh.c", "")
        .file("c/again", "2")
        .file(".wh.d", "")
        .dir("d", 0o755, 0)
        .dir("e", 0o755, 0)
        .file(".wh.e", "")
        .file(".wh..wh.plnk/x", "");
    fixture.unpack(&layer).unwrap();
    let gone = fixture.about("a/gone");
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    for opaque in ["b", "c", "d", "e"] {
        assert_eq!(xattr(&fixture.root.join(opaque), "trusted.overlay.opaque").as_deref(), Some(&b"y"[..]), "{opaque}");
    }
    assert_eq!((fixture.read("b/new"), fixture.read("c/again")), ("1".into(), "2".into()));
    assert_eq!(xattr(&fixture.root.join("a"), "trusted.overlay.opaque"), None);
    assert_eq!(fs::read_dir(&fixture.root).unwrap().count(), 5);
}

#[test]
fn the_last_entry_of_a_name_wins() {
    let fixture = UnpackFixture::new();
    let layer = TestLayer::new()
        .file("f", "1")
        .file("f", "2")
        .file("d/x", "1")
        .symlink("d", "/tmp")
        .symlink("s", "secret")
        .file("s", "own")
        .file("t", "file")
        .dir("t", 0o755, 0)
        .file("t/inside", "3");
    fixture.unpack(&layer).unwrap();
    assert_eq!(
        (fixture.read("f"), fixture.read("s"), fixture.read("t/inside")),
        ("2".into(), "own".into(), "3".into())
    );
    assert!(fixture.about("d").is_symlink());
}

#[test]
fn implied_directories_are_like_those_of_the_layer_below() {
    let (below, middle, fixture) = (UnpackFixture::new(), UnpackFixture::new(), UnpackFixture::new());
    below.unpack(&TestLayer::new().dir("home", 0o711, 7).xattrs(&[("user.a", "v")]).dir("home/u", 0o700, 8)).unwrap();
    middle.unpack(&TestLayer::new().file("other", "")).unwrap();
    let layer = TestLayer::new().file("home/u/new", "1").file("elsewhere/f", "");
    fixture.unpack_over(&layer, &[middle.root.clone(), below.root.clone()], &ImageLimits::default()).unwrap();
    let of = |name| (fixture.about(name).mode() & 0o7777, fixture.about(name).uid());
    assert_eq!((of("home"), of("home/u"), of("elsewhere")), ((0o711, 7), (0o700, 8), (0o755, 0)));
    assert_eq!(xattr(&fixture.root.join("home/u"), "user.a").as_deref(), Some(&b"v"[..]));
}

#[test]
fn attributes_that_would_affect_the_host_are_dropped() {
    let fixture = UnpackFixture::new();
    let layer = TestLayer::new()
        .xattrs(&[
            ("user.note", "kept"),
            ("trusted.overlay.redirect", "/etc"),
            ("trusted.overlay.opaque", "y"),
            ("user.overlay.opaque", "y"),
            ("security.selinux", "x"),
        ])
        .dir("d", 0o755, 0);
    fixture.unpack(&layer).unwrap();
    let path = fixture.root.join("d");
    assert_eq!(xattr(&path, "user.note").as_deref(), Some(&b"kept"[..]));
    for name in ["trusted.overlay.redirect", "trusted.overlay.opaque", "user.overlay.opaque", "security.selinux"] {
        assert_eq!(xattr(&path, name), None, "{name}");
    }
}

#[test]
fn names_with_dot_dot_are_refused() {
    let fixture = UnpackFixture::new();
    fixture.refuses(&TestLayer::new().file("../../secret", "changed"), "has a .. in it");
    fixture.refuses(&TestLayer::new().file("a/../../../secret", "changed"), "has a .. in it");
    fixture.refuses(&TestLayer::new().file("/../secret", "changed"), "has a .. in it");
    fixture.refuses(&TestLayer::new().file("a/.wh...", ""), "the whiteout names no file");
}

#[test]
fn absolute_names_stay_inside() {
    let fixture = UnpackFixture::new();
    let name = format!("{}/secret", fixture.dir.path().display());
    fixture.unpack(&TestLayer::new().file(&name, "inside")).unwrap();
    assert_eq!(fs::read_to_string(fixture.dir.path().join("secret")).unwrap(), "untouched");
    assert_eq!(fixture.read(name.trim_start_matches('/')), "inside");
}

#[test]
fn names_through_symlinks_are_refused() {
    let fixture = UnpackFixture::new();
    let outside = fixture.dir.path().to_str().unwrap().to_owned();
    let through = "a directory of the name is a symlink";
    fixture.refuses(&TestLayer::new().symlink("s", &outside).file("s/secret", "changed"), through);
    fixture.refuses(&TestLayer::new().symlink("up", "../..").file("up/secret", "changed"), through);
    fixture.refuses(&TestLayer::new().symlink("up", "../..").file("up/.wh.secret", ""), through);
    fixture.refuses(&TestLayer::new().symlink("up", "../..").file("up/.wh..wh..opq", ""), through);
    fixture.refuses(&TestLayer::new().symlink("up", "../..").dir("up/secret", 0o777, 9), through);
    fixture.refuses(
        &TestLayer::new().symlink("up", "../..").dir("d", 0o755, 0).symlink("d/x", "../up").file("d/x/y", ""),
        through,
    );
    // The directory of the previous entry becomes a symlink: what was opened before must not be used again by name.
    let swapped = TestLayer::new().file("d/one", "1").symlink("d", &outside).file("d/secret", "changed");
    fixture.refuses(&swapped, through);
    fixture.refuses(&TestLayer::new().file("plain", "").file("plain/x", ""), "a directory of the name is a file");
}

#[test]
fn a_symlink_that_is_replaced_is_not_followed() {
    let fixture = UnpackFixture::new();
    let secret = fixture.dir.path().join("secret").to_str().unwrap().to_owned();
    let layer = TestLayer::new().symlink("f", &secret).file("f", "changed").symlink("g", &secret).dir("g", 0o777, 9);
    fixture.unpack(&layer).unwrap();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "untouched");
    assert_eq!(fs::metadata(&secret).unwrap().uid(), 0);
}

#[test]
fn hard_links_out_of_the_layer_are_refused() {
    let fixture = UnpackFixture::new();
    let secret = fixture.dir.path().join("secret").to_str().unwrap().to_owned();
    fixture.refuses(&TestLayer::new().hard_link("h", "../../secret"), "the hard link leads out of the layer");
    fixture.refuses(&TestLayer::new().hard_link("h", &secret), "a file that is not in this layer");
    fixture.refuses(&TestLayer::new().symlink("up", "../..").hard_link("h", "up/secret"), "leads through a symlink");
    fixture.refuses(&TestLayer::new().dir("d", 0o755, 0).hard_link("h", "d"), "names a directory");
    fixture.refuses(&TestLayer::new().hard_link("h", "./"), "names no file");
    fixture.refuses(&TestLayer::new().hard_link("h", "h"), "a file that is not in this layer");
    fixture.refuses(&TestLayer::new().symlink("s", &secret).hard_link("h", "s").file("h/x", ""), "is a symlink");
    assert_eq!(fs::metadata(&secret).unwrap().nlink(), 1);
}

#[test]
fn a_decompression_bomb_ends_at_the_bound() {
    let limits = ImageLimits { layer_bytes: 1 << 20, ..ImageLimits::default() };
    let tar = TestLayer::new().file("zeros", &"\0".repeat(16 << 20)).tar();
    let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
    gzip.write_all(&tar).unwrap();
    for blob in [gzip.finish().unwrap(), zstd::encode_all(tar.as_slice(), 3).unwrap()] {
        assert!(blob.len() < 100_000);
        let fixture = UnpackFixture::new();
        let error = fixture.unpack_bytes(&blob, Digest::of(&blob), Digest::of(&tar), &[], &limits).unwrap_err();
        assert!(matches!(error, UnpackError::TooLarge { max: 1_048_576, .. }), "{error}");
        let written = fs::metadata(fixture.root.join("zeros")).unwrap().len();
        assert!(written <= 1 << 20, "{written} bytes were written");
    }
    // The same behind the end of the archive.
    let fixture = UnpackFixture::new();
    let tail = [TestLayer::new().tar(), vec![0; 4 << 20]].concat();
    let error = fixture.unpack_bytes(&tail, Digest::of(&tail), Digest::of(&tail), &[], &limits).unwrap_err();
    assert!(matches!(error, UnpackError::TooLarge { .. }), "{error}");
}

#[test]
fn too_many_entries_are_refused() {
    let limits = ImageLimits { layer_entries: 10, ..ImageLimits::default() };
    let layer = (0..11).fold(TestLayer::new(), |layer, n| layer.file(&format!("f{n}"), ""));
    let error = UnpackFixture::new().unpack_over(&layer, &[], &limits).unwrap_err();
    assert!(matches!(error, UnpackError::Tar { source: TarError::Entries(10), .. }), "{error}");
}

#[test]
fn both_digests_are_compared() {
    let (fixture, limits) = (UnpackFixture::new(), ImageLimits::default());
    let tar = TestLayer::new().file("f", "1").tar();
    let (good, wrong) = (Digest::of(&tar), Digest::of(b"other"));
    let error = fixture.unpack_bytes(&tar, wrong, good, &[], &limits).unwrap_err();
    assert!(matches!(error, UnpackError::BlobDigest { .. }), "{error}");
    let error = UnpackFixture::new().unpack_bytes(&tar, good, wrong, &[], &limits).unwrap_err();
    assert!(error.to_string().contains("rootfs.diff_ids"), "{error}");
    // A damaged blob that is no tar any more is reported as damaged.
    let error = UnpackFixture::new().unpack_bytes(b"\x1f\x8bgarbage", good, good, &[], &limits).unwrap_err();
    assert!(matches!(error, UnpackError::BlobDigest { .. }), "{error}");
    // What comes behind the end of the archive counts.
    let longer = [tar.clone(), b"more".to_vec()].concat();
    let error = UnpackFixture::new().unpack_bytes(&longer, Digest::of(&longer), good, &[], &limits).unwrap_err();
    assert!(matches!(error, UnpackError::DiffId { .. }), "{error}");
}

#[test]
fn a_cancelled_unpack_ends() {
    let fixture = UnpackFixture::new();
    let tar = TestLayer::new().file("f", "1").tar();
    let (limits, cancelled) = (ImageLimits::default(), AtomicBool::new(true));
    let (layer, disk) = (Digest::of(&tar), DiskReserve::new(&fixture.root, &limits));
    let request = UnpackRequest {
        layer,
        diff_id: layer,
        root: &fixture.root,
        lowers: &[],
        limits: &limits,
        disk: &disk,
        cancelled: &cancelled,
    };
    assert!(matches!(unpack(tar.as_slice(), &request), Err(UnpackError::Cancelled { .. })));
}

#[test]
fn every_prefix_and_every_flipped_byte_of_a_layer_fails_or_is_noticed() {
    let tar = TestLayer::new().dir("d", 0o755, 0).file("d/f", "text").symlink("s", "d").hard_link("h", "d/f").tar();
    let good = Digest::of(&tar);
    let limits = ImageLimits::default();
    for at in (0..tar.len()).step_by(101) {
        assert!(UnpackFixture::new().unpack_bytes(&tar[..at], good, good, &[], &limits).is_err(), "cut at {at}");
        let mut flipped = tar.clone();
        flipped[at] ^= 0x55;
        assert!(UnpackFixture::new().unpack_bytes(&flipped, good, good, &[], &limits).is_err(), "flipped at {at}");
    }
}

#[test]
fn directories_without_an_entry_count_as_entries() {
    let limits = ImageLimits { layer_entries: 20, ..ImageLimits::default() };
    let deep = |count: usize| TestLayer::new().file(&format!("{}f", "d/".repeat(count)), "1").tar();
    let good = deep(20);
    UnpackFixture::new().unpack_bytes(&good, Digest::of(&good), Digest::of(&good), &[], &limits).unwrap();
    let bad = deep(21);
    let error = UnpackFixture::new().unpack_bytes(&bad, Digest::of(&bad), Digest::of(&bad), &[], &limits).unwrap_err();
    assert!(error.to_string().contains("too many directories"), "{error}");
}
