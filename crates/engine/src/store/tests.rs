use super::*;
use crate::machine::{ContainerRecordState, ExitRecord, SandboxRecordState, SandboxResources};

fn sandbox() -> SandboxRecord {
    SandboxRecord {
        config: podwright_cri::v1::PodSandboxConfig { hostname: "web".into(), ..Default::default() },
        handler: String::new(),
        created_at_ns: 42,
        addresses: vec!["10.0.0.2".into()],
        namespaces: vec![RecordedNamespace { kind: 1, inode: 4_026_532_000 }],
        state: SandboxRecordState::Ready(SandboxResources { shim: true, network: true, ..SandboxResources::default() }),
    }
}

fn container(state: ContainerRecordState) -> ContainerRecord {
    ContainerRecord {
        config: podwright_cri::v1::ContainerConfig { args: vec!["x".into()], ..Default::default() },
        sandbox_id: "s1".into(),
        image_id: "sha256:1".into(),
        layers: vec!["/layers/1/fs".into()],
        created_at_ns: 43,
        started_at_ns: 0,
        stop_signal: 15,
        chain: vec![],
        image_name: "docker.io/library/web:1".into(),
        image_ref: String::new(),
        user: None,
        state,
    }
}

fn sid(id: &str) -> SandboxId {
    SandboxId(id.into())
}

fn cid(id: &str) -> ContainerId {
    ContainerId(id.into())
}

#[test]
fn records_are_read_back_as_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = EngineStore::open(dir.path()).unwrap();
    store.write_sandbox(&sid("s1"), &sandbox()).unwrap();
    let not_ready = SandboxRecord { state: SandboxRecordState::NotReady(SandboxResources::default()), ..sandbox() };
    store.write_sandbox(&sid("s1"), &not_ready).unwrap();
    let exit = ExitRecord::of_process(137, true, 99);
    let states = [
        ContainerRecordState::Created,
        ContainerRecordState::Starting,
        ContainerRecordState::Running,
        ContainerRecordState::Exited(exit),
    ];
    let containers: Vec<_> =
        states.into_iter().enumerate().map(|(n, state)| (cid(&format!("c{n}")), container(state))).collect();
    for (id, record) in &containers {
        store.write_container(id, record).unwrap();
    }
    let all = store.read_all().unwrap();
    assert_eq!(all.sandboxes, [(sid("s1"), not_ready)]);
    assert_eq!(all.containers, containers);
    assert!(all.damaged.is_empty());
    store.remove_container(&cid("c0")).unwrap();
    store.remove_container(&cid("c0")).unwrap();
    store.remove_sandbox(&sid("s1")).unwrap();
    let all = store.read_all().unwrap();
    assert_eq!((all.sandboxes.len(), all.containers.len()), (0, 3));
}

#[test]
fn a_record_that_the_disk_does_not_give_back_is_left_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = EngineStore::open(dir.path()).unwrap();
    store.write_sandbox(&SandboxId("s1".into()), &sandbox()).unwrap();
    store.write_sandbox(&SandboxId("s2".into()), &sandbox()).unwrap();
    let path = dir.path().join("engine/sandboxes/s1/record");
    // A directory can be opened and not read.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let all = store.read_all().unwrap();
    assert_eq!(all.sandboxes.iter().map(|(id, _)| id.0.as_str()).collect::<Vec<_>>(), ["s2"]);
    let [unreadable] = &all.unreadable[..] else { panic!("{:?}", all.unreadable) };
    assert_eq!((unreadable.kind, unreadable.id.as_str(), &unreadable.path), (RecordKind::Sandbox, "s1", &path));
    assert!(all.damaged.is_empty() && path.exists());
}

#[test]
fn a_record_damaged_at_any_byte_is_moved_aside_and_the_others_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = EngineStore::open(dir.path()).unwrap();
    let path = dir.path().join("engine/sandboxes/s1/record");
    store.write_sandbox(&sid("s2"), &sandbox()).unwrap();
    store.write_sandbox(&sid("s1"), &sandbox()).unwrap();
    let good = fs::read(&path).unwrap();
    let mut damaged: Vec<Vec<u8>> = (1..good.len()).map(|at| good[..at].to_vec()).collect();
    damaged.extend((1..good.len()).map(|at| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        bytes
    }));
    damaged.extend([vec![], vec![0; good.len()]]);
    for bytes in damaged {
        fs::write(&path, &bytes).unwrap();
        let all = store.read_all().unwrap();
        assert_eq!(all.sandboxes, [(sid("s2"), sandbox())], "{bytes:?}");
        assert_eq!(all.damaged, [dir.path().join("engine/damaged/sandboxes-s1")]);
        assert_eq!(fs::read(&all.damaged[0]).unwrap(), bytes, "the damaged record is kept");
        assert!(!path.exists());
    }
}

#[test]
fn a_record_of_a_newer_version_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = EngineStore::open(dir.path()).unwrap();
    store.write_sandbox(&sid("s1"), &sandbox()).unwrap();
    let path = dir.path().join("engine/sandboxes/s1/record");
    let mut bytes = fs::read(&path).unwrap();
    bytes[0] = 9;
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(store.read_all(), Err(EngineStoreError::NewerVersion { version: 9, .. })));
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn leftovers_without_a_record_and_foreign_names_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = EngineStore::open(dir.path()).unwrap();
    let containers = dir.path().join("engine/containers");
    fs::create_dir(containers.join("c1")).unwrap();
    fs::write(containers.join("c1/record.new"), b"half").unwrap();
    fs::create_dir(containers.join("not an id")).unwrap();
    fs::write(containers.join("not an id/record"), b"x").unwrap();
    let all = store.read_all().unwrap();
    assert!(all.containers.is_empty() && all.damaged.is_empty());
}

#[test]
fn one_engine_has_a_root() {
    let dir = tempfile::tempdir().unwrap();
    let first = EngineStore::open(dir.path()).unwrap();
    let pid = std::process::id().to_string();
    match EngineStore::open(dir.path()) {
        Err(EngineStoreError::Locked { pid: other, .. }) => assert_eq!(other, pid),
        other => panic!("{other:?}"),
    }
    drop(first);
    EngineStore::open(dir.path()).unwrap();
}

#[test]
fn ids_do_not_lead_out_of_their_directory() {
    let dir = tempfile::tempdir().unwrap();
    let store = EngineStore::open(dir.path()).unwrap();
    let long = "x".repeat(129);
    for id in ["", "..", "../x", "a/b", "a b", "a\0", long.as_str()] {
        assert!(matches!(store.write_sandbox(&sid(id), &sandbox()), Err(EngineStoreError::Id(_))), "{id:?}");
        assert!(matches!(store.remove_container(&cid(id)), Err(EngineStoreError::Id(_))), "{id:?}");
    }
}

#[test]
fn what_another_boot_left_in_the_run_directory_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (run, store) = (dir.path().join("run"), EngineStore::open(&dir.path().join("root")).unwrap());
    assert!(store.open_run_dir(&run, "boot-a").unwrap().rebooted, "the first start");
    fs::create_dir_all(run.join("pods/s1/c")).unwrap();
    fs::create_dir_all(run.join("netns")).unwrap();
    fs::write(run.join("pods/s1/c/pid"), b"17").unwrap();
    assert!(!store.open_run_dir(&run, "boot-a").unwrap().rebooted);
    assert!(run.join("pods/s1/c/pid").exists(), "the same boot keeps everything");
    assert!(store.open_run_dir(&run, "boot-b").unwrap().rebooted);
    let mut names: Vec<_> = fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["boot-id", "lock", "root"]);
    assert_eq!(fs::read_to_string(run.join("boot-id")).unwrap(), "boot-b");
}

#[test]
fn a_run_directory_of_another_program_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let run = &dir.path().join("run");
    let store = EngineStore::open(&dir.path().join("root")).unwrap();
    for name in ["dbus/socket", "pods/theirs", "netns/theirs"] {
        fs::create_dir_all(run.join(name).parent().unwrap()).unwrap();
        fs::write(run.join(name), b"theirs").unwrap();
    }
    drop(store.open_run_dir(run, "boot-a").unwrap());
    assert!(["dbus/socket", "pods/theirs", "netns/theirs"].iter().all(|name| run.join(name).exists()));
    drop(store.open_run_dir(run, "boot-b").unwrap());
    assert!(run.join("dbus/socket").exists(), "not a name of the engine");
}

#[test]
fn one_engine_has_a_run_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (run, store) = (dir.path().join("run"), EngineStore::open(&dir.path().join("root")).unwrap());
    let first = store.open_run_dir(&run, "boot-a").unwrap();
    assert!(matches!(store.open_run_dir(&run, "boot-a"), Err(EngineStoreError::Locked { .. })));
    drop(first);
    store.open_run_dir(&run, "boot-a").unwrap();
}

#[test]
fn a_run_directory_with_pods_of_this_boot_belongs_to_one_root() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let [a, b] = ["a", "b"].map(|name| EngineStore::open(&dir.path().join(name)).unwrap());
    let id = a.root_id().clone();
    assert_ne!(&id, b.root_id());
    drop(a);
    let a = EngineStore::open(&dir.path().join("a")).unwrap();
    assert_eq!(a.root_id(), &id, "drawn once");
    drop(a.open_run_dir(&run, "boot-a").unwrap());
    drop(b.open_run_dir(&run, "boot-a").expect("no pod is there"));
    drop(a.open_run_dir(&run, "boot-a").unwrap());
    fs::create_dir_all(run.join("pods/s1")).unwrap();
    drop(a.open_run_dir(&run, "boot-a").unwrap());
    let error = b.open_run_dir(&run, "boot-a").map(drop).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, EngineStoreError::OtherRoot { .. }), "{text}");
    assert!(
        ["run", "a/engine", "b/engine"].iter().all(|path| text.contains(dir.path().join(path).to_str().unwrap())),
        "{text}"
    );
    drop(a.open_run_dir(&run, "boot-a").expect("the refusal has changed nothing"));
    drop(b.open_run_dir(&run, "boot-b").expect("after a reboot nothing runs"));
    assert!(!run.join("pods").exists());
}

#[test]
fn pods_of_this_boot_are_found_in_the_run_directory_that_they_were_run_with() {
    let dir = tempfile::tempdir().unwrap();
    let (run, other, root) = (dir.path().join("run"), dir.path().join("other"), dir.path().join("root"));
    let store = EngineStore::open(&root).unwrap();
    drop(store.open_run_dir(&run, "boot-a").unwrap());
    assert!(!store.open_run_dir(&other, "boot-a").expect("nothing runs").rebooted, "the host has not booted since");
    drop(store.open_run_dir(&run, "boot-a").unwrap());
    let refused = |run: &Path| {
        let error = store.open_run_dir(run, "boot-a").map(drop).unwrap_err();
        assert!(matches!(error, EngineStoreError::OtherRunDir { .. }), "{error}");
        let paths = [root.join("engine"), dir.path().join("run"), run.to_owned()];
        let text = error.to_string();
        assert!(paths.iter().all(|path| text.contains(path.to_str().unwrap())), "{text}");
    };
    store.write_sandbox(&sid("s1"), &sandbox()).unwrap();
    refused(&other);
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&run, &link).unwrap();
    assert!(!store.open_run_dir(&link, "boot-a").expect("the same directory").rebooted);
    fs::remove_dir_all(&run).unwrap();
    refused(&run);
    let stopped = SandboxRecord {
        state: SandboxRecordState::NotReady(SandboxResources { network: true, ..SandboxResources::default() }),
        ..sandbox()
    };
    store.write_sandbox(&sid("s1"), &stopped).unwrap();
    store.write_container(&cid("c1"), &container(ContainerRecordState::Running)).unwrap();
    refused(&run);
    store.write_container(&cid("c1"), &container(ContainerRecordState::Created)).unwrap();
    fs::write(root.join("engine/containers/c1/record"), b"damaged").unwrap();
    refused(&run);
    assert!(store.open_run_dir(&other, "boot-b").expect("after a reboot nothing runs").rebooted);
    store.remove_container(&cid("c1")).unwrap();
    assert!(!store.open_run_dir(&run, "boot-b").expect("nothing runs").rebooted);
}

#[test]
fn an_update_does_not_bring_a_removed_record_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = EngineStore::open(dir.path()).unwrap();
    store.write_container(&cid("c1"), &container(ContainerRecordState::Created)).unwrap();
    store.update_container(&cid("c1"), &container(ContainerRecordState::Running)).unwrap();
    let all = store.read_all().unwrap();
    assert_eq!(all.containers, [(cid("c1"), container(ContainerRecordState::Running))]);
    store.remove_container(&cid("c1")).unwrap();
    store.update_container(&cid("c1"), &container(ContainerRecordState::Running)).unwrap();
    store.update_sandbox(&sid("s1"), &sandbox()).unwrap();
    assert!(!store.container_dir(&cid("c1")).unwrap().exists() && !store.sandbox_dir(&sid("s1")).unwrap().exists());
}
