//! A minimal client that can misbehave: one request per connection, HTTP/1.0, so that bodies are not chunked.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

/// Connects and sends the request header.
pub(crate) fn open(socket: &Path, head: &str) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(head.as_bytes())?;
    Ok(stream)
}

/// Status code and body of the response.
pub(crate) fn text(socket: &Path, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let head = format!("{method} {path} HTTP/1.0\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let mut stream = open(socket, &head)?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    let response = String::from_utf8_lossy(&response);
    let (head, body) = response.split_once("\r\n\r\n").context("the response is incomplete")?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no code")?;
    Ok((code, body.to_owned()))
}

/// The same with JSON bodies.
pub(crate) fn request(socket: &Path, method: &str, path: &str, body: &Value) -> Result<(u16, Value)> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (code, text) = text(socket, method, path, &body)?;
    Ok((code, serde_json::from_str(&text).with_context(|| format!("{method} {path}: {text}"))?))
}
