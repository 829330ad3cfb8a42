//! Pulls from registries that work, and from broken ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use podwright_tasks::error_chain;
use serde_json::json;

use super::*;
use crate::archive::ArchiveError;
use crate::limits::ImageLimits;
use crate::manifest::OCI_INDEX;
use crate::platform::Platform;
use crate::store::GcRoots;
use crate::tests::{TestLayer, add_image};
use fakes::{FakeRegistry, Got, Reply, TestImage, serve_content};

#[path = "fakes.rs"]
mod fakes;
mod hostile;
mod registry_auth;
mod tls;

/// A store and a puller with short limits.
struct PullFixture {
    dir: tempfile::TempDir,
    store: Arc<ImageStore>,
    puller: Arc<Puller>,
}

impl PullFixture {
    fn new() -> Self {
        Self::with(ImageLimits::default(), None)
    }

    fn with(limits: ImageLimits, config_dir: Option<PathBuf>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = ImageStore::open(&dir.path().join("engine"), limits, Platform::host()).unwrap();
        let limit = Duration::from_millis(500);
        let options = RegistryOptions {
            config_dir,
            response_limit: limit,
            idle_limit: limit,
            resumes: 2,
            ..RegistryOptions::default()
        };
        let puller = Arc::new(Puller::new(Arc::clone(&store), options, Pool::default()).unwrap());
        Self { dir, store, puller }
    }

    async fn pull(&self, image: &ImageReference) -> PullResult {
        let pull = self.puller.pull(image, RegistryCredentials::Anonymous);
        tokio::time::timeout(Duration::from_secs(30), pull).await.expect("a pull ends")
    }

    /// The pull fails with this in its message, and the store is as empty as before.
    async fn refuses(&self, image: &ImageReference, message: &str) -> PullErrorKind {
        let error = self.pull(image).await.unwrap_err();
        let text = error_chain(&error);
        assert!(text.contains(message), "{text:?} lacks {message:?}");
        self.assert_empty().await;
        error.kind()
    }

    async fn assert_empty(&self) {
        assert_eq!(self.store.images(), []);
        // The writer of another layer removes its file as soon as it sees that its transfer was dropped.
        let ingests = || fs::read_dir(self.dir.path().join("engine/content/ingest")).unwrap().count();
        for _ in 0..200 {
            if ingests() == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for dir in ["layers", "content/ingest"] {
            let left: Vec<_> = fs::read_dir(self.dir.path().join("engine").join(dir)).unwrap().flatten().collect();
            assert!(left.is_empty(), "left in {dir}: {left:?}");
        }
        self.store.collect_garbage(GcRoots::default).unwrap();
        assert_eq!(self.store.content().list().unwrap(), []);
    }
}

fn two_layers(name: &str) -> TestImage {
    TestImage::new(name, &[TestLayer::new().file("a", &"1".repeat(50_000)), TestLayer::new().file("b", name)])
}

#[tokio::test]
async fn an_image_is_pulled_unpacked_and_named() {
    let image = two_layers("team/app:1");
    let registry = FakeRegistry::with(&[&image]).await;
    let (fixture, reference) = (PullFixture::new(), registry.reference("team/app:1"));
    let pulled = fixture.pull(&reference).await.unwrap();
    assert_eq!((pulled.id, pulled.manifest), (image.config, image.manifest_digest()));
    let names: Vec<String> = pulled.names.keys().map(ToString::to_string).collect();
    assert_eq!(names, [reference.to_string(), reference.with_digest(image.manifest_digest()).to_string()]);
    let lowers = fixture.store.lower_dirs(&pulled).unwrap();
    assert_eq!(fs::read_to_string(lowers[0].join("b")).unwrap(), "team/app:1");
    assert_eq!(fs::read_to_string(lowers[1].join("a")).unwrap().len(), 50_000);
    assert_eq!(fixture.store.configuration(&pulled).unwrap().config.cmd, ["sh"]);
    // Again: only the manifest is requested.
    let before = registry.requests().len();
    assert_eq!(fixture.pull(&reference).await.unwrap().id, pulled.id);
    assert_eq!(registry.requests().len(), before + 1);
    assert_eq!(fixture.store.collect_garbage(GcRoots::default).unwrap().blobs, 0);
}

#[tokio::test]
async fn the_manifest_of_this_platform_is_taken_from_an_index() {
    let image = two_layers("app:1");
    let (index, routes) = image.indexed();
    let registry = FakeRegistry::start(move |got| serve_content(&routes, got)).await;
    let (fixture, reference) = (PullFixture::new(), registry.reference("app:1"));
    let pulled = fixture.pull(&reference).await.unwrap();
    assert_eq!((pulled.id, pulled.manifest), (image.config, image.manifest_digest()));
    assert_eq!(pulled.repo_digests().next().unwrap().digest(), Some(index));
}

#[tokio::test]
async fn a_broken_transfer_continues_where_it_stopped() {
    let image = two_layers("app:1");
    let (layer, routes) = (image.layers[0].to_string(), image.routes());
    let bytes = image.blobs[&image.layers[0]].clone();
    let registry = FakeRegistry::start(move |got| {
        if !got.path.contains(&layer) || got.header("range").starts_with("bytes=100-") {
            return serve_content(&routes, got);
        }
        let (from, to) = if got.header("range").is_empty() { (0, 60) } else { (60, 100) };
        let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
        let status = if from == 0 { StatusCode::OK } else { StatusCode::PARTIAL_CONTENT };
        Reply::Cut(status, vec![("content-range", range)], bytes.slice(from..to))
    })
    .await;
    let (fixture, reference) = (PullFixture::new(), registry.reference("app:1"));
    fixture.pull(&reference).await.unwrap();
    let ranges: Vec<String> = registry.requests().iter().map(|got| got.header("range").to_owned()).collect();
    let ranges: Vec<&str> = ranges.iter().map(String::as_str).filter(|range| !range.is_empty()).collect();
    assert_eq!(ranges, ["bytes=60-", "bytes=100-"]);
}

#[tokio::test]
async fn a_server_without_ranges_is_read_from_the_start_again() {
    let image = two_layers("app:1");
    let (layer, routes) = (image.layers[0].to_string(), image.routes());
    let bytes = image.blobs[&image.layers[0]].clone();
    let registry = FakeRegistry::start(move |got| match got.path.contains(&layer) {
        true if got.header("range").is_empty() => Reply::Cut(StatusCode::OK, vec![], bytes.slice(..60)),
        true => Reply::ok(bytes.clone()),
        false => serve_content(&routes, got),
    })
    .await;
    let fixture = PullFixture::new();
    fixture.pull(&registry.reference("app:1")).await.unwrap();
}

#[tokio::test]
async fn equal_pulls_share_one_run_and_equal_blobs_one_transfer() {
    let (one, two) = (two_layers("app:1"), two_layers("app:2"));
    assert_eq!(one.layers[0], two.layers[0]);
    let registry = FakeRegistry::with(&[&one, &two]).await;
    let (fixture, first, second) = (PullFixture::new(), registry.reference("app:1"), registry.reference("app:2"));
    let (a, b, c) = tokio::join!(fixture.pull(&first), fixture.pull(&first), fixture.pull(&second));
    assert_eq!(a.unwrap(), b.unwrap());
    assert_eq!(c.unwrap().id, two.config);
    assert_eq!(registry.count("manifests/1"), 1);
    assert_eq!(registry.count(&one.layers[0].to_string()), 1);
    assert_eq!(fs::read_dir(fixture.dir.path().join("engine/layers")).unwrap().count(), 3);
}

#[tokio::test]
async fn a_pull_ends_with_its_last_caller_and_leaves_nothing() {
    let image = two_layers("app:1");
    let (layer, routes) = (image.layers[0].to_string(), image.routes());
    let bytes = image.blobs[&image.layers[0]].clone();
    let registry = FakeRegistry::start(move |got| match got.path.contains(&layer) {
        true => Reply::Stall(bytes.slice(..60), bytes.len() as u64),
        false => serve_content(&routes, got),
    })
    .await;
    let (fixture, reference) = (PullFixture::new(), registry.reference("app:1"));
    let waits = |limit| tokio::time::timeout(Duration::from_millis(limit), fixture.pull(&reference));
    let (short, long) = tokio::join!(waits(100), waits(300));
    assert!(short.is_err() && long.is_err());
    assert_eq!(registry.count("manifests/1"), 1, "the second caller joined");
    assert_eq!(fixture.puller.progress(&reference), None);
    fixture.assert_empty().await;
}

#[tokio::test]
async fn progress_shows_the_bytes_of_each_layer() {
    let image = two_layers("app:1");
    let (layer, routes) = (image.layers[0].to_string(), image.routes());
    let bytes = image.blobs[&image.layers[0]].clone();
    let size = bytes.len() as u64;
    let registry = FakeRegistry::start(move |got| match got.path.contains(&layer) {
        true => Reply::Stall(bytes.slice(..60), bytes.len() as u64),
        false => serve_content(&routes, got),
    })
    .await;
    let (fixture, reference) = (PullFixture::new(), registry.reference("app:1"));
    let (puller, image_reference) = (Arc::clone(&fixture.puller), reference.clone());
    let pull = tokio::spawn(async move { puller.pull(&image_reference, RegistryCredentials::Anonymous).await });
    let progress = loop {
        if let Some(progress) =
            fixture.puller.progress(&reference).filter(|p| p.layers.first().is_some_and(|l| l.received > 0))
        {
            break progress;
        }
        assert!(!pull.is_finished(), "no progress was seen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!((progress.layers[0].received, progress.layers[0].size, progress.layers[0].unpacked), (60, size, false));
    assert!(pull.await.unwrap().is_err());
}

#[tokio::test]
async fn damaged_blobs_in_the_store_are_pulled_again() {
    let image = two_layers("app:1");
    let registry = FakeRegistry::with(&[&image]).await;
    let (fixture, reference) = (PullFixture::new(), registry.reference("app:1"));
    let pulled = fixture.pull(&reference).await.unwrap();
    let layers: std::collections::BTreeSet<ChainId> = pulled.chain().into_iter().collect();
    fixture.store.remove_image(pulled.id).unwrap();
    // The unpacked layers go, the blobs stay and one of each kind is damaged.
    let mut lease = fixture.store.lease();
    pulled.blobs().for_each(|blob| lease.hold_blob(blob));
    fixture.store.collect_garbage(GcRoots::default).unwrap();
    assert!(layers.iter().all(|chain| !fixture.store.is_unpacked(*chain)) || layers.len() > 1);
    for digest in [image.config, image.layers[1]] {
        let path = fixture.store.content().path(digest);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let again = fixture.pull(&reference).await.unwrap();
    assert_eq!(again.id, pulled.id);
    assert_eq!(fs::read_to_string(fixture.store.lower_dirs(&again).unwrap()[0].join("b")).unwrap(), "app:1");
    assert_eq!((registry.count(&image.layers[0].to_string()), registry.count(&image.layers[1].to_string())), (1, 2));
}

#[tokio::test]
async fn an_image_of_unpacked_layers_can_be_saved_after_a_complete_pull() {
    let image = two_layers("app:1");
    let registry = FakeRegistry::with(&[&image]).await;
    let (fixture, reference) = (PullFixture::new(), registry.reference("app:1"));
    // The same layer from another blob.
    add_image(&fixture.store, "other:1", &[TestLayer::new().file("a", &"1".repeat(50_000))]);
    let pulled = fixture.pull(&reference).await.unwrap();
    assert_eq!(registry.count(&image.layers[0].to_string()), 0, "a pod does not wait for what is there");
    let missing = fixture.store.save(std::slice::from_ref(&pulled), std::io::sink()).unwrap_err();
    let is_first = |digest: &Digest| *digest == image.layers[0];
    assert!(matches!(&missing, ArchiveError::Content(ContentError::Missing(of)) if is_first(of)), "{missing:?}");
    let complete = fixture.puller.pull_complete(&reference, RegistryCredentials::Anonymous).await.unwrap();
    assert_eq!((complete.id, registry.count(&image.layers[0].to_string())), (pulled.id, 1));
    fixture.store.collect_garbage(GcRoots::default).unwrap();
    fixture.store.save(&[complete], std::io::sink()).unwrap();
}

#[tokio::test]
async fn mirrors_are_tried_first_and_get_no_credentials() {
    let image = two_layers("app:1");
    let upstream = FakeRegistry::with(&[&image]).await;
    let routes = image.routes();
    // Has everything except the second layer, and lies about the first.
    let (missing, lie) = (image.layers[1].to_string(), image.layers[0].to_string());
    let length = image.blobs[&image.layers[0]].len();
    let mirror = FakeRegistry::start(move |got| {
        let (path, namespace) = got.path.split_once("?ns=").unwrap_or((&got.path, ""));
        if namespace.is_empty() || path.contains(&missing) {
            return Reply::status(404);
        }
        if path.contains(&lie) {
            return Reply::ok(vec![7; length]);
        }
        serve_content(&routes, &Got { path: path.to_owned(), ..got.clone() })
    })
    .await;
    let config = tempfile::tempdir().unwrap();
    let dir = config.path().join(&upstream.address);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("hosts.toml"), format!("[host.\"http://{}\"]\n", mirror.address)).unwrap();
    let fixture = PullFixture::with(ImageLimits::default(), Some(config.path().to_owned()));
    let credentials = RegistryCredentials::Basic { username: "u".into(), password: "geheim".into() };
    let pulled = fixture.puller.pull(&upstream.reference("app:1"), credentials).await.unwrap();
    assert_eq!(pulled.id, image.config);
    assert_eq!(mirror.count(&format!("?ns={}", upstream.address)), mirror.requests().len());
    assert!(mirror.requests().iter().all(|got| got.header("authorization").is_empty()));
    assert_eq!((mirror.count("manifests"), upstream.count("manifests"), upstream.count("blobs")), (1, 0, 2));
    // A mirror without the capability `resolve` gets no requests for tags.
    fs::write(dir.join("hosts.toml"), format!("[host.\"http://{}\"]\ncapabilities = [\"pull\"]\n", mirror.address))
        .unwrap();
    fixture.pull(&upstream.reference("app:1")).await.unwrap();
    assert_eq!((mirror.count("manifests"), upstream.count("manifests")), (1, 1));
}
