//! Volumes with the content of API objects.

use super::*;
use crate::objects::fake::FakeObjects;
use podwright_core::model::HostCall;
use tokio_util::sync::CancellationToken;

use crate::perform::HostExecutor;

/// A host with API objects.
fn node() -> (HostFixture, Arc<FakeObjects>) {
    let objects = Arc::new(FakeObjects::default());
    let mut node = HostFixture::new();
    node.host = node.host.clone().with_objects(objects.clone());
    (node, objects)
}

fn read(node: &HostFixture, pod: &Pod, volume: &str, file: &str) -> String {
    let dir = volume_host_path(node.host.paths(), pod, volume).unwrap();
    fs::read_to_string(dir.join(file)).unwrap()
}

#[tokio::test]
async fn a_config_map_volume_is_updated_with_its_object() {
    let (node, objects) = node();
    objects.put_config_map("c", json!({"data": {"a": "1"}, "binaryData": {"raw": "AAE="}}));
    let volumes = json!([{"name": "v", "configMap": {"name": "c", "defaultMode": 0o640}}]);
    let pod = pod_with(volumes, json!({"fsGroup": 4321}));
    node.set_up(&pod, &["v"]).await;
    let dir = node.at("root/pods/u1/volumes/kubernetes.io~configmap/v");
    let file = fs::metadata(dir.join("a")).unwrap();
    assert_eq!((file.gid(), file.mode() & 0o7777), (4321, 0o640));
    assert_eq!(fs::read(dir.join("raw")).unwrap(), [0, 1]);
    let first = fs::read_link(dir.join("..data")).unwrap();
    node.set_up(&pod, &["v"]).await;
    assert_eq!(fs::read_link(dir.join("..data")).unwrap(), first, "unchanged content is not written again");
    objects.put_config_map("c", json!({"data": {"a": "2"}}));
    node.set_up(&pod, &["v"]).await;
    assert_eq!(read(&node, &pod, "v", "a"), "2");
    assert!(!dir.join("raw").exists());
    assert!(is_read_only(&pod, "v"));
    objects.config_maps.lock().unwrap().clear();
    let error = node.host.volumes().mount(&pod, "v", LIMIT).await.unwrap_err();
    assert_eq!((error.reason(), error.message().as_str()), ("FailedMount", "configmap \"c\" not found"));
    assert_eq!(read(&node, &pod, "v", "a"), "2", "the content stays");
}

#[tokio::test]
async fn a_sub_path_of_a_config_map_keeps_its_first_content() {
    let (node, objects) = node();
    objects.put_config_map("c", json!({"data": {"a": "1"}}));
    let pod = pod(json!([{"name": "v", "configMap": {"name": "c"}}]));
    node.set_up(&pod, &["v"]).await;
    node.prepare(&pod, 0, &[(0, "v", "a")]).await.unwrap();
    objects.put_config_map("c", json!({"data": {"a": "2"}}));
    node.set_up(&pod, &["v"]).await;
    assert_eq!(fs::read_to_string(node.host.paths().subpath("u1", "v", "app", 0)).unwrap(), "1");
    assert_eq!(read(&node, &pod, "v", "a"), "2");
}

#[tokio::test]
async fn the_files_of_a_secret_are_in_memory_only() {
    let (node, objects) = node();
    objects.put_secret("s", json!({"data": {"k": "aHVudGVyMg==", "other": "eA=="}}));
    let pod = pod(json!([
        {"name": "v", "secret": {"secretName": "s", "items": [{"key": "k", "path": "deep/k", "mode": 0o400}]}},
        {"name": "o", "secret": {"secretName": "none", "optional": true}},
        {"name": "bad", "secret": {"secretName": "s", "items": [{"key": "no", "path": "x"}]}},
    ]));
    node.set_up(&pod, &["v", "o"]).await;
    node.set_up(&pod, &["v", "o"]).await;
    assert_eq!(node.mounts(), 2, "one tmpfs per volume, mounted once");
    assert_eq!(read(&node, &pod, "v", "deep/k"), "hunter2");
    let dir = volume_host_path(node.host.paths(), &pod, "v").unwrap();
    assert_eq!(fs::metadata(dir.join("deep/k")).unwrap().mode() & 0o7777, 0o400);
    assert!(!dir.join("other").exists());
    let error = node.host.volumes().mount(&pod, "bad", LIMIT).await.unwrap_err();
    assert_eq!(error.message(), "references non-existent secret key: no");
    let call = HostCall::RemoveVolumes;
    node.host.perform("u1".into(), pod.clone(), call, LIMIT, CancellationToken::new()).await.unwrap();
    assert_eq!(node.mounts(), 0);
    assert_eq!(*objects.released.lock().unwrap(), ["u1".into()]);
}

#[tokio::test]
async fn a_projected_volume_has_the_files_of_the_service_account() {
    let (node, objects) = node();
    objects.put_config_map("kube-root-ca.crt", json!({"data": {"ca.crt": "PEM"}}));
    let volumes = json!([{"name": "kube-api-access-x", "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        {"clusterTrustBundle": {"name": "b", "path": "bundle"}},
    ]}}]);
    let user = pod_with(volumes.clone(), json!({"runAsUser": 1234}));
    let volume = "kube-api-access-x";
    node.set_up(&user, &[volume]).await;
    let files = ["token", "ca.crt", "namespace", "bundle"].map(|file| read(&node, &user, volume, file));
    assert_eq!(files, ["token for \"\"", "PEM", "shop", "PEM"]);
    assert_eq!(objects.tokens.lock().unwrap()[0].expiration_seconds, 3607);
    let dir = volume_host_path(node.host.paths(), &user, volume).unwrap();
    let token = fs::metadata(dir.join("token")).unwrap();
    assert_eq!((token.uid(), token.mode() & 0o777), (1234, 0o600), "only the user of the pod may read it");
    assert_eq!(fs::metadata(dir.join("ca.crt")).unwrap().mode() & 0o777, 0o644);
    assert_eq!(node.mounts(), 1);
    node.host.volumes().remove("u1", LIMIT).await.unwrap();
    let any = pod(volumes);
    node.set_up(&any, &[volume]).await;
    let token = fs::metadata(dir.join("token")).unwrap();
    assert_eq!((token.uid(), token.mode() & 0o777), (0, 0o644));
    node.host.volumes().remove("u1", LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_claim_is_mounted_from_the_path_of_its_volume() {
    let (node, objects) = node();
    fs::create_dir(node.at("disk")).unwrap();
    fs::write(node.at("disk/file"), "x").unwrap();
    let volume = |spec: Value| {
        let mut spec = spec;
        spec["claimRef"] = json!({"uid": "c-1"});
        json!({"metadata": {"name": "pv"}, "spec": spec})
    };
    let claim = json!({"metadata": {"name": "c", "uid": "c-1"}});
    objects.put_claim("local", claim.clone(), Some(volume(json!({"local": {"path": node.at("disk")}}))));
    objects.put_claim("host", claim.clone(), Some(volume(json!({"hostPath": {"path": node.at("made")}}))));
    objects.put_claim("lost", claim.clone(), Some(volume(json!({"local": {"path": node.at("nowhere")}}))));
    objects.put_claim("unbound", claim, None);
    let pod = pod_with(
        json!([
            {"name": "l", "persistentVolumeClaim": {"claimName": "local"}},
            {"name": "h", "persistentVolumeClaim": {"claimName": "host", "readOnly": true}},
            {"name": "n", "persistentVolumeClaim": {"claimName": "lost"}},
            {"name": "u", "persistentVolumeClaim": {"claimName": "unbound"}},
            {"name": "m", "persistentVolumeClaim": {"claimName": "missing"}},
        ]),
        json!({"fsGroup": 4321}),
    );
    node.set_up(&pod, &["l", "h"]).await;
    assert_eq!(read(&node, &pod, "l", "file"), "x");
    assert_eq!(fs::metadata(node.at("disk/file")).unwrap().gid(), 4321, "fsGroup applies to a local volume");
    assert_eq!(fs::metadata(node.at("made")).unwrap().gid(), 0, "fsGroup does not apply to a hostPath");
    assert!(is_read_only(&pod, "h") && !is_read_only(&pod, "l"));
    let table = [
        ("n", "nowhere: No such file or directory"),
        ("u", "it is not bound to a volume"),
        ("m", "persistentvolumeclaim \"missing\" not found"),
    ];
    for (volume, why) in table {
        let error = node.host.volumes().mount(&pod, volume, LIMIT).await.unwrap_err();
        assert!(error.reason() == "FailedMount" && error.message().contains(why), "{error}");
    }
    objects.claims.lock().unwrap().clear();
    node.set_up(&pod, &["l", "h"]).await;
    assert_eq!(node.mounts(), 2, "a mounted claim needs no API server");
    node.host.volumes().remove("u1", LIMIT).await.unwrap();
    assert_eq!(node.mounts(), 0);
    assert_eq!(fs::read_to_string(node.at("disk/file")).unwrap(), "x", "the files of the claim stay");
}

/// How many files of the volume belong to the group.
fn files_of(node: &HostFixture, gid: u32) -> usize {
    let files = fs::read_dir(node.at("disk")).unwrap();
    files.filter(|file| file.as_ref().unwrap().metadata().unwrap().gid() == gid).count()
}

/// The next pod may use the volume already.
#[tokio::test]
async fn a_cancelled_mount_changes_no_more_files_and_mounts_nothing() {
    const FILES: usize = 20_000;
    let (node, objects) = node();
    put_local(&node, &objects);
    fs::create_dir_all(node.at("disk")).unwrap();
    (0..FILES).for_each(|i| drop(fs::File::create(node.at("disk").join(i.to_string())).unwrap()));
    let first = fs::read_dir(node.at("disk")).unwrap().next().unwrap().unwrap().path();
    let volumes = json!([{"name": "l", "persistentVolumeClaim": {"claimName": "local"}}]);
    // On a busy host the walk may be over before it is cancelled.
    for gid in 4321..4331 {
        let pod = pod_with(volumes.clone(), json!({"fsGroup": gid}));
        let has_begun = async {
            while fs::metadata(&first).unwrap().gid() != gid {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            mounted = node.host.volumes().mount(&pod, "l", LIMIT) => mounted.unwrap(),
            () = has_begun => {}
        }
        let at_cancel = files_of(&node, gid);
        if at_cancel == FILES {
            node.host.volumes().remove("u1", LIMIT).await.unwrap();
            continue;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let after = files_of(&node, gid);
        assert!(after < FILES, "{at_cancel} files were changed when it was cancelled");
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(files_of(&node, gid), after);
        assert_eq!(node.mounts(), 0);
        assert!(!volume_host_path(node.host.paths(), &pod, "l").unwrap().exists());
        return;
    }
    panic!("no walk could be cancelled");
}

#[tokio::test]
async fn a_claim_is_not_mounted_if_fs_group_cannot_be_applied() {
    let (node, objects) = node();
    put_local(&node, &objects);
    fs::create_dir_all(node.at("disk")).unwrap();
    fs::write(node.at("disk/file"), "x").unwrap();
    // Even root cannot change the group of an immutable file.
    let file = fs::File::open(node.at("disk/file")).unwrap();
    ioctl_setflags(&file, IFlags::IMMUTABLE).unwrap();
    let volumes = json!([{"name": "l", "persistentVolumeClaim": {"claimName": "local"}}]);
    let pod = pod_with(volumes, json!({"fsGroup": 4321}));
    for _ in 0..2 {
        let error = node.host.volumes().mount(&pod, "l", LIMIT).await.unwrap_err();
        assert!(error.message().contains("set the group of"), "{error}");
    }
    ioctl_setflags(&file, IFlags::empty()).unwrap();
    assert_eq!(node.mounts(), 0);
}

#[tokio::test]
async fn fs_group_is_applied_to_a_claim_by_its_change_policy() {
    let (node, objects) = node();
    fs::create_dir(node.at("disk")).unwrap();
    fs::write(node.at("disk/file"), "x").unwrap();
    put_local(&node, &objects);
    let volumes = json!([{"name": "l", "persistentVolumeClaim": {"claimName": "local"}}]);
    let gid = || fs::metadata(node.at("disk/file")).unwrap().gid();
    let table = [
        ("OnRootMismatch", 4321, "the top directory had another group"),
        ("OnRootMismatch", 7, "the top directory had the group"),
        ("Always", 4321, "always"),
    ];
    for (policy, expected, why) in table {
        let pod = pod_with(volumes.clone(), json!({"fsGroup": 4321, "fsGroupChangePolicy": policy}));
        node.set_up(&pod, &["l"]).await;
        node.host.volumes().remove("u1", LIMIT).await.unwrap();
        assert_eq!(gid(), expected, "{why}");
        std::os::unix::fs::chown(node.at("disk/file"), None, Some(7)).unwrap();
    }
}

/// A claim bound to the directory `disk`.
fn put_local(node: &HostFixture, objects: &FakeObjects) {
    let spec = json!({"claimRef": {"uid": "c-1"}, "local": {"path": node.at("disk")}});
    let volume = json!({"metadata": {"name": "pv"}, "spec": spec});
    objects.put_claim("local", json!({"metadata": {"name": "c", "uid": "c-1"}}), Some(volume));
}
