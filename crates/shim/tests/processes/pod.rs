//! A pod for a test: run directory, zygote, shim, connection. Everything ends with it.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use podwright_shim::client::{Incoming, RequestPacket, ShimAnswer, ShimClient};
use podwright_shim::plan::{
    Capabilities, ExecPlan, LaunchPlan, PidNamespace, ProcessPlan, ResolvedUser, RootfsPlan, UserPlan,
};
use podwright_shim::protocol::{
    AckExit, ExecRequest, Exited, HelloReply, LaunchReply, LaunchRequest, ShimEvent, ShimShutdown, StdioPlan, event,
    request,
};
use podwright_shim::zygote::{Zygote, ZygoteOptions};
use rustix::process::{Pid, Signal};

/// Long enough for a busy host.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Pod {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) dir_fd: File,
    pub(crate) zygote: Zygote,
    pub(crate) client: ShimClient,
    pub(crate) shim: u32,
    pub(crate) shim_fd: OwnedFd,
    /// Killed at the end.
    pub(crate) pidfds: Vec<OwnedFd>,
}

/// The init of a container that runs.
pub(crate) struct Running {
    pub(crate) reply: LaunchReply,
    pub(crate) pidfd: OwnedFd,
    pub(crate) pty: Option<OwnedFd>,
}

impl Pod {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let dir_fd = File::open(dir.path()).unwrap();
        let mut zygote = Zygote::start(&ZygoteOptions::default()).unwrap();
        let forked = zygote.fork("test-pod", dir_fd.as_fd()).unwrap();
        let client = ShimClient::from_socket(forked.connection).unwrap();
        let (shim, shim_fd) = (forked.pid, forked.pidfd);
        let mut pod = Self { dir, dir_fd, zygote, client, shim, shim_fd, pidfds: vec![] };
        let state = pod.hello();
        assert_eq!((state.pod.as_str(), state.containers.len(), state.events), ("test-pod", 0, 0));
        pod
    }

    pub(crate) fn hello(&mut self) -> HelloReply {
        match self.client.call(&RequestPacket::hello(&boot_id()), LIMIT).unwrap() {
            ShimAnswer::State(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// As a new agent does.
    pub(crate) fn reconnect(&mut self) -> HelloReply {
        self.client = ShimClient::connect(self.dir_fd.as_fd()).unwrap();
        self.hello()
    }

    pub(crate) fn ask(&mut self, body: request::RequestKind) -> ShimAnswer {
        self.client.call(&RequestPacket::new(body), LIMIT).unwrap()
    }

    pub(crate) fn log(&self, container: &str) -> PathBuf {
        self.dir.path().join(format!("{container}.log"))
    }

    /// Time and stream are left out.
    pub(crate) fn logged(&self, container: &str) -> Vec<String> {
        let text = fs::read(self.log(container)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned()).collect()
    }

    pub(crate) fn request(&self, container: &str, stdio: StdioPlan) -> LaunchRequest {
        LaunchRequest {
            container: container.to_owned(),
            stdio: Some(stdio),
            log_path: self.log(container).to_str().unwrap().to_owned(),
            ..LaunchRequest::default()
        }
    }

    pub(crate) fn begin(&mut self, container: &str, script: &str, stdio: StdioPlan) -> ShimAnswer {
        let mut plan = self.plan(container, script);
        plan.process.as_mut().unwrap().terminal = stdio.terminal;
        let packet = RequestPacket::launch(self.request(container, stdio), &plan).unwrap();
        self.client.call(&packet, LIMIT).unwrap()
    }

    /// Runs a shell script as a container, in the file system of the host.
    pub(crate) fn run(&mut self, container: &str, script: &str) -> Running {
        self.run_with(container, script, StdioPlan::default())
    }

    pub(crate) fn run_with(&mut self, container: &str, script: &str, stdio: StdioPlan) -> Running {
        match self.begin(container, script, stdio) {
            ShimAnswer::Launched { reply, pidfd, pty } => {
                self.pidfds.push(pidfd.try_clone().unwrap());
                Running { reply, pidfd, pty }
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn plan(&self, container: &str, script: &str) -> LaunchPlan {
        let staging = self.dir.path().join("staging");
        let _ = fs::create_dir(&staging);
        LaunchPlan {
            container_id: container.to_owned(),
            process: Some(process(script)),
            user: Some(UserPlan::default()),
            rootfs: Some(RootfsPlan { directory: "/".into(), ..RootfsPlan::default() }),
            pid_namespace: PidNamespace::Host.into(),
            staging_dir: staging.to_str().unwrap().to_owned(),
            ..LaunchPlan::default()
        }
    }

    pub(crate) fn exec(&mut self, request: ExecRequest, script: &str) -> ShimAnswer {
        let plan = ExecPlan {
            container_id: request.container.clone(),
            process: Some(process(script)),
            user: Some(ResolvedUser { home: "/".into(), ..ResolvedUser::default() }),
            ..ExecPlan::default()
        };
        self.client.call(&RequestPacket::exec(request, &plan).unwrap(), LIMIT).unwrap()
    }

    pub(crate) fn event(&mut self) -> ShimEvent {
        loop {
            match self.client.wait(LIMIT).unwrap() {
                Incoming::Event(event) => return event,
                Incoming::Hold { .. } => {}
                Incoming::Answer(..) => panic!("an answer to no request"),
            }
        }
    }

    /// The exit of a container; other events are skipped.
    pub(crate) fn exited(&mut self, container: &str) -> (u64, Exited) {
        loop {
            let event = self.event();
            if let Some(event::EventBody::Exited(exited)) = event.body
                && exited.container == container
            {
                return (event.seq, exited);
            }
        }
    }

    pub(crate) fn acknowledge(&mut self, seq: u64) {
        assert!(matches!(self.ask(request::RequestKind::AckExit(AckExit { seq })), ShimAnswer::Done(_)));
    }

    pub(crate) fn shut_down(&mut self) -> ShimAnswer {
        self.ask(request::RequestKind::Shutdown(ShimShutdown {}))
    }

    pub(crate) fn kill_shim(&self) {
        rustix::process::pidfd_send_signal(&self.shim_fd, Signal::KILL).unwrap();
        wait_exit(&self.shim_fd);
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        for pidfd in self.pidfds.iter().chain([&self.shim_fd]) {
            let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
        }
    }
}

pub(crate) fn process(script: &str) -> ProcessPlan {
    let all = Capabilities { bounding: !0, effective: !0, permitted: !0, inheritable: 0, ambient: 0 };
    ProcessPlan {
        argv: ["/bin/sh", "-c", script].map(|part| part.as_bytes().to_vec()).to_vec(),
        env: vec![b"PATH=/usr/bin:/bin".to_vec()],
        capabilities: Some(all),
        ..ProcessPlan::default()
    }
}

pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap()
}

pub(crate) fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !is() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn wait_exit(pidfd: impl AsFd) {
    let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let limit = rustix::time::Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1), "the process has not ended");
}

pub(crate) fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap()).unwrap()
}
