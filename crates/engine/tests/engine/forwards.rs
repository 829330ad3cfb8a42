//! Port-forwards that hang, beside other calls of their pod.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use futures::StreamExt;
use podwright_cri::{RuntimeService, v1};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::bed::{Bed, LIMIT};

/// A program that does not accept: the kernel drops the requests of further clients, which wait.
struct FullListener {
    address: SocketAddr,
    _listener: TcpListener,
    _clients: Vec<TcpStream>,
}

impl FullListener {
    fn open() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
        let clients: Vec<TcpStream> = std::iter::from_fn(connect).take(100).collect();
        assert!(clients.len() < 100, "not full");
        Self { address, _listener: listener, _clients: clients }
    }
}

/// Waits until the connection to the port is being made.
async fn forward(bed: &Bed, sandbox: &str, port: u16) -> impl Sized {
    let request = v1::PortForwardRequest { pod_sandbox_id: sandbox.into(), port: vec![port.into()] };
    let url = bed.engine().port_forward(request, LIMIT).await.unwrap();
    let mut request = url.replace("http://", "ws://").into_client_request().unwrap();
    request.headers_mut().insert("Sec-WebSocket-Protocol", "v4.channel.k8s.io".parse().unwrap());
    let (mut client, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    for _ in ["data", "error"] {
        client.next().await.unwrap().unwrap();
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    client
}

pub(crate) async fn forwards_that_hang_delay_no_other_call_of_their_pod(bed: Bed) {
    let sandbox = bed.pod("web").await;
    let first = bed.start(&sandbox, "first", "trap '' TERM; echo ready; while true; do sleep 0.05; done").await;
    bed.wait_for_log(&first, "ready").await;
    let listener = FullListener::open();
    for _ in 0..2 {
        drop(forward(&bed, &sandbox, listener.address.port()).await);
    }
    let second = bed.start(&sandbox, "second", "exit 4").await;
    assert_eq!(bed.exit(&second).await.exit_code, 4);
    let waiting = [(); 2].map(|()| forward(&bed, &sandbox, listener.address.port()));
    let _waiting = futures::future::join_all(waiting).await;
    let since = Instant::now();
    bed.engine().stop_container(&first, 1, LIMIT).await.unwrap();
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
    assert_eq!(bed.status(&first).await.exit_code, 137);
}
