//! Programs on a file system whose server does not answer, as that of a lost NFS server: with the launcher of the product.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use podwright_shim::client::{Incoming, RequestPacket, ShimAnswer};
use podwright_shim::plan::{ExecPlan, IdMapping, LaunchPlan, ResolvedUser, SetupPlan};
use podwright_shim::protocol::{AbortLaunch, ContainerPhase, ExecRequest, LaunchFailed, StdioPlan, request};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Signal, kill_process};

use crate::plain::{REAL, UNKILLABLE};
use crate::pod::{LIMIT, Pod, eventually, pid, process};

/// A FUSE mount without a server: every lookup waits until its process is killed.
struct HangingMount {
    path: PathBuf,
    _server: File,
}

impl HangingMount {
    fn new(dir: &Path) -> Self {
        let path = dir.join("hangs");
        fs::create_dir(&path).unwrap();
        let server = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", server.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        mount("hangs", &path, "fuse", MountFlags::empty(), &*options).unwrap();
        Self { path, _server: server }
    }

    fn program(&self) -> Vec<Vec<u8>> {
        vec![self.path.join("program").to_str().unwrap().as_bytes().to_vec()]
    }
}

impl Drop for HangingMount {
    fn drop(&mut self) {
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

fn children(pod: &Pod) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{0}/task/{0}/children", pod.shim)).unwrap();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn launch(pod: &mut Pod, plan: &LaunchPlan, deadline_ms: u32) -> u64 {
    let mut request = pod.request(&plan.container_id, StdioPlan::default());
    request.deadline_ms = deadline_ms;
    pod.client.send(&RequestPacket::launch(request, plan).unwrap()).unwrap().unwrap()
}

fn failure(pod: &mut Pod, id: u64) -> LaunchFailed {
    loop {
        match pod.client.wait(LIMIT).unwrap() {
            Incoming::Answer(of, ShimAnswer::LaunchFailed(failed)) if of == id => return failed,
            Incoming::Answer(of, other) => panic!("{of}: {other:?}"),
            _ => {}
        }
    }
}

pub(crate) fn program_of_a_container() {
    let mut pod = Pod::start();
    let hangs = HangingMount::new(pod.dir.path());
    let mut plan = pod.plan(REAL, "");
    plan.process.as_mut().unwrap().argv = hangs.program();
    let first = launch(&mut pod, &plan, 0);
    eventually("the launcher waits", || children(&pod).len() == 1);
    std::thread::sleep(Duration::from_millis(200));
    // Others are launched, log and end meanwhile; so do orphans.
    let start = Instant::now();
    let state = pod.hello();
    assert_eq!(state.containers[0].phase, i32::from(ContainerPhase::Launching));
    pod.run("other", "(sleep 0.05 &); echo ok; exit 3");
    assert_eq!(pod.exited("other").1.report.unwrap().code, 3);
    eventually("the orphan is reaped", || children(&pod).len() == 1);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let abort = request::RequestKind::AbortLaunch(AbortLaunch { container: REAL.into() });
    assert!(matches!(pod.ask(abort), ShimAnswer::Done(_)));
    assert_eq!(failure(&mut pod, first).text, "the launch was aborted");
    assert!(children(&pod).is_empty(), "no process is left");
}

pub(crate) fn program_of_an_exec() {
    let mut pod = Pod::start();
    let hangs = HangingMount::new(pod.dir.path());
    let running = pod.run(REAL, "exec sleep 1000");
    let init = running.reply.process.unwrap().pid;
    let exec = |sync, deadline_ms, name: &str| {
        let request =
            ExecRequest { container: REAL.into(), exec: name.into(), sync, deadline_ms, ..Default::default() };
        let mut process = process("");
        process.argv = hangs.program();
        let user = Some(ResolvedUser { home: "/".into(), ..ResolvedUser::default() });
        let plan = ExecPlan { container_id: REAL.into(), process: Some(process), user, ..ExecPlan::default() };
        RequestPacket::exec(request, &plan).unwrap()
    };
    let id = pod.client.send(&exec(true, 500, "late")).unwrap().unwrap();
    assert_eq!(failure(&mut pod, id).text, "the deadline of the launch has passed");
    assert_eq!(children(&pod), [init], "neither helper nor process is left");
    // An exec of ExecSync ends with its agent also before its program runs.
    pod.client.send(&exec(true, 0, "lost")).unwrap().unwrap();
    eventually("the exec waits", || children(&pod).len() == 2);
    pod.reconnect();
    eventually("the exec is killed", || children(&pod) == [init]);
    assert_eq!(pod.hello().containers[0].phase, i32::from(ContainerPhase::Running));
}

pub(crate) fn program_in_a_user_namespace() {
    let mut pod = Pod::start();
    fs::set_permissions(pod.dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let hangs = HangingMount::new(pod.dir.path());
    let maps = vec![IdMapping { container: 0, host: 1_000_000, size: 65536 }];
    let setup = SetupPlan { uid_mappings: maps.clone(), gid_mappings: maps.clone(), ..SetupPlan::default() };
    let answer = pod.client.call(&RequestPacket::setup(&setup).unwrap(), LIMIT).unwrap();
    assert!(matches!(answer, ShimAnswer::Setup { .. }), "{answer:?}");
    let mut plan = LaunchPlan { uid_mappings: maps.clone(), gid_mappings: maps, ..pod.plan(REAL, "") };
    plan.process.as_mut().unwrap().argv = hangs.program();
    let id = launch(&mut pod, &plan, 500);
    assert_eq!(failure(&mut pod, id).text, "the deadline of the launch has passed");
    assert!(children(&pod).is_empty(), "neither helper nor process is left");
}

/// A lost NFS server: SIGKILL is without effect. Without an answer the agent would kill the shim, and with it what the other
/// containers read from.
pub(crate) fn that_cannot_be_killed() {
    let mut pod = Pod::start();
    let mut plan = pod.plan("c1", "");
    plan.process.as_mut().unwrap().argv = vec![UNKILLABLE.into()];
    let mut request = pod.request("c1", StdioPlan::default());
    request.deadline_ms = 50;
    let answer = pod.client.call(&RequestPacket::launch(request, &plan).unwrap(), LIMIT).unwrap();
    let text =
        "the deadline of the launch has passed, and its process does not end: it waits for a device or a file system";
    assert!(matches!(&answer, ShimAnswer::LaunchFailed(failed) if failed.text == text), "{answer:?}");
    let [left] = children(&pod)[..] else { panic!("{:?}", children(&pod)) };
    assert!(pod.hello().containers.is_empty());
    // It is reaped when it ends after all.
    kill_process(pid(left), Signal::KILL).unwrap();
    eventually("it is reaped", || children(&pod).is_empty());
    assert!(matches!(pod.shut_down(), ShimAnswer::Done(_)));
}
