//! Pulls under way: shared by calls for the same image, limited in number, and aborted when no call waits for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use podwright_core::model::{CallError, PodUid};
use podwright_cri::v1::{ImageSpec, PullImageRequest};
use podwright_cri::{Code, CriError, ImageService};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::AbortHandle;

use super::RegistryImage;
use super::credentials::Credential;
use super::rate_limit::PullRateLimiter;

/// Image and credentials.
type Key = (String, Vec<Credential>);

/// The image, or why the pull failed.
type PullResult = Result<PulledImage, PullFailure>;

/// A pulled image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PulledImage {
    pub(super) id: String,
    /// Position of the credential that worked; `None`: pulled anonymously.
    pub(super) credential: Option<usize>,
}

/// All pulls of the node.
pub(super) struct Pulls {
    service: Arc<dyn ImageService>,
    permits: Arc<Semaphore>,
    rate_limit: Option<Arc<PullRateLimiter>>,
    per_host: usize,
    /// Permits per registry host; hosts without a pull are dropped.
    hosts: Mutex<HashMap<String, Weak<Semaphore>>>,
    per_pod: usize,
    /// Permits per pod: the images of one pod must not take all permits, also not from many hosts.
    pods: Mutex<HashMap<String, Weak<Semaphore>>>,
    /// Held only by the calls that wait for them.
    shared: Mutex<HashMap<Key, Weak<SharedPull>>>,
}

/// Why a pull failed, without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PullFailure {
    message: String,
    unavailable: bool,
}

struct SharedPull {
    outcome: watch::Receiver<Option<PullResult>>,
    task: AbortHandle,
    /// The permits of the pods that join while the pull waits for one. Bounded by the calls that wait for the pull.
    joined: mpsc::UnboundedSender<Arc<Semaphore>>,
}

impl Drop for SharedPull {
    /// No call waits any more: dropping the PullImage call makes the runtime stop the pull.
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
            permits: Arc::new(Semaphore::new(parallel)),
            rate_limit: rate.map(|(per_second, burst)| Arc::new(PullRateLimiter::new(per_second, burst))),
            per_host,
            hosts: Mutex::default(),
            per_pod: parallel.saturating_sub(1).max(1),
            pods: Mutex::default(),
            shared: Mutex::default(),
        }
    }

    /// Joins a pull of this image that is under way, or starts one.
    pub(super) async fn pull(
        &self,
        uid: &PodUid,
        image: &RegistryImage,
        credentials: Vec<Credential>,
        limit: Duration,
    ) -> PullResult {
        let pull = self.join(uid, image, credentials, limit);
        let mut outcome = pull.outcome.clone();
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().expect("waited for it"),
            Err(_) => Err(PullFailure { message: "the pull ended without a result".into(), unavailable: false }),
        }
    }

    fn join(
        &self,
        uid: &PodUid,
        image: &RegistryImage,
        credentials: Vec<Credential>,
        limit: Duration,
    ) -> Arc<SharedPull> {
        let pod = permits_of(&self.pods, uid.as_str(), self.per_pod);
        let host = permits_of(&self.hosts, &image.domain, self.per_host);
        let mut shared = self.shared.lock().expect("no panic under this lock");
        shared.retain(|_, pull| pull.strong_count() > 0);
        let key = (image.full.clone(), credentials);
        // A pull that has ended is not joined, even if calls still read its result.
        let under_way = shared.get(&key).and_then(Weak::upgrade).filter(|pull| pull.outcome.borrow().is_none());
        if let Some(pull) = under_way {
            // Fails if the pull has its permits already.
            let _ = pull.joined.send(pod);
            tracing::debug!(image = image.full, %uid, "joined a pull that is under way");
            return pull;
        }
        let (send, outcome) = watch::channel(None);
        let (joined, mut joining) = mpsc::unbounded_channel();
        let (service, permits, rate_limit) =
            (Arc::clone(&self.service), Arc::clone(&self.permits), self.rate_limit.clone());
        let (full, credentials) = key.clone();
        let task = podwright_tasks::spawn("image-pull", async move {
            let _held = pod_and_host(vec![pod], &mut joining, &host).await;
            drop(joining);
            let _permit = permits.acquire().await.expect("the semaphore is never closed");
            if let Some(rate_limit) = rate_limit {
                rate_limit.acquire().await;
            }
            send.send_replace(Some(attempt(&*service, &full, &credentials, limit).await));
        });
        let pull = Arc::new(SharedPull { outcome, task: task.abort_handle(), joined });
        shared.insert(key, Arc::downgrade(&pull));
        pull
    }
}

/// A permit of a pod and one of the registry. A pull that waits for one of them does not hold the other: neither a slow registry
/// nor a pod with many pulls keeps others from starting.
async fn pod_and_host(
    mut pods: Vec<Arc<Semaphore>>,
    joining: &mut mpsc::UnboundedReceiver<Arc<Semaphore>>,
    host: &Arc<Semaphore>,
) -> (OwnedSemaphorePermit, OwnedSemaphorePermit) {
    loop {
        let pod = first_permit(&mut pods, joining).await;
        if let Ok(host) = Arc::clone(host).try_acquire_owned() {
            return (pod, host);
        }
        drop(pod);
        let host = Arc::clone(host).acquire_owned().await.expect("the semaphore is never closed");
        if let Some(pod) = pods.iter().find_map(|pod| Arc::clone(pod).try_acquire_owned().ok()) {
            return (pod, host);
        }
    }
}

/// A permit of any pod that waits for the pull: a pod must not wait for the permits of another that requested the image first.
async fn first_permit(
    pods: &mut Vec<Arc<Semaphore>>,
    joining: &mut mpsc::UnboundedReceiver<Arc<Semaphore>>,
) -> OwnedSemaphorePermit {
    let mut permits: FuturesUnordered<_> = pods.iter().map(|pod| Arc::clone(pod).acquire_owned()).collect();
    loop {
        tokio::select! {
            Some(permit) = permits.next() => return permit.expect("the semaphore is never closed"),
            Some(other) = joining.recv() => {
                pods.push(Arc::clone(&other));
                permits.push(other.acquire_owned());
            }
        }
    }
}

/// The permits of a host or pod. Those that are not in use are dropped.
fn permits_of(all: &Mutex<HashMap<String, Weak<Semaphore>>>, name: &str, count: usize) -> Arc<Semaphore> {
    let mut all = all.lock().expect("no panic under this lock");
    all.retain(|_, permits| permits.strong_count() > 0);
    let known = all.get(name).and_then(Weak::upgrade);
    known.unwrap_or_else(|| {
        let permits = Arc::new(Semaphore::new(count));
        all.insert(name.to_owned(), Arc::downgrade(&permits));
        permits
    })
}

/// Tries each credential until one works; without credentials, pulls anonymously.
async fn attempt(service: &dyn ImageService, image: &str, credentials: &[Credential], limit: Duration) -> PullResult {
    let request = |auth| PullImageRequest {
        image: Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() }),
        auth,
        sandbox_config: None,
    };
    let candidates: Vec<Option<&Credential>> =
        if credentials.is_empty() { vec![None] } else { credentials.iter().map(Some).collect() };
    let mut failures = Vec::new();
    for (position, credential) in candidates.into_iter().enumerate() {
        match service.pull_image(request(credential.map(Credential::auth_config)), limit).await {
            Ok(id) => return Ok(PulledImage { id, credential: credential.map(|_| position) }),
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

    /// The reasons and messages of the kubelet; the error of the registry is in the message.
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

/// Replaces passwords, tokens, and the queries of URLs, which contain the signatures of signed URLs.
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
                // A colon at the end belongs to the message, not to the query.
                out.push_str(if url.ends_with(':') { ":" } else { "" });
            }
            None => out.push_str(url),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Kubernetes: ErrRegistryUnavailable of the CRI, which runtimes use as a prefix of the message.
const NO_REGISTRY: &str = "RegistryUnavailable";
/// Kubernetes: ErrSignatureValidationFailed of the CRI.
const BAD_SIGNATURE: &str = "SignatureValidationFailed";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_urls_are_redacted() {
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
    fn reasons_in_the_prefix_of_the_message_are_kept() {
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
