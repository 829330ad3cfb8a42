//! Pods of which the next engine finds less than the last one left: namespaces that a container has left, files that were deleted.

use podwright_cri::{RuntimeService, v1};

use crate::bed::{Bed, LIMIT};
use crate::lifecycle::own_namespaces;
use crate::recovery::{TERMS, end, shim_of};

/// Starts a container whose process leaves namespaces of its pod.
async fn start_leaving(bed: &Bed, sandbox: &str, options: &str) -> String {
    let script = format!("exec unshare {options} sh -c \"{TERMS}\"");
    let mut config = bed.container_config("leaving", &script);
    own_namespaces(&mut config);
    let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.capabilities =
        Some(v1::Capability { add_capabilities: vec!["SYS_ADMIN".to_owned()], ..Default::default() });
    let id = bed.start_config(sandbox, config).await;
    bed.wait_for_log(&id, "ready").await;
    id
}

async fn sandbox_state(bed: &Bed, sandbox: &str) -> v1::PodSandboxState {
    bed.engine().pod_sandbox_status(sandbox, false, LIMIT).await.unwrap().status.unwrap().state()
}

fn namespace(pid: i32, name: &str) -> String {
    std::fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap().to_str().unwrap().to_owned()
}

/// The first container that is looked at has left the network and the host name of its pod.
pub(crate) async fn a_pod_is_taken_over_with_its_own_namespaces(mut bed: Bed) {
    let sandbox = bed.run_sandbox(bed.sandbox_config("web", false)).await;
    let left = start_leaving(&bed, &sandbox, "-n -u").await;
    let mut config = bed.container_config("main", TERMS);
    own_namespaces(&mut config);
    let main = bed.start_config(&sandbox, config).await;
    let (left_pid, pid, shim) = (bed.pid(&left).await, bed.pid(&main).await, shim_of(&bed, &main).await);
    assert_ne!(namespace(left_pid, "net"), namespace(pid, "net"));
    bed.end_engine().await;
    end(shim);
    bed.start_engine().await;
    assert_eq!(sandbox_state(&bed, &sandbox).await, v1::PodSandboxState::SandboxReady);
    let mut config = bed.container_config("next", "exec sleep 1000");
    own_namespaces(&mut config);
    let next = bed.pid(&bed.start_config(&sandbox, config).await).await;
    for name in ["net", "uts", "ipc"] {
        assert_eq!(namespace(next, name), namespace(pid, name), "{name}");
    }
    assert_eq!((bed.pid(&left).await, bed.pid(&main).await), (left_pid, pid));
}

/// The network is pinned, the host name is lost with the last process in it.
pub(crate) async fn a_pod_without_its_namespaces_is_not_ready_and_its_container_runs_on(mut bed: Bed) {
    let sandbox = bed.run_sandbox(bed.sandbox_config("web", false)).await;
    let id = start_leaving(&bed, &sandbox, "-u").await;
    let (pid, shim) = (bed.pid(&id).await, shim_of(&bed, &id).await);
    bed.end_engine().await;
    end(shim);
    bed.start_engine().await;
    assert_eq!(sandbox_state(&bed, &sandbox).await, v1::PodSandboxState::SandboxNotready);
    // Nothing looks for its process before a stop, which the sandbox needs.
    assert_eq!(bed.status(&id).await.state(), v1::ContainerState::ContainerUnknown);
    assert!(std::path::Path::new(&format!("/proc/{pid}/ns/net")).exists(), "it was killed");
    let refused = bed.create(&sandbox, bed.container_config("next", "true")).await.unwrap_err();
    assert!(refused.message.contains("not ready"), "{refused}");
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 9, "the stop signal was sent, and the exit was seen");
}

/// As a program leaves it that cleans `/run` while the agent is stopped. The notes of boot and root are still there.
pub(crate) async fn an_engine_without_the_files_of_running_containers_is_refused(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", TERMS).await;
    bed.wait_for_log(&id, "ready").await;
    let done = bed.start(&sandbox, "done", "exit 6").await;
    bed.exit(&done).await;
    let (pid, shim) = (bed.pid(&id).await, shim_of(&bed, &id).await);
    bed.end_engine().await;
    let (pods, kept) = (bed.run_dir().join("pods"), bed.dir.join("kept"));
    let of_container = pods.join(&sandbox).join("c").join(&id);
    for deleted in [&pods, &pods.join(&sandbox), &of_container] {
        std::fs::rename(deleted, &kept).unwrap();
        let error = bed.refusal_of(bed.dir.join("root"), bed.run_dir()).await;
        let named = error.contains("main of pod default/web") && error.contains(&pid.to_string());
        assert!(named && error.contains(pods.to_str().unwrap()) && !error.contains("done"), "{error}");
        assert!(std::path::Path::new(&format!("/proc/{pid}/ns/net")).exists(), "it was killed");
        let _ = std::fs::remove_dir(deleted);
        std::fs::rename(&kept, deleted).unwrap();
    }
    bed.start_engine().await;
    assert_eq!((bed.pid(&id).await, shim_of(&bed, &id).await), (pid, shim));
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.status(&id).await.exit_code, 9);
}

/// Nothing that it would end.
pub(crate) async fn an_engine_without_the_files_of_ended_containers_starts(mut bed: Bed) {
    let sandbox = bed.pod("web").await;
    let id = bed.start(&sandbox, "main", "exec sleep 1000").await;
    let (pid, shim) = (bed.pid(&id).await, shim_of(&bed, &id).await);
    bed.end_engine().await;
    end(shim);
    end(rustix::process::Pid::from_raw(pid).unwrap());
    let pods = bed.run_dir().join("pods");
    podwright_linux::mount::detach(&pods.join(&sandbox).join("shm")).unwrap();
    std::fs::remove_dir_all(&pods).unwrap();
    bed.start_engine().await;
    bed.engine().stop_container(&id, 30, LIMIT).await.unwrap();
    assert_eq!(bed.exit(&id).await.exit_code, 255);
}
