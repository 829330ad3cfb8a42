//! The host executor as root in a temporary directory: real files, real mounts, real cgroups.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podwright_core::model::{Pod, PodUid};
use podwright_linux::cgroup::CgroupTree;
use podwright_linux::{mount, mountinfo};
use rustix::fs::{IFlags, ioctl_setflags};
use serde_json::{Value, json};

use super::*;
use crate::pod_spec::{SubPath, is_read_only, pod_uid, volume_host_path};

mod cgroups;
pub(crate) mod hung;
mod object_volumes;
mod sub_paths;
mod systemd;
mod volumes;

const LIMIT: Duration = Duration::from_secs(30);

/// A host whose directories are in a temporary one. Mounts that a test leaves are detached at the end.
struct HostFixture {
    dir: tempfile::TempDir,
    host: Host,
}

impl HostFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = dir.path().join("cgroup");
        fs::create_dir(&cgroups).unwrap();
        let tree = CgroupTree::plain_v2(&cgroups, &["cpu", "memory", "pids", "hugetlb"]).unwrap();
        Self::with(dir, Some(tree), "/test")
    }

    fn with(dir: tempfile::TempDir, cgroups: Option<CgroupTree>, cgroup_root: &str) -> Self {
        let at = |name: &str| dir.path().join(name);
        fs::write(at("hosts"), "127.0.0.1 localhost\n").unwrap();
        let config = HostConfig {
            paths: HostPaths {
                root_dir: at("root"),
                pod_logs_dir: at("logs"),
                container_logs_dir: at("links"),
                cgroup_root: cgroup_root.into(),
            },
            node_name: "node".into(),
            hostname_label: Some("node".into()),
            host_ips: vec!["192.0.2.1".into()],
            cluster_domain: "cluster.local".into(),
            allocatable: Allocatable { cpu_millis: 2000, memory: 1 << 30, ephemeral_storage: 1 << 30 },
            node_allocatable: NodeAllocatable { cpu_millis: 2000, memory: 3 << 30, pids: 4000 },
            pod_pids_limit: None,
            cpu_cfs_quota: true,
            cpu_cfs_period: Duration::from_millis(100),
            huge_page_sizes: vec![2 << 20, 1 << 30],
            hosts_file: at("hosts"),
        };
        Self { host: Host::new(config, cgroups, Pool::default()), dir }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn mounts(&self) -> usize {
        mountinfo::under(&mountinfo::read().unwrap(), &self.dir.path().canonicalize().unwrap()).len()
    }

    async fn set_up(&self, pod: &Arc<Pod>, volumes: &[&str]) {
        self.host.dirs().create(pod_uid(pod), LIMIT).await.unwrap();
        for volume in volumes {
            self.host.volumes().mount(pod, volume, LIMIT).await.unwrap();
        }
    }

    async fn prepare(&self, pod: &Arc<Pod>, attempt: u32, sub_paths: &[(usize, &str, &str)]) -> Result<(), HostError> {
        let sub_path = |(index, volume, path): &(usize, &str, &str)| SubPath {
            index: *index,
            volume: (*volume).into(),
            path: (*path).into(),
        };
        let sub_paths = sub_paths.iter().map(sub_path).collect();
        self.host.prepare_container(pod, "app", attempt, &["10.0.0.5".into()], sub_paths, LIMIT).await
    }
}

impl Drop for HostFixture {
    fn drop(&mut self) {
        let dir = self.dir.path().canonicalize().unwrap();
        for mount in mountinfo::under(&mountinfo::read().unwrap_or_default(), &dir) {
            let _ = mount::detach(&mount.point);
        }
    }
}

fn pod(volumes: Value) -> Arc<Pod> {
    pod_with(volumes, json!({}))
}

fn pod_with(volumes: Value, security: Value) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "labels": {"app": "web"},
            "annotations": {"note": "hello"}},
        "spec": {
            "securityContext": security,
            "containers": [{"name": "app", "resources":
                {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"hugepages-2Mi": "4Mi"}}}],
            "volumes": volumes,
        },
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn directories_are_created_and_removed() {
    let node = HostFixture::new();
    node.host.dirs().create("u1", LIMIT).await.unwrap();
    node.host.dirs().create("u1", LIMIT).await.unwrap();
    for dir in ["root/pods/u1", "root/pods/u1/volumes", "root/pods/u1/plugins"] {
        assert_eq!(mode(&node.at(dir)), 0o750, "{dir}");
    }
    node.host.dirs().remove("u1", LIMIT).await.unwrap();
    node.host.dirs().remove("u1", LIMIT).await.unwrap();
    assert!(node.at("root/pods").is_dir() && !node.at("root/pods/u1").exists());
}

#[tokio::test]
async fn a_uid_that_is_a_path_does_not_leave_the_root_dir() {
    let node = HostFixture::new();
    fs::create_dir_all(node.at("root")).unwrap();
    fs::write(node.at("root/precious"), "x").unwrap();
    for uid in ["..", "../..", "", "/"] {
        node.host.dirs().create(uid, LIMIT).await.unwrap();
        node.host.volumes().remove(uid, LIMIT).await.unwrap();
        node.host.dirs().remove(uid, LIMIT).await.unwrap();
        assert!(node.at("root/precious").exists(), "{uid}");
    }
}

#[tokio::test]
async fn the_files_of_a_container_are_created() {
    let node = HostFixture::new();
    let pod = pod(json!([]));
    node.set_up(&pod, &[]).await;
    node.prepare(&pod, 3, &[]).await.unwrap();
    assert_eq!(mode(&node.at("logs/shop_web_u1/app")), 0o755);
    let termination_message = node.host.paths().termination_log("u1", "app", 3);
    assert_eq!(mode(&termination_message), 0o666);
    fs::write(&termination_message, "from an attempt that failed").unwrap();
    let hosts = node.host.paths().etc_hosts("u1");
    assert_eq!(mode(&hosts), 0o644);
    assert!(fs::read_to_string(&hosts).unwrap().ends_with("10.0.0.5\tweb\n"));
    let inode = fs::metadata(&hosts).unwrap().ino();
    fs::write(&hosts, "rubbish from a container").unwrap();
    node.prepare(&pod, 3, &[]).await.unwrap();
    assert_eq!(fs::read_to_string(&termination_message).unwrap(), "");
    assert!(fs::read_to_string(&hosts).unwrap().ends_with("10.0.0.5\tweb\n"));
    assert_eq!(fs::metadata(&hosts).unwrap().ino(), inode, "running containers have it mounted");
}

#[tokio::test]
async fn logs_are_removed_with_the_links_to_them() {
    let node = HostFixture::new();
    let pod = pod(json!([]));
    node.set_up(&pod, &[]).await;
    node.prepare(&pod, 0, &[]).await.unwrap();
    fs::write(node.at("logs/shop_web_u1/app/0.log"), "line").unwrap();
    for id in ["abc", "abc", "def"] {
        node.host.logs().link(&pod, "app", 0, id, LIMIT).await.unwrap();
    }
    assert_eq!(fs::read_to_string(node.at("links/web_shop_app-abc.log")).unwrap(), "line");
    symlink("/elsewhere", node.at("links/other")).unwrap();
    node.host.logs().unlink(&pod, "app", "def", LIMIT).await.unwrap();
    assert!(fs::symlink_metadata(node.at("links/web_shop_app-def.log")).is_err());
    node.host.logs().remove(&pod, LIMIT).await.unwrap();
    node.host.logs().remove(&pod, LIMIT).await.unwrap();
    assert!(!node.at("logs/shop_web_u1").exists());
    let links: Vec<_> = fs::read_dir(node.at("links")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(links, ["other"]);
}

#[tokio::test]
async fn leftovers_are_found_and_removed() {
    let node = HostFixture::new();
    let pod = pod(json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]));
    node.set_up(&pod, &["m"]).await;
    node.prepare(&pod, 0, &[]).await.unwrap();
    node.host.logs().link(&pod, "app", 0, "abc", LIMIT).await.unwrap();
    node.host.cgroups().create(&pod, LIMIT).await.unwrap();
    fs::create_dir_all(node.at("logs/ns_name_u2")).unwrap();
    fs::create_dir_all(node.at("logs/nonsense")).unwrap();
    fs::create_dir_all(node.at("cgroup/test/kubepods/besteffort/podu2")).unwrap();
    node.host.dirs().create("u2", LIMIT).await.unwrap();
    let expected: BTreeSet<PodUid> = ["u1", "u2"].map(PodUid::from).into();
    assert_eq!(node.host.list_leftovers(LIMIT).await.unwrap(), expected);
    for uid in &expected {
        node.host.remove_leftovers(uid.as_str(), LIMIT).await.unwrap();
    }
    assert_eq!(node.host.list_leftovers(LIMIT).await.unwrap(), BTreeSet::new());
    assert_eq!(node.mounts(), 0);
    assert_eq!(fs::read_dir(node.at("links")).unwrap().count(), 0);
    let logs: Vec<_> = fs::read_dir(node.at("logs")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(logs, ["nonsense"]);
    assert!(!node.at("cgroup/test/kubepods/besteffort/podu2").exists());
    node.host.cgroups().create(&pod, LIMIT).await.unwrap();
    assert_eq!(node.host.list_leftovers(LIMIT).await.unwrap(), ["u1".into()].into(), "created after the removal");
    node.host.remove_leftovers("u1", LIMIT).await.unwrap();
    fs::create_dir_all(node.at("cgroup/test/kubepods/besteffort/podu1")).unwrap();
    assert_eq!(node.host.list_leftovers(LIMIT).await.unwrap(), ["u1".into()].into(), "created by the runtime");
}

#[tokio::test]
async fn logs_and_cgroups_of_the_pods_of_other_agents_are_no_leftovers() {
    let node = HostFixture::new();
    node.host.dirs().create("ours", LIMIT).await.unwrap();
    for uid in ["ours", "theirs"] {
        fs::create_dir_all(node.at("logs").join(format!("ns_name_{uid}"))).unwrap();
        fs::create_dir_all(node.at("cgroup/test/kubepods/besteffort").join(format!("pod{uid}"))).unwrap();
    }
    assert_eq!(node.host.list_leftovers(LIMIT).await.unwrap(), ["ours".into()].into());
}

/// The directory of the pod tells that the rest is its own.
#[tokio::test]
async fn leftovers_that_cannot_be_removed_are_found_again() {
    let node = HostFixture::new();
    node.host.dirs().create("u1", LIMIT).await.unwrap();
    fs::create_dir_all(node.at("logs/ns_name_u1")).unwrap();
    // Even root cannot remove an immutable directory.
    let logs = fs::File::open(node.at("logs/ns_name_u1")).unwrap();
    ioctl_setflags(&logs, IFlags::IMMUTABLE).unwrap();
    let removed = node.host.remove_leftovers("u1", LIMIT).await;
    ioctl_setflags(&logs, IFlags::empty()).unwrap();
    assert!(removed.is_err());
    assert_eq!(node.host.list_leftovers(LIMIT).await.unwrap(), ["u1".into()].into());
    node.host.remove_leftovers("u1", LIMIT).await.unwrap();
    assert!(!node.at("logs/ns_name_u1").exists() && !node.at("root/pods/u1").exists());
}
