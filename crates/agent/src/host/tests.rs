//! The hands at work, as root, in a directory of their own: real files, real mounts, real cgroups.

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
use serde_json::{Value, json};

use super::*;
use crate::pod_spec::{SubPath, is_read_only, pod_uid, volume_host_path};

mod cgroups;
mod hung;
mod shown;
mod sub_paths;
mod volumes;

const LIMIT: Duration = Duration::from_secs(30);

/// A machine of its own in a temporary directory. Whatever a test leaves mounted is detached at the end.
struct Bed {
    dir: tempfile::TempDir,
    host: Host,
}

impl Bed {
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

impl Drop for Bed {
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
async fn directories_come_and_go() {
    let bed = Bed::new();
    bed.host.dirs().create("u1", LIMIT).await.unwrap();
    bed.host.dirs().create("u1", LIMIT).await.unwrap();
    for dir in ["root/pods/u1", "root/pods/u1/volumes", "root/pods/u1/plugins"] {
        assert_eq!(mode(&bed.at(dir)), 0o750, "{dir}");
    }
    bed.host.dirs().remove("u1", LIMIT).await.unwrap();
    bed.host.dirs().remove("u1", LIMIT).await.unwrap();
    assert!(bed.at("root/pods").is_dir() && !bed.at("root/pods/u1").exists());
}

#[tokio::test]
async fn a_uid_that_is_a_path_stays_inside() {
    let bed = Bed::new();
    fs::create_dir_all(bed.at("root")).unwrap();
    fs::write(bed.at("root/precious"), "x").unwrap();
    for uid in ["..", "../..", "", "/"] {
        bed.host.dirs().create(uid, LIMIT).await.unwrap();
        bed.host.volumes().remove(uid, LIMIT).await.unwrap();
        bed.host.dirs().remove(uid, LIMIT).await.unwrap();
        assert!(bed.at("root/precious").exists(), "{uid}");
    }
}

#[tokio::test]
async fn a_container_finds_its_files() {
    let bed = Bed::new();
    let pod = pod(json!([]));
    bed.set_up(&pod, &[]).await;
    bed.prepare(&pod, 3, &[]).await.unwrap();
    assert_eq!(mode(&bed.at("logs/shop_web_u1/app")), 0o755);
    let termination_message = bed.host.paths().termination_log("u1", "app", 3);
    assert_eq!(mode(&termination_message), 0o666);
    fs::write(&termination_message, "from a try that failed").unwrap();
    let hosts = bed.host.paths().etc_hosts("u1");
    assert_eq!(mode(&hosts), 0o644);
    assert!(fs::read_to_string(&hosts).unwrap().ends_with("10.0.0.5\tweb\n"));
    let inode = fs::metadata(&hosts).unwrap().ino();
    fs::write(&hosts, "rubbish from a container").unwrap();
    bed.prepare(&pod, 3, &[]).await.unwrap();
    assert_eq!(fs::read_to_string(&termination_message).unwrap(), "");
    assert!(fs::read_to_string(&hosts).unwrap().ends_with("10.0.0.5\tweb\n"));
    assert_eq!(fs::metadata(&hosts).unwrap().ino(), inode, "running containers have it mounted");
}

#[tokio::test]
async fn logs_and_their_links_go_together() {
    let bed = Bed::new();
    let pod = pod(json!([]));
    bed.set_up(&pod, &[]).await;
    bed.prepare(&pod, 0, &[]).await.unwrap();
    fs::write(bed.at("logs/shop_web_u1/app/0.log"), "line").unwrap();
    for id in ["abc", "abc", "def"] {
        bed.host.logs().link(&pod, "app", 0, id, LIMIT).await.unwrap();
    }
    assert_eq!(fs::read_to_string(bed.at("links/web_shop_app-abc.log")).unwrap(), "line");
    symlink("/elsewhere", bed.at("links/other")).unwrap();
    bed.host.logs().unlink(&pod, "app", "def", LIMIT).await.unwrap();
    assert!(fs::symlink_metadata(bed.at("links/web_shop_app-def.log")).is_err());
    bed.host.logs().remove(&pod, LIMIT).await.unwrap();
    bed.host.logs().remove(&pod, LIMIT).await.unwrap();
    assert!(!bed.at("logs/shop_web_u1").exists());
    let links: Vec<_> = fs::read_dir(bed.at("links")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(links, ["other"]);
}

#[tokio::test]
async fn leftovers_are_found_and_swept() {
    let bed = Bed::new();
    let pod = pod(json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]));
    bed.set_up(&pod, &["m"]).await;
    bed.prepare(&pod, 0, &[]).await.unwrap();
    bed.host.logs().link(&pod, "app", 0, "abc", LIMIT).await.unwrap();
    bed.host.cgroups().create(&pod, LIMIT).await.unwrap();
    fs::create_dir_all(bed.at("logs/ns_name_only-logs")).unwrap();
    fs::create_dir_all(bed.at("logs/nonsense")).unwrap();
    fs::create_dir_all(bed.at("cgroup/test/kubepods/besteffort/podonly-cgroup")).unwrap();
    let expected: BTreeSet<PodUid> = ["u1", "only-logs", "only-cgroup"].map(PodUid::from).into();
    assert_eq!(bed.host.list_leftovers(LIMIT).await.unwrap(), expected);
    for uid in &expected {
        bed.host.remove_leftovers(uid.as_str(), LIMIT).await.unwrap();
    }
    assert_eq!(bed.host.list_leftovers(LIMIT).await.unwrap(), BTreeSet::new());
    assert_eq!(bed.mounts(), 0);
    assert_eq!(fs::read_dir(bed.at("links")).unwrap().count(), 0);
    assert!(bed.at("logs/nonsense").exists());
}
