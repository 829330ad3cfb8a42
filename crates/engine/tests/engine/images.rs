//! What images leave behind in the store.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_image::{Digest, ImageStore, Platform, Puller, RegistryCredentials, RegistryOptions, StoreUsage};
use podwright_tasks::Pool;

use crate::bed::{Bed, LIMIT};

/// A registry with one image of two layers, the second of which it has lost.
struct BrokenRegistry {
    manifest: String,
    config: String,
    layer: Vec<u8>,
}

impl BrokenRegistry {
    fn new() -> Self {
        let layer = {
            let mut tar = tar::Builder::new(vec![]);
            let mut header = tar::Header::new_gnu();
            header.set_size(5000);
            header.set_mode(0o644);
            tar.append_data(&mut header, "file", &[7; 5000][..]).unwrap();
            tar.into_inner().unwrap()
        };
        let (lost, platform) = (Digest::of(b"lost"), Platform::host());
        let config = serde_json::json!({
            "os": platform.os, "architecture": platform.architecture, "config": {},
            "rootfs": { "type": "layers", "diff_ids": [Digest::of(&layer), lost] },
        })
        .to_string();
        let blob = |kind: &str, digest: Digest, size: usize| {
            let kind = format!("application/vnd.oci.image.{kind}");
            serde_json::json!({ "mediaType": kind, "digest": digest, "size": size })
        };
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": blob("config.v1+json", Digest::of(config.as_bytes()), config.len()),
            "layers": [blob("layer.v1.tar", Digest::of(&layer), layer.len()), blob("layer.v1.tar", lost, 4)],
        })
        .to_string();
        Self { manifest, config, layer }
    }

    /// Answers until the test ends. The lost layer is refused when the other one is unpacked.
    fn serve(self, store: &Arc<ImageStore>, before: StoreUsage) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        // Weak: the next engine opens the store again.
        let (registry, store) = (Arc::new(self), Arc::downgrade(store));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (registry, store) = (Arc::clone(&registry), store.upgrade().expect("the pull has it"));
                std::thread::spawn(move || registry.answer(&stream, &store, before));
            }
        });
        address
    }

    fn answer(&self, mut stream: &TcpStream, store: &ImageStore, before: StoreUsage) {
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
        let is = |bytes: &[u8]| path.ends_with(&Digest::of(bytes).to_string());
        let (kind, body) = if path.contains("/manifests/") {
            (MANIFEST, self.manifest.as_bytes())
        } else if is(self.config.as_bytes()) {
            (BLOB, self.config.as_bytes())
        } else if is(&self.layer) {
            (BLOB, &self.layer[..])
        } else {
            let until = Instant::now() + LIMIT;
            while store.usage().unwrap().layer_bytes == before.layer_bytes && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            return;
        };
        let length = body.len();
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    }
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const BLOB: &str = "application/octet-stream";

pub(crate) async fn what_a_failed_pull_has_brought_is_swept(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "exec sleep 1000").await;
    let store = Arc::clone(bed.opened().images());
    // An archive has files that are part of no image.
    let containers = bed.opened().containers_on_disk();
    store.collect_garbage(|| containers.gc_roots()).unwrap();
    let before = store.usage().unwrap();
    let name = format!("{}/app:1", BrokenRegistry::new().serve(&store, before)).parse().unwrap();
    let puller = Puller::new(Arc::clone(&store), RegistryOptions::default(), Pool::default()).unwrap();
    puller.pull(&name, RegistryCredentials::Anonymous).await.unwrap_err();
    let after = store.usage().unwrap();
    assert!(after.blob_bytes > before.blob_bytes && after.layer_bytes > before.layer_bytes, "{before:?} {after:?}");
    drop((puller, store, containers));
    bed.restart_engine().await;
    let until = Instant::now() + LIMIT;
    while bed.opened().images().usage().unwrap() != before {
        assert!(Instant::now() < until, "{before:?} {:?}", bed.opened().images().usage());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Nothing that is in use has gone.
    assert_eq!(bed.exec(&id, "ls /bin/sh").await.exit_code, 0);
    let again = bed.start(&sandbox, "again", "exit 3").await;
    assert_eq!(bed.exit(&again).await.exit_code, 3);
}

/// A container needs the layers of its image although the image is removed, and a removed container does not.
pub(crate) async fn layers_of_a_removed_image_are_swept_after_its_last_container(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "exec sleep 1000").await;
    for image in bed.opened().images().images() {
        bed.opened().images().remove_image(image.id).unwrap();
    }
    bed.restart_engine().await;
    wait_for(&bed, "the blobs to go", |usage| usage.blob_bytes == 0).await;
    assert_eq!(bed.exec(&id, "ls /bin/sh").await.exit_code, 0, "its layers are there");
    bed.engine().remove_container(&id, LIMIT).await.unwrap();
    bed.restart_engine().await;
    wait_for(&bed, "the layers to go", |usage| usage.layer_bytes == 0).await;
}

async fn wait_for(bed: &Bed, what: &str, is_so: impl Fn(StoreUsage) -> bool) {
    let until = Instant::now() + LIMIT;
    while !is_so(bed.opened().images().usage().unwrap()) {
        assert!(Instant::now() < until, "{what}: {:?}", bed.opened().images().usage());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
