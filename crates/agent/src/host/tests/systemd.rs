//! The systemd cgroup driver on a real systemd and a real bus: systemd is pid 1 of a pid, mount and cgroup namespace of its own
//! and knows no other service than the bus.

use std::io::Write;
use std::process::{Child, Command};

use podwright_linux::cgroup::{CgroupPath, CgroupVersion};
use zbus::message::Message;
use zbus::{OwnedObjectPath, Variant};

use super::*;
use crate::host::systemd::SystemdManager;

const SYSTEMD: [&str; 2] = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"];
const BUS: &str = "/usr/bin/dbus-daemon";
const BUS_CONFIG: &str = r#"<busconfig>
  <type>system</type>
  <listen>unix:path=/run/dbus/system_bus_socket</listen>
  <policy context="default">
    <allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>
  </policy>
</busconfig>
"#;
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const POD: &str = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu1_a.slice";

/// A systemd below a cgroup of the test's own. It ends with the test.
struct OwnSystemd {
    process: Child,
    dir: tempfile::TempDir,
    outer: CgroupTree,
    root: CgroupPath,
}

impl OwnSystemd {
    /// `None`: there is no systemd here, which is noted.
    fn start(name: &str) -> Option<Self> {
        let program = SYSTEMD.into_iter().find(|path| Path::new(path).exists() && Path::new(BUS).exists());
        let Some(program) = program else {
            if let Some(list) = std::env::var_os("PODWRIGHT_SKIPPED") {
                let mut list = fs::OpenOptions::new().append(true).create(true).open(list).unwrap();
                writeln!(list, "{name}: systemd and dbus are not installed (apt-get install systemd dbus)").unwrap();
            }
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("units")).unwrap();
        let bus = format!(
            "[Service]\nExecStart={BUS} --config-file={}/bus.conf --address=systemd: --nofork\n",
            dir.path().display()
        );
        for (unit, text) in [
            ("test.target", "Requires=dbus.socket dbus.service\n"),
            ("shutdown.target", ""),
            ("dbus.socket", "[Socket]\nListenStream=/run/dbus/system_bus_socket\n"),
            ("dbus.service", &bus),
        ] {
            let text = format!("[Unit]\nDefaultDependencies=no\n{text}");
            fs::write(dir.path().join("units").join(unit), text).unwrap();
        }
        fs::create_dir_all(dir.path().join("bus")).unwrap();
        fs::write(dir.path().join("bus.conf"), BUS_CONFIG).unwrap();
        fs::write(dir.path().join("start"), START).unwrap();
        let outer = CgroupTree::detect().unwrap();
        let root = CgroupPath::root().join(&format!("podwright-test-{}-{name}", std::process::id())).unwrap();
        outer.create(&root, &Default::default()).unwrap();
        let mut start = Command::new("sh");
        start.arg(dir.path().join("start")).arg(dir.path()).arg(root.to_string()).arg(program);
        let log = fs::File::create(dir.path().join("log")).unwrap();
        start.stdout(log.try_clone().unwrap()).stderr(log);
        let process = start.spawn().unwrap();
        Some(Self { process, dir, outer, root })
    }

    async fn connect(&self) -> Arc<SystemdManager> {
        let socket = self.dir.path().join("bus/system_bus_socket");
        let deadline = Instant::now() + LIMIT;
        loop {
            match SystemdManager::connect_to(&socket, LIMIT).await {
                Ok(manager) => return Arc::new(manager),
                Err(e) if Instant::now() > deadline => {
                    let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                    panic!("systemd did not start: {}: {log}", podwright_tasks::error_chain(&e))
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn tree(&self) -> CgroupTree {
        self.outer.namespace(&self.root)
    }

    fn node(&self, systemd: &Arc<SystemdManager>) -> HostFixture {
        let mut node = HostFixture::with(tempfile::tempdir().unwrap(), Some(self.tree()), "/");
        node.host = node.host.clone().with_systemd(systemd.clone());
        node
    }

    /// The content of a file of a cgroup: the first that exists of the v2 and the v1 name.
    fn read(&self, cgroup: &str, v2: &str, v1: &str) -> String {
        let file = if self.outer.version() == CgroupVersion::V2 { v2 } else { v1 };
        let mounts = mountinfo::read().unwrap();
        let root = self.root.to_string();
        let paths = mounts.iter().map(|m| m.point.join(root.trim_start_matches('/')).join(cgroup).join(file));
        fs::read_to_string(paths.into_iter().find(|path| path.exists()).expect("the file exists"))
            .unwrap()
            .trim()
            .into()
    }
}

impl Drop for OwnSystemd {
    fn drop(&mut self) {
        // The kernel kills the whole pid namespace with it.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = self.outer.kill_all(&self.root, LIMIT);
        if let Err(e) = self.outer.remove(&self.root, LIMIT) {
            eprintln!("{e}");
        }
    }
}

/// Enters the test's cgroup in every hierarchy, then new namespaces, mounts their cgroups and becomes systemd.
const START: &str = r#"
set -e
dir=$1 root=$2 systemd=$3
if [ -z "$4" ]; then
  for procs in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do
    [ -e "$procs" ] || continue
    hierarchy=$(dirname "$procs")
    [ "$hierarchy" = /sys/fs/cgroup ] || [ -e "$hierarchy/cgroup.procs" ] || continue
    case $(stat -f -c %T "$hierarchy") in cgroup*) ;; *) continue ;; esac
    [ "$(stat -c %d "$hierarchy")" != "$(stat -c %d "$(dirname "$hierarchy")")" ] || continue
    mkdir -p "$hierarchy$root"
    echo $$ > "$hierarchy$root/cgroup.procs"
  done
  exec unshare --pid --mount --cgroup --ipc --uts --fork --kill-child sh "$dir/start" "$dir" "$root" "$systemd" inside
fi
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /run/dbus
mount --bind "$dir/bus" /run/dbus
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
  hierarchies=$(cut -d: -f2 /proc/self/cgroup)
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  for hierarchy in $hierarchies; do
    point=/sys/fs/cgroup/${hierarchy#name=}
    mkdir -p "$point"
    case $hierarchy in
      name=*) mount -t cgroup -o "none,$hierarchy" cgroup "$point" ;;
      *) mount -t cgroup -o "$hierarchy" cgroup "$point" ;;
    esac
  done
  mkdir /sys/fs/cgroup/unified
  mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
fi
# The first two are where systemd keeps properties and units that were set at run time.
export container=podwright SYSTEMD_UNIT_PATH="/run/systemd/system.control:/run/systemd/transient:$dir/units"
exec "$systemd" --system --unit=test.target --log-target=console --show-status=0
"#;

async fn call<B: serde::Serialize + zbus::DynamicType + Sync>(
    systemd: &SystemdManager,
    (path, interface, method): (&str, &str, &str),
    body: &B,
) -> zbus::Result<Message> {
    let bus = systemd.bus().await.unwrap();
    bus.call_method(Some("org.freedesktop.systemd1"), path, Some(interface), method, body).await
}

async fn unit(systemd: &SystemdManager, name: &str) -> zbus::Result<OwnedObjectPath> {
    call(systemd, ("/org/freedesktop/systemd1", MANAGER, "GetUnit"), &(name,)).await?.body().deserialize()
}

/// A property of a slice as systemd knows it.
async fn property(systemd: &SystemdManager, slice: &str, name: &str) -> u64 {
    let path = unit(systemd, slice).await.unwrap();
    let get = ("org.freedesktop.systemd1.Slice", name);
    let reply = call(systemd, (path.as_str(), "org.freedesktop.DBus.Properties", "Get"), &get).await.unwrap();
    match reply.body().deserialize().unwrap() {
        Variant::U64(number) => number,
        other => panic!("{name}: {other:?}"),
    }
}

fn pod_with_uid(uid: &str) -> Arc<Pod> {
    let mut pod = (*pod(json!([]))).clone();
    pod.metadata.uid = Some(uid.into());
    Arc::new(pod)
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_have_the_limits_of_their_pods_and_keep_them_when_systemd_reloads() {
    let Some(own) = OwnSystemd::start("slices") else { return };
    let systemd = own.connect().await;
    let node = own.node(&systemd);
    node.host.cgroups().enforce_node_allocatable(LIMIT).await.unwrap();
    let pod = pod_with_uid("u1-a");
    assert!(node.host.cgroups().create(&pod, LIMIT).await.unwrap(), "it was missing");
    assert!(!node.host.cgroups().create(&pod, LIMIT).await.unwrap(), "it existed");
    let v1 = own.outer.version() == CgroupVersion::V1;
    let memory = if v1 { "MemoryLimit" } else { "MemoryMax" };
    let name = POD.rsplit('/').next().unwrap();
    let check = |when: &'static str| {
        let (own, systemd) = (&own, &systemd);
        async move {
            assert_eq!(own.read(POD, "memory.max", "memory.limit_in_bytes"), "67108864", "{when}");
            let quota = if v1 { "50000" } else { "50000 100000" };
            assert_eq!(own.read(POD, "cpu.max", "cpu.cfs_quota_us"), quota, "{when}");
            assert_eq!(own.read("kubepods.slice", "pids.max", "pids.max"), "4000", "{when}");
            assert_eq!(own.read("kubepods.slice", "memory.max", "memory.limit_in_bytes"), "3221225472", "{when}");
            assert_eq!(property(systemd, name, memory).await, 67_108_864, "{when}");
            assert_eq!(property(systemd, name, "CPUQuotaPerSecUSec").await, 500_000, "{when}");
            assert_eq!(property(systemd, "kubepods.slice", "TasksMax").await, 4000, "{when}");
        }
    };
    check("created").await;
    call(&systemd, ("/org/freedesktop/systemd1", MANAGER, "Reload"), &()).await.unwrap();
    check("after a reload").await;
    assert_eq!(node.host.list_leftovers(LIMIT).await.unwrap(), BTreeSet::from([PodUid::from("u1-a")]));
    let change = CgroupChange { cpu_quota_us: Some(70_000), memory: Some(128 << 20), ..CgroupChange::default() };
    node.host.cgroups().resize(&pod, &change, LIMIT).await.unwrap();
    assert_eq!(own.read(POD, "memory.max", "memory.limit_in_bytes"), "134217728", "resized");
    assert_eq!(property(&systemd, name, memory).await, 134_217_728, "resized");
    assert_eq!(property(&systemd, name, "CPUQuotaPerSecUSec").await, 700_000, "resized");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_pod_leaves_no_process_slice_or_directory() {
    let Some(own) = OwnSystemd::start("removed") else { return };
    let systemd = own.connect().await;
    let node = own.node(&systemd);
    node.host.cgroups().create(&pod_with_uid("u1-a"), LIMIT).await.unwrap();
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let root = own.root.to_string();
    let mounts = mountinfo::read().unwrap();
    let at = |m: &mountinfo::Mount| m.point.join(root.trim_start_matches('/')).join(POD).join("cgroup.procs");
    let procs: Vec<_> = mounts.iter().map(at).filter(|p| p.exists()).collect();
    assert!(!procs.is_empty());
    procs.iter().for_each(|p| fs::write(p, child.id().to_string()).unwrap());
    let reaper = std::thread::spawn(move || child.wait().unwrap());
    node.host.cgroups().remove("u1-a", LIMIT).await.unwrap();
    reaper.join().unwrap();
    assert!(procs.iter().all(|p| !p.exists()));
    assert!(unit(&systemd, POD.rsplit('/').next().unwrap()).await.is_err(), "systemd has forgotten the slice");
    assert!(unit(&systemd, "kubepods-burstable.slice").await.is_ok());
    node.host.cgroups().remove("u1-a", LIMIT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_bus_does_not_stop_pods_from_starting() {
    let Some(own) = OwnSystemd::start("lost") else { return };
    let systemd = own.connect().await;
    let node = own.node(&systemd);
    node.host.cgroups().create(&pod_with_uid("u1-a"), LIMIT).await.unwrap();
    let before = systemd.bus().await.unwrap();
    call(&systemd, ("/org/freedesktop/systemd1", MANAGER, "RestartUnit"), &("dbus.service", "replace")).await.unwrap();
    let closed = async {
        while !before.is_closed() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, closed).await.expect("the bus closes its connections");
    // systemd takes its name on the new bus in a moment; core repeats the call.
    let created = async {
        loop {
            match node.host.cgroups().create(&pod_with_uid("u2"), LIMIT).await {
                Ok(created) => break created,
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    assert!(tokio::time::timeout(LIMIT, created).await.expect("it is created by the new connection"));
    node.host.cgroups().remove("u1-a", LIMIT).await.unwrap();
    assert_eq!(node.host.list_leftovers(LIMIT).await.unwrap(), BTreeSet::from([PodUid::from("u2")]));
}
