//! Asks a running agent over its socket, as any client of the local API does.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::socket;

mod verbs;

pub(crate) use verbs::run;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// Nobody listens.
    #[error("no agent answers on {}: is `podwright run` running, with this --run-dir? ({source})", socket.display())]
    NoAgent {
        /// Where.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not for this user.
    #[error("{}: only root and the user the agent runs as may ask", socket.display())]
    Denied {
        /// Where.
        socket: PathBuf,
    },
    /// The agent said no.
    #[error("{0}")]
    Refused(String),
    /// The talk broke off.
    #[error("ask the agent on {}: {why}", socket.display())]
    Broken {
        /// Where.
        socket: PathBuf,
        /// Why.
        why: String,
    },
}

/// The way to an agent.
#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
}

impl Client {
    /// The agent with this run directory.
    pub(crate) fn new(run_dir: &Path) -> Self {
        Self { socket: run_dir.join(socket::NAME) }
    }

    /// `GET`, read as JSON.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let body = self.get_bytes(path).await?;
        serde_json::from_slice(&body).map_err(|error| self.broken(error))
    }

    /// `GET`, as it comes.
    pub(crate) async fn get_bytes(&self, path: &str) -> Result<Bytes, ClientError> {
        let (status, body) =
            timeout(ANSWER_MAX, self.ask(path)).await.map_err(|_| self.broken("it does not answer"))??;
        if status.is_success() {
            return Ok(body);
        }
        let said = serde_json::from_slice::<Status>(&body).ok().and_then(|status| status.message);
        Err(ClientError::Refused(said.unwrap_or_else(|| format!("the agent answers {status}"))))
    }

    async fn ask(&self, path: &str) -> Result<(StatusCode, Bytes), ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::Denied { socket: self.socket.clone() },
            _ => ClientError::NoAgent { socket: self.socket.clone(), source },
        })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.broken(e))?;
        let driver = tokio::spawn(connection);
        let request = Request::get(path).header("host", "podwright").body(Empty::<Bytes>::new());
        let request = request.map_err(|error| self.broken(error))?;
        let response = sender.send_request(request).await.map_err(|error| self.turned_away(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await.map_err(|error| self.broken(error))?;
        driver.abort();
        Ok((status, body.to_bytes()))
    }

    /// A door that closes without a word is the answer to a stranger.
    fn turned_away(&self, error: &hyper::Error) -> ClientError {
        let io = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
        let cut = |io: &io::Error| matches!(io.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
        match error.is_incomplete_message() || error.is_canceled() || io.is_some_and(cut) {
            true => ClientError::Denied { socket: self.socket.clone() },
            false => self.broken(error),
        }
    }

    fn broken(&self, why: impl ToString) -> ClientError {
        ClientError::Broken { socket: self.socket.clone(), why: why.to_string() }
    }
}

/// The agent gives itself 10 s.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// A thousand large pods.
const BODY_MAX: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_an_agent_the_socket_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let said = Client::new(dir.path()).get_bytes("/api/v1/pods").await.unwrap_err().to_string();
        assert!(
            said.contains(&dir.path().join("api.sock").display().to_string()) && said.contains("podwright run"),
            "{said}"
        );
    }

    #[tokio::test]
    async fn a_door_that_closes_without_a_word_means_not_for_you() {
        let dir = tempfile::tempdir().unwrap();
        let listener = tokio::net::UnixListener::bind(dir.path().join("api.sock")).unwrap();
        tokio::spawn(async move {
            let _ = listener.accept().await;
        });
        let said = Client::new(dir.path()).get_bytes("/api/v1/pods").await.unwrap_err();
        assert!(matches!(said, ClientError::Denied { .. }), "{said}");
    }
}
