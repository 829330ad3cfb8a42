//! What callers of the CRI rely on.

use std::fs;
use std::time::{Duration, Instant};

use futures::StreamExt;
use podwright_cri::{Code, RuntimeService, v1};
use podwright_linux::cgroup::{CgroupPath, CgroupTree};

use crate::bed::{Bed, LIMIT};

pub(crate) async fn exec_sync_returns_output_and_code(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "exec sleep 1000").await;
    let response = bed.exec(&id, "echo out; echo err >&2; exit 5").await;
    assert_eq!((&response.stdout[..], &response.stderr[..], response.exit_code), (&b"out\n"[..], &b"err\n"[..], 5));
    // A process that stays behind with the streams delays nothing for long.
    let begun = Instant::now();
    assert_eq!(bed.exec(&id, "sleep 500 & echo done").await.stdout, "done\n");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let cmd = vec!["/no/such/program".to_owned()];
    let request = v1::ExecSyncRequest { container_id: id.clone(), cmd, timeout: 0 };
    let error = bed.engine().exec_sync(request, LIMIT).await.unwrap_err();
    assert!(error.message.contains("/no/such/program"), "{error}");
    bed.engine().stop_container(&id, 0, LIMIT).await.unwrap();
    let request = v1::ExecSyncRequest { container_id: id, cmd: vec!["true".into()], timeout: 0 };
    assert!(bed.engine().exec_sync(request, LIMIT).await.unwrap_err().message.contains("not running"));
}

pub(crate) async fn an_exec_that_takes_too_long_is_killed(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "exec sleep 1000").await;
    let cmd = ["/bin/sh", "-c", "sleep 777"].map(str::to_owned).to_vec();
    let request = v1::ExecSyncRequest { container_id: id.clone(), cmd, timeout: 1 };
    let error = bed.engine().exec_sync(request, LIMIT).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded, "{error}");
    let processes = bed.exec(&id, "ps").await.stdout;
    assert!(!String::from_utf8_lossy(&processes).contains("sleep 777"), "{processes:?}");
}

pub(crate) async fn the_output_of_an_exec_is_cut(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "exec sleep 1000").await;
    let response = bed.exec(&id, "dd if=/dev/zero bs=1M count=17 2>/dev/null; exit 4").await;
    assert_eq!((response.stdout.len(), response.exit_code), (16 << 20, 4));
}

pub(crate) async fn the_outputs_of_many_execs_are_cut_together(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "exec sleep 1000").await;
    let script = "dd if=/dev/zero bs=1M count=17 2>/dev/null; dd if=/dev/zero bs=1M count=17 >&2 2>/dev/null; exit 4";
    let responses = futures::future::join_all((0..4).map(|_| bed.exec(&id, script))).await;
    let bytes: usize = responses.iter().map(|response| response.stdout.len() + response.stderr.len()).sum();
    assert!(bytes < 33 << 20, "{bytes} bytes of one pod");
    assert!(responses.iter().all(|response| response.exit_code == 4 && response.stderr.len() >= 10 << 10));
    drop(responses);
    assert_eq!(bed.exec(&id, script).await.stdout.len(), 16 << 20, "their answers are gone");
}

pub(crate) async fn names_are_reserved_and_unknown_ids_can_be_removed(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let request = v1::RunPodSandboxRequest { config: Some(bed.sandbox_config("web", true)), ..Default::default() };
    let error = bed.engine().run_pod_sandbox(request, LIMIT).await.unwrap_err();
    assert_eq!(error.code, Code::AlreadyExists);
    assert!(error.message.contains(&format!("is reserved for \"{sandbox}\"")), "{error}");
    let id = bed.create(&sandbox, bed.container_config("main", "true")).await.unwrap();
    let error = bed.create(&sandbox, bed.container_config("main", "true")).await.unwrap_err();
    assert!(error.code == Code::AlreadyExists && error.message.contains(&id), "{error}");
    bed.engine().remove_container(&id, LIMIT).await.unwrap();
    bed.engine().remove_container(&id, LIMIT).await.unwrap();
    bed.create(&sandbox, bed.container_config("main", "true")).await.unwrap();
    for unknown in ["0123456789abcdef", "no-such-id"] {
        bed.engine().stop_container(unknown, 0, LIMIT).await.unwrap();
        bed.engine().remove_container(unknown, LIMIT).await.unwrap();
        bed.engine().stop_pod_sandbox(unknown, LIMIT).await.unwrap();
        bed.engine().remove_pod_sandbox(unknown, LIMIT).await.unwrap();
        assert_eq!(bed.engine().start_container(unknown, LIMIT).await.unwrap_err().code, Code::NotFound);
        assert_eq!(bed.engine().container_status(unknown, false, LIMIT).await.unwrap_err().code, Code::NotFound);
        assert_eq!(bed.engine().pod_sandbox_status(unknown, false, LIMIT).await.unwrap_err().code, Code::NotFound);
    }
}

pub(crate) async fn a_beginning_of_two_ids_is_refused_by_every_call(bed: Bed) {
    // With 17 ids two begin with the same digit.
    let mut pods = vec![];
    for n in 0..17 {
        pods.push(bed.pod(&format!("web-{n}")).await);
    }
    let prefix = shared_beginning(&pods);
    let engine = bed.engine();
    let refused = |result: Result<(), podwright_cri::CriError>, ids: &[String]| {
        let error = result.expect_err("an ambiguous id is not an unknown one");
        let named = ids.iter().filter(|id| error.message.contains(*id)).count();
        assert!(error.code == Code::InvalidArgument && named >= 2, "{error:?}");
    };
    refused(engine.stop_pod_sandbox(&prefix, LIMIT).await, &pods);
    refused(engine.remove_pod_sandbox(&prefix, LIMIT).await, &pods);
    refused(engine.pod_sandbox_status(&prefix, false, LIMIT).await.map(drop), &pods);
    refused(bed.create(&prefix, bed.container_config("main", "true")).await.map(drop), &pods);
    let mut ids = vec![];
    for n in 0..17 {
        ids.push(bed.create(&pods[0], bed.container_config(&format!("c{n}"), "true")).await.unwrap());
    }
    let prefix = shared_beginning(&ids);
    refused(engine.start_container(&prefix, LIMIT).await, &ids);
    refused(engine.stop_container(&prefix, 0, LIMIT).await, &ids);
    refused(engine.remove_container(&prefix, LIMIT).await, &ids);
    refused(engine.container_status(&prefix, false, LIMIT).await.map(drop), &ids);
    let cmd = vec!["true".to_owned()];
    let request = v1::ExecSyncRequest { container_id: prefix, cmd, timeout: 0 };
    refused(engine.exec_sync(request, LIMIT).await.map(drop), &ids);
    let all = engine.list_pod_sandbox(None, LIMIT).await.unwrap();
    assert!(all.iter().all(|pod| pod.state() == v1::PodSandboxState::SandboxReady) && all.len() == 17);
    assert_eq!(engine.list_containers(None, LIMIT).await.unwrap().len(), 17);
}

/// The first digit that two ids begin with.
fn shared_beginning(ids: &[String]) -> String {
    let shared = |id: &&String| ids.iter().filter(|other| other[..1] == id[..1]).count() > 1;
    ids.iter().find(shared).expect("more ids than digits")[..1].to_owned()
}

pub(crate) async fn lists_are_filtered_and_ordered_by_creation(bed: Bed) {
    let (first, second) = (bed.pod("first").await, bed.pod("second").await);
    let one = bed.start(&first, "one", "exec sleep 1000").await;
    let two = bed.create(&second, bed.container_config("two", "true")).await.unwrap();
    let all = bed.engine().list_pod_sandbox(None, LIMIT).await.unwrap();
    let created = |id: &str| all.iter().find(|sandbox| sandbox.id == id).unwrap().created_at;
    assert!(all.len() == 2 && created(&first) < created(&second), "{all:?}");
    let labels = [("app".to_owned(), "second".to_owned())].into();
    let filter = v1::PodSandboxFilter { label_selector: labels, ..Default::default() };
    let found = bed.engine().list_pod_sandbox(Some(filter), LIMIT).await.unwrap();
    assert_eq!(found.iter().map(|s| &s.id).collect::<Vec<_>>(), [&second]);
    let filter = v1::PodSandboxFilter { id: first[..16].into(), ..Default::default() };
    assert_eq!(bed.engine().list_pod_sandbox(Some(filter), LIMIT).await.unwrap()[0].id, first);
    let running = Some(v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() });
    let filter = v1::ContainerFilter { state: running, ..Default::default() };
    let found = bed.engine().list_containers(Some(filter), LIMIT).await.unwrap();
    assert_eq!(found.iter().map(|c| &c.id).collect::<Vec<_>>(), [&one]);
    let filter = v1::ContainerFilter { pod_sandbox_id: second, ..Default::default() };
    let found = bed.engine().list_containers(Some(filter), LIMIT).await.unwrap();
    assert_eq!(found.iter().map(|c| &c.id).collect::<Vec<_>>(), [&two]);
}

pub(crate) async fn a_log_is_reopened_after_a_rename(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let script = "n=0; while true; do n=$((n+1)); echo line $n; sleep 0.05; done";
    let id = bed.start(&sandbox, "main", script).await;
    bed.wait_for_log(&id, "line 1").await;
    let path = bed.status(&id).await.log_path;
    fs::rename(&path, format!("{path}.1")).unwrap();
    bed.engine().reopen_container_log(&id, LIMIT).await.unwrap();
    let until = Instant::now() + LIMIT;
    while fs::read_to_string(&path).unwrap_or_default().lines().count() < 2 {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bed.engine().stop_container(&id, 0, LIMIT).await.unwrap();
    let text = fs::read_to_string(format!("{path}.1")).unwrap() + &fs::read_to_string(&path).unwrap();
    let numbers: Vec<u32> = text.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert_eq!(numbers, (1..=u32::try_from(numbers.len()).unwrap()).collect::<Vec<_>>(), "no line is lost");
    assert!(bed.engine().reopen_container_log(&id, LIMIT).await.is_err(), "not of one that has ended");
}

pub(crate) async fn limits_are_changed_while_a_container_runs(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let mut config = bed.container_config("main", "exec sleep 1000");
    let resources = config.linux.as_mut().unwrap().resources.as_mut().unwrap();
    (resources.memory_limit_in_bytes, resources.cpu_shares) = (64 << 20, 512);
    let id = bed.start_config(&sandbox, config).await;
    for memory in [128 << 20, 32 << 20] {
        let linux = v1::LinuxContainerResources { memory_limit_in_bytes: memory, ..Default::default() };
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.clone(),
            linux: Some(linux),
            annotations: Default::default(),
        };
        bed.engine().update_container_resources(request, LIMIT).await.unwrap();
        let shown = bed.status(&id).await.resources.unwrap().linux.unwrap();
        assert_eq!((shown.memory_limit_in_bytes, shown.cpu_shares), (memory, 512));
        assert_eq!(memory_limit(&memory_cgroup(&bed, &id)), memory.to_string());
    }
}

/// A period that the kernel refuses: what was written before it is undone.
pub(crate) async fn a_change_of_limits_that_fails_changes_nothing(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let mut config = bed.container_config("main", "exec sleep 1000");
    let resources = config.linux.as_mut().unwrap().resources.as_mut().unwrap();
    (resources.memory_limit_in_bytes, resources.cpu_shares) = (64 << 20, 512);
    let id = bed.start_config(&sandbox, config).await;
    let (tree, path) = (CgroupTree::detect().unwrap(), format!("{}/web/{id}", bed.cgroup_parent));
    let path = CgroupPath::parse(&path).unwrap();
    let limits = || {
        let files = [
            ("cpuset", "cpuset.cpus"),
            ("cpu", "cpu.shares"),
            ("cpu", "cpu.weight"),
            ("cpu", "cpu.cfs_quota_us"),
            ("cpu", "cpu.cfs_period_us"),
            ("cpu", "cpu.max"),
            ("memory", "memory.limit_in_bytes"),
            ("memory", "memory.max"),
        ];
        let read = |(controller, file): (&str, &str)| {
            std::fs::read_to_string(tree.directory_of(controller, &path)?.join(file)).ok()
        };
        files.map(read)
    };
    let (before, shown) = (limits(), bed.status(&id).await.resources);
    let linux = v1::LinuxContainerResources {
        cpuset_cpus: "0".into(),
        memory_limit_in_bytes: 128 << 20,
        memory_swap_limit_in_bytes: 128 << 20,
        cpu_shares: 300,
        cpu_quota: 50_000,
        cpu_period: 10,
        ..Default::default()
    };
    let request = v1::UpdateContainerResourcesRequest {
        container_id: id.clone(),
        linux: Some(linux),
        annotations: Default::default(),
    };
    let error = bed.engine().update_container_resources(request, LIMIT).await.unwrap_err();
    assert!(error.message.contains("cpu."), "{error}");
    assert_eq!(limits(), before);
    assert_eq!(bed.status(&id).await.resources, shown);
}

/// The update comes at the moment when the cgroup exists and the program does not run: the launch has read the former limits.
pub(crate) async fn limits_that_change_during_a_start_are_those_of_the_cgroup(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let mut met = 0;
    for n in 0..30 {
        let mut config = bed.container_config(&format!("c{n}"), "exec sleep 1000");
        config.linux.as_mut().unwrap().resources.as_mut().unwrap().memory_limit_in_bytes = 64 << 20;
        let id = bed.create(&sandbox, config).await.unwrap();
        let dir = memory_cgroup(&bed, &id);
        let (engine, started) = (bed.engine().clone(), id.clone());
        let start = tokio::spawn(async move { engine.start_container(&started, LIMIT).await });
        while !dir.exists() && !start.is_finished() {
            tokio::task::yield_now().await;
        }
        met += usize::from(bed.status(&id).await.state() == v1::ContainerState::ContainerCreated);
        let linux = v1::LinuxContainerResources { memory_limit_in_bytes: 96 << 20, ..Default::default() };
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.clone(),
            linux: Some(linux),
            annotations: Default::default(),
        };
        bed.engine().update_container_resources(request, LIMIT).await.unwrap();
        start.await.unwrap().unwrap();
        let shown = bed.status(&id).await.resources.unwrap().linux.unwrap().memory_limit_in_bytes;
        assert_eq!((shown, memory_limit(&dir)), (96 << 20, (96 << 20).to_string()), "container {n}");
        bed.engine().remove_container(&id, LIMIT).await.unwrap();
    }
    assert!(met > 0, "no update came during a start");
}

fn memory_cgroup(bed: &Bed, id: &str) -> std::path::PathBuf {
    let tree = CgroupTree::detect().unwrap();
    let path = format!("{}/web/{id}", bed.cgroup_parent);
    tree.directory_of("memory", &CgroupPath::parse(&path).unwrap()).unwrap()
}

fn memory_limit(dir: &std::path::Path) -> String {
    let limit = fs::read_to_string(dir.join("memory.limit_in_bytes"));
    limit.or_else(|_| fs::read_to_string(dir.join("memory.max"))).unwrap().trim().to_owned()
}

pub(crate) async fn events_follow_a_pod_from_creation_to_deletion(bed: Bed) {
    let mut events = bed.engine().container_events();
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "exit 3").await;
    bed.exit(&id).await;
    bed.engine().remove_pod_sandbox(&sandbox, LIMIT).await.unwrap();
    let mut seen = vec![];
    while seen.last() != Some(&(sandbox.clone(), v1::ContainerEventType::ContainerDeletedEvent)) {
        let event = tokio::time::timeout(LIMIT, events.next()).await.unwrap().unwrap().unwrap();
        let status = event.pod_sandbox_status.as_ref().unwrap();
        assert_eq!((status.id.as_str(), status.labels["app"].as_str()), (sandbox.as_str(), "web"));
        if event.container_id == id && event.container_event_type() == v1::ContainerEventType::ContainerStoppedEvent {
            assert_eq!(event.containers_statuses[0].exit_code, 3);
        }
        seen.push((event.container_id.clone(), event.container_event_type()));
    }
    use v1::ContainerEventType::*;
    let of = |wanted: &str| seen.iter().filter(|(id, _)| id == wanted).map(|(_, kind)| *kind).collect::<Vec<_>>();
    let all = [ContainerCreatedEvent, ContainerStartedEvent, ContainerStoppedEvent, ContainerDeletedEvent];
    assert_eq!((of(&id), of(&sandbox)), (all.to_vec(), all.to_vec()));
}

pub(crate) async fn status_and_version_name_what_callers_rely_on(bed: Bed) {
    let version = bed.engine().version(LIMIT).await.unwrap();
    assert_eq!((version.runtime_name.as_str(), version.runtime_api_version.as_str()), ("podwright", "v1"));
    bed.pod("web").await;
    let status = bed.engine().status(true, LIMIT).await.unwrap();
    let conditions = status.status.unwrap().conditions;
    let ready: Vec<_> = conditions.iter().map(|c| (c.r#type.as_str(), c.status)).collect();
    let all = ["RuntimeReady", "NetworkReady", "RecordsReadable", "RecordsWritten"].map(|kind| (kind, true));
    assert_eq!(ready, all, "{conditions:?}");
    assert_eq!(status.runtime_handlers[0].name, "");
    assert!(status.features.unwrap().supplemental_groups_policy);
    let driver = bed.engine().runtime_config(LIMIT).await.unwrap().linux.unwrap();
    assert_eq!(driver.cgroup_driver(), v1::CgroupDriver::Cgroupfs);
    let request = v1::RunPodSandboxRequest {
        config: Some(bed.sandbox_config("other", true)),
        runtime_handler: "no-such-handler".into(),
    };
    assert!(bed.engine().run_pod_sandbox(request, LIMIT).await.is_err());
}

/// Kernels before 6.3: the status says it, and no pod gets half of what it asked for.
pub(crate) async fn a_user_namespace_is_refused_by_name_if_the_kernel_can_not_map_a_tmpfs(bed: Bed) {
    let has = podwright_linux::features::probe().unwrap().idmapped_tmpfs;
    let status = bed.engine().status(false, LIMIT).await.unwrap();
    assert_eq!(status.runtime_handlers[0].features.unwrap().user_namespaces, has);
    let mut config = bed.sandbox_config("web", false);
    let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    let ids = vec![v1::IdMapping { container_id: 0, host_id: 1_000_000, length: 65536 }];
    let user = v1::UserNamespace { mode: v1::NamespaceMode::Pod.into(), uids: ids.clone(), gids: ids };
    context.namespace_options.as_mut().unwrap().userns_options = Some(user);
    let request = v1::RunPodSandboxRequest { config: Some(config), ..Default::default() };
    match bed.engine().run_pod_sandbox(request, LIMIT).await {
        Ok(_) => assert!(has, "secrets could not be given to it"),
        Err(error) => assert!(!has && error.message.contains("idmapped tmpfs"), "{error}"),
    }
}

async fn set_pod_cidr(bed: &Bed, text: &str) -> Result<(), podwright_cri::CriError> {
    let network_config = Some(v1::NetworkConfig { pod_cidr: text.into() });
    bed.engine().update_runtime_config(v1::RuntimeConfig { network_config }, LIMIT).await
}

async fn address(bed: &Bed, sandbox: &str) -> String {
    let status = bed.engine().pod_sandbox_status(sandbox, false, LIMIT).await.unwrap().status.unwrap();
    status.network.unwrap().ip
}

async fn network_condition(bed: &Bed) -> v1::RuntimeCondition {
    let status = bed.engine().status(false, LIMIT).await.unwrap().status.unwrap();
    status.conditions.into_iter().find(|condition| condition.r#type == "NetworkReady").unwrap()
}

/// Links and addresses of removed pods go a moment later.
async fn set_pod_cidr_soon(bed: &Bed, text: &str) {
    let until = Instant::now() + LIMIT;
    while let Err(error) = set_pod_cidr(bed, text).await {
        assert!(Instant::now() < until, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn the_pod_cidr_of_the_node_is_used_for_new_pods(mut bed: Bed) {
    let first = bed.run_sandbox(bed.sandbox_config("first", false)).await;
    assert!(address(&bed, &first).await.starts_with("10.99.0."));
    let error = set_pod_cidr(&bed, "10.98.7.0/24").await.unwrap_err();
    assert!(error.message.contains("stays 10.99.0.0/24: 1 pods"), "{error}");
    assert!(set_pod_cidr(&bed, "10.98.7.0").await.unwrap_err().code == Code::InvalidArgument);
    bed.engine().remove_pod_sandbox(&first, LIMIT).await.unwrap();
    set_pod_cidr_soon(&bed, "10.98.7.0/24").await;
    assert!(network_condition(&bed).await.status);
    let second = bed.run_sandbox(bed.sandbox_config("second", false)).await;
    assert!(address(&bed, &second).await.starts_with("10.98.7."));
    // The next engine has it before the agent knows its node.
    bed.restart_engine().await;
    let third = bed.run_sandbox(bed.sandbox_config("third", false)).await;
    assert!(address(&bed, &third).await.starts_with("10.98.7."));
    set_pod_cidr(&bed, "10.98.7.0/24").await.unwrap();
    for pod in [second, third] {
        bed.engine().remove_pod_sandbox(&pod, LIMIT).await.unwrap();
    }
    bed.end_engine().await;
    bed.configure_ranges(&["10.99.0.0/24"], false);
    bed.start_engine().await;
    set_pod_cidr(&bed, "10.98.7.0/24").await.unwrap();
    let fourth = bed.run_sandbox(bed.sandbox_config("fourth", false)).await;
    assert!(address(&bed, &fourth).await.starts_with("10.99.0."), "a configured range stays");
}

pub(crate) async fn pods_wait_for_the_pod_cidr_if_the_configuration_asks_for_it(mut bed: Bed) {
    bed.end_engine().await;
    bed.configure_ranges(&[], true);
    bed.start_engine().await;
    let condition = network_condition(&bed).await;
    assert!(!condition.status && condition.message.contains("pod CIDR"), "{condition:?}");
    let request = v1::RunPodSandboxRequest { config: Some(bed.sandbox_config("web", false)), ..Default::default() };
    let error = bed.engine().run_pod_sandbox(request, LIMIT).await.unwrap_err();
    assert!(error.message.contains("pod CIDR"), "{error}");
    set_pod_cidr_soon(&bed, "10.98.7.0/24").await;
    assert!(network_condition(&bed).await.status);
    let pod = bed.run_sandbox(bed.sandbox_config("web", false)).await;
    assert!(address(&bed, &pod).await.starts_with("10.98.7."));
}
