//! A minimal blocking HTTP client for loopback endpoints, so that tests need no async runtime.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Below Linux' default `ip_local_port_range`.
const PORTS: Range<u16> = 12_000..32_000;

/// Enough for any response in a test; more is a bug of the server.
const MAX_BODY: u64 = 64 << 20;

/// An HTTP response.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// The body as text.
    pub body: String,
}

/// `GET http://{address}{path}` with a deadline of 5 s per read.
pub fn get(address: &str, path: &str) -> Result<HttpResponse> {
    exchange(address, &format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n"))
        .with_context(|| format!("response of {address}{path}"))
}

/// `POST` a JSON body, with the same deadline.
pub(crate) fn post(address: &str, path: &str, body: &str) -> Result<HttpResponse> {
    let length = body.len();
    let kind = "Content-Type: application/json";
    exchange(
        address,
        &format!("POST {path} HTTP/1.0\r\nHost: {address}\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}"),
    )
    .with_context(|| format!("response of {address}{path}"))
}

/// HTTP/1.0: the response ends with the connection and is never chunked.
fn exchange(address: &str, request: &str) -> Result<HttpResponse> {
    let limit = Duration::from_secs(5);
    let socket_address = address.to_socket_addrs()?.next().context("no address")?;
    let mut stream = TcpStream::connect_timeout(&socket_address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    stream.take(MAX_BODY).read_to_end(&mut bytes)?;
    parse(&String::from_utf8_lossy(&bytes))
}

/// A TCP port that is free on loopback right now.
///
/// It is below the kernel's range of ephemeral ports: one of those can become the source port of any connection before its user
/// binds it. This process gets each port once; processes begin at different places of the range.
pub fn free_port() -> Result<u16> {
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    let next = NEXT.get_or_init(|| {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        AtomicU32::new(hasher.finish() as u32)
    });
    for _ in 0..PORTS.len() {
        let offset = next.fetch_add(1, Ordering::Relaxed) % u32::try_from(PORTS.len())?;
        let port = PORTS.start + u16::try_from(offset)?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port of {PORTS:?} is free on loopback")
}

fn parse(response: &str) -> Result<HttpResponse> {
    let (head, body) = response.split_once("\r\n\r\n").context("no end of the headers")?;
    let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok()).context("no status code")?;
    Ok(HttpResponse { status, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_outside_the_ephemeral_range_and_given_once() {
        let ports: Vec<u16> = (0..100).map(|_| free_port().expect("a port")).collect();
        let distinct: std::collections::BTreeSet<u16> = ports.iter().copied().collect();
        assert_eq!(distinct.len(), ports.len());
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("Linux");
        let lowest: u16 = range.split_whitespace().next().and_then(|port| port.parse().ok()).expect("a number");
        assert!(ports.iter().all(|port| *port < lowest), "{ports:?}");
    }

    #[test]
    fn a_response_is_split_into_status_and_body() {
        let response = parse("HTTP/1.0 404 Not Found\r\nA: b\r\n\r\nno\r\n\r\nbody").expect("well formed");
        assert_eq!((response.status, response.body.as_str()), (404, "no\r\n\r\nbody"));
        assert!(parse("HTTP/1.0 200 OK").is_err());
    }
}
