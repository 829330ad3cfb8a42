//! A small blocking client of an API server: HTTPS with a client certificate, connections are reused.
//!
//! Tests send requests in process, because starting kubectl takes longer than most requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::http::HttpResponse;

/// No response of a test's API server is larger.
const MAX_BODY: usize = 64 << 20;
/// No response takes longer, apart from the next line of a watch.
const LIMIT: Duration = Duration::from_secs(30);

/// A client certificate with its key, and the CA it trusts.
#[derive(Clone, Debug)]
pub(crate) struct ClientIdentity {
    pub(crate) authority: CertificateDer<'static>,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: Arc<PrivateKeyDer<'static>>,
}

impl ClientIdentity {
    /// The TLS configuration of this client, for servers of the same CA.
    pub(crate) fn client_config(&self) -> Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Ok(ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![self.certificate.clone()], self.key.clone_key())?)
    }
}

type Connection = BufReader<StreamOwned<ClientConnection, TcpStream>>;

/// A client of one server; may be shared by threads.
#[derive(Debug)]
pub struct TestApiClient {
    address: String,
    config: Arc<ClientConfig>,
    idle: Mutex<Vec<Connection>>,
}

/// A running watch: an iterator over its events, which ends with the connection.
#[derive(Debug)]
pub struct ApiWatch {
    connection: Connection,
    pending: Vec<u8>,
}

impl TestApiClient {
    /// A client of `127.0.0.1:port`.
    pub(crate) fn new(port: u16, identity: &ClientIdentity) -> Result<Self> {
        let config = Arc::new(identity.client_config()?);
        Ok(Self { address: format!("127.0.0.1:{port}"), config, idle: Mutex::default() })
    }

    /// The object at `path`; an error unless the status is 2xx.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.expect("GET", path, None)
    }

    /// Create an object.
    pub fn create(&self, path: &str, object: &Value) -> Result<Value> {
        self.expect("POST", path, Some(object))
    }

    /// Replace an object.
    pub fn update(&self, path: &str, object: &Value) -> Result<Value> {
        self.expect("PUT", path, Some(object))
    }

    /// Change an object by a strategic merge patch.
    pub fn patch(&self, path: &str, patch: &Value) -> Result<Value> {
        self.expect("PATCH", path, Some(patch))
    }

    /// Delete an object, with DeleteOptions if given.
    pub fn delete(&self, path: &str, options: Option<&Value>) -> Result<Value> {
        self.expect("DELETE", path, options)
    }

    /// Any request; returns the response whatever its status.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<HttpResponse> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // An idle connection may have been closed by the server: retry on a new one.
        let (connection, response) = match idle {
            Some(idle) => match self.exchange(idle, method, path, body) {
                Ok(done) => done,
                Err(_) => self.exchange(self.connect()?, method, path, body)?,
            },
            None => self.exchange(self.connect()?, method, path, body)?,
        };
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(response)
    }

    /// Watches a collection; `path` has its query, without `watch`. The watch ends when no line arrives within `line_timeout`.
    pub fn watch(&self, path: &str, line_timeout: Duration) -> Result<ApiWatch> {
        let mut connection = self.connect()?;
        let separator = if path.contains('?') { '&' } else { '?' };
        self.send(&mut connection, "GET", &format!("{path}{separator}watch=1"), None)?;
        let head = read_head(&mut connection)?;
        ensure!(head.status == 200, "watch of {path}: status {}", head.status);
        connection.get_ref().get_ref().set_read_timeout(Some(line_timeout))?;
        Ok(ApiWatch { connection, pending: Vec::new() })
    }

    fn expect(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let response = self.request(method, path, body)?;
        ensure!(response.status / 100 == 2, "{method} {path}: {} {}", response.status, response.body);
        serde_json::from_str(&response.body).with_context(|| format!("{method} {path}: no JSON"))
    }

    fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(&self.address).with_context(|| format!("connect to {}", self.address))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        let session = ClientConnection::new(self.config.clone(), ServerName::try_from("127.0.0.1")?)?;
        Ok(BufReader::new(StreamOwned::new(session, stream)))
    }

    fn send(&self, connection: &mut Connection, method: &str, path: &str, body: Option<&Value>) -> Result<()> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let kind = if method == "PATCH" { "application/strategic-merge-patch+json" } else { "application/json" };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAccept: application/json\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        let stream = connection.get_mut();
        stream.write_all((head + &body).as_bytes())?;
        Ok(stream.flush()?)
    }

    fn exchange(
        &self,
        mut connection: Connection,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(Connection, HttpResponse)> {
        self.send(&mut connection, method, path, body)?;
        let head = read_head(&mut connection)?;
        let mut bytes = Vec::new();
        match head.length {
            Some(length) => {
                ensure!(length <= MAX_BODY, "a body of {length} bytes");
                bytes.resize(length, 0);
                connection.read_exact(&mut bytes)?;
            }
            None => while read_chunk(&mut connection, &mut bytes)? {},
        }
        let body = String::from_utf8_lossy(&bytes).into_owned();
        Ok((connection, HttpResponse { status: head.status, body }))
    }
}

impl Iterator for ApiWatch {
    type Item = Value;

    /// The next event; `None` when the server ends the watch, or sends nothing for too long.
    fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return serde_json::from_slice(&line).ok();
            }
            if !read_chunk(&mut self.connection, &mut self.pending).ok()? {
                return None;
            }
        }
    }
}

/// The parsed status line and headers. `length` is `None` for a chunked body.
struct Head {
    status: u16,
    length: Option<usize>,
}

fn read_head(connection: &mut Connection) -> Result<Head> {
    let mut line = String::new();
    connection.read_line(&mut line)?;
    let status = line.split_whitespace().nth(1).and_then(|code| code.parse().ok());
    let status = status.with_context(|| format!("no status in {line:?}"))?;
    let (mut length, mut chunked) = (None, false);
    loop {
        line.clear();
        connection.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().ok(),
            "transfer-encoding" => chunked = value.trim() == "chunked",
            _ => {}
        }
    }
    if !chunked && length.is_none() {
        length = Some(0);
    }
    Ok(Head { status, length })
}

/// Reads one chunk; returns false if it was the last one.
fn read_chunk(connection: &mut Connection, into: &mut Vec<u8>) -> Result<bool> {
    let mut line = String::new();
    connection.read_line(&mut line)?;
    let size = usize::from_str_radix(line.trim(), 16).with_context(|| format!("no chunk size in {line:?}"))?;
    if into.len() + size > MAX_BODY {
        bail!("a body of more than {MAX_BODY} bytes");
    }
    let start = into.len();
    into.resize(start + size, 0);
    connection.read_exact(&mut into[start..])?;
    line.clear();
    connection.read_line(&mut line)?;
    Ok(size > 0)
}
