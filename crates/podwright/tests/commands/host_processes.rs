//! Containers that are processes of this host: exec starts the command, attach starts a fixed one, and the ports of a pod are those
//! of the loopback interface. The streaming server before them is the engine's.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::Arc;

use podwright_agent::feed::PodFeed;
use podwright_cri::{BoxFuture, Code, CriError, CriFuture, v1};
use podwright_engine::streaming::{ExecProcess, ProcessStreams, StreamTarget, StreamingServer};
use podwright_server::StreamingRuntime;
use podwright_tasks::Tasks;
use tokio::process::{Child, Command};

/// The process that attach connects to.
const ATTACHED: &str = "echo from the process; echo an error >&2; read line && echo got $line";
/// The id of a container whose image has no `tar`.
pub(crate) const WITHOUT_TAR: &str = "without-tar";

/// The runtime of the tests.
pub(crate) struct HostRuntime {
    feed: Arc<PodFeed>,
    server: StreamingServer,
}

impl HostRuntime {
    pub(crate) async fn start(feed: Arc<PodFeed>) -> Self {
        let server = StreamingServer::start(Arc::new(HostProcesses), &Tasks::unsupervised()).await.expect("it listens");
        Self { feed, server }
    }
}

impl StreamingRuntime for HostRuntime {
    fn exec(&self, request: v1::ExecRequest) -> BoxFuture<'_, Result<String, CriError>> {
        Box::pin(std::future::ready(self.server.exec_url(request)))
    }

    fn attach(&self, request: v1::AttachRequest) -> BoxFuture<'_, Result<String, CriError>> {
        Box::pin(std::future::ready(self.server.attach_url(request)))
    }

    fn port_forward(&self, request: v1::PortForwardRequest) -> BoxFuture<'_, Result<String, CriError>> {
        Box::pin(std::future::ready(self.server.port_forward_url(request)))
    }

    /// Every pod in the phase Running has a sandbox.
    fn running(&self) -> BoxFuture<'_, Result<(Vec<v1::PodSandbox>, Vec<v1::Container>), CriError>> {
        let (_, views) = self.feed.list();
        let running = views
            .iter()
            .filter(|view| view.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running")));
        let sandbox = |view: &Arc<podwright_agent::feed::PodView>| {
            let labels =
                [("uid", view.uid().to_string()), ("name", view.name().into()), ("namespace", view.namespace().into())];
            let labels =
                labels.into_iter().map(|(key, value): (_, String)| (format!("io.kubernetes.pod.{key}"), value));
            v1::PodSandbox { id: "sandbox".into(), labels: labels.collect(), ..Default::default() }
        };
        Box::pin(std::future::ready(Ok((running.map(sandbox).collect(), vec![]))))
    }
}

struct HostProcesses;

impl StreamTarget for HostProcesses {
    fn exec(&self, request: v1::ExecRequest) -> CriFuture<'_, ExecProcess> {
        Box::pin(async move {
            let mut command = request.cmd.clone();
            if request.container_id == WITHOUT_TAR && command[0] == "tar" {
                command[0] = "/no/such/program".into();
            }
            let streams = [request.stdin, request.stdout, request.stderr];
            let (mut child, streams) = start(&command, streams).map_err(|error| failed("Exec", error))?;
            let exit = Box::pin(async move {
                let status = child.wait().await.map_err(|error| failed("Exec", error))?;
                Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
            });
            Ok(ExecProcess { streams, exit })
        })
    }

    fn attach(&self, request: v1::AttachRequest) -> CriFuture<'_, ProcessStreams> {
        Box::pin(async move {
            let command = ["sh", "-c", ATTACHED].map(String::from);
            let streams = [request.stdin, request.stdout, request.stderr];
            let (_, streams) = start(&command, streams).map_err(|error| failed("Attach", error))?;
            Ok(streams)
        })
    }

    fn port_forward(&self, _: &str, port: u16) -> CriFuture<'_, OwnedFd> {
        let connected = std::net::TcpStream::connect(("127.0.0.1", port)).map(OwnedFd::from);
        Box::pin(std::future::ready(connected.map_err(|error| failed("PortForward", error))))
    }
}

fn failed(call: &'static str, error: std::io::Error) -> CriError {
    CriError::new(Code::Other, call, error.to_string())
}

fn start(command: &[String], [stdin, stdout, stderr]: [bool; 3]) -> std::io::Result<(Child, ProcessStreams)> {
    let piped = |wanted| if wanted { Stdio::piped() } else { Stdio::null() };
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]).stdin(piped(stdin)).stdout(piped(stdout)).stderr(piped(stderr));
    let mut child = process.spawn()?;
    let streams = ProcessStreams {
        stdin: child.stdin.take().map(|pipe| pipe.into_owned_fd()).transpose()?,
        stdout: child.stdout.take().map(|pipe| pipe.into_owned_fd()).transpose()?,
        stderr: child.stderr.take().map(|pipe| pipe.into_owned_fd()).transpose()?,
        terminal: None,
    };
    Ok((child, streams))
}
