//! Containers of another OCI runtime, by the handler of a RuntimeClass.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use podwright_cri::{Code, RuntimeService, v1};
use podwright_engine::OciRuntime;
use rustix::process::{Signal, kill_process};

use crate::bed::{Bed, LIMIT};
use crate::recovery::shim_of;

const TERMS: &str = "trap 'echo term; exit 9' TERM; echo ready; while true; do sleep 0.05; done";

async fn pod(bed: &Bed, name: &str, host_network: bool) -> String {
    let config = Some(bed.sandbox_config(name, host_network));
    let request = v1::RunPodSandboxRequest { config, runtime_handler: "runc".into() };
    bed.engine().run_pod_sandbox(request, LIMIT).await.unwrap()
}

/// What runc has of its containers.
fn states(bed: &Bed) -> Vec<String> {
    let dir = std::fs::read_dir(bed.run_dir().join("runtimes/runc"));
    dir.into_iter().flatten().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

pub(crate) async fn a_container_of_runc_runs_logs_executes_and_exits(bed: Bed) {
    let status = bed.engine().status(false, LIMIT).await.unwrap();
    let names: Vec<String> = status.runtime_handlers.into_iter().map(|handler| handler.name).collect();
    assert_eq!(names, ["", "podwright", "runc"]);
    let sandbox = pod(&bed, "web", false).await;
    let shown = bed.engine().pod_sandbox_status(&sandbox, false, LIMIT).await.unwrap().status.unwrap();
    assert_eq!(shown.runtime_handler, "runc");
    let id = bed
        .start(&sandbox, "main", "echo out; echo err >&2; id -u; while ! [ -e /end ]; do sleep 0.05; done; exit 7")
        .await;
    bed.wait_for_log(&id, "out").await;
    assert_eq!(states(&bed), std::slice::from_ref(&id));
    let response = bed.exec(&id, "hostname; cat /sys/class/net/eth0/operstate; echo e >&2; exit 5").await;
    assert_eq!((&response.stdout[..], &response.stderr[..], response.exit_code), (&b"web\nup\n"[..], &b"e\n"[..], 5));
    // One whose program ends at once keeps its code.
    for n in 0..20 {
        assert_eq!(bed.exec(&id, &format!("exit {n}")).await.exit_code, n);
    }
    let cmd = vec!["/no/such/program".to_owned()];
    let request = v1::ExecSyncRequest { container_id: id.clone(), cmd, timeout: 0 };
    let error = bed.engine().exec_sync(request, LIMIT).await.unwrap_err();
    assert!(error.message.contains("/no/such/program"), "{error}");
    let stats = bed.engine().container_stats(&id, LIMIT).await.unwrap();
    assert!(stats.memory.unwrap().usage_bytes.unwrap().value > 0);
    let cmd = ["/bin/sh", "-c", "sleep 777"].map(str::to_owned).to_vec();
    let request = v1::ExecSyncRequest { container_id: id.clone(), cmd, timeout: 1 };
    assert_eq!(bed.engine().exec_sync(request, LIMIT).await.unwrap_err().code, Code::DeadlineExceeded);
    assert!(!String::from_utf8_lossy(&bed.exec(&id, "ps").await.stdout).contains("sleep 777"));
    bed.exec(&id, "touch /end").await;
    let exit = bed.exit(&id).await;
    assert_eq!((exit.exit_code, exit.reason.as_str()), (7, "Error"));
    bed.engine().remove_pod_sandbox(&sandbox, LIMIT).await.unwrap();
    assert_eq!(states(&bed), Vec::<String>::new());
}

pub(crate) async fn a_handler_that_is_not_configured_is_an_error_and_a_failed_start_names_the_program(bed: Bed) {
    let config = Some(bed.sandbox_config("web", true));
    let request = v1::RunPodSandboxRequest { config, runtime_handler: "kata".into() };
    let error = bed.engine().run_pod_sandbox(request, LIMIT).await.unwrap_err();
    assert!(error.message.contains("no runtime for \"kata\" is configured"), "{error}");
    let sandbox = pod(&bed, "web", true).await;
    let mut config = bed.container_config("main", "");
    config.command = vec!["/no/such/program".into()];
    let id = bed.create(&sandbox, config).await.unwrap();
    let error = bed.engine().start_container(&id, LIMIT).await.unwrap_err();
    assert!(error.message.contains("/no/such/program"), "{error}");
    assert_eq!(bed.status(&id).await.state(), v1::ContainerState::ContainerExited);
    bed.engine().remove_container(&id, LIMIT).await.unwrap();
    assert_eq!(states(&bed), Vec::<String>::new());
}

pub(crate) async fn a_container_of_runc_outlives_the_engine_and_its_shim(mut bed: Bed) {
    let sandbox = pod(&bed, "web", true).await;
    let id = bed.start(&sandbox, "main", TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    let pid = bed.pid(&id).await;
    bed.restart_engine().await;
    assert_eq!((bed.pid(&id).await, bed.status(&id).await.state()), (pid, v1::ContainerState::ContainerRunning));
    assert_eq!(bed.exec(&id, "echo hi").await.stdout, "hi\n");
    kill_process(shim_of(&bed, &id).await, Signal::KILL).unwrap();
    let until = Instant::now() + LIMIT;
    loop {
        let cmd = ["/bin/sh", "-c", "echo again"].map(str::to_owned).to_vec();
        let request = v1::ExecSyncRequest { container_id: id.clone(), cmd, timeout: 10 };
        match bed.engine().exec_sync(request, LIMIT).await {
            Ok(response) => break assert_eq!(response.stdout, "again\n"),
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(bed.pid(&id).await, pid);
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 9, "the code is known although the shim was lost");
    bed.wait_for_log(&id, "term").await;
}

/// containerd and others have ids of the same form in the directory that the operator names.
pub(crate) async fn containers_of_other_programs_in_the_state_of_a_runtime_are_left_alone(mut bed: Bed) {
    bed.end_engine().await;
    let (root, log, path) = (bed.dir.join("state"), bed.dir.join("calls"), bed.dir.join("runtime"));
    fs::write(&path, format!("#!/bin/sh\necho \"$@\" >> {}\n", log.display())).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let [foreign, own] = ["a", "b"].map(|digit| digit.repeat(64));
    let container = bed.dir.join("root/engine/containers").join(&own);
    for dir in [&root.join(&foreign), &root.join(&own), &container] {
        fs::create_dir_all(dir).unwrap();
        let old = std::time::SystemTime::now() - Duration::from_secs(600);
        fs::File::open(dir).unwrap().set_modified(old).unwrap();
    }
    bed.configure_runtime("runc", OciRuntime { path, root: Some(root.clone()) });
    bed.start_engine().await;
    let until = Instant::now() + LIMIT;
    while container.exists() {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The last step of the sweep.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let calls = fs::read_to_string(&log).unwrap();
    assert_eq!(calls, format!("--root {} delete --force {own}\n", root.display()));
}
