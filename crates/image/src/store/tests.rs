//! The store as a whole: names, leases, garbage collection, restarts.

use super::*;
use crate::tests::{TestLayer, add_image};

fn open(dir: &Path) -> Arc<ImageStore> {
    ImageStore::open(dir, ImageLimits::default(), Platform::host()).unwrap()
}

/// The `meta` files of all layers.
fn metas(dir: &Path) -> Vec<serde_json::Value> {
    let layers = fs::read_dir(dir.join("layers")).unwrap().flatten();
    layers.map(|layer| serde_json::from_slice(&fs::read(layer.path().join("meta")).unwrap()).unwrap()).collect()
}

/// A container that is created while garbage is collected: it gives up its lease once it is listed.
#[test]
fn roots_are_read_while_no_lease_can_change() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let image = add_image(&store, "a:1", &[TestLayer::new().file("f", "1")]);
    let mut lease = store.lease();
    lease.hold_layer(image.chain()[0]);
    store.remove_image(image.id).unwrap();
    let (listed, created) = (std::sync::atomic::AtomicBool::new(false), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            created.wait();
            listed.store(true, Ordering::SeqCst);
            drop(lease);
        });
        let report = store.collect_garbage(|| {
            let container_layers = if listed.load(Ordering::SeqCst) { [image.chain()[0]].into() } else { [].into() };
            if !listed.load(Ordering::SeqCst) {
                created.wait();
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            GcRoots { container_layers, ..GcRoots::default() }
        });
        assert_eq!(report.unwrap().layers, 0, "the layer is leased until its container is listed");
    });
}

fn count(dir: PathBuf) -> usize {
    fs::read_dir(dir).unwrap().count()
}

#[test]
fn a_second_process_is_refused_with_the_pid_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let error = ImageStore::open(dir.path(), ImageLimits::default(), Platform::host()).unwrap_err();
    assert!(error.to_string().ends_with(&format!("in use by process {}", std::process::id())), "{error}");
    drop(store);
    open(dir.path());
}

#[test]
fn the_store_is_closed_to_other_users() {
    let dir = tempfile::tempdir().unwrap();
    let (new, existing) = (dir.path().join("new"), dir.path().join("existing"));
    fs::create_dir(&existing).unwrap();
    fs::set_permissions(&existing, fs::Permissions::from_mode(0o755)).unwrap();
    for path in [new, existing] {
        open(&path);
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn an_image_is_found_by_every_name_and_by_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let image = add_image(&store, "a:1", &[TestLayer::new().file("f", "1")]);
    let id = image.id.hex();
    for text in ["a:1", "docker.io/library/a:1", &id, &image.id.to_string(), &id[..12]] {
        assert_eq!(store.find(text).unwrap().as_ref(), Some(&image), "{text}");
    }
    assert_eq!(store.find("b").unwrap(), None);
    assert_eq!(store.find("0123456789abcdef").unwrap(), None);
    assert!(store.find("B").is_err());
    store.tag(image.id, "b".parse().unwrap()).unwrap();
    assert_eq!(store.find("b").unwrap().unwrap().tags().count(), 2);
}

#[test]
fn layers_are_shared_by_chain_and_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let base = TestLayer::new().file("base", "b");
    let one = add_image(&store, "a:1", &[base.clone(), TestLayer::new().file("one", "1")]);
    let two = add_image(&store, "a:2", &[base, TestLayer::new().file("two", "2")]);
    assert_eq!(count(dir.path().join("layers")), 3);
    drop(store);
    let store = open(dir.path());
    let (one, two) = (store.lower_dirs(&one).unwrap(), store.lower_dirs(&two).unwrap());
    assert_eq!(one[1], two[1]);
    assert_eq!(fs::read(one[0].join("one")).unwrap(), b"1");
    assert_eq!(fs::read(two[1].join("base")).unwrap(), b"b");
}

#[test]
fn a_layer_whose_note_can_not_be_read_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let image = add_image(&store, "a:1", &[TestLayer::new().file("used", "by a container")]);
    let used = store.lower_dirs(&image).unwrap()[0].join("used");
    drop(store);
    let note = used.parent().unwrap().parent().unwrap().join("meta");
    let text = fs::read_to_string(&note).unwrap();
    // Reading a directory fails as a bad disk does: with an error that says nothing about the layer.
    fs::remove_file(&note).unwrap();
    fs::create_dir(&note).unwrap();
    let opened = ImageStore::open(dir.path(), ImageLimits::default(), Platform::host());
    assert!(matches!(opened, Err(ImageStoreError::Layer(LayerError::File(_)))), "{opened:?}");
    fs::remove_dir(&note).unwrap();
    fs::write(&note, text.replace("\"version\":1", "\"version\":9")).unwrap();
    let opened = ImageStore::open(dir.path(), ImageLimits::default(), Platform::host());
    assert!(matches!(opened, Err(ImageStoreError::Layer(LayerError::NewerVersion { version: 9, .. }))), "{opened:?}");
    assert!(used.exists());
}

#[test]
fn overlayfs_shows_the_files_of_all_layers() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("engine"));
    let base = TestLayer::new()
        .file("kept", "1")
        .file("gone", "1")
        .file("dir/old", "1")
        .file("merged/below", "1")
        .file("replaced/old", "1")
        .dir("home", 0o711, 7);
    let middle = TestLayer::new()
        .file(".wh.gone", "")
        .file("dir/.wh..wh..opq", "")
        .file("dir/new", "2")
        .file("merged/.wh.absent", "");
    let top = TestLayer::new()
        .file("merged/above", "3")
        .file(".wh.replaced", "")
        .dir("replaced", 0o755, 0)
        .file("home/f", "3");
    let image = add_image(&store, "a:1", &[base, middle, top]);
    let lowers: Vec<String> = store.lower_dirs(&image).unwrap().iter().map(|path| path.display().to_string()).collect();
    let merged = dir.path().join("merged");
    fs::create_dir(&merged).unwrap();
    let mounted = crate::tests::Mounted::overlay(&merged, &lowers.join(":"));
    let names = |path: &str| {
        let mut names: Vec<String> =
            fs::read_dir(merged.join(path)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(""), ["dir", "home", "kept", "merged", "replaced"]);
    assert_eq!(
        (names("dir"), names("merged"), names("replaced")),
        (vec!["new".into()], vec!["above".into(), "below".into()], vec![])
    );
    let home = fs::metadata(merged.join("home")).unwrap();
    assert_eq!((home.permissions().mode() & 0o7777, std::os::unix::fs::MetadataExt::uid(&home)), (0o711, 7));
    drop(mounted);
}

#[test]
fn layers_that_were_not_synced_are_dropped_after_a_reboot() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let image = add_image(&store, "a:1", &[TestLayer::new().file("f", "1")]);
    store.sync().unwrap();
    add_image(&store, "a:2", &[TestLayer::new().file("f", "2")]);
    drop(store);
    // Another boot: the id in the unsynced layer's file is not this one any more.
    for entry in fs::read_dir(dir.path().join("layers")).unwrap().flatten() {
        let path = entry.path().join("meta");
        let mut meta: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        meta["boot_id"] = "another".into();
        fs::write(path, meta.to_string()).unwrap();
    }
    let store = open(dir.path());
    assert_eq!(count(dir.path().join("layers")), 1);
    assert!(store.lower_dirs(&image).is_ok());
    let lost = store.find("a:2").unwrap().unwrap();
    assert!(matches!(store.lower_dirs(&lost), Err(ImageStoreError::Layer(LayerError::NoParent(_)))));

    store.ensure_unpacked(&lost, &AtomicBool::new(false)).unwrap();
    assert_eq!(fs::read(store.lower_dirs(&lost).unwrap()[0].join("f")).unwrap(), b"2");
    assert!(metas(dir.path()).iter().all(|meta| meta["synced"] == true), "the next power loss leaves it alone");
    store.content().remove(image.layers[0].blob).unwrap();
    store.ensure_unpacked(&image, &AtomicBool::new(false)).unwrap();
}

#[test]
fn garbage_collection_keeps_what_images_containers_and_leases_use() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let base = TestLayer::new().file("base", "b");
    let one = add_image(&store, "a:1", &[base.clone(), TestLayer::new().file("one", "1")]);
    let two = add_image(&store, "a:2", &[base, TestLayer::new().file("two", "2")]);
    assert_eq!(store.collect_garbage(GcRoots::default).unwrap(), GcReport::default());

    let in_use = GcRoots { container_layers: one.chain().into_iter().collect(), ..GcRoots::default() };
    store.remove_image(one.id).unwrap();
    let mut lease = store.lease();
    lease.hold_blob(one.layers[1].blob);
    let report = store.collect_garbage(|| in_use.clone()).unwrap();
    assert_eq!((report.blobs, report.layers), (2, 0), "manifest and configuration");
    drop(lease);
    let report = store.collect_garbage(|| in_use.clone()).unwrap();
    assert_eq!((report.blobs, report.layers), (1, 0), "the compressed layer");
    let report = store.collect_garbage(GcRoots::default).unwrap();
    assert_eq!((report.blobs, report.layers), (0, 1), "the unpacked layer of the container that is gone");
    assert_eq!(count(dir.path().join("trash")), 0);
    assert_eq!(store.lower_dirs(&two).unwrap().len(), 2);
}

#[test]
fn a_damaged_list_of_images_costs_no_content() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let image = add_image(&store, "a:1", &[TestLayer::new().file("f", "1")]);
    store.sync().unwrap();
    drop(store);
    fs::write(dir.path().join("images.json"), vec![0; 100]).unwrap();
    let store = open(dir.path());
    assert_eq!(store.images(), []);
    let roots = || GcRoots { disk_max: Some(0), ..GcRoots::default() };
    assert_eq!(store.collect_garbage(roots).unwrap(), GcReport::default());
    assert!(image.blobs().all(|blob| store.content().path(blob).exists()) && store.is_unpacked(image.chain()[0]));
    fs::remove_file(dir.path().join("images.json.corrupt-0")).unwrap();
    assert!(store.collect_garbage(roots).unwrap().blobs > 0);
    assert!(!store.is_unpacked(image.chain()[0]));
}

#[test]
fn above_its_limit_the_oldest_images_are_removed_except_pinned_and_used_ones() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let add =
        |n: u8| add_image(&store, &format!("a:{n}"), &[TestLayer::new().file("f", &n.to_string().repeat(100_000))]);
    let images: Vec<_> = (0..4).map(add).collect();
    store.pin(images[0].id, true).unwrap();
    let in_use = || [images[1].id].into();
    let usage = store.usage().unwrap();
    let disk_max = Some(usage.blob_bytes + usage.layer_bytes - 1);
    let report = store.collect_garbage(|| GcRoots { images_in_use: in_use(), disk_max, ..GcRoots::default() }).unwrap();
    assert_eq!(report.images, [images[2].id]);
    let roots = || GcRoots { images_in_use: in_use(), disk_max: Some(0), ..GcRoots::default() };
    let report = store.collect_garbage(roots).unwrap();
    assert_eq!(report.images, [images[3].id]);
    assert_eq!(store.images().len(), 2);
}

/// Runs `change` while its file `fifo` is one that only opens with a reader, and `read` meanwhile. `None`: `read` has waited, too.
fn read_while_blocked<T: Send + 'static>(
    fifo: &Path,
    change: impl FnOnce() -> bool + Send + 'static,
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    use std::os::unix::fs::OpenOptionsExt;
    use std::time::Duration;
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let writer = std::thread::spawn(change);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!writer.is_finished(), "the change does not use {}", fifo.display());
    let (answer, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || answer.send(read()));
    let found = answered.recv_timeout(Duration::from_secs(5)).ok();
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap();
    let _reader = File::options().read(true).custom_flags(flags).open(fifo).unwrap();
    assert!(!writer.join().unwrap(), "a FIFO can not be synced");
    found
}

/// A pod whose image is removed on a slow disk must not stop the others.
#[test]
fn readers_do_not_wait_for_a_change_that_is_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let image = add_image(&store, "a:1", &[TestLayer::new().file("f", "1")]);
    let (id, chain) = (image.id, image.chain()[0]);
    let [writer, reader] = [(); 2].map(|()| Arc::clone(&store));
    let pin = move || writer.pin(id, true).is_ok();
    let read = move || (reader.images().len(), reader.find("a:1").unwrap().map(|image| image.pinned));
    let found = read_while_blocked(&dir.path().join("images.new"), pin, read);
    assert_eq!(found, Some((1, Some(false))));
    let layer = store.lower_dirs(&image).unwrap()[0].with_file_name("meta.new");
    let [writer, reader] = [(); 2].map(|()| Arc::clone(&store));
    let found = read_while_blocked(&layer, move || writer.sync().is_ok(), move || reader.is_unpacked(chain));
    assert_eq!(found, Some(true));
}
