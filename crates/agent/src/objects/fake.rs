//! Objects for tests: returns what was put in, and records token requests and releases.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::*;

/// An in-memory API server.
#[derive(Default)]
pub(crate) struct FakeObjects {
    pub(crate) config_maps: Mutex<BTreeMap<String, ConfigMap>>,
    pub(crate) secrets: Mutex<BTreeMap<String, Secret>>,
    pub(crate) services: Mutex<Vec<Arc<Service>>>,
    pub(crate) claims: Mutex<BTreeMap<String, ClaimWithVolume>>,
    pub(crate) tokens: Mutex<Vec<TokenSpec>>,
    pub(crate) released: Mutex<Vec<PodUid>>,
}

impl FakeObjects {
    pub(crate) fn put_config_map(&self, name: &str, object: serde_json::Value) {
        self.config_maps.lock().unwrap().insert(name.into(), serde_json::from_value(object).unwrap());
    }

    pub(crate) fn put_secret(&self, name: &str, object: serde_json::Value) {
        self.secrets.lock().unwrap().insert(name.into(), serde_json::from_value(object).unwrap());
    }

    pub(crate) fn put_claim(&self, name: &str, claim: serde_json::Value, volume: Option<serde_json::Value>) {
        let claim = Arc::new(serde_json::from_value(claim).unwrap());
        let volume = volume.map(|volume| Arc::new(serde_json::from_value(volume).unwrap()));
        self.claims.lock().unwrap().insert(name.into(), ClaimWithVolume { claim, volume });
    }
}

fn answer<'a, T: Clone + Send + 'a>(
    kind: &'static str,
    name: &'a str,
    all: &Mutex<BTreeMap<String, T>>,
) -> ObjectFuture<'a, T> {
    let found = all.lock().unwrap().get(name).cloned();
    Box::pin(async move { found.ok_or_else(|| GetObjectError::NotFound { kind, name: name.to_owned() }) })
}

impl ObjectClient for FakeObjects {
    fn config_map<'a>(&'a self, _: &'a PodUid, _: &'a str, name: &'a str) -> ObjectFuture<'a, Redacted<ConfigMap>> {
        let found = answer("configmap", name, &self.config_maps);
        Box::pin(async { found.await.map(Redacted::new) })
    }

    fn secret<'a>(&'a self, _: &'a PodUid, _: &'a str, name: &'a str) -> ObjectFuture<'a, Redacted<Secret>> {
        let found = answer("secret", name, &self.secrets);
        Box::pin(async { found.await.map(Redacted::new) })
    }

    fn token<'a>(&'a self, _: &'a Pod, spec: TokenSpec) -> ObjectFuture<'a, Redacted<String>> {
        let token = format!("token for {:?}", spec.audience);
        self.tokens.lock().unwrap().push(spec);
        Box::pin(async { Ok(Redacted::new(token)) })
    }

    fn runtime_handler<'a>(&'a self, class: &'a str) -> ObjectFuture<'a, String> {
        let error = GetObjectError::NotFound { kind: "runtimeclass", name: class.to_owned() };
        let known = (class == "fast").then(|| "fast-handler".to_owned());
        Box::pin(async { known.ok_or(error) })
    }

    fn claim<'a>(&'a self, _: &'a str, name: &'a str) -> ObjectFuture<'a, ClaimWithVolume> {
        answer("persistentvolumeclaim", name, &self.claims)
    }

    fn services<'a>(&'a self, _: &'a Pod) -> ObjectFuture<'a, Vec<Arc<Service>>> {
        let known = self.services.lock().unwrap().clone();
        Box::pin(async { Ok(known) })
    }

    fn trust_bundle<'a>(
        &'a self,
        _: &'a PodUid,
        _: &'a ClusterTrustBundleProjection,
    ) -> ObjectFuture<'a, Redacted<String>> {
        Box::pin(async { Ok(Redacted::new("PEM".to_owned())) })
    }

    fn release(&self, uid: &PodUid) {
        self.released.lock().unwrap().push(uid.clone());
    }
}
