//! Create, replace and delete: from a request to the store.

use std::sync::Arc;

use http::header::WARNING;
use http::{HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions as Body;
use podwright_agent::feed::PodView;
use podwright_agent::local::{DeleteOptions, Refusal};
use podwright_core::model::{FullName, Pod};
use podwright_core::static_pod::{unknown_in, warnings_in};
use serde_json::Value;

use super::answer::{Room, object, with_code};
use super::body::{Sent, decode, read};
use super::failure::Failure;
use super::params::Params;
use crate::serve::Answer;

pub(super) async fn create(
    room: &Room,
    namespace: String,
    params: Params,
    request: Request<Incoming>,
) -> Result<Answer, Failure> {
    let store = &room.local.store;
    take(params, request, StatusCode::CREATED, |pod, dry_run| store.create(namespace, pod, dry_run)).await
}

pub(super) async fn update(
    room: &Room,
    of: FullName,
    params: Params,
    request: Request<Incoming>,
) -> Result<Answer, Failure> {
    let store = &room.local.store;
    take(params, request, StatusCode::OK, |pod, dry_run| store.update(of, pod, dry_run)).await
}

/// Read a pod, hand it over, and show what became of it.
async fn take<F: Future<Output = Result<Arc<PodView>, Refusal>>>(
    params: Params,
    request: Request<Incoming>,
    code: StatusCode,
    give: impl FnOnce(Pod, bool) -> F,
) -> Result<Answer, Failure> {
    let Written { pod, dry_run, warnings } = match Written::read(params, request).await? {
        Ok(written) => written,
        Err(refused) => return Ok(refused),
    };
    Ok(warned(with_code(code, &*give(pod, dry_run).await?), &warnings))
}

pub(super) async fn delete(
    room: &Room,
    of: FullName,
    mut params: Params,
    request: Request<Incoming>,
) -> Result<Answer, Failure> {
    let (grace, dry_run) = (params.number::<i64>("gracePeriodSeconds")?, params.dry_run()?);
    params.finish()?;
    let sent = read(request, |document| if document.is_null() { Ok(Body::default()) } else { decode(document) });
    let body: Body = match sent.await? {
        Sent::Object(body) => body,
        Sent::Refused(refused) => return Ok(refused),
    };
    let dry = body.dry_run.unwrap_or_default();
    if dry.iter().any(|word| word != "All") {
        return Err(Failure::bad_request(format!("dryRun {dry:?} must be All")));
    }
    let preconditions = body.preconditions.unwrap_or_default();
    let options = DeleteOptions {
        // Kubernetes: what the body says counts.
        grace: body.grace_period_seconds.or(grace),
        uid: preconditions.uid,
        resource_version: preconditions.resource_version,
        dry_run: dry_run || !dry.is_empty(),
    };
    Ok(object(&*room.local.store.delete(of, options).await?))
}

/// A pod that somebody sent.
struct Written {
    pod: Pod,
    dry_run: bool,
    /// Fields that do nothing here, in words.
    warnings: Vec<String>,
}

impl Written {
    async fn read(mut params: Params, request: Request<Incoming>) -> Result<Result<Self, Answer>, Failure> {
        let dry_run = params.dry_run()?;
        let strictness = params.text("fieldValidation").unwrap_or_else(|| "Warn".into());
        if !["Strict", "Warn", "Ignore"].contains(&strictness.as_str()) {
            let message = format!("fieldValidation={strictness:?} must be Strict, Warn or Ignore");
            return Err(Failure::bad_request(message));
        }
        params.finish()?;
        match read(request, move |document| Self::of(document, dry_run, &strictness)).await? {
            Sent::Object(written) => Ok(Ok(written)),
            Sent::Refused(refused) => Ok(Err(refused)),
        }
    }

    fn of(document: Value, dry_run: bool, strictness: &str) -> Result<Self, Failure> {
        let word = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
        if (word("kind"), word("apiVersion")) != ("Pod", "v1") {
            let message = format!(
                "kind {:?} of apiVersion {:?} can't be taken here: send a Pod of apiVersion v1",
                word("kind"),
                word("apiVersion")
            );
            return Err(Failure::bad_request(message));
        }
        if strictness == "Strict" {
            let unknown = unknown_in(&document);
            let named: Vec<String> =
                unknown.iter().take(WARNINGS_MAX).map(|field| format!("unknown field {field:?}")).collect();
            if !named.is_empty() {
                return Err(Failure::bad_request(format!("strict decoding error: {}", named.join(", "))));
            }
        }
        let mut warnings = if strictness == "Ignore" { Vec::new() } else { warnings_in(&document) };
        warnings.truncate(WARNINGS_MAX);
        let warnings = warnings.iter().map(ToString::to_string).collect();
        Ok(Self { pod: decode(document)?, dry_run, warnings })
    }
}

/// Kubernetes: warnings are headers that clients print.
fn warned(mut answer: Answer, warnings: &[String]) -> Answer {
    for warning in warnings {
        let text = format!("299 - \"{}\"", warning.replace(['"', '\\'], "'"));
        if let Ok(value) = HeaderValue::from_str(&text) {
            answer.headers_mut().append(WARNING, value);
        }
    }
    answer
}

/// Fields that are named.
const WARNINGS_MAX: usize = 20;
