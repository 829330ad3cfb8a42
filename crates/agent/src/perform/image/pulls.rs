//! Pulls under way: shared by all who want the same, bounded, and given up when nobody wants them any more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use podwright_core::model::CallError;
use podwright_cri::v1::{ImageSpec, PullImageRequest};
use podwright_cri::{Code, CriError, ImageService};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

use super::ImageReference;
use super::credentials::Credential;
use super::rate_limit::Pace;

/// What is pulled with what.
type Key = (String, Vec<Credential>);

/// What came of a pull: the image's id.
type Outcome = Result<String, PullFailure>;

/// The pulls of this node.
pub(super) struct Pulls {
    service: Arc<dyn ImageService>,
    slots: Arc<Semaphore>,
    pace: Option<Arc<Pace>>,
    per_host: usize,
    /// Places per registry host; a host that nobody pulls from is forgotten.
    hosts: Mutex<HashMap<String, Weak<Semaphore>>>,
    /// Only those who wait keep a flight alive.
    flights: Mutex<HashMap<Key, Weak<Flight>>>,
}

/// Why a pull failed, without any secret in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PullFailure {
    message: String,
    unavailable: bool,
}

struct Flight {
    outcome: watch::Receiver<Option<Outcome>>,
    task: AbortHandle,
}

impl Drop for Flight {
    /// The last one who waited went away: dropping the call tells the runtime to stop pulling.
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Pulls {
    pub(super) fn new(
        service: Arc<dyn ImageService>,
        parallel: usize,
        per_host: usize,
        rate: Option<(u32, u32)>,
    ) -> Self {
        Self {
            service,
            slots: Arc::new(Semaphore::new(parallel)),
            pace: rate.map(|(per_second, burst)| Arc::new(Pace::new(per_second, burst))),
            per_host,
            hosts: Mutex::default(),
            flights: Mutex::default(),
        }
    }

    /// Joins the pull of this image, or begins one.
    pub(super) async fn pull(&self, image: &ImageReference, credentials: Vec<Credential>, limit: Duration) -> Outcome {
        let flight = self.join(image, credentials, limit);
        let mut outcome = flight.outcome.clone();
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().expect("waited for it"),
            Err(_) => Err(PullFailure { message: "the pull ended without an answer".into(), unavailable: false }),
        }
    }

    fn join(&self, image: &ImageReference, credentials: Vec<Credential>, limit: Duration) -> Arc<Flight> {
        let host = self.host(&image.domain);
        let mut flights = self.flights.lock().expect("nobody panics with it");
        flights.retain(|_, flight| flight.strong_count() > 0);
        let key = (image.full.clone(), credentials);
        // A pull that just ended is history, whoever still reads its outcome.
        let under_way = flights.get(&key).and_then(Weak::upgrade).filter(|flight| flight.outcome.borrow().is_none());
        if let Some(flight) = under_way {
            return flight;
        }
        let (send, outcome) = watch::channel(None);
        let (service, slots, pace) = (Arc::clone(&self.service), Arc::clone(&self.slots), self.pace.clone());
        let (full, credentials) = key.clone();
        let task = tokio::spawn(async move {
            let _host = host.acquire().await.expect("the semaphore is never closed");
            let _slot = slots.acquire().await.expect("the semaphore is never closed");
            if let Some(pace) = pace {
                pace.turn().await;
            }
            send.send_replace(Some(attempt(&*service, &full, &credentials, limit).await));
        });
        let flight = Arc::new(Flight { outcome, task: task.abort_handle() });
        flights.insert(key, Arc::downgrade(&flight));
        flight
    }

    fn host(&self, domain: &str) -> Arc<Semaphore> {
        let mut hosts = self.hosts.lock().expect("nobody panics with it");
        hosts.retain(|_, places| places.strong_count() > 0);
        let known = hosts.get(domain).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let places = Arc::new(Semaphore::new(self.per_host));
            hosts.insert(domain.to_owned(), Arc::downgrade(&places));
            places
        })
    }
}

/// Tries every credential until one opens the image; without any, tries without.
async fn attempt(service: &dyn ImageService, image: &str, credentials: &[Credential], limit: Duration) -> Outcome {
    let request = |auth| PullImageRequest {
        image: Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() }),
        auth,
        sandbox_config: None,
    };
    let candidates: Vec<Option<&Credential>> =
        if credentials.is_empty() { vec![None] } else { credentials.iter().map(Some).collect() };
    let mut failures = Vec::new();
    for credential in candidates {
        match service.pull_image(request(credential.map(Credential::auth_config)), limit).await {
            Ok(id) => return Ok(id),
            Err(error) => failures.push(error),
        }
    }
    Err(PullFailure::of(&failures, credentials))
}

impl PullFailure {
    fn of(failures: &[CriError], credentials: &[Credential]) -> Self {
        let unavailable = failures.iter().any(|error| error.code == Code::Unavailable && error.message != NO_REGISTRY)
            && !failures.iter().any(|error| error.message.starts_with(NO_REGISTRY));
        let mut messages: Vec<String> = Vec::new();
        for error in failures {
            let message = without_secrets(&error.message, credentials);
            if !messages.contains(&message) {
                messages.push(message);
            }
        }
        Self { message: messages.join("; "), unavailable }
    }

    /// The words users know; the registry's own stay in the message.
    pub(super) fn into_call_error(self, image: &str) -> CallError {
        if self.unavailable {
            return CallError::Unavailable { message: self.message };
        }
        let tail = |reason: &str| self.message.strip_prefix(reason).map(str::to_owned);
        if let Some(more) = tail(NO_REGISTRY) {
            let message = format!("image pull failed for {image} because the registry is unavailable{more}");
            return CallError::with_reason(NO_REGISTRY, message);
        }
        if let Some(more) = tail(BAD_SIGNATURE) {
            let message = format!("image pull failed for {image} because the signature validation failed{more}");
            return CallError::with_reason(BAD_SIGNATURE, message);
        }
        CallError::with_reason("ErrImagePull", self.message)
    }
}

/// Passwords, tokens, and what stands behind the question mark of a URL, where signed addresses carry theirs.
fn without_secrets(message: &str, credentials: &[Credential]) -> String {
    let mut clean = message.to_owned();
    for secret in credentials.iter().flat_map(Credential::secrets).filter(|secret| !secret.is_empty()) {
        clean = clean.replace(secret, "***");
    }
    let mut out = String::with_capacity(clean.len());
    let mut rest = clean.as_str();
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at);
        out.push_str(before);
        let end =
            url.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>')).unwrap_or(url.len());
        let (url, after) = url.split_at(end);
        match url.split_once('?') {
            Some((address, _)) => {
                out.push_str(address);
                out.push_str("?***");
                // What ended the sentence is not part of the query.
                out.push_str(if url.ends_with(':') { ":" } else { "" });
            }
            None => out.push_str(url),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Kubernetes: the CRI's ErrRegistryUnavailable, which runtimes put in front of their message.
const NO_REGISTRY: &str = "RegistryUnavailable";
/// Kubernetes: the CRI's ErrSignatureValidationFailed.
const BAD_SIGNATURE: &str = "SignatureValidationFailed";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_addresses_lose_their_signature() {
        let table = [
            ("get \"https://r.io/blob?sig=abc\": 403", "get \"https://r.io/blob?***\": 403"),
            ("get https://r.io/blob?sig=abc: 403", "get https://r.io/blob?***: 403"),
            ("get https://r.io/blob: 403 what?", "get https://r.io/blob: 403 what?"),
            ("plain", "plain"),
        ];
        for (message, expected) in table {
            assert_eq!(without_secrets(message, &[]), expected);
        }
    }

    #[test]
    fn reasons_the_runtime_puts_in_front_are_kept() {
        let reason = |message: &str| {
            let failed = PullFailure { message: message.into(), unavailable: false };
            let error = failed.into_call_error("app");
            (error.reason().map(str::to_owned), error.message().to_owned())
        };
        let (unavailable, text) = reason("RegistryUnavailable: connection refused");
        assert_eq!(unavailable.as_deref(), Some("RegistryUnavailable"));
        assert_eq!(text, "image pull failed for app because the registry is unavailable: connection refused");
        assert_eq!(reason("SignatureValidationFailed").0.as_deref(), Some("SignatureValidationFailed"));
        assert_eq!(reason("no such host").0.as_deref(), Some("ErrImagePull"));
    }
}
