use std::sync::Mutex;

use podwright_image::{ImageLimits, Platform, RegistryOptions};
use podwright_tasks::PoolLimits;
use podwright_testbed::{PASSWORD, Registry, Scratch, USER, image};

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

#[derive(Default)]
struct FakeContainers {
    roots: Mutex<GcRoots>,
}

impl ContainersOnDisk for FakeContainers {
    fn gc_roots(&self) -> GcRoots {
        self.roots.lock().unwrap().clone()
    }

    fn writable_usage(&self) -> TreeUsage {
        TreeUsage { bytes: 4096, inodes: 3, complete: true }
    }

    fn image_users(&self) -> Vec<ImageUser> {
        vec![]
    }
}

struct Bed {
    dir: tempfile::TempDir,
    containers: Arc<FakeContainers>,
    images: EngineImages,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = ImageStore::open(&dir.path().join("engine"), ImageLimits::default(), Platform::host()).unwrap();
        let pool = Pool::new(PoolLimits::default());
        let puller = Puller::new(Arc::clone(&store), RegistryOptions::default(), pool.clone()).unwrap();
        let containers = Arc::new(FakeContainers::default());
        let on_disk = Arc::clone(&containers) as Arc<dyn ContainersOnDisk>;
        let images = EngineImages::new(store, Arc::new(puller), pool, on_disk, dir.path().to_owned());
        Self { dir, containers, images }
    }

    /// Loads an image of one file with this name and user.
    fn load(&self, name: &str, user: &str) -> String {
        let archive = archive(&self.dir.path().join("image.tar"), name, user);
        let loaded = self.images.store.load(std::fs::File::open(archive).unwrap(), &Default::default()).unwrap();
        loaded[0].id.to_string()
    }

    async fn status(&self, image: &str) -> Option<v1::Image> {
        self.images.image_status(spec(image), false, LIMIT).await.unwrap().image
    }
}

fn spec(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.into(), ..Default::default() }
}

fn archive(path: &std::path::Path, name: &str, user: &str) -> std::path::PathBuf {
    let layer = {
        let mut tar = tar::Builder::new(vec![]);
        let mut header = tar::Header::new_gnu();
        header.set_size(name.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, "name", name.as_bytes()).unwrap();
        tar.into_inner().unwrap()
    };
    let diff_id = podwright_image::Digest::of(&layer);
    let platform = Platform::host();
    let config = serde_json::json!({
        "os": platform.os, "architecture": platform.architecture, "config": { "User": user, "Cmd": ["/name"] },
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
    });
    let manifest = serde_json::json!([{ "Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"] }]);
    let mut tar = tar::Builder::new(std::fs::File::create(path).unwrap());
    for (name, bytes) in [
        ("config.json", config.to_string().into_bytes()),
        ("layer.tar", layer),
        ("manifest.json", manifest.to_string().into_bytes()),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    tar.finish().unwrap();
    path.to_owned()
}

#[tokio::test]
async fn an_image_has_one_id_and_is_found_by_every_name() {
    let bed = Bed::new();
    let id = bed.load("example.com/app:1", "1000:10");
    let shown = bed.status("example.com/app:1").await.unwrap();
    assert_eq!(shown.id, id);
    assert!(id.starts_with("sha256:"));
    assert_eq!(shown.repo_tags, ["example.com/app:1"]);
    assert_eq!((shown.uid, shown.username.as_str()), (Some(v1::Int64Value { value: 1000 }), ""));
    assert!(shown.size > 0);
    // The same by any of its names.
    assert_eq!(bed.status(&id).await.as_ref(), Some(&shown));
    assert_eq!(bed.status(&id["sha256:".len()..][..12]).await.as_ref(), Some(&shown));
    assert_eq!(bed.status("example.com/app:2").await, None);

    bed.load("example.com/named:1", "guest");
    let named = bed.status("example.com/named:1").await.unwrap();
    assert_eq!((named.uid, named.username.as_str()), (None, "guest"));
    let all = bed.images.list_images(None, LIMIT).await.unwrap();
    assert_eq!(all.len(), 2);
    let filter = v1::ImageFilter { image: Some(spec("example.com/named:1")) };
    let one = bed.images.list_images(Some(filter), LIMIT).await.unwrap();
    assert_eq!(one.iter().map(|image| &image.id).collect::<Vec<_>>(), [&named.id]);

    let verbose = bed.images.image_status(spec(&id), true, LIMIT).await.unwrap();
    let info: serde_json::Value = serde_json::from_str(&verbose.info["info"]).unwrap();
    assert_eq!(info["imageSpec"]["config"]["User"], "1000:10");
    let refused = bed.images.image_status(spec("Not A Name"), false, LIMIT).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
}

#[tokio::test]
async fn a_removed_image_frees_its_layers_unless_a_container_needs_them() {
    let bed = Bed::new();
    let id = bed.load("example.com/app:1", "");
    let resolved = bed.images.resolve("example.com/app:1", LIMIT).await.unwrap();
    assert_eq!((resolved.id.as_str(), resolved.image_ref.as_str()), (id.as_str(), id.as_str()));
    assert_eq!(resolved.tag.as_deref(), Some("example.com/app:1"));
    assert_eq!(resolved.defaults.cmd, ["/name"]);
    let file = resolved.lower_dirs[0].join("name");
    assert!(file.exists());

    bed.images.remove_image(spec(&id), LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await, None);
    assert!(file.exists(), "the lease holds the layers until the container is recorded");
    bed.containers.roots.lock().unwrap().container_layers.extend(resolved.chain.iter().copied());
    drop(resolved);
    bed.images.collect_garbage(LIMIT).await.unwrap();
    assert!(file.exists(), "the container holds the layers");
    *bed.containers.roots.lock().unwrap() = GcRoots::default();
    bed.images.remove_image(spec(&id), LIMIT).await.unwrap();
    bed.images.collect_garbage(LIMIT).await.unwrap();
    assert!(!file.exists());
    let missing = bed.images.resolve(&id, LIMIT).await.unwrap_err();
    assert!(missing.message.contains("is not in the store"), "{missing}");
}

#[tokio::test]
async fn slow_removals_do_not_keep_other_calls_from_their_threads() {
    let bed = Bed::new();
    let id = bed.load("example.com/app:1", "");
    let containers = Arc::clone(&bed.containers);
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (held, holds) = tokio::sync::oneshot::channel();
    // Both collections wait for it.
    let holder = std::thread::spawn(move || {
        let _roots = containers.roots.lock().unwrap();
        held.send(()).unwrap();
        let _ = released.recv();
    });
    holds.await.unwrap();
    let calls = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let limit = Duration::from_secs(2);
        let status = bed.images.image_status(spec(&id), false, limit).await;
        let list = bed.images.list_images(None, limit).await;
        let usage = bed.images.image_fs_info(limit).await.map(drop);
        drop(release);
        (status.map(|status| status.image.is_some()), list.map(|list| list.len()), usage)
    };
    let (first, second, answers) =
        tokio::join!(bed.images.collect_garbage(LIMIT), bed.images.collect_garbage(LIMIT), calls);
    holder.join().unwrap();
    assert_eq!(answers, (Ok(true), Ok(1), Ok(())));
    first.and(second).unwrap();
}

#[tokio::test]
async fn the_file_systems_of_images_and_containers_are_reported() {
    let bed = Bed::new();
    bed.load("example.com/app:1", "");
    let info = bed.images.image_fs_info(LIMIT).await.unwrap();
    let images = &info.image_filesystems[0];
    assert_eq!(images.fs_id.as_ref().unwrap().mountpoint, bed.dir.path().to_str().unwrap());
    assert!(images.used_bytes.unwrap().value > 0 && images.timestamp > 0);
    let containers = &info.container_filesystems[0];
    assert_eq!((containers.used_bytes.unwrap().value, containers.inodes_used.unwrap().value), (4096, 3));
}

#[tokio::test]
async fn an_image_is_pulled_with_the_credentials_of_the_request() -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    let registry = Registry::start_private(&scratch)?;
    registry.push(image::BUSYBOX, "podwright/busybox:1")?;
    let bed = Bed::new();
    let name = format!("{}/podwright/busybox:1", registry.address());
    let request = |password: &str| v1::PullImageRequest {
        image: Some(spec(&name)),
        auth: Some(v1::AuthConfig { username: USER.into(), password: password.into(), ..Default::default() }),
        sandbox_config: None,
    };
    let refused = bed.images.pull_image(request("wrong"), LIMIT).await.unwrap_err();
    assert!(refused.message.contains("401") && !refused.message.contains("wrong"), "{refused}");
    assert_eq!(bed.status(&name).await, None);
    let id = bed.images.pull_image(request(PASSWORD), LIMIT).await?;
    let pulled = bed.status(&name).await.unwrap();
    assert_eq!(pulled.id, id);
    assert_eq!(bed.images.resolve(&id, LIMIT).await?.image_ref, pulled.repo_digests[0]);
    let absent = v1::PullImageRequest {
        image: Some(spec(&format!("{}/podwright/absent:1", registry.address()))),
        ..request(PASSWORD)
    };
    assert_eq!(bed.images.pull_image(absent, LIMIT).await.unwrap_err().code, Code::NotFound);
    let late = bed.images.pull_image(request(PASSWORD), Duration::ZERO).await.unwrap_err();
    assert_eq!(late.code, Code::DeadlineExceeded);
    Ok(())
}
