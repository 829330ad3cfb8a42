//! Pods and containers from their start to their end.

use podwright_cri::{RuntimeService, v1};
use podwright_linux::cgroup::{CgroupPath, CgroupTree};
use podwright_testbed::image;

use crate::bed::{Bed, LIMIT};

pub(crate) async fn a_container_on_the_host_network_runs_to_its_exit(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let config = bed.container_config("main", "echo hello; echo oops >&2; exit 7");
    let id = bed.create(&sandbox, config).await.unwrap();
    let created = bed.status(&id).await;
    assert_eq!((created.state(), created.started_at), (v1::ContainerState::ContainerCreated, 0));
    bed.engine().start_container(&id, LIMIT).await.unwrap();
    let exit = bed.exit(&id).await;
    assert_eq!((exit.exit_code, exit.reason.as_str()), (7, "Error"));
    assert!(exit.created_at < exit.started_at && exit.started_at <= exit.finished_at, "{exit:?}");
    assert_eq!(exit.image.unwrap().image, image::BUSYBOX);
    assert!(exit.image_id.starts_with("sha256:"), "{}", exit.image_id);
    let mut lines = bed.logged(&id).await;
    lines.sort();
    assert_eq!(lines, ["hello", "oops"]);
    let status = bed.engine().pod_sandbox_status(&sandbox, false, LIMIT).await.unwrap().status.unwrap();
    assert_eq!((status.state(), status.network), (v1::PodSandboxState::SandboxReady, None));
    bed.engine().remove_container(&id, LIMIT).await.unwrap();
    assert!(bed.engine().container_status(&id, false, LIMIT).await.is_err());
    bed.engine().stop_pod_sandbox(&sandbox, LIMIT).await.unwrap();
    let status = bed.engine().pod_sandbox_status(&sandbox, false, LIMIT).await.unwrap().status.unwrap();
    assert_eq!(status.state(), v1::PodSandboxState::SandboxNotready);
}

pub(crate) async fn a_pod_on_the_bridge_has_the_address_that_its_status_shows(bed: Bed) {
    let sandbox = bed.run_sandbox(bed.sandbox_config("web", false)).await;
    let status = bed.engine().pod_sandbox_status(&sandbox, false, LIMIT).await.unwrap().status.unwrap();
    let ip = status.network.unwrap().ip;
    assert!(ip.starts_with("10.99.0."), "{ip}");
    let script = "hostname; grep -c eth0 /proc/net/dev; cat /etc/hosts; ifconfig eth0; exec sleep 1000";
    let mut config = bed.container_config("main", script);
    own_namespaces(&mut config);
    let id = bed.start_config(&sandbox, config).await;
    let output = bed.exec(&id, "hostname; ifconfig eth0; cat /etc/hosts").await;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.starts_with("web\n") && output.contains(&format!("inet addr:{ip} ")), "{output}");
    assert!(output.contains(&format!("{ip}\tweb")), "{output}");
    // Another pod reaches it.
    let other = bed.run_sandbox(bed.sandbox_config("other", false)).await;
    let mut config = bed.container_config("main", &format!("ping -c 1 -W 5 {ip}"));
    own_namespaces(&mut config);
    let id = bed.start_config(&other, config).await;
    let exit = bed.exit(&id).await;
    assert_eq!(exit.exit_code, 0, "{:?}", bed.logged(&id).await);
    bed.engine().stop_pod_sandbox(&sandbox, LIMIT).await.unwrap();
    let status = bed.engine().pod_sandbox_status(&sandbox, false, LIMIT).await.unwrap().status.unwrap();
    assert_eq!(status.network.unwrap().ip, "", "the address is released");
}

pub(crate) fn own_namespaces(config: &mut v1::ContainerConfig) {
    let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.namespace_options.as_mut().unwrap().network = v1::NamespaceMode::Pod.into();
}

pub(crate) async fn pods_without_options_share_a_pid_namespace_that_ends_with_them(bed: Bed) {
    let mut config = bed.sandbox_config("web", true);
    let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.namespace_options.as_mut().unwrap().pid = v1::NamespaceMode::Pod.into();
    let sandbox = bed.run_sandbox(config).await;
    let mut config = bed.container_config("main", "sleep 1000 & exec sleep 2000");
    let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.namespace_options.as_mut().unwrap().pid = v1::NamespaceMode::Pod.into();
    let first = bed.start_config(&sandbox, config.clone()).await;
    config.metadata.as_mut().unwrap().name = "second".into();
    config.command = ["/bin/sh", "-c", "ps; exec sleep 3000"].map(str::to_owned).to_vec();
    let second = bed.start_config(&sandbox, config).await;
    let seen = bed.exec(&second, "ps").await;
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert!(seen.contains("sleep 1000") && seen.contains("sleep 2000") && seen.contains("sleep 3000"), "{seen}");
    bed.engine().stop_container(&first, 0, LIMIT).await.unwrap();
    let seen = bed.exec(&second, "ps").await;
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert!(!seen.contains("sleep 1000") && seen.contains("sleep 3000"), "the whole container was killed: {seen}");
}

pub(crate) async fn a_program_that_does_not_exist_is_a_failed_start(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let mut config = bed.container_config("main", "");
    config.command = vec!["/no/such/program".into()];
    let id = bed.create(&sandbox, config).await.unwrap();
    let error = bed.engine().start_container(&id, LIMIT).await.unwrap_err();
    assert!(error.message.contains("/no/such/program") && error.message.contains("no such file"), "{error}");
    let status = bed.exit(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
    assert!(status.message.contains("/no/such/program"), "{}", status.message);
    let again = bed.engine().start_container(&id, LIMIT).await.unwrap_err();
    assert!(again.message.contains("CONTAINER_EXITED"), "{again}");
    let mut config = bed.container_config("none", "true");
    config.image.as_mut().unwrap().image = "localhost/no/such:image".into();
    let error = bed.create(&sandbox, config).await.unwrap_err();
    assert!(error.message.contains("not found"), "{error}");
    assert_eq!(bed.engine().list_containers(None, LIMIT).await.unwrap().len(), 1, "the failed create left nothing");
}

pub(crate) async fn a_container_beyond_its_memory_is_oom_killed(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let mut config = bed.container_config("main", "tail /dev/zero");
    config.linux.as_mut().unwrap().resources.as_mut().unwrap().memory_limit_in_bytes = 16 << 20;
    let id = bed.start_config(&sandbox, config).await;
    let exit = bed.exit(&id).await;
    assert_eq!(exit.reason, "OOMKilled", "{exit:?}");
    assert_ne!(exit.exit_code, 0);
}

pub(crate) async fn users_groups_and_environment_are_those_of_image_and_request(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let mut config = bed.container_config("guest", "id; echo $HOME $GREETING; exec sleep 1000");
    config.image.as_mut().unwrap().image = image::USER_GUEST.into();
    config.envs = vec![v1::KeyValue { key: "GREETING".into(), value: "hi".into() }];
    let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.supplemental_groups = vec![4000];
    let id = bed.start_config(&sandbox, config).await;
    let output = bed.exec(&id, "id; echo $HOME $GREETING").await;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.contains("uid=1001(guest)") && output.contains("4000"), "{output}");
    assert!(output.ends_with("/home hi\n"), "an exec has the user and environment of its container: {output}");
    let user = bed.status(&id).await.user.unwrap().linux.unwrap();
    assert_eq!((user.uid, user.gid), (1001, 1001));
    assert!(user.supplemental_groups.contains(&4000), "{user:?}");
    let mut config = bed.container_config("entry", "");
    config.image.as_mut().unwrap().image = image::ENTRYPOINT.into();
    config.command = vec![];
    let id = bed.start_config(&sandbox, config).await;
    bed.exit(&id).await;
    assert_eq!(bed.logged(&id).await, ["entrypoint default command"]);
}

pub(crate) async fn devices_of_the_host_can_not_be_opened(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let script = "echo x > /dev/null && head -c 1 /dev/zero | wc -c; mknod /tmp/kmsg c 1 11 && echo made; \
                  head -c 1 /tmp/kmsg > /dev/null 2>&1 && echo opened; echo end";
    let id = bed.start(&sandbox, "main", script).await;
    bed.exit(&id).await;
    assert_eq!(bed.logged(&id).await, ["1", "made", "end"]);
}

pub(crate) async fn files_of_the_sandbox_are_in_its_containers(bed: Bed) {
    let mut config = bed.sandbox_config("web", true);
    let servers = vec!["192.0.2.53".to_owned()];
    config.dns_config = Some(v1::DnsConfig { servers, searches: vec!["svc".into()], options: vec![] });
    let sandbox = bed.run_sandbox(config).await;
    let host = bed.dir.join("host");
    std::fs::create_dir(&host).unwrap();
    let mut config = bed.container_config(
        "main",
        "cat /etc/resolv.conf; echo kept > /data/file; df /dev/shm | tail -1; echo x > /rootfile",
    );
    let (host_path, container_path) = (host.to_str().unwrap().to_owned(), "/data".to_owned());
    config.mounts = vec![v1::Mount { host_path, container_path, ..Default::default() }];
    let id = bed.start_config(&sandbox, config).await;
    assert_eq!(bed.exit(&id).await.exit_code, 0, "{:?}", bed.logged(&id).await);
    let lines = bed.logged(&id).await;
    assert_eq!(&lines[..2], ["search svc", "nameserver 192.0.2.53"]);
    assert!(lines[2].contains("65536"), "64 MiB of shared memory: {lines:?}");
    assert_eq!(std::fs::read_to_string(host.join("file")).unwrap(), "kept\n");
}

/// Whether the kernel refuses the process itself (v2) or its children (v1).
pub(crate) async fn a_full_pid_cgroup_is_named_and_costs_no_other_container(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let first = bed.start(&sandbox, "first", "exec sleep 1000").await;
    let (tree, pod) = (CgroupTree::detect().unwrap(), format!("{}/web", bed.cgroup_parent));
    let limit = tree.directory_of("pids", &CgroupPath::parse(&pod).unwrap()).unwrap().join("pids.max");
    std::fs::write(&limit, "1").unwrap();
    let second = bed.create(&sandbox, bed.container_config("second", "sleep 1000 & wait")).await.unwrap();
    let reason = match bed.engine().start_container(&second, LIMIT).await {
        Err(error) => error.message,
        Ok(()) => {
            assert_ne!(bed.exit(&second).await.exit_code, 0);
            bed.logged(&second).await.join(" ")
        }
    };
    assert!(reason.to_lowercase().contains("resource temporarily unavailable"), "{reason}");
    assert_eq!(bed.exit(&second).await.state(), v1::ContainerState::ContainerExited);
    assert_eq!(bed.status(&first).await.state(), v1::ContainerState::ContainerRunning);
    std::fs::write(&limit, "max").unwrap();
    assert_eq!(bed.exec(&first, "sleep 0.01 & wait; echo again").await.stdout, "again\n");
    bed.start(&sandbox, "third", "sleep 1000 & wait").await;
}
