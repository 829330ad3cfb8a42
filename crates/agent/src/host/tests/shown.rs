//! Volumes that show API objects.

use super::*;
use crate::objects::fake::FakeObjects;
use podwright_core::model::HostCall;
use tokio_util::sync::CancellationToken;

use crate::perform::HostExecutor;

/// A bed with objects.
fn bed() -> (Bed, Arc<FakeObjects>) {
    let objects = Arc::new(FakeObjects::default());
    let mut bed = Bed::new();
    bed.host = bed.host.clone().with_objects(objects.clone());
    (bed, objects)
}

fn read(bed: &Bed, pod: &Pod, volume: &str, file: &str) -> String {
    let dir = volume_host_path(bed.host.paths(), pod, volume).unwrap();
    fs::read_to_string(dir.join(file)).unwrap()
}

#[tokio::test]
async fn a_config_map_is_shown_and_follows_its_changes() {
    let (bed, objects) = bed();
    objects.put_config_map("c", json!({"data": {"a": "1"}, "binaryData": {"raw": "AAE="}}));
    let volumes = json!([{"name": "v", "configMap": {"name": "c", "defaultMode": 0o640}}]);
    let pod = pod_with(volumes, json!({"fsGroup": 4321}));
    bed.set_up(&pod, &["v"]).await;
    let dir = bed.at("root/pods/u1/volumes/kubernetes.io~configmap/v");
    let file = fs::metadata(dir.join("a")).unwrap();
    assert_eq!((file.gid(), file.mode() & 0o7777), (4321, 0o640));
    assert_eq!(fs::read(dir.join("raw")).unwrap(), [0, 1]);
    let first = fs::read_link(dir.join("..data")).unwrap();
    bed.set_up(&pod, &["v"]).await;
    assert_eq!(fs::read_link(dir.join("..data")).unwrap(), first, "nothing changed, nothing is written");
    objects.put_config_map("c", json!({"data": {"a": "2"}}));
    bed.set_up(&pod, &["v"]).await;
    assert_eq!(read(&bed, &pod, "v", "a"), "2");
    assert!(!dir.join("raw").exists());
    assert!(is_read_only(&pod, "v"));
    objects.config_maps.lock().unwrap().clear();
    let error = bed.host.volumes().mount(&pod, "v", LIMIT).await.unwrap_err();
    assert_eq!((error.reason(), error.message().as_str()), ("FailedMount", "configmap \"c\" not found"));
    assert_eq!(read(&bed, &pod, "v", "a"), "2", "what was shown stays");
}

#[tokio::test]
async fn a_part_of_a_config_map_keeps_its_first_content() {
    let (bed, objects) = bed();
    objects.put_config_map("c", json!({"data": {"a": "1"}}));
    let pod = pod(json!([{"name": "v", "configMap": {"name": "c"}}]));
    bed.set_up(&pod, &["v"]).await;
    bed.prepare(&pod, 0, &[(0, "v", "a")]).await.unwrap();
    objects.put_config_map("c", json!({"data": {"a": "2"}}));
    bed.set_up(&pod, &["v"]).await;
    assert_eq!(fs::read_to_string(bed.host.paths().subpath("u1", "v", "app", 0)).unwrap(), "1");
    assert_eq!(read(&bed, &pod, "v", "a"), "2");
}

#[tokio::test]
async fn a_secret_is_in_memory_only() {
    let (bed, objects) = bed();
    objects.put_secret("s", json!({"data": {"k": "aHVudGVyMg==", "other": "eA=="}}));
    let pod = pod(json!([
        {"name": "v", "secret": {"secretName": "s", "items": [{"key": "k", "path": "deep/k", "mode": 0o400}]}},
        {"name": "o", "secret": {"secretName": "none", "optional": true}},
        {"name": "bad", "secret": {"secretName": "s", "items": [{"key": "no", "path": "x"}]}},
    ]));
    bed.set_up(&pod, &["v", "o"]).await;
    bed.set_up(&pod, &["v", "o"]).await;
    assert_eq!(bed.mounts(), 2, "a file system in memory each, mounted once");
    assert_eq!(read(&bed, &pod, "v", "deep/k"), "hunter2");
    let dir = volume_host_path(bed.host.paths(), &pod, "v").unwrap();
    assert_eq!(fs::metadata(dir.join("deep/k")).unwrap().mode() & 0o7777, 0o400);
    assert!(!dir.join("other").exists());
    let error = bed.host.volumes().mount(&pod, "bad", LIMIT).await.unwrap_err();
    assert_eq!(error.message(), "references non-existent secret key: no");
    let call = HostCall::RemoveVolumes;
    bed.host.perform("u1".into(), pod.clone(), call, LIMIT, CancellationToken::new()).await.unwrap();
    assert_eq!(bed.mounts(), 0);
    assert_eq!(*objects.released.lock().unwrap(), ["u1".into()]);
}

#[tokio::test]
async fn every_api_pod_gets_its_account() {
    let (bed, objects) = bed();
    objects.put_config_map("kube-root-ca.crt", json!({"data": {"ca.crt": "PEM"}}));
    let volumes = json!([{"name": "kube-api-access-x", "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        {"clusterTrustBundle": {"name": "b", "path": "bundle"}},
    ]}}]);
    let user = pod_with(volumes.clone(), json!({"runAsUser": 1234}));
    let volume = "kube-api-access-x";
    bed.set_up(&user, &[volume]).await;
    let files = ["token", "ca.crt", "namespace", "bundle"].map(|file| read(&bed, &user, volume, file));
    assert_eq!(files, ["token for \"\"", "PEM", "shop", "PEM"]);
    assert_eq!(objects.tokens.lock().unwrap()[0].expiration_seconds, 3607);
    let dir = volume_host_path(bed.host.paths(), &user, volume).unwrap();
    let token = fs::metadata(dir.join("token")).unwrap();
    assert_eq!((token.uid(), token.mode() & 0o777), (1234, 0o600), "only the pod's one user reads it");
    assert_eq!(fs::metadata(dir.join("ca.crt")).unwrap().mode() & 0o777, 0o644);
    assert_eq!(bed.mounts(), 1);
    bed.host.volumes().remove("u1", LIMIT).await.unwrap();
    let any = pod(volumes);
    bed.set_up(&any, &[volume]).await;
    let token = fs::metadata(dir.join("token")).unwrap();
    assert_eq!((token.uid(), token.mode() & 0o777), (0, 0o644));
    bed.host.volumes().remove("u1", LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_claim_is_bound_to_where_its_volume_lies() {
    let (bed, objects) = bed();
    fs::create_dir(bed.at("disk")).unwrap();
    fs::write(bed.at("disk/file"), "x").unwrap();
    let volume = |spec: Value| {
        let mut spec = spec;
        spec["claimRef"] = json!({"uid": "c-1"});
        json!({"metadata": {"name": "pv"}, "spec": spec})
    };
    let claim = json!({"metadata": {"name": "c", "uid": "c-1"}});
    objects.put_claim("local", claim.clone(), Some(volume(json!({"local": {"path": bed.at("disk")}}))));
    objects.put_claim("host", claim.clone(), Some(volume(json!({"hostPath": {"path": bed.at("made")}}))));
    objects.put_claim("lost", claim.clone(), Some(volume(json!({"local": {"path": bed.at("nowhere")}}))));
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
    bed.set_up(&pod, &["l", "h"]).await;
    assert_eq!(read(&bed, &pod, "l", "file"), "x");
    assert_eq!(fs::metadata(bed.at("disk/file")).unwrap().gid(), 4321, "a local volume is given to the group");
    assert_eq!(fs::metadata(bed.at("made")).unwrap().gid(), 0, "a part of the machine is not");
    assert!(is_read_only(&pod, "h") && !is_read_only(&pod, "l"));
    let table = [
        ("n", "nowhere: No such file or directory"),
        ("u", "it is not bound to a volume"),
        ("m", "persistentvolumeclaim \"missing\" not found"),
    ];
    for (volume, why) in table {
        let error = bed.host.volumes().mount(&pod, volume, LIMIT).await.unwrap_err();
        assert!(error.reason() == "FailedMount" && error.message().contains(why), "{error}");
    }
    objects.claims.lock().unwrap().clear();
    bed.set_up(&pod, &["l", "h"]).await;
    assert_eq!(bed.mounts(), 2, "what stands needs no server");
    bed.host.volumes().remove("u1", LIMIT).await.unwrap();
    assert_eq!(bed.mounts(), 0);
    assert_eq!(fs::read_to_string(bed.at("disk/file")).unwrap(), "x", "what was claimed stays");
}

#[tokio::test]
async fn a_claim_that_can_t_be_given_to_the_group_does_not_stand_half_done() {
    let (bed, objects) = bed();
    let deep = (0..200).fold(bed.at("disk"), |path, _| path.join("d"));
    fs::create_dir_all(&deep).unwrap();
    put_local(&bed, &objects);
    let volumes = json!([{"name": "l", "persistentVolumeClaim": {"claimName": "local"}}]);
    let pod = pod_with(volumes, json!({"fsGroup": 4321}));
    for _ in 0..2 {
        let error = bed.host.volumes().mount(&pod, "l", LIMIT).await.unwrap_err();
        assert!(error.message().contains("set the group of"), "{error}");
    }
    assert_eq!(bed.mounts(), 0);
}

#[tokio::test]
async fn a_claim_goes_to_the_group_as_its_policy_says() {
    let (bed, objects) = bed();
    fs::create_dir(bed.at("disk")).unwrap();
    fs::write(bed.at("disk/file"), "x").unwrap();
    put_local(&bed, &objects);
    let volumes = json!([{"name": "l", "persistentVolumeClaim": {"claimName": "local"}}]);
    let gid = || fs::metadata(bed.at("disk/file")).unwrap().gid();
    let table = [
        ("OnRootMismatch", 4321, "the top was wrong"),
        ("OnRootMismatch", 7, "the top was right"),
        ("Always", 4321, "always"),
    ];
    for (policy, expected, why) in table {
        let pod = pod_with(volumes.clone(), json!({"fsGroup": 4321, "fsGroupChangePolicy": policy}));
        bed.set_up(&pod, &["l"]).await;
        bed.host.volumes().remove("u1", LIMIT).await.unwrap();
        assert_eq!(gid(), expected, "{why}");
        std::os::unix::fs::chown(bed.at("disk/file"), None, Some(7)).unwrap();
    }
}

/// A claim bound to the directory `disk`.
fn put_local(bed: &Bed, objects: &FakeObjects) {
    let spec = json!({"claimRef": {"uid": "c-1"}, "local": {"path": bed.at("disk")}});
    let volume = json!({"metadata": {"name": "pv"}, "spec": spec});
    objects.put_claim("local", json!({"metadata": {"name": "c", "uid": "c-1"}}), Some(volume));
}
