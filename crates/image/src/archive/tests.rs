//! Archives as tools write them, and hostile ones.

use std::io::Write;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::limits::ImageLimits;
use crate::platform::Platform;
use crate::store::GcRoots;
use crate::tests::TestLayer;

struct ArchiveFixture {
    dir: tempfile::TempDir,
    store: Arc<ImageStore>,
}

impl ArchiveFixture {
    fn new() -> Self {
        Self::with(ImageLimits::default())
    }

    fn with(limits: ImageLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = ImageStore::open(&dir.path().join("engine"), limits, Platform::host()).unwrap();
        Self { dir, store }
    }

    fn load(&self, archive: &[u8]) -> Result<Vec<ImageRecord>, ArchiveError> {
        self.store.load(archive, &AtomicBool::new(false))
    }

    fn refuses(&self, archive: &[u8], message: &str) {
        let error = self.load(archive).unwrap_err();
        let text = format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
        assert!(text.contains(message), "{text:?} lacks {message:?}");
        assert_eq!(self.store.images(), []);
        self.store.collect_garbage(GcRoots::default).unwrap();
        assert_eq!(self.store.usage().unwrap(), crate::store::StoreUsage::default());
    }
}

fn tar(files: &[(&str, &[u8])]) -> TestLayer {
    files
        .iter()
        .fold(TestLayer::new(), |tar, (name, content)| tar.entry(::tar::EntryType::Regular, name, "", content, |_| {}))
}

fn config(layers: &[&TestLayer]) -> Vec<u8> {
    let host = Platform::host();
    let diff_ids: Vec<Digest> = layers.iter().map(|layer| Digest::of(&layer.tar())).collect();
    json!({"os": host.os, "architecture": host.architecture, "rootfs": {"diff_ids": diff_ids}}).to_string().into_bytes()
}

fn docker(entry: Value) -> Vec<u8> {
    json!([entry]).to_string().into_bytes()
}

#[test]
fn loaded_layers_survive_a_power_loss() {
    let fixture = ArchiveFixture::new();
    let layer = TestLayer::new().file("f", "1");
    let archive = tar(&[
        ("manifest.json", &docker(json!({"Config": "c", "RepoTags": ["a:1"], "Layers": ["l"]}))),
        ("c", &config(&[&layer])),
        ("l", &layer.tar()),
    ]);
    let image = fixture.load(&archive.tar()).unwrap().remove(0);
    let dir = fixture.store.lower_dirs(&image).unwrap().remove(0);
    let meta: Value = serde_json::from_slice(&std::fs::read(dir.parent().unwrap().join("meta")).unwrap()).unwrap();
    assert_eq!(meta["synced"], true);
}

#[test]
fn a_docker_archive_is_loaded_with_its_table_of_contents_at_the_end() {
    let (one, two) = (TestLayer::new().file("a", "1"), TestLayer::new().file("b", "2"));
    let fixture = ArchiveFixture::new();
    let manifest = docker(
        json!({"Config": "c.json", "RepoTags": ["app:1", "example.com/x:2"], "Layers": ["1/layer.tar", "2/layer.tar", "3/layer.tar"]}),
    );
    let archive = tar(&[("./1/layer.tar", &one.tar()), ("2/layer.tar", &two.tar())])
        .symlink("3/layer.tar", "../1/layer.tar")
        .entry(::tar::EntryType::Regular, "c.json", "", &config(&[&one, &two, &one]), |_| {})
        .entry(::tar::EntryType::Regular, "manifest.json", "", &manifest, |_| {})
        .tar();
    let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    gzip.write_all(&archive).unwrap();
    for archive in [archive.clone(), gzip.finish().unwrap(), zstd::encode_all(archive.as_slice(), 1).unwrap()] {
        let loaded = fixture.load(&archive).unwrap();
        let tags: Vec<String> = loaded[0].tags().map(ToString::to_string).collect();
        assert_eq!(tags, ["docker.io/library/app:1", "example.com/x:2"]);
        assert_eq!(fixture.store.lower_dirs(&loaded[0]).unwrap().len(), 3);
    }
    // The files that no image uses are garbage: the table of contents itself.
    assert_eq!(fixture.store.collect_garbage(GcRoots::default).unwrap().blobs, 1);
}

#[test]
fn what_is_saved_can_be_loaded_elsewhere() {
    let (from, to) = (ArchiveFixture::new(), ArchiveFixture::new());
    let layer = TestLayer::new().file("a", "1");
    let manifest = docker(json!({"Config": "c", "RepoTags": ["app:1"], "Layers": ["l"]}));
    let loaded =
        from.load(&tar(&[("c", &config(&[&layer])), ("l", &layer.tar()), ("manifest.json", &manifest)]).tar()).unwrap();
    from.store.tag(loaded[0].id, "app:2".parse().unwrap()).unwrap();
    let images = from.store.images();
    let mut archive = vec![];
    from.store.save(&images, &mut archive).unwrap();
    let again = to.load(&archive).unwrap();
    assert_eq!((again.len(), again[0].id, again[0].manifest), (1, images[0].id, images[0].manifest));
    let tags = |image: &ImageRecord| image.tags().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(tags(&again[0]), tags(&images[0]));
    assert_eq!(std::fs::read(to.store.lower_dirs(&again[0]).unwrap()[0].join("a")).unwrap(), b"1");
    // A blob that was damaged in the store is not sent.
    std::fs::write(from.store.content().path(images[0].layers[0].blob), vec![7; layer.tar().len()]).unwrap();
    let error = from.store.save(&images, io::sink()).unwrap_err();
    assert!(matches!(&error, ArchiveError::Write(e) if e.to_string().contains("is damaged in the store")), "{error:?}");
    drop(from.dir);
}

#[test]
fn hostile_archives_are_refused_and_leave_nothing() {
    let layer = TestLayer::new().file("a", "1");
    let (config, layer) = (config(&[&layer]), layer.tar());
    let entry = |value: Value| docker(value);
    let good = entry(json!({"Config": "c", "Layers": ["l"]}));
    let fixture = ArchiveFixture::new();
    type Files<'a> = Vec<(&'a str, &'a [u8])>;
    let rows: Vec<(Files<'_>, Vec<u8>, &str)> = vec![
        (vec![], b"[".to_vec(), "manifest.json is malformed"),
        (vec![], b"[]".to_vec(), "the archive has no image"),
        (vec![("c", &config)], good.clone(), "names \"l\", which is not in the archive"),
        (vec![("c", &config), ("l", &layer)], entry(json!({"Config": "../../etc/passwd", "Layers": []})), "etc/passwd"),
        (vec![("c", &config), ("l", &layer)], entry(json!({"Config": "c", "Layers": []})), "0 layers"),
        (vec![("c", &config), ("l", &config)], good.clone(), "read the tar stream"),
        (vec![("c", &config), ("l", &[0; 1024])], good.clone(), "rootfs.diff_ids"),
        (vec![("c", b"{}"), ("l", &layer)], good.clone(), "image configuration is malformed"),
        (
            vec![("c", &config), ("l", &layer)],
            entry(json!({"Config": "c", "Layers": ["l"], "RepoTags": ["A B"]})),
            "name of an image",
        ),
    ];
    for (files, manifest, message) in rows {
        let mut archive = tar(&files);
        archive = archive.entry(::tar::EntryType::Regular, "manifest.json", "", &manifest, |_| {});
        fixture.refuses(&archive.tar(), message);
    }
    fixture.refuses(&tar(&[("x", b"y")]).tar(), "neither index.json nor manifest.json");
    fixture.refuses(b"no tar at all", "read the archive");
    // A configuration that is a link to a file of this host is a missing file.
    let archive = tar(&[("l", &layer)]).symlink("c", "/etc/passwd");
    let archive = archive.entry(::tar::EntryType::Regular, "manifest.json", "", &good, |_| {});
    fixture.refuses(&archive.tar(), "names \"c\", which is not in the archive");
}

#[test]
fn archives_have_bounds() {
    let small =
        ArchiveFixture::with(ImageLimits { archive_bytes: 10_000, archive_entries: 3, ..ImageLimits::default() });
    small.refuses(&tar(&[("a", &[7; 6000]), ("b", &[7; 6000])]).tar(), "more than 10000 bytes");
    small.refuses(&tar(&[("a", b""), ("b", b""), ("c", b""), ("d", b"")]).tar(), "more than 3 entries");
}
