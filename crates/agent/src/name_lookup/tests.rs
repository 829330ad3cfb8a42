use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::*;

/// A name server that answers every A query with 127.0.0.1 and every other one with no records.
async fn answering() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            // The header and the question: names end with a zero byte, then come type and class.
            let end = 12 + buffer[12..length].iter().position(|byte| *byte == 0).unwrap() + 5;
            let is_a = buffer[end - 3] == 1;
            let mut answer = buffer[..end].to_vec();
            answer[2] = 0x81;
            answer[3] = 0x80;
            answer[6..12].copy_from_slice(&[0, u8::from(is_a), 0, 0, 0, 0]);
            if is_a {
                answer.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
            }
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn names_are_looked_up_and_addresses_are_not() {
    let names = NameResolver::of_server(answering().await);
    let local = IpAddr::from(Ipv4Addr::LOCALHOST);
    assert_eq!(names.lookup("pod", "db.example.").await.unwrap(), [local]);
    let dead = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let none = NameResolver::of_server(dead.local_addr().unwrap());
    assert_eq!(none.lookup("pod", "192.0.2.7").await.unwrap(), ["192.0.2.7".parse::<IpAddr>().unwrap()]);
    assert_eq!(none.lookup("pod", "[2001:db8::1]").await.unwrap(), ["2001:db8::1".parse::<IpAddr>().unwrap()]);

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    names.connect("pod", "db.example.", port).await.unwrap();
}

#[tokio::test]
async fn a_name_in_the_hosts_file_needs_no_name_server() {
    let dead = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let mut hosts = Hosts::default();
    hosts.read_hosts_conf(&b"192.0.2.7 db db.example.com"[..]).unwrap();
    let names = NameResolver::of_server_and_hosts(dead.local_addr().unwrap(), hosts);
    for host in ["db", "db.example.com", "db.example.com."] {
        let found = timeout(Duration::from_secs(1), names.lookup("pod", host)).await.expect("it is in the file");
        assert_eq!(found.unwrap(), ["192.0.2.7".parse::<IpAddr>().unwrap()], "{host}");
    }
}

#[tokio::test]
async fn a_pod_that_waits_for_a_dead_name_server_delays_no_other_pod() {
    // Bound and never read: queries are neither answered nor refused.
    let dead = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let names = NameResolver::of_server(dead.local_addr().unwrap());
    let mut waiting = JoinSet::new();
    for n in 0..100 {
        let names = names.clone();
        waiting.spawn(async move {
            timeout(Duration::from_secs(20), names.lookup("greedy", &format!("db-{n}.example."))).await
        });
    }
    let queried = async {
        let mut buffer = [0; 512];
        for _ in 0..LOOKUPS_PER_OWNER {
            dead.recv_from(&mut buffer).await.unwrap();
        }
    };
    timeout(Duration::from_secs(5), queried).await.expect("the lookups have begun");
    assert_eq!(names.permits("greedy").available_permits(), 0);
    assert_eq!(names.permits("other").available_permits(), LOOKUPS_PER_OWNER);

    // Abandoned lookups end at once and leave their permits.
    let begun = Instant::now();
    waiting.shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(names.permits("greedy").available_permits(), LOOKUPS_PER_OWNER);
}
