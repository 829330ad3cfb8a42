//! Exec, attach and port-forward: the engine's streaming server.
//!
//! ```text
//!  Exec ─▶ exec_url: http://127.0.0.1:<port>/exec/<token> ─▶ client connects ─▶ SPDY or WebSocket ─▶ StreamTarget ─▶ process
//! ```
//!
//! The CRI returns a URL for these three calls, and the client (crictl, or the kubelet's API as a proxy) connects to it. The
//! listener is on the loopback interface, which every user of the host and every pod in the host's network can reach: only a
//! random token that was returned by the CRI opens a session. It works once, and for a minute. As in k8s.io/cri-streaming.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz_inputs;
mod handshake;
mod port_forward;
mod process_io;
mod remote_command;
mod server;
mod session;
mod spdy;
mod streams;
mod token;
mod websocket;

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use podwright_cri::{BoxFuture, Code, CriError, CriFuture, v1};
use podwright_tasks::Tasks;
use tokio::net::TcpListener;

use token::{PendingRequests, StreamRequest};

/// What the streaming server needs from containers and pods. Implemented on shims; by pipes in tests.
pub trait StreamTarget: Send + Sync + 'static {
    /// Starts a process in a running container. Dropping the result closes its streams: the process gets EOF, SIGPIPE, or SIGHUP
    /// if it has a terminal. It is not killed otherwise.
    fn exec(&self, request: v1::ExecRequest) -> CriFuture<'_, ExecProcess>;

    /// Connects to the standard streams of a running container.
    fn attach(&self, request: v1::AttachRequest) -> CriFuture<'_, ProcessStreams>;

    /// Connects to a port on the loopback interface of the sandbox: IPv4, then IPv6. Returns a connected stream socket.
    fn port_forward(&self, sandbox_id: &str, port: u16) -> CriFuture<'_, OwnedFd>;
}

/// A process that was started for a client.
pub struct ExecProcess {
    /// Its standard streams.
    pub streams: ProcessStreams,
    /// Resolves when the process has exited, to its exit code (128 + the signal that killed it).
    pub exit: BoxFuture<'static, Result<i32, CriError>>,
}

/// Our ends of the standard streams of a process: pipes, stream sockets, or descriptors of a pty master. They may block or not:
/// the server makes them nonblocking, which for a pty master affects every copy of the descriptor.
#[derive(Debug, Default)]
pub struct ProcessStreams {
    /// Written by the server; closed when the client closes its stdin. `None`: not requested.
    pub stdin: Option<OwnedFd>,
    /// Read until its end; EIO is the end too (pty). With a terminal also what would be stderr.
    pub stdout: Option<OwnedFd>,
    /// As `stdout`; `None` with a terminal.
    pub stderr: Option<OwnedFd>,
    /// The pty master, for changes of the window size.
    pub terminal: Option<OwnedFd>,
}

impl ProcessStreams {
    /// The streams of a process with a terminal, from its pty master.
    pub fn of_terminal(master: OwnedFd, stdin: bool, stdout: bool) -> io::Result<Self> {
        let copy = |wanted: bool| wanted.then(|| master.try_clone()).transpose();
        Ok(Self { stdin: copy(stdin)?, stdout: copy(stdout)?, stderr: None, terminal: Some(master) })
    }
}

/// The URLs of the streaming server, and the requests behind them.
#[derive(Debug)]
pub struct StreamingServer {
    pending: Arc<PendingRequests>,
    /// `http://127.0.0.1:<port>`.
    base_url: String,
}

impl StreamingServer {
    /// Listens on a free port of the loopback interface.
    pub async fn start(target: Arc<dyn StreamTarget>, tasks: &Tasks) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let base_url = format!("http://{}", listener.local_addr()?);
        let pending = Arc::new(PendingRequests::default());
        tasks.service("streaming-server", server::serve(listener, Arc::clone(&pending), target));
        Ok(Self { pending, base_url })
    }

    /// The URL for a command in a container.
    pub fn exec_url(&self, request: v1::ExecRequest) -> Result<String, CriError> {
        check_remote_command(
            "Exec",
            &request.container_id,
            request.tty,
            [request.stdin, request.stdout, request.stderr],
        )?;
        self.url(StreamRequest::Exec(request))
    }

    /// The URL for the standard streams of a container.
    pub fn attach_url(&self, request: v1::AttachRequest) -> Result<String, CriError> {
        let streams = [request.stdin, request.stdout, request.stderr];
        check_remote_command("Attach", &request.container_id, request.tty, streams)?;
        self.url(StreamRequest::Attach(request))
    }

    /// The URL for ports of a sandbox.
    pub fn port_forward_url(&self, request: v1::PortForwardRequest) -> Result<String, CriError> {
        if request.pod_sandbox_id.is_empty() {
            return Err(CriError::new(Code::InvalidArgument, "PortForward", "missing required pod_sandbox_id"));
        }
        let valid = |port: &i32| (1..=i32::from(u16::MAX)).contains(port);
        if request.port.len() > PORTS_MAX || !request.port.iter().all(valid) {
            let message = format!("at most {PORTS_MAX} ports, each from 1 to {}", u16::MAX);
            return Err(CriError::new(Code::InvalidArgument, "PortForward", message));
        }
        self.url(StreamRequest::PortForward(request))
    }

    fn url(&self, request: StreamRequest) -> Result<String, CriError> {
        let path = request.path();
        let token = self.pending.insert(request, Instant::now())?;
        Ok(format!("{}/{path}/{token}", self.base_url))
    }
}

/// cri-streaming: `validateExecRequest`, `validateAttachRequest`.
fn check_remote_command(call: &'static str, id: &str, tty: bool, streams: [bool; 3]) -> Result<(), CriError> {
    let refused = |message: &str| Err(CriError::new(Code::InvalidArgument, call, message));
    match streams {
        _ if id.is_empty() => refused("missing required container_id"),
        [_, _, true] if tty => refused("tty and stderr cannot both be true"),
        [false, false, false] => refused("one of stdin, stdout, or stderr must be set"),
        _ => Ok(()),
    }
}

/// A WebSocket client has two channels for each.
const PORTS_MAX: usize = 32;
