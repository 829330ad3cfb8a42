//! crictl as a client of the streaming server; crictl and critest on the whole engine.

#[path = "peers/crictl.rs"]
mod crictl;
#[path = "peers/critest.rs"]
mod critest;
mod fixture;
#[path = "peers/own_namespaces.rs"]
mod own_namespaces;
#[path = "peers/peer_engine.rs"]
mod peer_engine;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fixture::{HostProcesses, sh, with_pipes};
use peer_engine::PodNetwork;
use podwright_cri::serve::CriSocket;
use podwright_cri::{CriError, CriFuture, ImageService, RuntimeService, v1};
use podwright_engine::streaming::StreamingServer;
use podwright_tasks::Tasks;
use podwright_testbed::Cache;

/// A runtime that only streams.
struct Streams(StreamingServer);

fn no<'a, T: Send + 'a>(call: &'static str) -> CriFuture<'a, T> {
    Box::pin(std::future::ready(Err(CriError::unimplemented(call))))
}

fn now<'a, T: Send + 'a>(result: Result<T, CriError>) -> CriFuture<'a, T> {
    Box::pin(std::future::ready(result))
}

impl RuntimeService for Streams {
    fn version(&self, _: Duration) -> CriFuture<'_, v1::VersionResponse> {
        let [version, runtime_version] = ["0.1.0", "1"].map(String::from);
        let [runtime_name, runtime_api_version] = ["streams", "v1"].map(String::from);
        now(Ok(v1::VersionResponse { version, runtime_name, runtime_version, runtime_api_version }))
    }

    fn status(&self, _: bool, _: Duration) -> CriFuture<'_, v1::StatusResponse> {
        no("Status")
    }

    fn run_pod_sandbox(&self, _: v1::RunPodSandboxRequest, _: Duration) -> CriFuture<'_, String> {
        no("RunPodSandbox")
    }

    fn stop_pod_sandbox(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        no("StopPodSandbox")
    }

    fn remove_pod_sandbox(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        no("RemovePodSandbox")
    }

    fn pod_sandbox_status(&self, _: &str, _: bool, _: Duration) -> CriFuture<'_, v1::PodSandboxStatusResponse> {
        no("PodSandboxStatus")
    }

    fn list_pod_sandbox(&self, _: Option<v1::PodSandboxFilter>, _: Duration) -> CriFuture<'_, Vec<v1::PodSandbox>> {
        now(Ok(vec![v1::PodSandbox { id: "pod".into(), metadata: Some(Default::default()), ..Default::default() }]))
    }

    fn create_container(&self, _: v1::CreateContainerRequest, _: Duration) -> CriFuture<'_, String> {
        no("CreateContainer")
    }

    fn start_container(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        no("StartContainer")
    }

    fn stop_container(&self, _: &str, _: u32, _: Duration) -> CriFuture<'_, ()> {
        no("StopContainer")
    }

    fn remove_container(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        no("RemoveContainer")
    }

    fn list_containers(&self, _: Option<v1::ContainerFilter>, _: Duration) -> CriFuture<'_, Vec<v1::Container>> {
        now(Ok(vec![v1::Container { id: "test".into(), metadata: Some(Default::default()), ..Default::default() }]))
    }

    fn container_status(&self, _: &str, _: bool, _: Duration) -> CriFuture<'_, v1::ContainerStatusResponse> {
        let metadata = Some(Default::default());
        let state = v1::ContainerState::ContainerRunning.into();
        let status = v1::ContainerStatus { id: "test".into(), metadata, state, ..Default::default() };
        now(Ok(v1::ContainerStatusResponse { status: Some(status), ..Default::default() }))
    }

    fn reopen_container_log(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        no("ReopenContainerLog")
    }

    fn exec_sync(&self, _: v1::ExecSyncRequest, _: Duration) -> CriFuture<'_, v1::ExecSyncResponse> {
        no("ExecSync")
    }

    fn exec(&self, request: v1::ExecRequest, _: Duration) -> CriFuture<'_, String> {
        now(self.0.exec_url(request))
    }

    fn attach(&self, request: v1::AttachRequest, _: Duration) -> CriFuture<'_, String> {
        now(self.0.attach_url(request))
    }

    fn port_forward(&self, request: v1::PortForwardRequest, _: Duration) -> CriFuture<'_, String> {
        now(self.0.port_forward_url(request))
    }
}

/// A runtime without images.
struct NoImages;

impl ImageService for NoImages {
    fn list_images(&self, _: Option<v1::ImageFilter>, _: Duration) -> CriFuture<'_, Vec<v1::Image>> {
        now(Ok(vec![]))
    }

    fn image_status(&self, _: v1::ImageSpec, _: bool, _: Duration) -> CriFuture<'_, v1::ImageStatusResponse> {
        no("ImageStatus")
    }

    fn pull_image(&self, _: v1::PullImageRequest, _: Duration) -> CriFuture<'_, String> {
        no("PullImage")
    }

    fn remove_image(&self, _: v1::ImageSpec, _: Duration) -> CriFuture<'_, ()> {
        no("RemoveImage")
    }

    fn image_fs_info(&self, _: Duration) -> CriFuture<'_, v1::ImageFsInfoResponse> {
        now(Ok(v1::ImageFsInfoResponse::default()))
    }
}

struct Bed {
    dir: tempfile::TempDir,
    /// Ends the server.
    _runtime: tokio::runtime::Runtime,
    crictl: PathBuf,
}

impl Bed {
    fn new(make_target: impl FnOnce() -> Result<HostProcesses>) -> Result<Self> {
        let crictl = Cache::find().peer("crictl")?;
        let dir = tempfile::tempdir()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let socket = dir.path().join("cri.sock");
        runtime.block_on(async {
            let streams = StreamingServer::start(Arc::new(make_target()?), &Tasks::unsupervised()).await?;
            let cri = CriSocket::bind(&socket)?;
            podwright_tasks::spawn(
                "cri",
                cri.serve(Arc::new(Streams(streams)), Arc::new(NoImages), std::future::pending()),
            );
            anyhow::Ok(())
        })?;
        Ok(Self { dir, _runtime: runtime, crictl })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg("60").arg(&self.crictl).env("HOME", self.dir.path());
        command.args(["--config", "/dev/null", "--runtime-endpoint"]).arg(endpoint(self.dir.path())).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str], input: &[u8]) -> Result<Output> {
        let mut child = self.command(arguments).spawn().context("start crictl")?;
        child.stdin.take().context("stdin")?.write_all(input)?;
        Ok(child.wait_with_output()?)
    }
}

fn endpoint(dir: &Path) -> String {
    format!("unix://{}/cri.sock", dir.display())
}

#[test]
fn crictl_executes_commands_by_both_transports() -> Result<()> {
    let bed = Bed::new(|| Ok(HostProcesses::default()))?;
    for transport in ["spdy", "websocket"] {
        let exec = ["exec", "--transport", transport, "test", "sh", "-c", "echo out; echo err >&2; exit 7"];
        let output = bed.run(&exec, b"")?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(out, "out\n", "{transport}: {err}");
        ensure!(err.starts_with("err\n") && err.contains("exit code 7"), "{transport}: {err}");
        assert_eq!(output.status.code(), Some(1), "{transport}: {err}");
    }
    let text = vec![b'x'; 1_000_000];
    let output = bed.run(&["exec", "-i", "test", "sh", "-c", "cat; echo end"], &text)?;
    assert_eq!(output.stdout.len(), text.len() + 4, "{}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success() && output.stdout.ends_with(b"xend\n"));
    Ok(())
}

#[test]
fn crictl_attaches_to_a_process() -> Result<()> {
    let mut child = None;
    let bed = Bed::new(|| {
        let (process, streams) = with_pipes(&sh("while read line; do echo got $line; done", true, false))?;
        child = Some(process);
        Ok(HostProcesses { attachable: Some(streams).into() })
    })?;
    let output = bed.run(&["attach", "-i", "test"], b"one\ntwo\n")?;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "got one\ngot two\n", "{err}");
    ensure!(output.status.success(), "{err}");
    Ok(())
}

#[test]
fn crictl_forwards_a_port() -> Result<()> {
    let bed = Bed::new(|| Ok(HostProcesses::default()))?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let remote = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let text = std::io::read_to_string(&stream).unwrap_or_default();
                let _ = (&stream).write_all(text.to_uppercase().as_bytes());
            });
        }
    });
    for transport in ["spdy", "websocket"] {
        // A port that was free a moment ago.
        let local = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let forward = ["port-forward", "--transport", transport, "pod", &format!("{local}:{remote}")];
        let mut child = bed.command(&forward).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let answers = ask_in_capitals(local, 3);
        // The group's other member is crictl: `timeout` passes the signal on.
        Command::new("kill").arg(child.id().to_string()).status()?;
        child.wait()?;
        assert_eq!(answers?, ["HELLO 0", "HELLO 1", "HELLO 2"], "{transport}");
    }
    Ok(())
}

fn ask_in_capitals(port: u16, count: usize) -> Result<Vec<String>> {
    let until = Instant::now() + Duration::from_secs(30);
    let connect = || loop {
        match std::net::TcpStream::connect(("127.0.0.1", port)) {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
            connected => return connected,
        }
    };
    let mut streams = vec![];
    for index in 0..count {
        let mut stream = connect()?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(format!("hello {index}").as_bytes())?;
        streams.push(stream);
    }
    let answer = |stream: std::net::TcpStream| {
        stream.shutdown(std::net::Shutdown::Write)?;
        Ok(std::io::read_to_string(stream)?)
    };
    streams.into_iter().map(answer).collect()
}

#[test]
fn critest_passes_on_the_engine() -> Result<()> {
    own_namespaces::run("critest_passes_on_the_engine", critest::run)
}

#[test]
fn critest_passes_on_a_network_of_cni_plugins() -> Result<()> {
    own_namespaces::run("critest_passes_on_a_network_of_cni_plugins", critest::run_on_cni)
}

#[test]
fn crictl_runs_a_pod_on_the_engine() -> Result<()> {
    own_namespaces::run("crictl_runs_a_pod_on_the_engine", || crictl::run(PodNetwork::Builtin))
}

#[test]
fn crictl_runs_a_pod_on_a_network_of_cni_plugins() -> Result<()> {
    own_namespaces::run("crictl_runs_a_pod_on_a_network_of_cni_plugins", || crictl::run(PodNetwork::Cni))
}
