//! The images of a running agent, by its local API.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::ready;
use futures::stream::{self, StreamExt, unfold};
use http::{HeaderValue, Method, Request, header};
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use podwright_server::local::{
    ARCHIVE_ERROR, ImageErrorKind, ImageFuture, ImageLine, ImageLines, ImageRequestError, NodeImage, NodeImages,
    PullAmount, PullRequest, SentImageLine,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::watch_stream::LineReader;
use super::{BODY_MAX, Client, ClientError, RESPONSE_MAX};

/// The images behind the socket of an agent.
pub(crate) struct AgentImages(Arc<Client>);

/// The response of `/podwright/v1/images`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedImages {
    root_dir: PathBuf,
    images: Vec<NodeImage>,
}

/// Number and bytes of the images of an agent; `None`: another program keeps them.
pub(super) async fn total(client: &Client) -> Result<Option<(usize, u64)>, ClientError> {
    match client.get::<ListedImages>("/podwright/v1/images").await {
        Ok(listed) => Ok(Some((listed.images.len(), listed.images.iter().map(|image| image.size).sum()))),
        Err(ClientError::Refused { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl AgentImages {
    pub(crate) fn new(client: Client) -> Self {
        Self(Arc::new(client))
    }

    /// An agent listens on the socket, whether it has images or not.
    pub(crate) async fn is_there(&self) -> Result<bool, ClientError> {
        match self.0.connect().await {
            Ok(_) => Ok(true),
            Err(ClientError::NoAgent { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The root directory of the agent, with the store of its engine.
    pub(crate) async fn root_dir(&self) -> Result<PathBuf, ClientError> {
        Ok(self.0.get::<ListedImages>("/podwright/v1/images").await?.root_dir)
    }

    /// Sends a request with a JSON body, and returns the lines of the response.
    fn lines(&self, verb: &'static str, body: &impl Serialize) -> ImageLines {
        let body = Full::new(Bytes::from(serde_json::to_vec(body).expect("plain data")));
        self.lines_of(verb, body)
    }

    fn lines_of<B>(&self, verb: &'static str, body: B) -> ImageLines
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let client = Arc::clone(&self.0);
        let opened = async move {
            let body = client.post(verb, body).await?;
            Ok::<_, ImageRequestError>((client, LineReader::new(body)))
        };
        Box::pin(stream::once(opened).flat_map(|opened| match opened {
            Ok((client, lines)) => unfold(Some((client, lines)), next_line).boxed(),
            Err(error) => stream::once(ready(Err(error))).boxed(),
        }))
    }
}

type OpenLines = Option<(Arc<Client>, LineReader)>;

/// The next line, and what is left: nothing after an error.
async fn next_line(open: OpenLines) -> Option<(Result<ImageLine, ImageRequestError>, OpenLines)> {
    let (client, mut lines) = open?;
    let line = match lines.next_line(&client).await {
        Ok(line) => serde_json::from_slice(&line?).map_err(|error| failed(&client.failed(error))),
        Err(error) => Err(failed(&error)),
    };
    match line {
        Ok(SentImageLine::Line(line)) => Some((Ok(line), Some((client, lines)))),
        Ok(SentImageLine::Failed { error }) => {
            let code = error.code.and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
            Some((Err(ImageRequestError::from_status(code, error)), None))
        }
        Err(error) => Some((Err(error), None)),
    }
}

impl Client {
    /// `POST` below `/podwright/v1/images`; the body of the response is streamed.
    async fn post<B>(&self, verb: &str, body: B) -> Result<Incoming, ImageRequestError>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let request = Request::builder().method(Method::POST).uri(format!("/podwright/v1/images/{verb}"));
        // An archive that can not be completed ends with its error.
        let request = request.header(header::TE, "trailers");
        let request = request.header(header::HOST, "podwright").body(body).map_err(|e| failed(&self.failed(e)))?;
        let response = timeout(RESPONSE_MAX, self.exchange(request)).await;
        let response = response.map_err(|_| failed(&self.no_response()))?.map_err(|error| failed(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body());
        }
        let text = Limited::new(response.into_body(), BODY_MAX).collect().await;
        let text = text.map_err(|error| failed(&self.failed(error)))?.to_bytes();
        let error = serde_json::from_slice::<Status>(&text).unwrap_or_default();
        Err(ImageRequestError::from_status(status.as_u16(), error))
    }
}

fn failed(error: &ClientError) -> ImageRequestError {
    match error {
        ClientError::Refused { code, message } => {
            let status = Status { message: Some(message.clone()), ..Status::default() };
            ImageRequestError::from_status(*code, status)
        }
        error => ImageRequestError::new(ImageErrorKind::Failed, error.to_string()),
    }
}

impl NodeImages for AgentImages {
    fn list(&self) -> ImageFuture<Vec<NodeImage>> {
        let client = Arc::clone(&self.0);
        Box::pin(async move {
            let listed = client.get::<ListedImages>("/podwright/v1/images").await;
            Ok(listed.map_err(|error| failed(&error))?.images)
        })
    }

    fn inspect(&self, images: Vec<String>) -> ImageFuture<Vec<Value>> {
        let client = Arc::clone(&self.0);
        Box::pin(async move {
            let body = json!({ "images": images });
            let sent = client.send(Method::POST, "/podwright/v1/images/inspect", Some(&body)).await;
            sent.map_err(|error| failed(&error))
        })
    }

    fn pull(&self, request: PullRequest) -> ImageLines {
        self.lines("pull", &request)
    }

    fn load(&self, archive: Box<dyn Read + Send>) -> ImageLines {
        let (pieces, read) = mpsc::channel(PIECES_MAX);
        // It ends when the request does: then the next piece is not received.
        std::thread::spawn(move || send_pieces(archive, &pieces));
        let body = unfold(read, |mut read| async move { Some((read.recv().await?, read)) });
        let frames = body.map(|piece: io::Result<Bytes>| piece.map(Frame::data)).boxed();
        self.lines_of("load", StreamBody::new(frames))
    }

    fn save(&self, images: Vec<String>, mut archive: Box<dyn Write + Send>) -> ImageFuture<()> {
        let client = Arc::clone(&self.0);
        Box::pin(async move {
            let body = Full::new(Bytes::from(json!({ "images": images }).to_string()));
            let mut body = client.post("save", body).await?;
            let write = |error: io::Error| {
                ImageRequestError::new(ImageErrorKind::Failed, format!("write the archive: {error}"))
            };
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| {
                    let message = format!("the agent broke off the archive, and its log shows why ({error})");
                    ImageRequestError::new(ImageErrorKind::Failed, message)
                })?;
                match frame.into_data() {
                    // This command does nothing else meanwhile.
                    Ok(data) => archive.write_all(&data).map_err(write)?,
                    Err(other) => {
                        if let Some(error) = other.trailers_ref().and_then(|trailers| trailers.get(ARCHIVE_ERROR)) {
                            return Err(broken_off(error));
                        }
                    }
                }
            }
            archive.flush().map_err(write)
        })
    }

    fn remove(&self, images: Vec<String>, force: bool) -> ImageLines {
        self.lines("remove", &json!({ "images": images, "force": force }))
    }

    fn prune(&self) -> ImageLines {
        self.lines("prune", &json!({}))
    }

    /// Of an agent one learns this by pod.
    fn pull_amount(&self, _: &str) -> Option<PullAmount> {
        None
    }
}

/// The archive is not whole; the agent says why.
fn broken_off(error: &HeaderValue) -> ImageRequestError {
    let message = String::from_utf8_lossy(error.as_bytes()).into_owned();
    ImageRequestError::new(ImageErrorKind::Failed, message)
}

fn send_pieces(mut archive: Box<dyn Read + Send>, pieces: &mpsc::Sender<io::Result<Bytes>>) {
    let mut buffer = vec![0; PIECE];
    loop {
        let piece = match archive.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => Ok(Bytes::copy_from_slice(&buffer[..count])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let failed = piece.is_err();
        if pieces.blocking_send(piece).is_err() || failed {
            return;
        }
    }
}

/// Pieces of an archive on their way to the connection.
const PIECES_MAX: usize = 4;
/// Bytes of a piece.
const PIECE: usize = 64 << 10;
