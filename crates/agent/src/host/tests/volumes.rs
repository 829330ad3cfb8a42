//! Volumes: their content, their owners, and their removal.

use super::*;

#[tokio::test]
async fn an_empty_dir_is_writable_by_all_and_created_once() {
    let node = HostFixture::new();
    let pod = pod(json!([{"name": "data", "emptyDir": {}}, {"name": "none"}]));
    node.set_up(&pod, &["data", "none"]).await;
    let dir = node.at("root/pods/u1/volumes/kubernetes.io~empty-dir/data");
    assert_eq!(volume_host_path(node.host.paths(), &pod, "data").unwrap(), dir);
    assert_eq!(mode(&dir), 0o777);
    assert!(node.at("root/pods/u1/plugins/kubernetes.io~empty-dir/data/ready").exists());
    fs::write(dir.join("file"), "x").unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    node.set_up(&pod, &["data"]).await;
    assert_eq!(mode(&dir), 0o700, "changes by the container stay");
    node.host.volumes().remove("u1", LIMIT).await.unwrap();
    assert!(!node.at("root/pods/u1/volumes").exists());
    node.host.dirs().remove("u1", LIMIT).await.unwrap();
}

#[tokio::test]
async fn fs_group_owns_the_volume() {
    let node = HostFixture::new();
    let pod = pod_with(json!([{"name": "data", "emptyDir": {}}]), json!({"fsGroup": 4321}));
    node.set_up(&pod, &["data"]).await;
    let found = fs::metadata(volume_host_path(node.host.paths(), &pod, "data").unwrap()).unwrap();
    assert_eq!((found.gid(), found.mode() & 0o7777), (4321, 0o2777));
    let pod = pod_with(json!([{"name": "bad", "emptyDir": {}}]), json!({"fsGroup": -1}));
    assert_eq!(node.host.volumes().mount(&pod, "bad", LIMIT).await.unwrap_err().reason(), "FailedMount");
}

#[tokio::test]
async fn a_memory_volume_is_bounded_and_removed_with_its_pod() {
    let node = HostFixture::new();
    let pod = pod_with(
        json!([
            {"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": "64Ki"}},
            {"name": "pod", "emptyDir": {"medium": "Memory", "sizeLimit": "1Ti"}},
        ]),
        json!({"fsGroup": 4321}),
    );
    node.set_up(&pod, &["small", "pod"]).await;
    node.set_up(&pod, &["small", "pod"]).await;
    assert_eq!(node.mounts(), 2, "a second setup does not mount again");
    let small = volume_host_path(node.host.paths(), &pod, "small").unwrap();
    assert_eq!((mode(&small), fs::metadata(&small).unwrap().gid()), (0o2777, 4321));
    assert!(fs::write(small.join("big"), vec![0; 128 << 10]).is_err());
    let mounts = mountinfo::read().unwrap();
    let of_pod = volume_host_path(node.host.paths(), &pod, "pod").unwrap().canonicalize().unwrap();
    let options = &mounts.iter().find(|m| m.point == of_pod).unwrap().super_options;
    assert!(options.contains("size=65536k"), "the pod's own limit: {options}");
    assert!(node.host.dirs().remove("u1", LIMIT).await.is_err(), "not while something is mounted");
    node.host.volumes().remove("u1", LIMIT).await.unwrap();
    assert_eq!(node.mounts(), 0);
    node.host.dirs().remove("u1", LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_busy_mount_is_detached_and_its_source_is_kept() {
    let node = HostFixture::new();
    let pod = pod(json!([{"name": "m", "emptyDir": {"medium": "Memory"}}, {"name": "b", "emptyDir": {}}]));
    node.set_up(&pod, &["m", "b"]).await;
    let user = fs::File::create(volume_host_path(node.host.paths(), &pod, "m").unwrap().join("open")).unwrap();
    // A directory of the host that a container bind-mounted into its volume twice and left there.
    fs::create_dir(node.at("precious")).unwrap();
    fs::write(node.at("precious/file"), "x").unwrap();
    let inside = volume_host_path(node.host.paths(), &pod, "b").unwrap();
    for _ in 0..2 {
        mount::bind(fs::File::open(node.at("precious")).unwrap(), fs::File::open(&inside).unwrap()).unwrap();
    }
    node.host.volumes().remove("u1", LIMIT).await.unwrap();
    assert_eq!(node.mounts(), 0);
    assert!(node.at("precious/file").exists());
    node.host.dirs().remove("u1", LIMIT).await.unwrap();
    drop(user);
}

#[tokio::test]
async fn a_failed_host_path_check_has_the_reason_failed_mount() {
    let node = HostFixture::new();
    let path = node.at("machine");
    let pod = pod(json!([
        {"name": "made", "hostPath": {"path": path, "type": "DirectoryOrCreate"}},
        {"name": "wrong", "hostPath": {"path": path, "type": "Socket"}},
    ]));
    node.set_up(&pod, &["made"]).await;
    assert!(path.is_dir());
    let error = node.host.volumes().mount(&pod, "wrong", LIMIT).await.unwrap_err();
    assert_eq!(error.reason(), "FailedMount");
    let expected = "hostPath type check failed";
    assert!(error.message().starts_with(expected), "{error}");
}

#[tokio::test]
async fn the_error_of_an_unsupported_volume_names_the_type() {
    let node = HostFixture::new();
    let pod = pod(json!([
        {"name": "s", "secret": {"secretName": "x"}},
        {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        {"name": "h", "emptyDir": {"medium": "HugePages"}},
    ]));
    for (volume, word) in [("s", "secret"), ("p", "serviceAccountToken"), ("h", "HugePages"), ("none", "no volume")] {
        let error = node.host.volumes().mount(&pod, volume, LIMIT).await.unwrap_err();
        assert_eq!(error.reason(), "FailedMount");
        assert!(error.message().contains(word), "{error}");
    }
}

#[tokio::test]
async fn downward_api_volumes_have_the_fields_of_their_pod() {
    let node = HostFixture::new();
    let item = |path: &str, field: &str| json!({"path": path, "fieldRef": {"fieldPath": field}});
    let limit = json!({"path": "deep/memory", "mode": 0o400,
        "resourceFieldRef": {"containerName": "app", "resource": "limits.memory", "divisor": "1Mi"}});
    let volumes = |label: &str| {
        let items = json!([item("labels", "metadata.labels"), item("name", "metadata.name"), limit]);
        let mut pod = (*pod_with(
            json!([
                {"name": "info", "downwardAPI": {"defaultMode": 0o640, "items": items}},
                {"name": "both", "projected": {"sources": [
                    {"downwardAPI": {"items": [item("uid", "metadata.uid")]}},
                    {"downwardAPI": {"items": [item("note", "metadata.annotations['note']")]}},
                ]}},
            ]),
            json!({"fsGroup": 4321}),
        ))
        .clone();
        pod.metadata.labels.as_mut().unwrap().insert("app".into(), label.into());
        Arc::new(pod)
    };
    node.set_up(&volumes("web"), &["info", "both"]).await;
    let info = volume_host_path(node.host.paths(), &volumes("web"), "info").unwrap();
    assert!(info.ends_with("kubernetes.io~downward-api/info"));
    let read = |name: &str| fs::read_to_string(info.join(name)).unwrap();
    assert_eq!(read("labels"), "app=\"web\"");
    assert_eq!(read("name"), "web");
    assert_eq!(read("deep/memory"), "64");
    assert_eq!(mode(&info.join("..data/labels")), 0o640);
    assert_eq!(mode(&info.join("..data/deep/memory")), 0o440, "the group may read");
    assert_eq!(fs::metadata(info.join("labels")).unwrap().gid(), 4321);
    node.set_up(&volumes("changed"), &["info"]).await;
    assert_eq!(read("labels"), "app=\"changed\"");
    let both = volume_host_path(node.host.paths(), &volumes("web"), "both").unwrap();
    assert_eq!(fs::read_to_string(both.join("uid")).unwrap(), "u1");
    assert_eq!(fs::read_to_string(both.join("note")).unwrap(), "hello");
    assert!(is_read_only(&volumes("web"), "info") && !is_read_only(&volumes("web"), "none"));
    node.host.volumes().remove("u1", LIMIT).await.unwrap();
}
