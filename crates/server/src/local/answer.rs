//! From a question to who answers it.

use std::path::Path;
use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use podwright_agent::event_loop::{CorrelatedEvent, Explanation, Handle};
use podwright_agent::feed::{PodFeed, PodView};
use podwright_agent::host::HostPaths;
use podwright_agent::local::Store;
use podwright_core::model::{Event, FullName};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::body::drained;
use super::events;
use super::exec::Streamer;
use super::failure::Failure;
use super::params::Params;
use super::request::Ask;
use super::{STREAMS_MAX, discovery, exec, pods, verbs, watch, write};
use crate::serve::{ANSWER_MAX, Answer, json, text};
use crate::{BoxFuture, log};

/// What the agent tells and is told.
pub trait Views: Send + Sync + 'static {
    /// Manifests that can't be used, and why; `None` while the agent ends.
    fn broken(&self) -> BoxFuture<'_, Option<Vec<(String, String)>>>;
    /// The lives of the pods of this name.
    fn explain(&self, pod: String) -> BoxFuture<'_, Option<Vec<Explanation>>>;
    /// The events kept, oldest first.
    fn events(&self) -> Vec<CorrelatedEvent>;
    /// Every event as it happens, from now on.
    fn follow_events(&self) -> broadcast::Receiver<CorrelatedEvent>;
    /// A person asks for something.
    fn tell(&self, event: Event) -> BoxFuture<'_, ()>;
}

impl Views for Handle {
    fn broken(&self) -> BoxFuture<'_, Option<Vec<(String, String)>>> {
        Box::pin(async { Some(self.pods().await?.broken) })
    }

    fn explain(&self, pod: String) -> BoxFuture<'_, Option<Vec<Explanation>>> {
        Box::pin(Handle::explain(self, pod))
    }

    fn events(&self) -> Vec<CorrelatedEvent> {
        self.state().events()
    }

    fn follow_events(&self) -> broadcast::Receiver<CorrelatedEvent> {
        self.state().follow_events()
    }

    fn tell(&self, event: Event) -> BoxFuture<'_, ()> {
        Box::pin(Handle::send(self, event))
    }
}

/// Puts the lives of a name into words: lives, events, where the logs are, now.
pub type Tell = fn(&[Explanation], &[CorrelatedEvent], &Path, Timestamp) -> String;

/// What the local API answers from.
pub struct Local {
    /// The node's name.
    pub node: String,
    /// Where containers' logs lie.
    pub paths: HostPaths,
    /// Every pod as it is shown.
    pub feed: Arc<PodFeed>,
    /// The pods submitted here.
    pub store: Arc<Store>,
    /// Whom execs are passed on to.
    pub runtime: Arc<dyn Streamer>,
    /// The agent itself.
    pub views: Arc<dyn Views>,
    /// How stories are told.
    pub tell: Tell,
}

/// What all answers share.
pub(super) struct Room {
    pub(super) local: Local,
    pub(super) stop: CancellationToken,
    streams: Arc<Semaphore>,
}

impl Room {
    pub(super) fn new(local: Local, stop: CancellationToken) -> Self {
        Self { local, stop, streams: Arc::new(Semaphore::new(STREAMS_MAX)) }
    }

    /// A place for an answer that goes on.
    pub(super) fn place(&self) -> Result<OwnedSemaphorePermit, Failure> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| Failure::too_many())
    }

    /// The pod of this name.
    pub(super) fn named(&self, of: &FullName) -> Result<Arc<PodView>, Failure> {
        self.local.feed.by_name(&of.namespace, &of.name).ok_or_else(|| Failure::not_found("pods", &of.name))
    }
}

pub(super) async fn answer(room: Arc<Room>, request: Request<Incoming>) -> Answer {
    let ask = match Ask::read(request.method(), request.uri().path()) {
        Ok(ask) => ask,
        Err(failure) => return drained(failure, request),
    };
    match timeout(ANSWER_MAX, show(&room, ask, request)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(failure)) => failure.answer(),
        Err(_) => Failure::no_answer("the agent does not answer").answer(),
    }
}

async fn show(room: &Arc<Room>, ask: Ask, request: Request<Incoming>) -> Result<Answer, Failure> {
    let mut params = Params::of(request.uri().query().unwrap_or_default());
    match ask {
        Ask::Create(namespace) => return write::create(room, namespace, params, request).await,
        Ask::Update(of) => return write::update(room, of, params, request).await,
        Ask::Delete(of) => return write::delete(room, of, params, request).await,
        Ask::Exec(of) => return exec::exec(room, &of, params, request).await,
        Ask::Attach(of) => return exec::attach(room, &of, params, request).await,
        _ => {}
    }
    match ask {
        Ask::Discovery(what) => discovery::answer(what, params),
        Ask::Pods(namespace) if params.flag("watch")? => watch::watch(room, namespace, params),
        Ask::Pods(namespace) => pods::list(room, namespace, params),
        Ask::Pod(of) => {
            params.text("resourceVersion");
            params.finish()?;
            Ok(object(&*room.named(&of)?))
        }
        Ask::Log(of) => {
            let options = log::Options::read(&mut params)?;
            params.finish()?;
            let view = room.named(&of)?;
            let log = log::Log::new(room.local.paths.clone(), Arc::clone(&room.local.feed), view, options)?;
            log.answer(room.place()?, room.stop.clone()).await
        }
        Ask::Restart(of) => verbs::restart(room, &of, params).await,
        Ask::Stop => verbs::stop(room, params).await,
        Ask::Events(namespace) => events::list(room, namespace, params),
        Ask::Event(of) => events::one(room, &of, params),
        Ask::Manifests => {
            params.finish()?;
            let broken = room.local.views.broken().await.ok_or_else(ending)?;
            let broken =
                broken.into_iter().map(|(origin, message)| serde_json::json!({"origin": origin, "message": message}));
            Ok(object(&serde_json::json!({"broken": broken.collect::<Vec<_>>()})))
        }
        Ask::Explain => explain(room, params).await,
        Ask::Create(_) | Ask::Update(_) | Ask::Delete(_) | Ask::Exec(_) | Ask::Attach(_) => {
            unreachable!("answered above")
        }
    }
}

async fn explain(room: &Room, mut params: Params) -> Result<Answer, Failure> {
    let pod = params.text("pod").ok_or_else(|| Failure::bad_request("which pod? ?pod=NAMESPACE/NAME"))?;
    params.finish()?;
    let views = &room.local.views;
    let told = views.explain(pod.clone()).await.ok_or_else(ending)?;
    if told.is_empty() {
        return Err(unknown(&pod, &views.broken().await.ok_or_else(ending)?));
    }
    Ok(text(
        StatusCode::OK,
        (room.local.tell)(&told, &views.events(), &room.local.paths.pod_logs_dir, Timestamp::now()),
    ))
}

fn ending() -> Failure {
    Failure::no_answer("the agent is ending")
}

/// Who asks for a pod that isn't there may have written a manifest that nobody can read.
fn unknown(pod: &str, broken: &[(String, String)]) -> Failure {
    let failure = Failure::not_found("pods", pod);
    let broken: Vec<String> = broken.iter().map(|(origin, why)| format!("\n  {origin}: {why}")).collect();
    match broken.is_empty() {
        true => failure,
        false => failure.and(&format!("; these manifests can't be used:{}", broken.concat())),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List<T> {
    kind: &'static str,
    api_version: &'static str,
    metadata: serde_json::Value,
    items: Vec<T>,
}

/// A list of the API, as of this version.
pub(super) fn list<T: Serialize>(kind: &'static str, version: u64, items: Vec<T>) -> Answer {
    let metadata = serde_json::json!({"resourceVersion": version.to_string()});
    object(&List { kind, api_version: "v1", metadata, items })
}

/// One object.
pub(super) fn object(value: &impl Serialize) -> Answer {
    with_code(StatusCode::OK, value)
}

pub(super) fn with_code(code: StatusCode, value: &impl Serialize) -> Answer {
    json(code, serde_json::to_vec(value).expect("plain data"))
}
