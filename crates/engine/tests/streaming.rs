//! The streaming server with real processes and hand-driven clients.

mod fixture;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use fixture::{HostProcesses, sh, with_pipes};
use futures::{SinkExt, StreamExt};
use podwright_cri::v1;
use podwright_engine::streaming::{ProcessStreams, StreamingServer};
use podwright_tasks::Tasks;
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

type Client = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn server(target: HostProcesses) -> StreamingServer {
    StreamingServer::start(Arc::new(target), &Tasks::unsupervised()).await.unwrap()
}

async fn connect(url: &str, protocol: &str) -> Result<Client, Error> {
    let mut request = url.replace("http://", "ws://").into_client_request()?;
    request.headers_mut().insert("Sec-WebSocket-Protocol", protocol.parse().unwrap());
    let (client, response) = connect_async(request).await?;
    assert_eq!(response.headers()["sec-websocket-protocol"], protocol);
    Ok(client)
}

/// Everything on the channels stdout, stderr and error, until the server closes.
async fn collect(client: &mut Client) -> Result<[String; 3]> {
    let mut received = [vec![], vec![], vec![]];
    let read = async {
        while let Some(message) = client.next().await {
            match message? {
                Message::Binary(bytes) => match bytes.split_first() {
                    Some((channel @ 1..=3, data)) => received[usize::from(*channel) - 1].extend_from_slice(data),
                    other => bail!("unexpected message {other:?}"),
                },
                Message::Close(_) => break,
                other => bail!("unexpected message {other:?}"),
            }
        }
        Ok(())
    };
    timeout(Duration::from_secs(20), read).await??;
    Ok(received.map(|bytes| String::from_utf8(bytes).unwrap()))
}

fn binary(channel: u8, data: &[u8]) -> Message {
    Message::binary([&[channel], data].concat())
}

#[tokio::test]
async fn a_websocket_client_gets_output_and_exit_code() -> Result<()> {
    let server = server(HostProcesses::default()).await;
    let url = server.exec_url(sh("echo out; echo err >&2; exit 3", false, false))?;
    let [out, err, status] = collect(&mut connect(&url, "v4.channel.k8s.io").await?).await?;
    assert_eq!((out.as_str(), err.as_str()), ("out\n", "err\n"));
    assert!(status.contains("\"NonZeroExitCode\"") && status.contains("\"message\":\"3\""), "{status}");
    Ok(())
}

#[tokio::test]
async fn a_v5_client_can_close_stdin() -> Result<()> {
    let server = server(HostProcesses::default()).await;
    let url = server.exec_url(sh("cat; echo end", true, false))?;
    let mut client = connect(&url, "v5.channel.k8s.io").await?;
    let text = "x".repeat(100_000);
    for part in text.as_bytes().chunks(30_000) {
        client.send(binary(0, part)).await?;
    }
    client.send(Message::binary(vec![255, 0])).await?;
    let [out, _, status] = collect(&mut client).await?;
    assert_eq!(out, text + "end\n");
    assert!(status.contains("Success"), "{status}");
    Ok(())
}

#[tokio::test]
async fn a_base64_client_gets_text_messages() -> Result<()> {
    let server = server(HostProcesses::default()).await;
    let url = server.exec_url(sh("read line; echo got $line", true, false))?;
    let mut client = connect(&url, "v4.base64.channel.k8s.io").await?;
    client.send(Message::text("0Zm9vCg==")).await?;
    let mut messages = vec![];
    while let Some(Ok(Message::Text(text))) = client.next().await {
        messages.push(text.to_string());
    }
    assert_eq!(messages[..2], ["1", "1Z290IGZvbwo="], "{messages:?}");
    assert!(messages[2].starts_with('3'));
    Ok(())
}

#[tokio::test]
async fn a_terminal_has_the_size_of_the_client() -> Result<()> {
    let server = server(HostProcesses::default()).await;
    let script = "stty -echo; echo ready; read line; stty size; test -t 0 && echo terminal";
    let mut client = connect(&server.exec_url(sh(script, true, true))?, "v5.channel.k8s.io").await?;
    client.send(binary(4, br#"{"Width":123,"Height":45}"#)).await?;
    client.send(binary(0, b"\n")).await?;
    let [out, _, status] = collect(&mut client).await?;
    assert!(out.contains("45 123") && out.contains("terminal"), "{out}");
    assert!(status.contains("Success"), "{status}");
    Ok(())
}

#[tokio::test]
async fn a_disconnected_client_closes_the_streams_of_its_process() -> Result<()> {
    let server = server(HostProcesses::default()).await;
    let dir = tempfile::tempdir()?;
    let seen = dir.path().join("eof");
    let url = server.exec_url(sh(&format!("cat >/dev/null; touch {}", seen.display()), true, false))?;
    let mut client = connect(&url, "v4.channel.k8s.io").await?;
    client.next().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    ensure!(!seen.exists(), "its input is open while the client is connected");
    drop(client);
    let ended = async {
        while !seen.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(20), ended).await?;
    Ok(())
}

/// Sends until neither the process, nor the server, nor a socket takes more, and leaves.
async fn leave_with_full_buffers(mut client: Client, message: impl Fn() -> Message) -> Result<()> {
    let fill = async {
        for _ in 0..100_000 {
            client.send(message()).await?;
        }
        Ok::<_, Error>(())
    };
    ensure!(timeout(Duration::from_secs(3), fill).await.is_err(), "the server takes everything, or has ended");
    drop(client);
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_while_stdin_is_not_read_is_noticed() -> Result<()> {
    let (stdin, given) = std::io::pipe()?;
    let streams = ProcessStreams { stdin: Some(given.into()), stdout: None, stderr: None, terminal: None };
    let server = server(HostProcesses { attachable: Some(streams).into() }).await;
    let request = v1::AttachRequest { container_id: "test".into(), stdin: true, ..Default::default() };
    let client = connect(&server.attach_url(request)?, "v5.channel.k8s.io").await?;
    leave_with_full_buffers(client, || binary(0, &[0; 30_000])).await?;
    let closed = tokio::task::spawn_blocking(move || {
        // Without interest in data: only the end of all writers is reported.
        let mut poll = [PollFd::new(&stdin, PollFlags::empty())];
        rustix::event::poll(&mut poll, Some(&Timespec { tv_sec: 15, tv_nsec: 0 }))
    });
    assert_eq!(closed.await??, 1, "stdin is open after the client has left");
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_while_its_port_does_not_read_is_noticed() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let server = server(HostProcesses::default()).await;
    let request = v1::PortForwardRequest { pod_sandbox_id: "pod".into(), port: vec![] };
    let mut client = connect(&server.port_forward_url(request)?, "SPDY/3.1+portforward.k8s.io").await?;
    let mut frames = SpdyFrames(flate2::Compress::new(flate2::Compression::fast(), true));
    for (stream, kind) in [(1, "error"), (3, "data")] {
        let headers = [("streamtype", kind), ("port", &port.to_string()), ("requestid", "0")];
        client.send(Message::binary(frames.open(stream, &headers))).await?;
    }
    let _forwarded = listener.accept().await?;
    leave_with_full_buffers(client, || Message::binary(data_frame(3, &[0; 200], false).repeat(100))).await?;
    let closed = async {
        while is_connected_to(port) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(15), closed).await?;
    Ok(())
}

/// A process has a socket with this remote port.
fn is_connected_to(port: u16) -> bool {
    let sockets = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let has_port = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        // The inode is 0 when all descriptors are closed.
        columns[2].ends_with(&format!(":{port:04X}")) && columns[9] != "0"
    };
    sockets.lines().skip(1).any(has_port)
}

#[tokio::test]
async fn output_after_the_exit_is_complete_although_a_background_process_holds_the_pipe() -> Result<()> {
    let server = server(HostProcesses::default()).await;
    let dir = tempfile::tempdir()?;
    let pid_file = dir.path().join("pid");
    let script = format!("sleep 60 & echo $! >{}; head -c 1000000 /dev/zero | tr '\\0' x; exit 4", pid_file.display());
    let url = server.exec_url(sh(&script, false, false))?;
    // `collect` waits 20 s at most.
    let [out, _, status] = collect(&mut connect(&url, "v4.channel.k8s.io").await?).await?;
    assert_eq!(out.len(), 1_000_000);
    assert!(status.contains("\"message\":\"4\""), "{status}");
    let pid = std::fs::read_to_string(&pid_file)?;
    ensure!(std::process::Command::new("kill").arg(pid.trim()).status()?.success(), "it still runs");
    Ok(())
}

#[tokio::test]
async fn a_failed_start_is_reported_to_the_client() -> Result<()> {
    let server = server(HostProcesses::default()).await;
    let request = v1::ExecRequest { cmd: vec!["/does/not/exist".into()], ..sh("", false, false) };
    let [_, _, status] = collect(&mut connect(&server.exec_url(request)?, "v4.channel.k8s.io").await?).await?;
    assert!(status.contains("InternalError") && status.contains("No such file"), "{status}");
    Ok(())
}

#[tokio::test]
async fn attach_ends_when_the_process_closes_its_output() -> Result<()> {
    let (mut child, streams) = with_pipes(&sh("while read line; do echo got $line; done", true, false))?;
    let target = HostProcesses { attachable: Some(streams).into() };
    let server = server(target).await;
    let request = v1::AttachRequest { container_id: "test".into(), stdin: true, stdout: true, ..Default::default() };
    let mut client = connect(&server.attach_url(request.clone())?, "v5.channel.k8s.io").await?;
    client.send(binary(0, b"one\ntwo\n")).await?;
    client.send(Message::binary(vec![255, 0])).await?;
    let [out, _, status] = collect(&mut client).await?;
    assert_eq!(out, "got one\ngot two\n");
    assert!(status.contains("Success"), "{status}");
    child.wait().await?;

    let [_, _, status] = collect(&mut connect(&server.attach_url(request)?, "v4.channel.k8s.io").await?).await?;
    assert!(status.contains("container test not found"), "{status}");
    Ok(())
}

#[tokio::test]
async fn a_token_opens_one_session_of_its_kind() -> Result<()> {
    let server = server(HostProcesses::default()).await;
    let status = |error: Error| match error {
        Error::Http(response) => response.status().as_u16(),
        other => panic!("{other}"),
    };
    let url = server.exec_url(sh("true", false, false))?;
    collect(&mut connect(&url, "v4.channel.k8s.io").await?).await?;
    assert_eq!(status(connect(&url, "v4.channel.k8s.io").await.unwrap_err()), 404, "it was used");
    let url = server.exec_url(sh("true", false, false))?;
    assert_eq!(status(connect(&url.replace("/exec/", "/attach/"), "v4.channel.k8s.io").await.unwrap_err()), 404);
    let url = server.exec_url(sh("true", false, false))?;
    assert_eq!(status(connect(&url, "v9.channel.k8s.io").await.unwrap_err()), 403);
    let refused = server.exec_url(v1::ExecRequest { stderr: true, ..sh("true", false, true) }).unwrap_err();
    assert!(refused.message.contains("tty and stderr"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn silent_connections_do_not_keep_a_client_out() -> Result<()> {
    let server = server(HostProcesses::default()).await;
    let url = server.exec_url(sh("echo works", false, false))?;
    let address = url.trim_start_matches("http://").split('/').next().unwrap().to_owned();
    let mut silent = vec![];
    for _ in 0..200 {
        silent.push(TcpStream::connect(&address).await?);
    }
    let [out, ..] = collect(&mut connect(&url, "v4.channel.k8s.io").await?).await?;
    assert_eq!(out, "works\n");
    let mut buffer = [0];
    let closed = timeout(Duration::from_secs(5), silent[0].read(&mut buffer)).await?;
    assert_eq!(closed.unwrap_or(0), 0, "the oldest was closed");
    Ok(())
}

/// Answers each connection in capital letters after the client's half was closed.
async fn capital_letters() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    podwright_tasks::spawn("capital-letters", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut text = String::new();
            let _ = stream.read_to_string(&mut text).await;
            let _ = stream.write_all(text.to_uppercase().as_bytes()).await;
        }
    });
    Ok(port)
}

/// SPDY frames with headers that are compressed without a dictionary.
struct SpdyFrames(flate2::Compress);

impl SpdyFrames {
    fn open(&mut self, stream: u8, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut plain = u32::try_from(headers.len()).unwrap().to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
            plain.extend(text.as_bytes());
        }
        let mut payload = Vec::with_capacity(500);
        payload.extend([0, 0, 0, stream, 0, 0, 0, 0, 0, 0]);
        self.0.compress_vec(&plain, &mut payload, flate2::FlushCompress::Sync).unwrap();
        [&[0x80, 3, 0, 1, 0, 0, 0, u8::try_from(payload.len()).unwrap()], &payload[..]].concat()
    }
}

fn data_frame(stream: u8, data: &[u8], last: bool) -> Vec<u8> {
    [&[0, 0, 0, stream, u8::from(last), 0, 0, u8::try_from(data.len()).unwrap()], data].concat()
}

/// The data of one stream in a sequence of frames, and whether it has ended.
fn stream_data(mut bytes: &[u8], wanted: u8) -> (Vec<u8>, bool) {
    let (mut data, mut ended) = (vec![], false);
    while bytes.len() >= 8 {
        let length = usize::from(bytes[6]) * 256 + usize::from(bytes[7]);
        if bytes[0] == 0 && bytes[3] == wanted && bytes.len() >= 8 + length {
            data.extend_from_slice(&bytes[8..8 + length]);
            ended |= bytes[4] == 1;
        }
        bytes = bytes.get(8 + length..).unwrap_or_default();
    }
    (data, ended)
}

#[tokio::test]
async fn a_tunnel_forwards_several_connections_and_their_errors() -> Result<()> {
    let port = capital_letters().await?.to_string();
    let server = server(HostProcesses::default()).await;
    let request = v1::PortForwardRequest { pod_sandbox_id: "pod".into(), port: vec![] };
    let mut client = connect(&server.port_forward_url(request)?, "SPDY/3.1+portforward.k8s.io").await?;
    let mut frames = SpdyFrames(flate2::Compress::new(flate2::Compression::fast(), true));
    let closed = { TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port().to_string() };
    let mut bytes = vec![];
    for (stream, kind, port, request) in
        [(1, "error", &port, "0"), (3, "data", &port, "0"), (5, "error", &closed, "1"), (7, "data", &closed, "1")]
    {
        bytes.extend(frames.open(stream, &[("streamtype", kind), ("port", port), ("requestid", request)]));
    }
    bytes.extend(data_frame(3, b"hello ", false));
    bytes.extend(data_frame(3, b"tunnel", true));
    // Any cut of the byte stream into messages works.
    for part in bytes.chunks(17) {
        client.send(Message::binary(part.to_vec())).await?;
    }
    let mut received = vec![];
    let read = async {
        while !stream_data(&received, 3).1 || !stream_data(&received, 5).1 {
            let Some(message) = client.next().await else { bail!("closed: {received:?}") };
            received.extend_from_slice(&message?.into_data());
        }
        Ok(())
    };
    timeout(Duration::from_secs(20), read).await??;
    assert_eq!(stream_data(&received, 3).0, b"HELLO TUNNEL");
    let error = String::from_utf8(stream_data(&received, 5).0)?;
    ensure!(error.contains(&format!("error forwarding port {closed} to pod pod")), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_websocket_client_forwards_the_ports_of_its_request() -> Result<()> {
    let port = capital_letters().await?;
    let server = server(HostProcesses::default()).await;
    let request = v1::PortForwardRequest { pod_sandbox_id: "pod".into(), port: vec![i32::from(port)] };
    let mut client = connect(&server.port_forward_url(request)?, "v4.channel.k8s.io").await?;
    let announced = port.to_le_bytes();
    assert_eq!(client.next().await.unwrap()?, binary(0, &announced));
    assert_eq!(client.next().await.unwrap()?, binary(1, &announced));
    let invalid = v1::PortForwardRequest { pod_sandbox_id: "pod".into(), port: vec![70_000] };
    assert!(server.port_forward_url(invalid).is_err());
    Ok(())
}
