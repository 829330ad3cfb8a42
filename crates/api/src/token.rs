//! Tokens of service accounts, bound to pods, by TokenRequest: kept, and renewed while they are still good for long.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use podwright_core::model::{Event, PodUid};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::client::{Cluster, request};
use crate::error::ApiError;
use crate::objects::{READ_MAX, checked, patiently, where_in};

/// Whose token, for whom, for how long.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenKey {
    /// The pod it is bound to.
    pub uid: PodUid,
    /// The pod's name.
    pub pod: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The service account.
    pub account: String,
    /// For whom it is meant; empty: the API server itself.
    pub audience: String,
    /// How long it should be good.
    pub expiration_seconds: i64,
}

/// The tokens of this node's pods.
pub struct Tokens {
    cluster: Cluster,
    kept: Arc<Kept>,
    renewer: AbortHandle,
}

#[derive(Default)]
struct Kept {
    slots: Mutex<BTreeMap<TokenKey, Arc<Slot>>>,
    /// There is a new date to look at.
    changed: Notify,
}

/// One token. Who asks while it is being fetched waits for that.
#[derive(Default)]
struct Slot {
    token: tokio::sync::Mutex<Option<Token>>,
    /// When its pod is told that it is to be renewed; `None`: it is not there yet.
    look_at: Mutex<Option<Instant>>,
}

#[derive(Clone)]
struct Token {
    text: Arc<String>,
    renew_at: Instant,
    ends_at: Instant,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        self.renewer.abort();
    }
}

impl Tokens {
    pub(crate) fn new(cluster: Cluster, events: mpsc::Sender<Event>) -> Self {
        let kept = Arc::new(Kept::default());
        let renewer = tokio::spawn(remind(Arc::clone(&kept), events)).abort_handle();
        Self { cluster, kept, renewer }
    }

    /// The token, renewed if it is time. One that can't be renewed is given until it ends.
    pub async fn get(&self, key: &TokenKey) -> Result<Arc<String>, ApiError> {
        let slot = {
            let mut slots = self.kept.slots.lock().expect("nobody panics with it");
            if slots.len() >= TOKENS_MAX && !slots.contains_key(key) {
                return Err(ApiError::Unreachable(format!("more than {TOKENS_MAX} tokens are needed here")));
            }
            Arc::clone(slots.entry(key.clone()).or_default())
        };
        let mut token = slot.token.lock().await;
        let now = Instant::now();
        if let Some(good) = token.as_ref().filter(|token| now < token.renew_at) {
            return Ok(Arc::clone(&good.text));
        }
        match self.fetch(key).await {
            Ok(new) => {
                let text = Arc::clone(&new.text);
                self.look_at(&slot, new.renew_at);
                *token = Some(new);
                Ok(text)
            }
            Err(error) => match token.as_ref().filter(|token| now < token.ends_at) {
                Some(old) => {
                    tracing::warn!(%error, pod = key.pod, account = key.account, "a token is not renewed yet");
                    self.look_at(&slot, now + RETRY);
                    Ok(Arc::clone(&old.text))
                }
                None => Err(error),
            },
        }
    }

    fn look_at(&self, slot: &Slot, at: Instant) {
        *slot.look_at.lock().expect("nobody panics with it") = Some(at);
        self.kept.changed.notify_one();
    }

    pub(crate) fn release(&self, uid: &PodUid) {
        self.kept.slots.lock().expect("nobody panics with it").retain(|key, _| key.uid != *uid);
    }

    async fn fetch(&self, key: &TokenKey) -> Result<Token, ApiError> {
        let (namespace, account) = (checked(&key.namespace)?, checked(&key.account)?);
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
        let asked_at = Instant::now();
        let answer = patiently(|| self.cluster.call(send(), READ_MAX)).await?;
        let answer: Granted = serde_json::from_slice(&answer).map_err(|error| ApiError::Garbage(where_in(&error)))?;
        if answer.status.token.is_empty() {
            return Err(ApiError::Garbage("it grants no token".into()));
        }
        // The server may grant another time than was asked for.
        let life = answer.spec.expiration_seconds.unwrap_or(key.expiration_seconds);
        let life = Duration::from_secs(u64::try_from(life).unwrap_or(0)).max(LIFE_MIN);
        Ok(Token {
            text: Arc::new(answer.status.token),
            renew_at: asked_at + renew_after(key, life),
            ends_at: asked_at + life,
        })
    }
}

/// Kubernetes: after 80 % of its life, at most a day; a little earlier for each by its own measure.
fn renew_after(key: &TokenKey, life: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let part = u32::try_from(hasher.finish() % 1024).unwrap_or(0);
    let early = JITTER_MAX.min(life / 10).mul_f64(f64::from(part) / 1024.0);
    (life * 4 / 5).min(DAY).saturating_sub(early)
}

/// Tells pods whose tokens are to be renewed; setting up their volumes again renews them.
async fn remind(kept: Arc<Kept>, events: mpsc::Sender<Event>) {
    loop {
        let now = Instant::now();
        let (mut due, mut next) = (Vec::new(), None);
        for (key, slot) in &*kept.slots.lock().expect("nobody panics with it") {
            let mut look_at = slot.look_at.lock().expect("nobody panics with it");
            if look_at.is_some_and(|at| at <= now) {
                due.push(key.uid.clone());
                // Should nobody come for it, it is told again.
                *look_at = Some(now + RETRY);
            }
            next = next.into_iter().chain(*look_at).min();
        }
        due.dedup();
        for uid in due {
            if events.send(Event::ObjectsChanged { uid }).await.is_err() {
                return;
            }
        }
        let next = next.unwrap_or(now + DAY);
        let _ = tokio::time::timeout_at(next, kept.changed.notified()).await;
    }
}

#[derive(Deserialize)]
struct Granted {
    #[serde(default)]
    spec: GrantedSpec,
    status: GrantedStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct GrantedSpec {
    expiration_seconds: Option<i64>,
}

#[derive(Deserialize)]
struct GrantedStatus {
    #[serde(default)]
    token: String,
}

const DAY: Duration = Duration::from_secs(24 * 3600);
const JITTER_MAX: Duration = Duration::from_secs(10);
/// A server that grants less is not asked without end.
const LIFE_MIN: Duration = Duration::from_secs(10);
/// After a renewal that failed.
const RETRY: Duration = Duration::from_secs(30);
/// Far more than the pods of a node can ask for.
const TOKENS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_in_time_and_not_together() {
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
