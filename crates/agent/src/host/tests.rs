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

mod hung;
mod shown;

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
        let tree = CgroupTree::plain_v2(&cgroups, &["cpu", "memory", "pids"]).unwrap();
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
            host_ips: vec!["192.0.2.1".into()],
            cluster_domain: "cluster.local".into(),
            allocatable: Allocatable { cpu_millis: 2000, memory: 1 << 30, ephemeral_storage: 1 << 30 },
            pod_pids_limit: None,
            cpu_cfs_quota: true,
            cpu_cfs_period: Duration::from_millis(100),
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
        self.host.make_dirs(paths::uid(pod), LIMIT).await.unwrap();
        for volume in volumes {
            self.host.mount_volume(pod, volume, LIMIT).await.unwrap();
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
            "containers": [{"name": "app", "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}}}],
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
    bed.host.make_dirs("u1", LIMIT).await.unwrap();
    bed.host.make_dirs("u1", LIMIT).await.unwrap();
    for dir in ["root/pods/u1", "root/pods/u1/volumes", "root/pods/u1/plugins"] {
        assert_eq!(mode(&bed.at(dir)), 0o750, "{dir}");
    }
    bed.host.remove_dirs("u1", LIMIT).await.unwrap();
    bed.host.remove_dirs("u1", LIMIT).await.unwrap();
    assert!(bed.at("root/pods").is_dir() && !bed.at("root/pods/u1").exists());
}

#[tokio::test]
async fn a_uid_that_is_a_path_stays_inside() {
    let bed = Bed::new();
    fs::create_dir_all(bed.at("root")).unwrap();
    fs::write(bed.at("root/precious"), "x").unwrap();
    for uid in ["..", "../..", "", "/"] {
        bed.host.make_dirs(uid, LIMIT).await.unwrap();
        bed.host.remove_volumes(uid, LIMIT).await.unwrap();
        bed.host.remove_dirs(uid, LIMIT).await.unwrap();
        assert!(bed.at("root/precious").exists(), "{uid}");
    }
}

#[tokio::test]
async fn an_empty_dir_is_open_to_all_and_made_once() {
    let bed = Bed::new();
    let pod = pod(json!([{"name": "data", "emptyDir": {}}, {"name": "none"}]));
    bed.set_up(&pod, &["data", "none"]).await;
    let dir = bed.at("root/pods/u1/volumes/kubernetes.io~empty-dir/data");
    assert_eq!(volume_host_path(bed.host.paths(), &pod, "data").unwrap(), dir);
    assert_eq!(mode(&dir), 0o777);
    assert!(bed.at("root/pods/u1/plugins/kubernetes.io~empty-dir/data/ready").exists());
    fs::write(dir.join("file"), "x").unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    bed.set_up(&pod, &["data"]).await;
    assert_eq!(mode(&dir), 0o700, "what the container did to it stays");
    bed.host.remove_volumes("u1", LIMIT).await.unwrap();
    assert!(!bed.at("root/pods/u1/volumes").exists());
    bed.host.remove_dirs("u1", LIMIT).await.unwrap();
}

#[tokio::test]
async fn fs_group_owns_the_volume() {
    let bed = Bed::new();
    let pod = pod_with(json!([{"name": "data", "emptyDir": {}}]), json!({"fsGroup": 4321}));
    bed.set_up(&pod, &["data"]).await;
    let found = fs::metadata(volume_host_path(bed.host.paths(), &pod, "data").unwrap()).unwrap();
    assert_eq!((found.gid(), found.mode() & 0o7777), (4321, 0o2777));
    let pod = pod_with(json!([{"name": "bad", "emptyDir": {}}]), json!({"fsGroup": -1}));
    assert_eq!(bed.host.mount_volume(&pod, "bad", LIMIT).await.unwrap_err().reason, "FailedMount");
}

#[tokio::test]
async fn memory_is_bounded_and_goes_with_the_pod() {
    let bed = Bed::new();
    let pod = pod_with(
        json!([
            {"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": "64Ki"}},
            {"name": "pod", "emptyDir": {"medium": "Memory", "sizeLimit": "1Ti"}},
        ]),
        json!({"fsGroup": 4321}),
    );
    bed.set_up(&pod, &["small", "pod"]).await;
    bed.set_up(&pod, &["small", "pod"]).await;
    assert_eq!(bed.mounts(), 2, "set up again is not mounted again");
    let small = volume_host_path(bed.host.paths(), &pod, "small").unwrap();
    assert_eq!((mode(&small), fs::metadata(&small).unwrap().gid()), (0o2777, 4321));
    assert!(fs::write(small.join("big"), vec![0; 128 << 10]).is_err());
    let mounts = mountinfo::read().unwrap();
    let of_pod = volume_host_path(bed.host.paths(), &pod, "pod").unwrap().canonicalize().unwrap();
    let options = &mounts.iter().find(|m| m.point == of_pod).unwrap().super_options;
    assert!(options.contains("size=65536k"), "the pod's own limit: {options}");
    assert!(bed.host.remove_dirs("u1", LIMIT).await.is_err(), "not while something is mounted");
    bed.host.remove_volumes("u1", LIMIT).await.unwrap();
    assert_eq!(bed.mounts(), 0);
    bed.host.remove_dirs("u1", LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_busy_mount_is_detached_and_what_lies_behind_it_survives() {
    let bed = Bed::new();
    let pod = pod(json!([{"name": "m", "emptyDir": {"medium": "Memory"}}, {"name": "b", "emptyDir": {}}]));
    bed.set_up(&pod, &["m", "b"]).await;
    let user = fs::File::create(volume_host_path(bed.host.paths(), &pod, "m").unwrap().join("open")).unwrap();
    // A part of the machine that a container mounted into its volume and left there, twice.
    fs::create_dir(bed.at("precious")).unwrap();
    fs::write(bed.at("precious/file"), "x").unwrap();
    let inside = volume_host_path(bed.host.paths(), &pod, "b").unwrap();
    for _ in 0..2 {
        mount::bind(fs::File::open(bed.at("precious")).unwrap(), fs::File::open(&inside).unwrap()).unwrap();
    }
    bed.host.remove_volumes("u1", LIMIT).await.unwrap();
    assert_eq!(bed.mounts(), 0);
    assert!(bed.at("precious/file").exists());
    bed.host.remove_dirs("u1", LIMIT).await.unwrap();
    drop(user);
}

#[tokio::test]
async fn host_paths_are_checked_under_their_reason() {
    let bed = Bed::new();
    let path = bed.at("machine");
    let pod = pod(json!([
        {"name": "made", "hostPath": {"path": path, "type": "DirectoryOrCreate"}},
        {"name": "wrong", "hostPath": {"path": path, "type": "Socket"}},
    ]));
    bed.set_up(&pod, &["made"]).await;
    assert!(path.is_dir());
    let error = bed.host.mount_volume(&pod, "wrong", LIMIT).await.unwrap_err();
    assert_eq!(error.reason, "FailedMount");
    let expected = "hostPath type check failed";
    assert!(error.message.starts_with(expected), "{error}");
}

#[tokio::test]
async fn what_is_not_supported_is_named() {
    let bed = Bed::new();
    let pod = pod(json!([
        {"name": "s", "secret": {"secretName": "x"}},
        {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        {"name": "h", "emptyDir": {"medium": "HugePages"}},
    ]));
    for (volume, word) in [("s", "secret"), ("p", "serviceAccountToken"), ("h", "HugePages"), ("none", "no volume")] {
        let error = bed.host.mount_volume(&pod, volume, LIMIT).await.unwrap_err();
        assert_eq!(error.reason, "FailedMount");
        assert!(error.message.contains(word), "{error}");
    }
}

#[tokio::test]
async fn a_pod_reads_about_itself() {
    let bed = Bed::new();
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
    bed.set_up(&volumes("web"), &["info", "both"]).await;
    let info = volume_host_path(bed.host.paths(), &volumes("web"), "info").unwrap();
    assert!(info.ends_with("kubernetes.io~downward-api/info"));
    let read = |name: &str| fs::read_to_string(info.join(name)).unwrap();
    assert_eq!(read("labels"), "app=\"web\"");
    assert_eq!(read("name"), "web");
    assert_eq!(read("deep/memory"), "64");
    assert_eq!(mode(&info.join("..data/labels")), 0o640);
    assert_eq!(mode(&info.join("..data/deep/memory")), 0o440, "the group may read");
    assert_eq!(fs::metadata(info.join("labels")).unwrap().gid(), 4321);
    bed.set_up(&volumes("changed"), &["info"]).await;
    assert_eq!(read("labels"), "app=\"changed\"");
    let both = volume_host_path(bed.host.paths(), &volumes("web"), "both").unwrap();
    assert_eq!(fs::read_to_string(both.join("uid")).unwrap(), "u1");
    assert_eq!(fs::read_to_string(both.join("note")).unwrap(), "hello");
    assert!(is_read_only(&volumes("web"), "info") && !is_read_only(&volumes("web"), "none"));
    bed.host.remove_volumes("u1", LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_container_finds_its_files() {
    let bed = Bed::new();
    let pod = pod(json!([]));
    bed.set_up(&pod, &[]).await;
    bed.prepare(&pod, 3, &[]).await.unwrap();
    assert_eq!(mode(&bed.at("logs/shop_web_u1/app")), 0o755);
    let last_words = bed.host.paths().termination_log("u1", "app", 3);
    assert_eq!(mode(&last_words), 0o666);
    fs::write(&last_words, "from a try that failed").unwrap();
    let hosts = bed.host.paths().etc_hosts("u1");
    assert_eq!(mode(&hosts), 0o644);
    assert!(fs::read_to_string(&hosts).unwrap().ends_with("10.0.0.5\tweb\n"));
    let inode = fs::metadata(&hosts).unwrap().ino();
    fs::write(&hosts, "rubbish from a container").unwrap();
    bed.prepare(&pod, 3, &[]).await.unwrap();
    assert_eq!(fs::read_to_string(&last_words).unwrap(), "");
    assert!(fs::read_to_string(&hosts).unwrap().ends_with("10.0.0.5\tweb\n"));
    assert_eq!(fs::metadata(&hosts).unwrap().ino(), inode, "running containers have it mounted");
}

#[tokio::test]
async fn a_sub_path_is_made_and_pinned() {
    let bed = Bed::new();
    let pod = pod_with(json!([{"name": "data", "emptyDir": {}}]), json!({"fsGroup": 4321}));
    bed.set_up(&pod, &["data"]).await;
    let volume = volume_host_path(bed.host.paths(), &pod, "data").unwrap();
    fs::write(volume.join("file"), "x").unwrap();
    bed.prepare(&pod, 0, &[(0, "data", "a/b"), (2, "data", "file")]).await.unwrap();
    assert_eq!(mode(&volume.join("a/b")), 0o2777, "as the volume itself");
    assert_eq!(fs::metadata(volume.join("a/b")).unwrap().gid(), 4321);
    let pinned = bed.at("root/pods/u1/volume-subpaths/data/app/0");
    fs::write(volume.join("a/b/new"), "seen").unwrap();
    assert_eq!(fs::read_to_string(pinned.join("new")).unwrap(), "seen");
    assert_eq!(fs::read_to_string(bed.at("root/pods/u1/volume-subpaths/data/app/2")).unwrap(), "x");
    assert_eq!(bed.mounts(), 2);

    // The next attempt uses the same, unless something else is there now.
    bed.prepare(&pod, 1, &[(0, "data", "a/b")]).await.unwrap();
    assert_eq!(bed.mounts(), 2);
    fs::rename(volume.join("a/b"), volume.join("a/old")).unwrap();
    fs::write(volume.join("a/b"), "now a file").unwrap();
    bed.prepare(&pod, 2, &[(0, "data", "a/b")]).await.unwrap();
    assert_eq!(fs::read_to_string(&pinned).unwrap(), "now a file");
    assert_eq!(bed.mounts(), 2);
    bed.host.remove_volumes("u1", LIMIT).await.unwrap();
    assert_eq!(bed.mounts(), 0);
}

#[tokio::test]
async fn a_sub_path_cannot_escape() {
    let bed = Bed::new();
    let pod = pod(json!([{"name": "data", "emptyDir": {}}]));
    bed.set_up(&pod, &["data"]).await;
    let volume = volume_host_path(bed.host.paths(), &pod, "data").unwrap();
    fs::create_dir(bed.at("outside")).unwrap();
    symlink(bed.at("outside"), volume.join("absolute")).unwrap();
    symlink("../../../../../../outside", volume.join("relative")).unwrap();
    symlink("/proc/self/root", volume.join("magic")).unwrap();
    symlink("../../../../../../outside/new", volume.join("dangling")).unwrap();
    for path in ["absolute", "relative", "relative/x", "magic/etc", "dangling", "dangling/x", "../data2", "/etc"] {
        let error = bed.prepare(&pod, 0, &[(0, "data", path)]).await.unwrap_err();
        assert_eq!(error.reason, "CreateContainerConfigError", "{path}");
        assert!(error.message.contains("subPath"), "{error}");
    }
    assert_eq!(fs::read_dir(bed.at("outside")).unwrap().count(), 0);
    assert_eq!(bed.mounts(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sub_path_swapped_all_the_time_never_leads_out() {
    let bed = Bed::new();
    let pod = pod(json!([{"name": "data", "emptyDir": {}}]));
    bed.set_up(&pod, &["data"]).await;
    let volume = volume_host_path(bed.host.paths(), &pod, "data").unwrap();
    fs::create_dir(bed.at("outside")).unwrap();
    fs::create_dir(volume.join("dir")).unwrap();
    symlink(bed.at("outside"), volume.join("link")).unwrap();
    let outside = fs::metadata(bed.at("outside")).unwrap().ino();
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
        match bed.prepare(&pod, attempt, &[(0, "data", "dir")]).await {
            Ok(()) => {
                inside += 1;
                let pinned = bed.host.paths().subpath("u1", "data", "app", 0);
                assert_ne!(fs::metadata(&pinned).unwrap().ino(), outside);
            }
            Err(_) => refused += 1,
        }
    }
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    attacker.join().unwrap();
    assert!(inside > 0, "{inside} {refused}");
    bed.host.remove_volumes("u1", LIMIT).await.unwrap();
}

#[tokio::test]
async fn logs_and_their_links_go_together() {
    let bed = Bed::new();
    let pod = pod(json!([]));
    bed.set_up(&pod, &[]).await;
    bed.prepare(&pod, 0, &[]).await.unwrap();
    fs::write(bed.at("logs/shop_web_u1/app/0.log"), "line").unwrap();
    for id in ["abc", "abc", "def"] {
        bed.host.link_log(&pod, "app", 0, id, LIMIT).await.unwrap();
    }
    assert_eq!(fs::read_to_string(bed.at("links/web_shop_app-abc.log")).unwrap(), "line");
    symlink("/elsewhere", bed.at("links/other")).unwrap();
    bed.host.unlink_log(&pod, "app", "def", LIMIT).await.unwrap();
    assert!(fs::symlink_metadata(bed.at("links/web_shop_app-def.log")).is_err());
    bed.host.remove_logs(&pod, LIMIT).await.unwrap();
    bed.host.remove_logs(&pod, LIMIT).await.unwrap();
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
    bed.host.link_log(&pod, "app", 0, "abc", LIMIT).await.unwrap();
    bed.host.make_cgroup(&pod, LIMIT).await.unwrap();
    fs::create_dir_all(bed.at("logs/ns_name_only-logs")).unwrap();
    fs::create_dir_all(bed.at("logs/nonsense")).unwrap();
    fs::create_dir_all(bed.at("cgroup/test/kubepods/besteffort/podonly-cgroup")).unwrap();
    let expected: BTreeSet<PodUid> = ["u1", "only-logs", "only-cgroup"].map(PodUid::from).into();
    assert_eq!(bed.host.leftovers(LIMIT).await.unwrap(), expected);
    for uid in &expected {
        bed.host.sweep(uid.as_str(), LIMIT).await.unwrap();
    }
    assert_eq!(bed.host.leftovers(LIMIT).await.unwrap(), BTreeSet::new());
    assert_eq!(bed.mounts(), 0);
    assert_eq!(fs::read_dir(bed.at("links")).unwrap().count(), 0);
    assert!(bed.at("logs/nonsense").exists());
}

#[tokio::test]
async fn cgroups_have_the_pods_limits() {
    let bed = Bed::new();
    let pod = pod(json!([]));
    bed.host.make_cgroup(&pod, LIMIT).await.unwrap();
    let read = |path: &str| fs::read_to_string(bed.at("cgroup/test/kubepods").join(path)).unwrap();
    assert_eq!(read("burstable/podu1/cpu.max"), "50000 100000");
    assert_eq!(read("burstable/podu1/memory.max"), "67108864");
    assert_eq!(read("burstable/podu1/pids.max"), "max");
    assert_eq!(read("besteffort/cpu.weight"), "1");
    assert_eq!(read("cpu.weight"), "79");
    let with_request = |uid: &str, cpu: &str| {
        let mut pod = (*pod).clone();
        pod.metadata.uid = Some(uid.into());
        let resources = pod.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
        resources.requests = Some([("cpu".to_owned(), Quantity(cpu.into()))].into());
        Arc::new(pod)
    };
    let (one, two) = (with_request("u1", "250m"), with_request("u2", "750m"));
    for pod in [&one, &two, &two] {
        bed.host.make_cgroup(pod, LIMIT).await.unwrap();
    }
    assert_eq!(read("burstable/cpu.weight"), "39", "the class weighs what its pods ask for: one core");
    assert!(bed.host.has_cgroup(&pod, LIMIT).await.unwrap());
    bed.host.remove_cgroup("u1", LIMIT).await.unwrap();
    bed.host.remove_cgroup("u1", LIMIT).await.unwrap();
    assert_eq!(read("burstable/cpu.weight"), "30");
    assert!(!bed.host.has_cgroup(&pod, LIMIT).await.unwrap());
    assert!(bed.at("cgroup/test/kubepods/burstable").exists());
}

#[tokio::test]
async fn real_cgroups_are_killed_and_removed() {
    let name = format!("podwright-test-{}-agent", std::process::id());
    let tree = CgroupTree::detect().unwrap();
    let root = podwright_linux::cgroup::CgroupPath::root().join(&name).unwrap();
    let bed = Bed::with(tempfile::tempdir().unwrap(), Some(tree.clone()), &name);
    let pod = pod(json!([]));
    let made = bed.host.make_cgroup(&pod, LIMIT).await;
    if let Err(e) = made {
        let _ = tree.remove(&root, LIMIT);
        panic!("{e}");
    }
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let mounts = mountinfo::read().unwrap();
    let group = format!("{name}/kubepods/burstable/podu1/cgroup.procs");
    let procs: Vec<_> = mounts.iter().map(|m| m.point.join(&group)).filter(|p| p.exists()).collect();
    procs.iter().for_each(|p| fs::write(p, child.id().to_string()).unwrap());
    let reaper = std::thread::spawn(move || child.wait().unwrap());
    let found = bed.host.leftovers(LIMIT).await;
    let removed = bed.host.remove_cgroup("u1", LIMIT).await;
    tree.kill_all(&root, LIMIT).unwrap();
    tree.remove(&root, LIMIT).unwrap();
    reaper.join().unwrap();
    assert!(!procs.is_empty());
    assert_eq!(found.unwrap(), BTreeSet::from([PodUid::from("u1")]));
    removed.unwrap();
    assert!(procs.iter().all(|p| !p.exists()));
}
