//! Create, replace and delete: from a request to the store of local pods.

use std::sync::Arc;

use http::header::WARNING;
use http::{HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions as Body;
use podwright_agent::feed::PodView;
use podwright_agent::local::{DeleteOptions, PodRequestError};
use podwright_core::model::{FullName, Pod};
use podwright_core::static_pod::{unknown_in, warnings_in};
use serde_json::Value;

use super::body::{RequestBody, decode, read};
use super::router::{LocalState, object, with_code};
use crate::query::QueryParams;
use crate::serve::HttpResponse;
use crate::status_error::StatusError;

pub(super) async fn create(
    state: &LocalState,
    namespace: String,
    params: QueryParams,
    request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    let store = &state.api.store;
    write(params, request, StatusCode::CREATED, |pod, dry_run| store.create(namespace, pod, dry_run)).await
}

pub(super) async fn update(
    state: &LocalState,
    of: FullName,
    params: QueryParams,
    request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    let store = &state.api.store;
    write(params, request, StatusCode::OK, |pod, dry_run| store.update(of, pod, dry_run)).await
}

/// Reads a pod, passes it to the store, and returns the stored object.
async fn write<F: Future<Output = Result<Arc<PodView>, PodRequestError>>>(
    params: QueryParams,
    request: Request<Incoming>,
    code: StatusCode,
    store: impl FnOnce(Pod, bool) -> F,
) -> Result<HttpResponse, StatusError> {
    let SubmittedPod { pod, dry_run, warnings } = match SubmittedPod::read(params, request).await? {
        Ok(written) => written,
        Err(too_large) => return Ok(too_large),
    };
    Ok(with_warnings(with_code(code, &*store(pod, dry_run).await?), &warnings))
}

pub(super) async fn delete(
    state: &LocalState,
    of: FullName,
    mut params: QueryParams,
    request: Request<Incoming>,
) -> Result<HttpResponse, StatusError> {
    let (grace, dry_run) = (params.number::<i64>("gracePeriodSeconds")?, params.dry_run()?);
    params.finish()?;
    let sent = read(request, |document| if document.is_null() { Ok(Body::default()) } else { decode(document) });
    let body: Body = match sent.await? {
        RequestBody::Object(body) => body,
        RequestBody::TooLarge(response) => return Ok(response),
    };
    let dry = body.dry_run.unwrap_or_default();
    if dry.iter().any(|value| value != "All") {
        return Err(StatusError::bad_request(format!("dryRun {dry:?} must be All")));
    }
    let preconditions = body.preconditions.unwrap_or_default();
    let options = DeleteOptions {
        // Kubernetes: the body takes precedence over the query.
        grace: body.grace_period_seconds.or(grace),
        uid: preconditions.uid,
        resource_version: preconditions.resource_version,
        dry_run: dry_run || !dry.is_empty(),
    };
    Ok(object(&*state.api.store.delete(of, options).await?))
}

/// A pod from a create or update request.
pub(super) struct SubmittedPod {
    pub(super) pod: Pod,
    pub(super) dry_run: bool,
    /// Warnings about unknown and unsupported fields.
    pub(super) warnings: Vec<String>,
}

/// The parameters of a request that writes a pod.
#[derive(Clone, Debug)]
pub(super) struct WriteOptions {
    pub(super) dry_run: bool,
    /// `fieldValidation`.
    strictness: String,
}

impl WriteOptions {
    pub(super) fn parse(params: &mut QueryParams) -> Result<Self, StatusError> {
        let dry_run = params.dry_run()?;
        let strictness = params.text("fieldValidation").unwrap_or_else(|| "Warn".into());
        if !["Strict", "Warn", "Ignore"].contains(&strictness.as_str()) {
            let message = format!("fieldValidation={strictness:?} must be Strict, Warn or Ignore");
            return Err(StatusError::bad_request(message));
        }
        Ok(Self { dry_run, strictness })
    }
}

impl SubmittedPod {
    async fn read(
        mut params: QueryParams,
        request: Request<Incoming>,
    ) -> Result<Result<Self, HttpResponse>, StatusError> {
        let options = WriteOptions::parse(&mut params)?;
        params.finish()?;
        match read(request, move |document| Self::of(document, &options)).await? {
            RequestBody::Object(written) => Ok(Ok(written)),
            RequestBody::TooLarge(response) => Ok(Err(response)),
        }
    }

    pub(super) fn of(document: Value, options: &WriteOptions) -> Result<Self, StatusError> {
        let WriteOptions { dry_run, strictness } = options;
        let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
        if (text("kind"), text("apiVersion")) != ("Pod", "v1") {
            let message = format!(
                "kind {:?} of apiVersion {:?} is not supported: send a Pod of apiVersion v1",
                text("kind"),
                text("apiVersion")
            );
            return Err(StatusError::bad_request(message));
        }
        if strictness == "Strict" {
            let unknown = unknown_in(&document);
            let named: Vec<String> =
                unknown.iter().take(WARNINGS_MAX).map(|field| format!("unknown field {field:?}")).collect();
            if !named.is_empty() {
                return Err(StatusError::bad_request(format!("strict decoding error: {}", named.join(", "))));
            }
        }
        let mut warnings = if strictness == "Ignore" { Vec::new() } else { warnings_in(&document) };
        warnings.truncate(WARNINGS_MAX);
        let warnings = warnings.iter().map(|(_, warning)| warning.to_string()).collect();
        Ok(Self { pod: decode(document)?, dry_run: *dry_run, warnings })
    }
}

/// Kubernetes: warnings are response headers that clients print.
pub(super) fn with_warnings(mut response: HttpResponse, warnings: &[String]) -> HttpResponse {
    for warning in warnings {
        let text = format!("299 - \"{}\"", warning.replace(['"', '\\'], "'"));
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

/// Unknown fields named in one response.
const WARNINGS_MAX: usize = 20;
