//! What the local API answers: Kubernetes' REST shapes, and what only podwright can tell.
//!
//! | path | answer |
//! |---|---|
//! | /api/v1/pods, /api/v1/namespaces/NS/pods | a v1 PodList |
//! | /api/v1/namespaces/NS/pods/NAME | a v1 Pod |
//! | /api/v1/events, /api/v1/namespaces/NS/events | a v1 EventList |
//! | /podwright/v1/manifests | manifests that can't be used, with the reasons |
//! | /podwright/v1/explain?pod=NS/NAME | the life of a pod, in words |
//!
//! Nothing can be changed here yet. Refusals are v1 Status objects.

use std::path::PathBuf;
use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use podwright_agent::the_loop::{KeptEvent, Shown, Told};
use podwright_core::model::Pod;
use serde::Serialize;
use tokio::time::timeout;

use super::events;
use super::failure::Failure;
use super::request::Ask;
use crate::listen::BoxFuture;
use crate::listen::server::{ANSWER_MAX, Answer, json, text};
use crate::print::explain;

/// What there is to see.
pub(crate) trait Views: Send + Sync + 'static {
    /// All pods; `None` while the agent ends.
    fn pods(&self) -> BoxFuture<'_, Option<Shown>>;
    /// The lives of the pods of this name.
    fn explain(&self, pod: String) -> BoxFuture<'_, Option<Vec<Told>>>;
    /// The events kept, oldest first.
    fn events(&self) -> Vec<KeptEvent>;
}

/// What answers need to know of the node.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// Its name.
    pub(crate) node: String,
    /// Where containers' logs lie.
    pub(crate) pod_logs: PathBuf,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List<T> {
    kind: &'static str,
    api_version: &'static str,
    metadata: serde_json::Value,
    items: Vec<T>,
}

pub(super) async fn answer(about: Arc<About>, views: Arc<dyn Views>, request: Request<Incoming>) -> Answer {
    let ask = match Ask::read(request.method(), request.uri()) {
        Ok(ask) => ask,
        Err(failure) => return failure.answer(),
    };
    match timeout(ANSWER_MAX, show(&about, &*views, ask)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(failure)) => failure.answer(),
        Err(_) => Failure::no_answer("the agent does not answer").answer(),
    }
}

async fn show(about: &About, views: &dyn Views, ask: Ask) -> Result<Answer, Failure> {
    match ask {
        Ask::Pods(namespace) => {
            let mut pods = shown(views).await?.pods;
            pods.retain(|pod| namespace.is_none() || namespace == pod.metadata.namespace);
            pods.sort_by(|a, b| key(a).cmp(&key(b)));
            Ok(list("PodList", pods))
        }
        Ask::Pod { namespace, name } => {
            let wanted = (Some(namespace.as_str()), Some(name.as_str()));
            let pods = shown(views).await?.pods;
            // The newest life of the name is the one that is meant.
            let found = pods.iter().filter(|pod| key(pod) == wanted).max_by_key(|pod| created(pod));
            Ok(object(found.ok_or_else(|| Failure::not_found("pods", &name))?))
        }
        Ask::Events(namespace) => {
            let mut objects: Vec<_> = views.events().iter().map(|kept| events::object(kept, &about.node)).collect();
            objects.retain(|event| namespace.is_none() || namespace == event.metadata.namespace);
            Ok(list("EventList", objects))
        }
        Ask::Manifests => {
            let broken = shown(views).await?.broken;
            let broken =
                broken.into_iter().map(|(origin, message)| serde_json::json!({"origin": origin, "message": message}));
            Ok(object(&serde_json::json!({"broken": broken.collect::<Vec<_>>()})))
        }
        Ask::Explain(pod) => {
            let told = views.explain(pod.clone()).await.ok_or_else(ending)?;
            if told.is_empty() {
                return Err(unknown(&pod, &shown(views).await?));
            }
            let logs = &about.pod_logs;
            Ok(text(StatusCode::OK, explain::tell(&told, &views.events(), logs, Timestamp::now())))
        }
    }
}

async fn shown(views: &dyn Views) -> Result<Shown, Failure> {
    views.pods().await.ok_or_else(ending)
}

fn ending() -> Failure {
    Failure::no_answer("the agent is ending")
}

/// Who asks for a pod that isn't there may have written a manifest that nobody can read.
fn unknown(pod: &str, shown: &Shown) -> Failure {
    let failure = Failure::not_found("pods", pod);
    let broken: Vec<String> = shown.broken.iter().map(|(origin, why)| format!("\n  {origin}: {why}")).collect();
    match broken.is_empty() {
        true => failure,
        false => failure.and(&format!("; these manifests can't be used:{}", broken.concat())),
    }
}

fn key(pod: &Pod) -> (Option<&str>, Option<&str>) {
    (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref())
}

fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

fn list<T: Serialize>(kind: &'static str, items: Vec<T>) -> Answer {
    object(&List { kind, api_version: "v1", metadata: serde_json::json!({}), items })
}

fn object(value: &impl Serialize) -> Answer {
    json(StatusCode::OK, serde_json::to_vec(value).expect("plain data"))
}
