//! Service account tokens bound to pods (TokenRequest): cached, and renewed well before they expire.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use podwright_core::model::{Event, PodUid};
use podwright_tasks::Tasks;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::client::{ApiClient, request};
use crate::error::ApiError;
use crate::object_read::{READ_TIMEOUT, decode_error, path_segment, retry_forbidden};

/// Identifies a token: the pod and service account it is for, its audience and the requested lifetime.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenKey {
    /// The pod that the token is bound to.
    pub uid: PodUid,
    /// The pod's name.
    pub pod: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The service account's name, in the pod's namespace.
    pub account: String,
    /// Empty: the API server itself.
    pub audience: String,
    /// The requested lifetime; the server may grant another.
    pub expiration_seconds: i64,
}

/// The cached tokens of this node's pods.
pub struct Tokens {
    client: ApiClient,
    cache: Arc<TokenCache>,
    renewal_timer: AbortHandle,
}

#[derive(Default)]
struct TokenCache {
    entries: Mutex<BTreeMap<TokenKey, Arc<TokenEntry>>>,
    /// A renewal time was set: the timer computes its next wake-up again.
    renewal_changed: Notify,
}

impl TokenCache {
    fn entry(&self, key: &TokenKey) -> Result<Arc<TokenEntry>, ApiError> {
        let mut entries = self.entries.lock().expect("no panic under this lock");
        if !entries.contains_key(key)
            && entries.keys().filter(|other| other.uid == key.uid).count() >= TOKENS_PER_POD_MAX
        {
            return Err(ApiError::Unreachable(format!("the pod needs more than {TOKENS_PER_POD_MAX} tokens")));
        }
        Ok(Arc::clone(entries.entry(key.clone()).or_default()))
    }
}

/// One token. Requests made during a fetch wait for its result.
#[derive(Default)]
struct TokenEntry {
    token: tokio::sync::Mutex<Option<Token>>,
    /// When the pod is notified that the token is due for renewal; `None`: not fetched yet.
    notify_at: Mutex<Option<Instant>>,
}

#[derive(Clone)]
struct Token {
    text: Arc<String>,
    renew_at: Instant,
    expires_at: Instant,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        self.renewal_timer.abort();
    }
}

impl Tokens {
    pub(crate) fn new(client: ApiClient, events: mpsc::Sender<Event>, tasks: &Tasks) -> Self {
        let cache = Arc::new(TokenCache::default());
        let renewal_timer = tasks.service("token-renewal", notify_renewals(Arc::clone(&cache), events));
        Self { client, cache, renewal_timer }
    }

    /// The token, renewed if it is due. A token that can't be renewed is returned until it expires.
    pub async fn get(&self, key: &TokenKey) -> Result<Arc<String>, ApiError> {
        let entry = self.cache.entry(key)?;
        let mut token = entry.token.lock().await;
        let now = Instant::now();
        if let Some(fresh) = token.as_ref().filter(|token| now < token.renew_at) {
            return Ok(Arc::clone(&fresh.text));
        }
        match self.fetch(key).await {
            Ok(new) => {
                let text = Arc::clone(&new.text);
                self.notify_at(&entry, new.renew_at);
                *token = Some(new);
                Ok(text)
            }
            Err(error) => match token.as_ref().filter(|token| now < token.expires_at) {
                Some(old) => {
                    let pod = format!("{}/{}", key.namespace, key.pod);
                    tracing::warn!(pod, service_account = key.account, %error, "token renewal failed: using the previous token");
                    self.notify_at(&entry, now + RETRY);
                    Ok(Arc::clone(&old.text))
                }
                None => Err(error),
            },
        }
    }

    fn notify_at(&self, entry: &TokenEntry, at: Instant) {
        *entry.notify_at.lock().expect("no panic under this lock") = Some(at);
        self.cache.renewal_changed.notify_one();
    }

    pub(crate) fn release(&self, uid: &PodUid) {
        self.cache.entries.lock().expect("no panic under this lock").retain(|key, _| key.uid != *uid);
    }

    async fn fetch(&self, key: &TokenKey) -> Result<Token, ApiError> {
        let (namespace, account) = (path_segment(&key.namespace)?, path_segment(&key.account)?);
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let audiences: &[&str] = if key.audience.is_empty() { &[] } else { &[&key.audience] };
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {
                "audiences": audiences, "expirationSeconds": key.expiration_seconds,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": key.pod, "uid": key.uid.as_str()},
            },
        });
        let body = body.to_string().into_bytes();
        let send = || request(Method::POST, &path, Some(("application/json", body.clone())));
        let requested_at = Instant::now();
        let response = retry_forbidden(|| self.client.call(send(), READ_TIMEOUT)).await?;
        let response: TokenResponse = serde_json::from_slice(&response).map_err(|error| decode_error(&error))?;
        if response.status.token.is_empty() {
            return Err(ApiError::Malformed("a TokenRequest without token".into()));
        }
        // The server may grant another lifetime than was requested.
        let lifetime = response.spec.expiration_seconds.unwrap_or(key.expiration_seconds);
        let lifetime = Duration::from_secs(u64::try_from(lifetime).unwrap_or(0)).max(LIFETIME_MIN);
        Ok(Token {
            text: Arc::new(response.status.token),
            renew_at: requested_at + renew_after(key, lifetime),
            expires_at: requested_at + lifetime,
        })
    }
}

/// Kubernetes (token manager, requiresRefresh): after 80 % of the lifetime, at most a day; minus a jitter that depends on the key.
fn renew_after(key: &TokenKey, lifetime: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let part = u32::try_from(hasher.finish() % 1024).unwrap_or(0);
    let jitter = JITTER_MAX.min(lifetime / 10).mul_f64(f64::from(part) / 1024.0);
    (lifetime * 4 / 5).min(DAY).saturating_sub(jitter)
}

/// Notifies pods whose tokens are due for renewal; setting up their volumes again renews them.
async fn notify_renewals(cache: Arc<TokenCache>, events: mpsc::Sender<Event>) {
    loop {
        let now = Instant::now();
        let (mut due, mut next) = (Vec::new(), None);
        for (key, entry) in &*cache.entries.lock().expect("no panic under this lock") {
            let mut notify_at = entry.notify_at.lock().expect("no panic under this lock");
            if notify_at.is_some_and(|at| at <= now) {
                due.push(key.uid.clone());
                // The pod is notified again if it does not request the token by then.
                *notify_at = Some(now + RETRY);
            }
            next = next.into_iter().chain(*notify_at).min();
        }
        due.dedup();
        for uid in due {
            if events.send(Event::ObjectsChanged { uid }).await.is_err() {
                return;
            }
        }
        let next = next.unwrap_or(now + DAY);
        let _ = tokio::time::timeout_at(next, cache.renewal_changed.notified()).await;
    }
}

#[derive(Deserialize)]
struct TokenResponse {
    #[serde(default)]
    spec: TokenResponseSpec,
    status: TokenResponseStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TokenResponseSpec {
    expiration_seconds: Option<i64>,
}

#[derive(Deserialize)]
struct TokenResponseStatus {
    #[serde(default)]
    token: String,
}

const DAY: Duration = Duration::from_secs(24 * 3600);
const JITTER_MAX: Duration = Duration::from_secs(10);
/// Lower bound of a granted lifetime, so that tokens are not requested in a tight loop.
const LIFETIME_MIN: Duration = Duration::from_secs(10);
/// After a renewal that failed.
const RETRY: Duration = Duration::from_secs(30);
/// Far more than the projected volumes of a pod request. There is no limit for all pods together, which one of them could
/// exhaust: the number of pods is limited.
const TOKENS_PER_POD_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_with_too_many_tokens_does_not_affect_those_of_other_pods() {
        let cache = TokenCache::default();
        let key = |uid: &str, n: usize| TokenKey {
            uid: uid.into(),
            pod: "p".into(),
            namespace: "n".into(),
            account: "a".into(),
            audience: n.to_string(),
            expiration_seconds: 3600,
        };
        assert!((0..TOKENS_PER_POD_MAX).all(|n| cache.entry(&key("greedy", n)).is_ok()));
        assert!(cache.entry(&key("greedy", TOKENS_PER_POD_MAX)).is_err());
        assert!(cache.entry(&key("greedy", 0)).is_ok(), "a token that it has");
        assert!(cache.entry(&key("other", 0)).is_ok());
    }

    #[test]
    fn tokens_are_renewed_before_they_expire_and_at_different_times() {
        let key = |uid: &str| TokenKey {
            uid: uid.into(),
            pod: "p".into(),
            namespace: "n".into(),
            account: "a".into(),
            audience: String::new(),
            expiration_seconds: 3600,
        };
        let hour = Duration::from_secs(3600);
        let times: std::collections::BTreeSet<_> = (0..20).map(|n| renew_after(&key(&n.to_string()), hour)).collect();
        assert!(times.len() > 10);
        assert!(times.iter().all(|t| *t <= hour * 4 / 5 && *t + JITTER_MAX >= hour * 4 / 5), "{times:?}");
        assert!(renew_after(&key("u"), hour * 1000) <= DAY);
    }
}
