//! subPaths: created, bind-mounted, and never outside of their volume.

use super::*;

#[tokio::test]
async fn a_sub_path_is_created_and_bind_mounted() {
    let node = HostFixture::new();
    let pod = pod_with(json!([{"name": "data", "emptyDir": {}}]), json!({"fsGroup": 4321}));
    node.set_up(&pod, &["data"]).await;
    let volume = volume_host_path(node.host.paths(), &pod, "data").unwrap();
    fs::write(volume.join("file"), "x").unwrap();
    node.prepare(&pod, 0, &[(0, "data", "a/b"), (2, "data", "file")]).await.unwrap();
    assert_eq!(mode(&volume.join("a/b")), 0o2777, "the mode of the volume");
    assert_eq!(fs::metadata(volume.join("a/b")).unwrap().gid(), 4321);
    let pinned = node.at("root/pods/u1/volume-subpaths/data/app/0");
    fs::write(volume.join("a/b/new"), "seen").unwrap();
    assert_eq!(fs::read_to_string(pinned.join("new")).unwrap(), "seen");
    assert_eq!(fs::read_to_string(node.at("root/pods/u1/volume-subpaths/data/app/2")).unwrap(), "x");
    assert_eq!(node.mounts(), 2);

    // The next attempt uses the same mount, unless the path was replaced.
    node.prepare(&pod, 1, &[(0, "data", "a/b")]).await.unwrap();
    assert_eq!(node.mounts(), 2);
    fs::rename(volume.join("a/b"), volume.join("a/old")).unwrap();
    fs::write(volume.join("a/b"), "now a file").unwrap();
    node.prepare(&pod, 2, &[(0, "data", "a/b")]).await.unwrap();
    assert_eq!(fs::read_to_string(&pinned).unwrap(), "now a file");
    assert_eq!(node.mounts(), 2);
    node.host.volumes().remove("u1", LIMIT).await.unwrap();
    assert_eq!(node.mounts(), 0);
}

#[tokio::test]
async fn a_sub_path_cannot_leave_its_volume() {
    let node = HostFixture::new();
    let pod = pod(json!([{"name": "data", "emptyDir": {}}]));
    node.set_up(&pod, &["data"]).await;
    let volume = volume_host_path(node.host.paths(), &pod, "data").unwrap();
    fs::create_dir(node.at("outside")).unwrap();
    symlink(node.at("outside"), volume.join("absolute")).unwrap();
    symlink("../../../../../../outside", volume.join("relative")).unwrap();
    symlink("/proc/self/root", volume.join("magic")).unwrap();
    symlink("../../../../../../outside/new", volume.join("dangling")).unwrap();
    for path in ["absolute", "relative", "relative/x", "magic/etc", "dangling", "dangling/x", "../data2", "/etc"] {
        let error = node.prepare(&pod, 0, &[(0, "data", path)]).await.unwrap_err();
        assert_eq!(error.reason(), "CreateContainerConfigError", "{path}");
        assert!(error.message().contains("subPath"), "{error}");
    }
    assert_eq!(fs::read_dir(node.at("outside")).unwrap().count(), 0);
    assert_eq!(node.mounts(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sub_path_that_is_swapped_with_a_link_never_leaves_its_volume() {
    let node = HostFixture::new();
    let pod = pod(json!([{"name": "data", "emptyDir": {}}]));
    node.set_up(&pod, &["data"]).await;
    let volume = volume_host_path(node.host.paths(), &pod, "data").unwrap();
    fs::create_dir(node.at("outside")).unwrap();
    fs::create_dir(volume.join("dir")).unwrap();
    symlink(node.at("outside"), volume.join("link")).unwrap();
    let outside = fs::metadata(node.at("outside")).unwrap().ino();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let attacker = std::thread::spawn({
        let (stop, volume) = (stop.clone(), volume.clone());
        move || {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                let cwd = rustix::fs::CWD;
                rustix::fs::renameat_with(cwd, volume.join("dir"), cwd, volume.join("link"), flags).unwrap();
            }
        }
    });
    let (mut inside, mut refused) = (0, 0);
    for attempt in 0..100 {
        match node.prepare(&pod, attempt, &[(0, "data", "dir")]).await {
            Ok(()) => {
                inside += 1;
                let pinned = node.host.paths().subpath("u1", "data", "app", 0);
                assert_ne!(fs::metadata(&pinned).unwrap().ino(), outside);
            }
            Err(_) => refused += 1,
        }
    }
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    attacker.join().unwrap();
    assert!(inside > 0, "{inside} {refused}");
    node.host.volumes().remove("u1", LIMIT).await.unwrap();
}
