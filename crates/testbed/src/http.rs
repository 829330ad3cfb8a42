//! A minimal blocking HTTP client for loopback endpoints, so that tests need no async runtime.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result};

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
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
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
    fn a_response_is_split_into_status_and_body() {
        let response = parse("HTTP/1.0 404 Not Found\r\nA: b\r\n\r\nno\r\n\r\nbody").expect("well formed");
        assert_eq!((response.status, response.body.as_str()), (404, "no\r\n\r\nbody"));
        assert!(parse("HTTP/1.0 200 OK").is_err());
    }
}
