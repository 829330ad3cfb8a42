//! The requests about images.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt, unfold};
use http::header::{CONTENT_TYPE, TE, TRAILER};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use hyper::body::{Frame, Incoming};
use k8s_openapi::api::core::v1::ContainerStatus;
use podwright_core::model::{Pod, PodStatus};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{
    ARCHIVE_ERROR, ImageFuture, ImageLines, ImageRequestError, NodeImages, PodPull, PodPulls, PullRequest,
    SentImageLine, transfer,
};
use crate::local::body::{self, RequestBody, decode, reject_and_drain};
use crate::local::router::{LocalState, object};
use crate::query::QueryParams;
use crate::serve::{HttpResponse, StreamGuard, WriteTimeout, try_frames, try_stream};
use crate::status_error::StatusError;

/// What is asked for; below `/podwright/v1/images`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::local) enum ImageRoute {
    List,
    Inspect,
    Pull,
    Load,
    Save,
    Remove,
    Prune,
}

impl ImageRoute {
    pub(in crate::local) fn of_verb(verb: &str) -> Result<Self, StatusError> {
        match verb {
            "inspect" => Ok(Self::Inspect),
            "pull" => Ok(Self::Pull),
            "load" => Ok(Self::Load),
            "save" => Ok(Self::Save),
            "remove" => Ok(Self::Remove),
            "prune" => Ok(Self::Prune),
            _ => Err(StatusError::no_such_path()),
        }
    }
}

/// The body of a request about some images.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NamedImages {
    /// Names or ids.
    images: Vec<String>,
    #[serde(default)]
    force: bool,
}

pub(in crate::local) async fn respond(
    state: &LocalState,
    route: ImageRoute,
    params: QueryParams,
    request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    params.finish()?;
    let images = match &state.api.images {
        Ok(images) => images,
        Err(elsewhere) => return Ok(reject_and_drain(elsewhere.clone().into(), request)),
    };
    match route {
        ImageRoute::List => {
            let root = state.api.paths.root_dir.display().to_string();
            Ok(object(&json!({"rootDir": root, "images": images.list().await?})))
        }
        ImageRoute::Load => load(&**images, state, request).await,
        ImageRoute::Prune => Ok(lines(images.prune(), state.transfer_permit()?).await),
        ImageRoute::Pull => match parsed::<PullRequest>(request).await? {
            RequestBody::Object(pull) => Ok(lines(images.pull(pull), state.transfer_permit()?).await),
            RequestBody::TooLarge(response) => Ok(response),
        },
        ImageRoute::Inspect | ImageRoute::Save | ImageRoute::Remove => {
            let error_end = ArchiveErrorEnd::of(&request);
            let NamedImages { images: names, force } = match parsed(request).await? {
                RequestBody::Object(named) => named,
                RequestBody::TooLarge(response) => return Ok(response),
            };
            match route {
                ImageRoute::Inspect => Ok(object(&images.inspect(names).await?)),
                ImageRoute::Remove => Ok(lines(images.remove(names, force), state.transfer_permit()?).await),
                _ => save(&**images, names, error_end, state.transfer_permit()?).await,
            }
        }
    }
}

/// The pulls that containers wait for.
pub(in crate::local) fn pulls(state: &LocalState, params: QueryParams) -> Result<HttpResponse, StatusError> {
    params.finish()?;
    let images = state.api.images.as_deref().ok();
    let mut pulls = vec![];
    for view in state.api.feed.list().1 {
        pulls.extend(pulls_of_pod(&view.object, view.status.as_deref(), images));
    }
    Ok(object(&PodPulls { pulls }))
}

/// The pulls that the containers of a pod wait for.
pub(in crate::local) fn pulls_of_pod(
    pod: &Pod,
    status: Option<&PodStatus>,
    images: Option<&dyn NodeImages>,
) -> Vec<PodPull> {
    let Some(((spec, status), images)) = pod.spec.as_ref().zip(status).zip(images) else { return vec![] };
    let statuses = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let waiting = statuses.filter(|status| status.state.as_ref().is_none_or(|state| state.waiting.is_some()));
    let pull = |waiting: &ContainerStatus| {
        let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let image = containers.find(|container| container.name == waiting.name)?.image.clone()?;
        let amount = images.pull_amount(&image)?;
        let (namespace, name) = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
        let (namespace, pod) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        Some(PodPull { namespace, pod, container: waiting.name.clone(), image, amount })
    };
    waiting.filter_map(pull).collect()
}

async fn parsed<T: DeserializeOwned + Send + 'static>(
    request: Request<Incoming>,
) -> Result<RequestBody<T>, StatusError> {
    body::read(request, decode).await
}

/// The response begins while the archive is received: work that takes longer than a request may, is a stream.
async fn load(
    images: &dyn NodeImages,
    state: &LocalState,
    request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    let permit = match state.transfer_permit() {
        Ok(permit) => permit,
        Err(error) => return Ok(reject_and_drain(error, request)),
    };
    let (pieces, reader) = transfer::body_reader();
    let pump = stream::once(transfer::pump(request.into_body(), pieces)).filter_map(|()| async { None });
    Ok(lines(Box::pin(stream::select(images.load(Box::new(reader)), pump)), permit).await)
}

/// Lines of JSON. An error that comes at once is a response of its own; a later one is the last line.
async fn lines(mut lines: ImageLines, permit: StreamGuard) -> HttpResponse {
    let first = match timeout(FIRST_LINE_MAX, lines.next()).await {
        Ok(Some(Err(error))) => {
            let error = StatusError::from(error);
            let (code, status) = (error.code(), serde_json::to_vec(&error.status()).expect("plain data"));
            // What is left is the rest of the request's body, which is discarded.
            let rest = lines.filter_map(|_| async { None });
            let body = stream::once(async move { Ok(Bytes::from(status)) }).chain(rest);
            let mut response = try_stream(true, body, WriteTimeout::After(READ_MAX));
            *response.status_mut() = code;
            return response;
        }
        Ok(first) => first,
        Err(_) => None,
    };
    let all = stream::iter(first).chain(lines).map(move |line| {
        let _held = &permit;
        let line = match line {
            Ok(line) => SentImageLine::Line(line),
            Err(error) => SentImageLine::Failed { error: StatusError::from(error).status() },
        };
        let mut text = serde_json::to_vec(&line).expect("plain data");
        text.push(b'\n');
        Ok(Bytes::from(text))
    });
    try_stream(true, all, WriteTimeout::After(READ_MAX))
}

/// How an archive ends that can not be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArchiveErrorEnd {
    /// With the error as a trailer, for a client that reads trailers: it knows that the archive is not whole.
    Trailer,
    /// The connection breaks, so that no client takes it for whole.
    Break,
}

impl ArchiveErrorEnd {
    fn of(request: &Request<Incoming>) -> Self {
        let te = request.headers().get(TE).and_then(|te| te.to_str().ok()).unwrap_or_default();
        if te == "trailers" { Self::Trailer } else { Self::Break }
    }

    fn frame(self, error: ImageRequestError) -> io::Result<Frame<Bytes>> {
        tracing::warn!(%error, "archive of images broken off");
        // One line; a header value has no control characters.
        let text = error.message.replace(char::is_control, " ");
        match HeaderValue::from_bytes(text.as_bytes()) {
            Ok(value) if self == Self::Trailer => {
                let mut trailers = HeaderMap::new();
                trailers.insert(ARCHIVE_ERROR, value);
                Ok(Frame::trailers(trailers))
            }
            _ => Err(io::Error::other(error)),
        }
    }
}

async fn save(
    images: &dyn NodeImages,
    names: Vec<String>,
    error_end: ArchiveErrorEnd,
    permit: StreamGuard,
) -> Result<HttpResponse, StatusError> {
    let (writer, written) = transfer::body_writer();
    let saving = images.save(names, Box::new(writer));
    let mut archive = ArchiveStream { written, saving: Some(saving), _permit: permit };
    let first = archive.next().await.transpose()?;
    let rest = unfold(archive, move |mut archive| async move {
        let frame = archive.next().await?.map(Frame::data).or_else(|error| error_end.frame(error));
        Some((frame, archive))
    });
    let all = stream::iter(first.map(|piece| Ok(Frame::data(piece)))).chain(rest);
    let mut response = try_frames(false, all, WriteTimeout::After(READ_MAX));
    if error_end == ArchiveErrorEnd::Trailer {
        response.headers_mut().insert(TRAILER, HeaderValue::from_static(ARCHIVE_ERROR));
    }
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    Ok(response)
}

/// An archive that is being written.
struct ArchiveStream {
    written: mpsc::Receiver<Bytes>,
    /// `None`: it has succeeded, or its error was returned.
    saving: Option<ImageFuture<()>>,
    _permit: StreamGuard,
}

impl ArchiveStream {
    /// The next piece; `None` at the end.
    async fn next(&mut self) -> Option<Result<Bytes, ImageRequestError>> {
        loop {
            let Some(saving) = &mut self.saving else { return self.written.recv().await.map(Ok) };
            tokio::select! {
                Some(piece) = self.written.recv() => return Some(Ok(piece)),
                saved = saving => {
                    self.saving = None;
                    if let Err(error) = saved {
                        // What it has written is not whole.
                        self.written.close();
                        while self.written.try_recv().is_ok() {}
                        return Some(Err(error));
                    }
                }
            }
        }
    }
}

impl From<ImageRequestError> for StatusError {
    fn from(error: ImageRequestError) -> Self {
        let (code, reason) = error.kind.code();
        Self::new(StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), reason, error.message)
    }
}

/// How long a response waits for its first line, to show an error with its status code.
const FIRST_LINE_MAX: Duration = Duration::from_secs(1);
/// For a client that does not read.
const READ_MAX: Duration = Duration::from_secs(60);
