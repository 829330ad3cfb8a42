//! Create, replace and delete: from a request to the store.

use http::header::WARNING;
use http::{HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions as Body;
use podwright_agent::local::DeleteOptions;
use podwright_core::model::{FullName, Pod};
use podwright_core::static_pod::unknown_in;
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
    let taken = match Written::read(params, request).await? {
        Ok(written) => written,
        Err(refused) => return Ok(refused),
    };
    let view = room.local.store.create(namespace, taken.pod, taken.dry_run).await?;
    Ok(warned(with_code(StatusCode::CREATED, &*view), &taken.unknown))
}

pub(super) async fn update(
    room: &Room,
    of: FullName,
    params: Params,
    request: Request<Incoming>,
) -> Result<Answer, Failure> {
    let taken = match Written::read(params, request).await? {
        Ok(written) => written,
        Err(refused) => return Ok(refused),
    };
    let view = room.local.store.update(of, taken.pod, taken.dry_run).await?;
    Ok(warned(object(&*view), &taken.unknown))
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
    /// Fields that mean nothing here.
    unknown: Vec<String>,
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
        let mut unknown = if strictness == "Ignore" { Vec::new() } else { unknown_in(&document) };
        unknown.truncate(UNKNOWN_MAX);
        if strictness == "Strict" && !unknown.is_empty() {
            let named: Vec<String> = unknown.iter().map(|field| format!("unknown field {field:?}")).collect();
            return Err(Failure::bad_request(format!("strict decoding error: {}", named.join(", "))));
        }
        Ok(Self { pod: decode(document)?, dry_run, unknown })
    }
}

/// Kubernetes: warnings are headers that clients print.
fn warned(mut answer: Answer, unknown: &[String]) -> Answer {
    for field in unknown {
        let text = format!("299 - \"unknown field \\\"{}\\\"\"", field.replace(['"', '\\'], "'"));
        if let Ok(value) = HeaderValue::from_str(&text) {
            answer.headers_mut().append(WARNING, value);
        }
    }
    answer
}

/// Fields that are named.
const UNKNOWN_MAX: usize = 20;
