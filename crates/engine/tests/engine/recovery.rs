//! Restarts of the engine, losses of shims, reboots.

use std::time::{Duration, Instant};

use podwright_cri::{RuntimeService, v1};
use podwright_linux::cgroup::{CgroupPath, CgroupResources, CgroupTree};
use rustix::process::{Pid, Signal, kill_process};

use crate::bed::{Bed, LIMIT};
use crate::lifecycle::own_namespaces;
use crate::old_kernel;

async fn state(bed: &Bed, container: &str, wanted: v1::ContainerState) {
    let until = Instant::now() + LIMIT;
    while bed.status(container).await.state() != wanted {
        assert!(Instant::now() < until, "{:?}", bed.status(container).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The process of the pod's shim: the parent of the container.
pub(crate) async fn shim_of(bed: &Bed, container: &str) -> Pid {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", bed.pid(container).await)).unwrap();
    let parent = stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    let name = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap();
    assert!(name.starts_with("shim:"), "{name}");
    Pid::from_raw(parent).unwrap()
}

pub(crate) fn end(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
    let until = Instant::now() + LIMIT;
    let gone = || match std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) {
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")),
        Err(_) => true,
    };
    while !gone() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) const TERMS: &str = "trap 'echo term; exit 9' TERM; echo ready; while true; do sleep 0.05; done";

pub(crate) async fn a_new_engine_finds_the_pods_of_the_last_one(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    let (pid, before) = (bed.pid(&id).await, bed.status(&id).await);
    bed.restart_engine().await;
    state(&bed, &id, v1::ContainerState::ContainerRunning).await;
    assert_eq!(bed.pid(&id).await, pid);
    assert_eq!(bed.status(&id).await, before);
    assert_eq!(bed.exec(&id, "echo hi").await.stdout, "hi\n");
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 9);
    assert_eq!(bed.logged(&id).await, ["ready", "term"]);
    let again = bed.start(&sandbox, "again", "exit 4").await;
    assert_eq!(bed.exit(&again).await.exit_code, 4);
    let request = v1::RunPodSandboxRequest { config: Some(bed.sandbox_config("web", true)), ..Default::default() };
    assert!(bed.engine().run_pod_sandbox(request, LIMIT).await.unwrap_err().name_is_reserved());
}

pub(crate) async fn an_exit_without_an_engine_is_reported_to_the_next_one(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let flag = bed.dir.join("flag");
    std::fs::create_dir(&flag).unwrap();
    let mut config = bed.container_config("main", "while [ ! -e /flag/go ]; do sleep 0.05; done; echo last; exit 42");
    let (host_path, container_path) = (flag.to_str().unwrap().to_owned(), "/flag".to_owned());
    config.mounts = vec![v1::Mount { host_path, container_path, ..Default::default() }];
    let id = bed.start_config(&sandbox, config).await;
    let pid = bed.pid(&id).await;
    bed.end_engine().await;
    std::fs::write(flag.join("go"), "").unwrap();
    let until = Instant::now() + LIMIT;
    while std::path::Path::new(&format!("/proc/{pid}")).exists() {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bed.start_engine().await;
    let exit = bed.exit(&id).await;
    assert_eq!((exit.exit_code, exit.reason.as_str()), (42, "Error"));
    assert_eq!(bed.logged(&id).await, ["last"]);
}

pub(crate) async fn a_killed_shim_is_replaced_and_exit_codes_are_kept(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    let (pid, shim) = (bed.pid(&id).await, shim_of(&bed, &id).await);
    end(shim);
    tokio::time::sleep(Duration::from_millis(100)).await;
    state(&bed, &id, v1::ContainerState::ContainerRunning).await;
    assert_eq!(bed.pid(&id).await, pid, "the process goes on");
    assert_eq!(bed.exec(&id, "echo hi").await.stdout, "hi\n");
    let second = bed.start(&sandbox, "second", "exit 4").await;
    assert_eq!(bed.exit(&second).await.exit_code, 4);
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 9);
    assert_eq!(bed.logged(&id).await, ["ready", "term"], "one stop signal, and the log goes on");
}

/// On a kernel before 6.15 the engine alone can read how the container of a lost shim has ended. Here it dies before its record of that
/// is on disk.
pub(crate) async fn an_exit_that_the_kernel_forgets_is_recorded_before_it_is_reaped(mut bed: Bed) {
    if !old_kernel::is_pretended() {
        drop(bed);
        return old_kernel::run_case("an_exit_that_the_kernel_forgets_is_recorded_before_it_is_reaped").await;
    }
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    end(shim_of(&bed, &id).await);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(bed.exec(&id, "echo hi").await.stdout, "hi\n", "it has a new shim");
    let record = bed.dir.join("root/engine/containers").join(&id).join("record");
    make_unreadable(&record);
    kill_process(Pid::from_raw(bed.pid(&id).await).unwrap(), Signal::TERM).unwrap();
    assert_eq!(bed.exit(&id).await.exit_code, 9);
    assert_eq!(bed.logged(&id).await, ["ready", "term"]);
    bed.end_engine().await;
    repair(&record);
    bed.start_engine().await;
    assert_eq!(bed.exit(&id).await.exit_code, 9, "the record on disk says that it runs");
}

/// A shim that hangs while its container is killed for its memory, and is then killed: the engine itself reads how it ended.
pub(crate) async fn an_oom_kill_that_no_shim_has_seen_is_reported(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let flag = bed.dir.join("flag");
    std::fs::create_dir(&flag).unwrap();
    let mut config = bed.container_config("main", "while [ ! -e /flag/go ]; do sleep 0.05; done; exec tail /dev/zero");
    let (host_path, container_path) = (flag.to_str().unwrap().to_owned(), "/flag".to_owned());
    config.mounts = vec![v1::Mount { host_path, container_path, ..Default::default() }];
    config.linux.as_mut().unwrap().resources.as_mut().unwrap().memory_limit_in_bytes = 16 << 20;
    let id = bed.start_config(&sandbox, config).await;
    let (pid, shim) = (bed.pid(&id).await, shim_of(&bed, &id).await);
    kill_process(shim, Signal::STOP).unwrap();
    std::fs::write(flag.join("go"), "").unwrap();
    let until = Instant::now() + LIMIT;
    let is_zombie = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().starts_with(" Z")
    };
    while !is_zombie() {
        assert!(Instant::now() < until, "not killed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    end(shim);
    let exit = bed.exit(&id).await;
    assert_eq!((exit.reason.as_str(), exit.exit_code), ("OOMKilled", 137), "{exit:?}");
}

pub(crate) async fn a_pod_whose_engine_and_shim_died_is_taken_over(mut bed: Bed) {
    let sandbox = bed.run_sandbox(bed.sandbox_config("web", false)).await;
    let mut config = bed.container_config("main", TERMS);
    let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.namespace_options.as_mut().unwrap().network = v1::NamespaceMode::Pod.into();
    let id = bed.start_config(&sandbox, config).await;
    bed.wait_for_log(&id, "ready").await;
    let (pid, shim) = (bed.pid(&id).await, shim_of(&bed, &id).await);
    bed.end_engine().await;
    end(shim);
    bed.start_engine().await;
    state(&bed, &id, v1::ContainerState::ContainerRunning).await;
    assert_eq!(bed.pid(&id).await, pid);
    assert_eq!(bed.exec(&id, "hostname").await.stdout, "web\n", "the namespaces are those of the pod");
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 9, "this process is the parent of the orphan");
}

pub(crate) async fn after_a_reboot_nothing_runs(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "exec sleep 1000").await;
    let done = bed.start(&sandbox, "done", "exit 6").await;
    bed.exit(&done).await;
    let shim = shim_of(&bed, &id).await;
    bed.end_engine().await;
    end(shim);
    kill_process(Pid::from_raw(bed_pid(&bed, &sandbox, &id)).unwrap(), Signal::KILL).unwrap();
    podwright_linux::mount::detach(&bed.run_dir().join("pods").join(&sandbox).join("shm")).unwrap();
    bed.pretend_reboot();
    bed.start_engine().await;
    let exit = bed.status(&id).await;
    assert_eq!((exit.state(), exit.exit_code), (v1::ContainerState::ContainerExited, 255));
    assert_eq!(exit.reason, "Unknown");
    assert_eq!(bed.status(&done).await.exit_code, 6, "what was known before stays");
    let status = bed.engine().pod_sandbox_status(&sandbox, false, LIMIT).await.unwrap().status.unwrap();
    assert_eq!(status.state(), v1::PodSandboxState::SandboxNotready);
}

fn bed_pid(bed: &Bed, sandbox: &str, container: &str) -> i32 {
    let path = bed.run_dir().join("pods").join(sandbox).join("c").join(container).join("pid");
    std::fs::read_to_string(path).unwrap().split(' ').next().unwrap().parse().unwrap()
}

pub(crate) async fn a_container_is_shown_as_running_while_its_shim_is_replaced(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    let shim = shim_of(&bed, &id).await;
    kill_process(shim, Signal::KILL).unwrap();
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        assert_eq!(bed.status(&id).await.state(), v1::ContainerState::ContainerRunning);
        tokio::task::yield_now().await;
    }
    bed.restart_engine().await;
    assert_eq!(bed.status(&id).await.state(), v1::ContainerState::ContainerRunning);
    assert_eq!(bed.exec(&id, "echo hi").await.stdout, "hi\n", "an open engine has its shims");
}

/// The zygote is stopped for a while, so that no other shim can be forked.
pub(crate) async fn an_exec_waits_while_the_shim_is_replaced(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    let shim = shim_of(&bed, &id).await;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", shim.as_raw_nonzero())).unwrap();
    let zygote = stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    let zygote = Pid::from_raw(zygote).unwrap();
    kill_process(zygote, Signal::STOP).unwrap();
    end(shim);
    let exec = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let cmd = ["echo", "hi"].map(str::to_owned).to_vec();
        let request = v1::ExecSyncRequest { container_id: id.clone(), cmd, timeout: 0 };
        bed.engine().exec_sync(request, LIMIT).await
    };
    let resume = async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        kill_process(zygote, Signal::CONT).unwrap();
    };
    let (response, ()) = tokio::join!(exec, resume);
    assert_eq!(response.unwrap().stdout, "hi\n");
}

pub(crate) async fn a_container_whose_files_can_not_be_read_is_not_gone(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    let (pid, shim) = (bed.pid(&id).await, shim_of(&bed, &id).await);
    bed.end_engine().await;
    end(shim);
    // A symbolic link is refused with ELOOP.
    let file = bed.run_dir().join("pods").join(&sandbox).join("c").join(&id).join("pid");
    let aside = file.with_file_name("aside");
    std::fs::rename(&file, &aside).unwrap();
    std::os::unix::fs::symlink("aside", &file).unwrap();
    let repair = async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(std::path::Path::new(&format!("/proc/{pid}/ns/net")).exists(), "it was killed");
        std::fs::rename(&aside, &file).unwrap();
    };
    tokio::join!(bed.start_engine(), repair);
    state(&bed, &id, v1::ContainerState::ContainerRunning).await;
    assert_eq!(bed.pid(&id).await, pid);
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 9);
}

/// A directory in its place is opened and can not be read: an error of the disk is the same to the engine.
fn make_unreadable(record: &std::path::Path) {
    std::fs::rename(record, record.with_extension("aside")).unwrap();
    std::fs::create_dir(record).unwrap();
}

fn repair(record: &std::path::Path) {
    std::fs::remove_dir(record).unwrap();
    std::fs::rename(record.with_extension("aside"), record).unwrap();
}

/// Everything that an engine sweeps is old, and the sweep at its start has happened when a leftover is gone.
async fn restart_and_sweep(bed: &mut Bed) {
    bed.end_engine().await;
    let leftover = bed.dir.join("root/engine/containers").join("f".repeat(64));
    std::fs::create_dir_all(&leftover).unwrap();
    for dir in ["root/engine/sandboxes", "root/engine/containers", "run/pods"] {
        let old = std::time::SystemTime::now() - Duration::from_secs(600);
        for entry in std::fs::read_dir(bed.dir.join(dir)).unwrap() {
            std::fs::File::open(entry.unwrap().path()).unwrap().set_modified(old).unwrap();
        }
    }
    bed.start_engine().await;
    let until = Instant::now() + LIMIT;
    while leftover.exists() {
        assert!(Instant::now() < until, "no sweep");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn unreadable_condition(bed: &Bed) -> v1::RuntimeCondition {
    condition(bed, "RecordsReadable").await
}

async fn condition(bed: &Bed, kind: &str) -> v1::RuntimeCondition {
    let status = bed.engine().status(false, LIMIT).await.unwrap().status.unwrap();
    status.conditions.into_iter().find(|condition| condition.r#type == kind).unwrap()
}

pub(crate) async fn a_record_that_can_not_be_written_shows_in_the_status_until_it_is(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    let record = bed.dir.join("root/engine/containers").join(&id).join("record");
    // No file can be renamed to the name of a directory.
    make_unreadable(&record);
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 9, "it counts in memory");
    let shown = condition(&bed, "RecordsWritten").await;
    assert!(!shown.status && shown.message.contains(&id), "{shown:?}");
    std::fs::remove_dir(&record).unwrap();
    let until = Instant::now() + LIMIT;
    while !condition(&bed, "RecordsWritten").await.status {
        assert!(Instant::now() < until, "not written again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bed.restart_engine().await;
    assert_eq!(bed.status(&id).await.exit_code, 9);
    // One that is removed needs no record.
    let other = bed.start(&sandbox, "other", TERMS).await;
    bed.wait_for_log(&other, "ready").await;
    let record = bed.dir.join("root/engine/containers").join(&other).join("record");
    make_unreadable(&record);
    bed.engine().stop_container(&other, 30, LIMIT).await.unwrap();
    assert!(!condition(&bed, "RecordsWritten").await.status);
    std::fs::remove_dir(&record).unwrap();
    bed.engine().remove_container(&other, LIMIT).await.unwrap();
    while !condition(&bed, "RecordsWritten").await.status {
        assert!(Instant::now() < until, "still shown");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The next engine would take it for one that was never started.
pub(crate) async fn a_container_whose_start_can_not_be_recorded_is_not_launched(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.create(&sandbox, bed.container_config("main", "exec sleep 1000")).await.unwrap();
    let record = bed.dir.join("root/engine/containers").join(&id).join("record");
    make_unreadable(&record);
    let error = bed.engine().start_container(&id, LIMIT).await.unwrap_err();
    assert!(error.message.contains("the start is not recorded"), "{error}");
    assert_eq!(bed.status(&id).await.reason, "StartError");
    assert!(!bed.run_dir().join("pods").join(&sandbox).join("c").join(&id).join("pid").exists(), "it was launched");
    bed.end_engine().await;
    repair(&record);
    bed.start_engine().await;
    assert_eq!(bed.status(&id).await.state(), v1::ContainerState::ContainerCreated);
    bed.engine().start_container(&id, LIMIT).await.unwrap();
    assert_eq!(bed.exec(&id, "echo hi").await.stdout, "hi\n");
}

/// Removes every image and what garbage collection may remove with it.
async fn remove_images(bed: &Bed) {
    let engine = bed.opened().clone();
    let remove = move || {
        for image in engine.images().images() {
            engine.images().remove_image(image.id).unwrap();
        }
        let containers = engine.containers_on_disk();
        engine.images().collect_garbage(|| containers.gc_roots()).unwrap();
    };
    tokio::task::spawn_blocking(remove).await.unwrap();
}

pub(crate) async fn a_sandbox_whose_record_can_not_be_read_is_left_alone(mut bed: Bed) {
    let other = bed.pod("other").await;
    let sandbox = bed.run_sandbox(bed.sandbox_config("web", false)).await;
    let mut config = bed.container_config("main", TERMS);
    config.labels.insert("io.kubernetes.pod.uid".into(), "uid-web".into());
    let id = bed.start_config(&sandbox, config).await;
    bed.wait_for_log(&id, "ready").await;
    let pid = bed.pid(&id).await;
    let before = address_of(&bed, &sandbox).await;
    let record = bed.dir.join("root/engine/sandboxes").join(&sandbox).join("record");
    make_unreadable(&record);
    restart_and_sweep(&mut bed).await;
    let shown: Vec<String> =
        bed.engine().list_pod_sandbox(None, LIMIT).await.unwrap().into_iter().map(|pod| pod.id).collect();
    assert_eq!(shown, [other]);
    let condition = unreadable_condition(&bed).await;
    assert!(!condition.status && condition.message.contains(&sandbox), "{condition:?}");
    assert!(std::path::Path::new(&format!("/proc/{pid}/ns/net")).exists(), "it was killed");
    // Nothing runs twice, and no one gets its address.
    let again = v1::RunPodSandboxRequest { config: Some(bed.sandbox_config("web", false)), ..Default::default() };
    let error = bed.engine().run_pod_sandbox(again, LIMIT).await.unwrap_err();
    assert!(error.message.contains(&sandbox), "{error}");
    let next = bed.run_sandbox(bed.sandbox_config("next", false)).await;
    assert_ne!(address_of(&bed, &next).await, before);
    remove_images(&bed).await;
    repair(&record);
    restart_and_sweep(&mut bed).await;
    assert!(unreadable_condition(&bed).await.status);
    assert_eq!((bed.pid(&id).await, address_of(&bed, &sandbox).await), (pid, before));
    assert_eq!(bed.exec(&id, "ls /bin/sh").await.exit_code, 0, "its layers are there");
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 9);
}

async fn address_of(bed: &Bed, sandbox: &str) -> String {
    let status = bed.engine().pod_sandbox_status(sandbox, false, LIMIT).await.unwrap().status.unwrap();
    status.network.unwrap().ip
}

pub(crate) async fn a_container_whose_record_can_not_be_read_is_left_alone(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let other = bed.start(&sandbox, "other", "exec sleep 1000").await;
    let id = bed.start(&sandbox, "main", TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    let pid = bed.pid(&id).await;
    let record = bed.dir.join("root/engine/containers").join(&id).join("record");
    make_unreadable(&record);
    restart_and_sweep(&mut bed).await;
    let shown: Vec<String> =
        bed.engine().list_containers(None, LIMIT).await.unwrap().into_iter().map(|container| container.id).collect();
    assert_eq!(shown, [other]);
    assert!(unreadable_condition(&bed).await.message.contains(&id));
    assert!(std::path::Path::new(&format!("/proc/{pid}/ns/net")).exists(), "it was killed");
    let error = bed.create(&sandbox, bed.container_config("main", "true")).await.unwrap_err();
    assert!(error.message.contains(&id), "{error}");
    remove_images(&bed).await;
    repair(&record);
    restart_and_sweep(&mut bed).await;
    assert_eq!(bed.pid(&id).await, pid);
    assert_eq!(bed.exec(&id, "ls /bin/sh").await.exit_code, 0, "its layers are there");
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 9);
}

pub(crate) async fn a_stopped_pod_has_no_address_in_its_record(bed: Bed) {
    let sandbox = bed.run_sandbox(bed.sandbox_config("web", false)).await;
    let record = || {
        let dir = bed.dir.join("root/engine/sandboxes").join(&sandbox);
        let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let records = files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("record"));
        records.map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()).collect::<String>()
    };
    assert!(record().contains("10.99.0."), "{}", record());
    bed.engine().stop_pod_sandbox(&sandbox, LIMIT).await.unwrap();
    assert!(!record().contains("10.99.0."), "a later engine would connect it again: {}", record());
}

pub(crate) async fn an_address_that_a_stopped_pod_left_is_free_after_a_restart(mut bed: Bed) {
    let sandbox = bed.run_sandbox(bed.sandbox_config("web", false)).await;
    let leases = bed.dir.join("root/engine/network/leases");
    let lease = || {
        let files = std::fs::read_dir(&leases).unwrap().map(|entry| entry.unwrap().path());
        files.into_iter().find(|path| std::fs::read_to_string(path).unwrap_or_default().starts_with(&sandbox))
    };
    let path = lease().expect("it has an address");
    let text = std::fs::read(&path).unwrap();
    let freed = async || {
        let until = Instant::now() + LIMIT;
        while lease().is_some() {
            assert!(Instant::now() < until, "the address of a stopped pod is not free");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    bed.engine().stop_pod_sandbox(&sandbox, LIMIT).await.unwrap();
    bed.end_engine().await;
    freed().await;
    // As an engine leaves it that dies after the stop: the address is free only when the kernel has deleted the link.
    std::fs::write(&path, text).unwrap();
    bed.start_engine().await;
    freed().await;
}

pub(crate) async fn a_pod_without_a_record_is_ended_before_its_files_are_removed(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "exec sleep 1000").await;
    let pid = bed.pid(&id).await;
    bed.end_engine().await;
    let engine = bed.dir.join("root/engine");
    std::fs::remove_dir_all(engine.join("sandboxes").join(&sandbox)).unwrap();
    let old = std::time::SystemTime::now() - Duration::from_secs(600);
    let container = engine.join("containers").join(&id);
    let run = bed.run_dir().join("pods").join(&sandbox);
    for dir in [&container, &run] {
        std::fs::File::open(dir).unwrap().set_modified(old).unwrap();
    }
    bed.start_engine().await;
    let until = Instant::now() + LIMIT;
    while container.exists() || run.exists() {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!std::path::Path::new(&format!("/proc/{pid}/ns/net")).exists(), "it runs without its files");
}

/// An engine that was ended between the record of an exit and the kill of what the container left behind.
pub(crate) async fn what_an_ended_container_left_behind_is_killed_by_the_next_engine(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "exit 0").await;
    bed.exit(&id).await;
    bed.end_engine().await;
    let (tree, path) = (CgroupTree::detect().unwrap(), format!("{}/web/{id}", bed.cgroup_parent));
    let path = CgroupPath::parse(&path).unwrap();
    tree.create(&path, &CgroupResources::default()).unwrap();
    let mut left = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    for (_, dir) in tree.directories(&path) {
        std::fs::write(dir.join("cgroup.procs"), left.id().to_string()).unwrap();
    }
    bed.start_engine().await;
    let until = Instant::now() + LIMIT;
    while left.try_wait().unwrap().is_none() || tree.exists_in_one(&path) {
        assert!(Instant::now() < until, "it runs on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(bed.status(&id).await.exit_code, 0);
}

/// As an agent that starts before its disk is mounted.
pub(crate) async fn an_engine_with_another_root_is_refused_while_pods_run(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    let (pid, shim) = (bed.pid(&id).await, shim_of(&bed, &id).await);
    bed.end_engine().await;
    let error = bed.refusal_of(bed.dir.join("other"), bed.run_dir()).await;
    assert!(error.contains(bed.dir.join("root").to_str().unwrap()), "{error}");
    assert!(error.contains(bed.dir.join("other").to_str().unwrap()), "{error}");
    bed.start_engine().await;
    assert_eq!((bed.pid(&id).await, shim_of(&bed, &id).await), (pid, shim));
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 9);
}

/// As an agent with another `--run-dir`, and one whose run directory was deleted while it was stopped.
pub(crate) async fn an_engine_with_another_run_directory_is_refused_while_pods_run(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    let (pid, shim) = (bed.pid(&id).await, shim_of(&bed, &id).await);
    bed.end_engine().await;
    let (root, run, other) = (bed.dir.join("root"), bed.run_dir(), bed.dir.join("other"));
    let error = bed.refusal_of(root.clone(), other.clone()).await;
    assert!(error.contains(run.to_str().unwrap()) && error.contains(other.to_str().unwrap()), "{error}");
    std::fs::rename(&run, other.join("kept")).unwrap();
    let error = bed.refusal_of(root, run.clone()).await;
    assert!(error.contains(run.to_str().unwrap()), "{error}");
    std::fs::remove_dir_all(&run).unwrap();
    std::fs::rename(other.join("kept"), &run).unwrap();
    bed.start_engine().await;
    assert_eq!((bed.pid(&id).await, shim_of(&bed, &id).await), (pid, shim));
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 9);
}

/// The sweep finds neither a record nor the specification with the cgroup.
pub(crate) async fn a_pod_that_runs_in_an_unknown_cgroup_is_left_alone(mut bed: Bed) {
    let sandbox = bed.run_sandbox(bed.sandbox_config("web", false)).await;
    let mut config = bed.container_config("main", "exec sleep 1000");
    own_namespaces(&mut config);
    let id = bed.start_config(&sandbox, config).await;
    let (pid, shim) = (bed.pid(&id).await, shim_of(&bed, &id).await);
    let engine = bed.dir.join("root/engine");
    let [from, to] = [engine.clone(), bed.dir.join("lost")];
    let (of_sandbox, of_container) = (format!("sandboxes/{sandbox}"), format!("containers/{id}"));
    let moved =
        [format!("{of_sandbox}/record"), format!("{of_container}/record"), format!("{of_container}/config.json")];
    bed.end_engine().await;
    for dir in [&of_sandbox, &of_container] {
        std::fs::create_dir_all(to.join(dir)).unwrap();
    }
    moved.iter().for_each(|name| std::fs::rename(from.join(name), to.join(name)).unwrap());
    bed.start_engine().await;
    restart_and_sweep(&mut bed).await;
    let alive = |pid: i32| std::path::Path::new(&format!("/proc/{pid}/ns/net")).exists();
    assert!(alive(pid) && alive(shim.as_raw_nonzero().get()));
    assert!(has_network(pid) && engine.join(&of_sandbox).is_dir() && engine.join(of_container).join("upper").is_dir());
    assert!(bed.run_dir().join("pods").join(&sandbox).join("c").join(&id).join("pid").exists());
    bed.end_engine().await;
    moved.iter().for_each(|name| std::fs::rename(to.join(name), from.join(name)).unwrap());
    bed.start_engine().await;
    assert_eq!((bed.pid(&id).await, shim_of(&bed, &id).await), (pid, shim));
}

fn has_network(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/net/dev")).is_ok_and(|links| links.contains("eth0:"))
}

/// Both records are lost, in different ways: the container runs on as long as its own may come back.
pub(crate) async fn a_pod_with_an_unreadable_container_is_not_swept(mut bed: Bed) {
    let sandbox = bed.run_sandbox(bed.sandbox_config("web", false)).await;
    let mut config = bed.container_config("main", "exec sleep 1000");
    own_namespaces(&mut config);
    let id = bed.start_config(&sandbox, config).await;
    let (pid, shim) = (bed.pid(&id).await, shim_of(&bed, &id).await);
    let engine = bed.dir.join("root/engine");
    let records = [engine.join("sandboxes").join(&sandbox), engine.join("containers").join(&id)];
    let [of_sandbox, of_container] = records.map(|dir| dir.join("record"));
    let kept = std::fs::read(&of_sandbox).unwrap();
    bed.end_engine().await;
    std::fs::write(&of_sandbox, b"").unwrap();
    make_unreadable(&of_container);
    bed.start_engine().await;
    restart_and_sweep(&mut bed).await;
    let alive = |pid: i32| std::path::Path::new(&format!("/proc/{pid}/ns/net")).exists();
    assert!(alive(pid) && alive(shim.as_raw_nonzero().get()) && has_network(pid));
    bed.end_engine().await;
    std::fs::create_dir_all(of_sandbox.parent().unwrap()).unwrap();
    std::fs::write(&of_sandbox, kept).unwrap();
    repair(&of_container);
    bed.start_engine().await;
    assert_eq!((bed.pid(&id).await, shim_of(&bed, &id).await), (pid, shim));
}

/// A loss of power leaves a file of the right length without its content.
pub(crate) async fn after_a_reboot_a_container_with_a_damaged_specification_is_removed(mut bed: Bed) {
    bed.end_engine().await;
    let container = bed.dir.join("root/engine/containers").join("a".repeat(64));
    std::fs::create_dir_all(container.join("upper")).unwrap();
    std::fs::write(container.join("config.json"), [0; 100]).unwrap();
    std::fs::File::open(&container)
        .unwrap()
        .set_modified(std::time::SystemTime::now() - Duration::from_secs(600))
        .unwrap();
    bed.pretend_reboot();
    bed.start_engine().await;
    let until = Instant::now() + LIMIT;
    while container.exists() {
        assert!(Instant::now() < until, "it is left");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
