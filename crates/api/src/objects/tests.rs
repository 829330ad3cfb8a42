//! Against a small server that serves lists, watches and tokens over HTTP/2.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::*;
use crate::token::TokenKey;

mod many;

type TestResponse = Response<BoxBody<Bytes, Infallible>>;

/// The server's objects, watchers and received requests.
#[derive(Default)]
struct ServerState {
    objects: BTreeMap<String, Value>,
    version: u64,
    watchers: Vec<(String, UnboundedSender<Bytes>)>,
    received: Vec<String>,
    /// Every request fails with this code.
    fail_with: Option<u16>,
    tokens: u64,
    connections: usize,
    /// Lists never get a response.
    lists_hang: bool,
    /// Watches never get a response.
    watches_hang: bool,
    /// The version of every watch is too old.
    watches_gone: bool,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<ServerState>>);

impl Server {
    async fn start(&self) -> (ReferencedObjects, mpsc::Receiver<Event>, tempfile::TempDir) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = server.clone();
                let responder = server.clone();
                let service = hyper::service::service_fn(move |request| {
                    let server = responder.clone();
                    async move { Ok::<_, Infallible>(server.respond(request).await) }
                });
                server.0.lock().unwrap().connections += 1;
                let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                // The default of an API server.
                builder.max_concurrent_streams(100);
                tokio::spawn(async move { builder.serve_connection(TokioIo::new(stream), service).await });
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        let config = format!(
            "{{clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}], users: [{{name: u, user: {{token: t}}}}], \
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}], current-context: x}}"
        );
        std::fs::write(&file, config).unwrap();
        let (sender, events) = mpsc::channel(64);
        (
            ReferencedObjects::new(&ApiClient::open(&file).unwrap(), sender, &podwright_tasks::Tasks::unsupervised()),
            events,
            dir,
        )
    }

    async fn respond(&self, request: Request<Incoming>) -> TestResponse {
        match self.response(request) {
            Some(response) => response,
            None => std::future::pending().await,
        }
    }

    /// `None`: the request hangs.
    fn response(&self, request: Request<Incoming>) -> Option<TestResponse> {
        let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
        let mut state = self.0.lock().unwrap();
        let verb = if query.contains("watch=true") { "watch" } else { request.method().as_str() };
        state.received.push(format!("{verb} {path}?{query}"));
        if let Some(code) = state.fail_with {
            return Some(json_response(
                code,
                json!({"kind": "Status", "code": code, "reason": "Refused", "message": "no"}),
            ));
        }
        if path.ends_with("/token") {
            state.tokens += 1;
            let token = format!("token-{}", state.tokens);
            return Some(json_response(201, json!({"spec": {"expirationSeconds": 600}, "status": {"token": token}})));
        }
        let name = query.split('&').find_map(|part| part.strip_prefix("fieldSelector=metadata.name%3D"));
        if verb == "PATCH" {
            return Some(json_response(200, json!({})));
        }
        if (state.watches_hang && verb == "watch") || (state.lists_hang && verb == "GET") {
            return None;
        }
        if verb == "watch" {
            let (sender, lines) = unbounded_channel();
            if state.watches_gone {
                let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
                let _ = sender.send(Bytes::from(format!("{}\n", json!({"type": "ERROR", "object": gone}))));
            }
            state.watchers.push((format!("{path}/{}", name.unwrap_or_default()), sender));
            return Some(Response::new(body_of(lines)));
        }
        let prefix = format!("{path}/");
        let fits = |key: &str| key.strip_prefix(&prefix).is_some_and(|rest| name.is_none_or(|name| rest == name));
        if name.is_none()
            && let Some(object) = state.objects.get(&path)
        {
            return Some(json_response(200, object.clone()));
        }
        if name.is_none() && !path.ends_with('s') {
            return Some(json_response(404, json!({"reason": "NotFound"})));
        }
        let items: Vec<&Value> = state.objects.iter().filter(|(key, _)| fits(key)).map(|(_, o)| o).collect();
        Some(json_response(200, json!({"metadata": {"resourceVersion": state.version.to_string()}, "items": items})))
    }

    /// Creates, updates or deletes an object, and sends the watch event.
    fn put(&self, path: &str, object: Option<Value>) {
        let mut state = self.0.lock().unwrap();
        state.version += 1;
        let name = path.rsplit('/').next().unwrap();
        let kind = if object.is_some() { "MODIFIED" } else { "DELETED" };
        let mut stored = object.clone().unwrap_or_else(|| json!({}));
        stored["metadata"] = json!({"name": name, "resourceVersion": state.version.to_string()});
        let line = format!("{}\n", json!({"type": kind, "object": stored}));
        match object {
            Some(_) => drop(state.objects.insert(path.to_owned(), stored)),
            None => drop(state.objects.remove(path)),
        }
        let all = format!("{}/", path.rsplit_once('/').unwrap().0);
        state
            .watchers
            .retain(|(at, watcher)| (*at != path && *at != all) || watcher.send(Bytes::from(line.clone())).is_ok());
    }

    fn fail_with(&self, code: Option<u16>) {
        self.0.lock().unwrap().fail_with = code;
    }

    /// The number of received requests that contain this text.
    fn received(&self, text: &str) -> usize {
        self.0.lock().unwrap().received.iter().filter(|request| request.contains(text)).count()
    }

    async fn is_watched(&self, path: &str) {
        wait_until(async || self.0.lock().unwrap().watchers.iter().any(|(at, w)| at == path && !w.is_closed())).await;
    }
}

fn json_response(code: u16, body: Value) -> TestResponse {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed());
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

fn body_of(lines: UnboundedReceiver<Bytes>) -> BoxBody<Bytes, Infallible> {
    let next = |mut lines: UnboundedReceiver<Bytes>| async move {
        lines.recv().await.map(|line| (Ok::<_, Infallible>(Frame::data(line)), lines))
    };
    BodyExt::boxed(StreamBody::new(Box::pin(futures::stream::unfold(lines, next)) as std::pin::Pin<Box<_>>))
}

async fn wait_until<F: Future<Output = bool>>(test: impl Fn() -> F) {
    for _ in 0..500 {
        if test().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition did not hold within 5 s");
}

/// The pod of the next ObjectsChanged event.
async fn notified_pod(events: &mut mpsc::Receiver<Event>) -> String {
    match tokio::time::timeout(Duration::from_secs(1), events.recv()).await {
        Ok(Some(Event::ObjectsChanged { uid })) => uid.as_str().to_owned(),
        other => panic!("no event within a second: {other:?}"),
    }
}

const MAP: &str = "/api/v1/namespaces/n/configmaps/c";

fn value(map: &ConfigMap) -> &str {
    &map.data.as_ref().unwrap()["k"]
}

#[tokio::test]
async fn an_object_is_watched_while_pods_need_it_and_each_pod_is_notified_of_changes() {
    let server = Server::default();
    let (objects, mut events, _dir) = server.start().await;
    server.put(MAP, Some(json!({"data": {"k": "1"}})));
    let (a, b) = ("a".into(), "b".into());
    assert_eq!(value(&objects.config_map(&a, "n", "c").await.unwrap()), "1");
    assert_eq!(value(&objects.config_map(&a, "n", "c").await.unwrap()), "1");
    assert_eq!(server.received("GET /api/v1/namespaces/n/configmaps?fieldSelector=metadata.name%3Dc"), 1);
    objects.config_map(&b, "n", "c").await.unwrap();
    assert_eq!(server.received("GET"), 2, "a new pod gets an object that was read after its request");
    server.is_watched(MAP).await;
    server.put(MAP, Some(json!({"data": {"k": "2"}})));
    assert_eq!([notified_pod(&mut events).await, notified_pod(&mut events).await], ["a", "b"]);
    assert_eq!(value(&objects.config_map(&a, "n", "c").await.unwrap()), "2");
    server.put(MAP, Some(json!({"data": {"k": "2"}, "note": "only the version differs"})));
    objects.release(&a);
    server.put(MAP, None);
    assert_eq!(notified_pod(&mut events).await, "b", "no event for a new version alone, and none for a released pod");
    assert!(objects.config_map(&b, "n", "c").await.unwrap_err().is_not_found());
    assert_eq!(server.received("watch"), 1, "all pods share one watch");
    objects.release(&b);
    assert_eq!(objects.inner.config_maps.len(), 0);
    wait_until(async || server.0.lock().unwrap().watchers.iter().all(|(_, watcher)| watcher.is_closed())).await;
}

#[tokio::test]
async fn a_pod_is_notified_when_a_missing_object_is_created() {
    let server = Server::default();
    let (objects, mut events, _dir) = server.start().await;
    let pod = "p".into();
    let error = objects.secret(&pod, "n", "s").await.unwrap_err();
    assert!(error.is_not_found());
    let path = "/api/v1/namespaces/n/secrets/s";
    server.is_watched(path).await;
    server.put(path, Some(json!({"type": "Opaque", "data": {"k": "aHVudGVyMg=="}})));
    assert_eq!(notified_pod(&mut events).await, "p");
    let secret = objects.secret(&pod, "n", "s").await.unwrap();
    assert_eq!(secret.data.as_ref().unwrap()["k"].0, b"hunter2");
}

#[tokio::test]
async fn an_immutable_object_is_not_watched() {
    let server = Server::default();
    let (objects, _events, _dir) = server.start().await;
    server.put(MAP, Some(json!({"immutable": true, "data": {"k": "1"}})));
    objects.config_map(&"a".into(), "n", "c").await.unwrap();
    objects.config_map(&"b".into(), "n", "c").await.unwrap();
    assert_eq!((server.received("watch"), server.received("GET")), (0, 2));
}

#[tokio::test]
async fn cached_objects_are_served_during_an_outage_and_pods_are_notified_after_it() {
    let server = Server::default();
    let (objects, mut events, _dir) = server.start().await;
    server.put(MAP, Some(json!({"data": {"k": "1"}})));
    objects.config_map(&"a".into(), "n", "c").await.unwrap();
    server.fail_with(Some(500));
    assert_eq!(value(&objects.config_map(&"b".into(), "n", "c").await.unwrap()), "1", "from the cache");
    let other = "/api/v1/namespaces/n/configmaps/d";
    server.put(other, Some(json!({"data": {"k": "x"}})));
    let error = objects.config_map(&"b".into(), "n", "d").await.unwrap_err();
    assert_eq!(error.code(), Some(500), "never read");
    server.fail_with(None);
    assert_eq!(notified_pod(&mut events).await, "b");
    assert_eq!(value(&objects.config_map(&"b".into(), "n", "d").await.unwrap()), "x");
}

#[tokio::test]
async fn a_forbidden_read_is_retried() {
    let server = Server::default();
    let (objects, _events, _dir) = server.start().await;
    server.put(MAP, Some(json!({"data": {"k": "1"}})));
    server.fail_with(Some(403));
    let late = server.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(250)).await;
        late.fail_with(None);
    });
    assert_eq!(value(&objects.config_map(&"a".into(), "n", "c").await.unwrap()), "1");
}

#[tokio::test]
async fn a_pod_gets_the_services_of_its_namespace_and_of_the_api_server() {
    let server = Server::default();
    let (objects, _events, _dir) = server.start().await;
    let service = |ip: &str| Some(json!({"spec": {"clusterIP": ip, "ports": [{"port": 80}], "selector": {"a": "b"}}}));
    server.put("/api/v1/namespaces/default/services/kubernetes", service("10.0.0.1"));
    server.put("/api/v1/namespaces/default/services/other", service("10.0.0.2"));
    server.put("/api/v1/namespaces/n/services/db", service("10.0.0.3"));
    let names = |found: &[Arc<k8s_openapi::api::core::v1::Service>]| -> Vec<String> {
        found.iter().map(|service| service.metadata.name.clone().unwrap()).collect()
    };
    let pod = "p".into();
    assert_eq!(names(&objects.services().known_to_pod(&pod, "n", true)), [] as [&str; 0]);
    assert_eq!(names(&objects.services().of_pod(&pod, "n", true).await.unwrap()), ["db", "kubernetes"]);
    assert_eq!(names(&objects.services().of_pod(&pod, "n", false).await.unwrap()), ["kubernetes"]);
    assert_eq!(names(&objects.services().known_to_pod(&pod, "n", true)), ["db", "kubernetes"]);
}

#[tokio::test]
async fn tokens_are_cached_and_their_pods_notified_when_they_are_due() {
    let server = Server::default();
    let (objects, mut events, _dir) = server.start().await;
    let key = TokenKey {
        uid: "u".into(),
        pod: "p".into(),
        namespace: "n".into(),
        account: "default".into(),
        audience: "vault".into(),
        expiration_seconds: 600,
    };
    assert_eq!(**objects.tokens().get(&key).await.unwrap(), *"token-1");
    assert_eq!(**objects.tokens().get(&key).await.unwrap(), *"token-1");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(481)).await;
    let uid = match events.recv().await {
        Some(Event::ObjectsChanged { uid }) => uid,
        other => panic!("{other:?}"),
    };
    assert_eq!(uid, key.uid);
    tokio::time::resume();
    server.fail_with(Some(500));
    assert_eq!(**objects.tokens().get(&key).await.unwrap(), *"token-1", "valid until it expires");
    server.fail_with(None);
    assert_eq!(**objects.tokens().get(&key).await.unwrap(), *"token-2");
    objects.release(&key.uid);
    assert_eq!(**objects.tokens().get(&key).await.unwrap(), *"token-3");
}

#[tokio::test]
async fn trust_bundles_are_watched_by_name_and_by_signer() {
    let server = Server::default();
    let (objects, mut events, _dir) = server.start().await;
    let bundles = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
    let bundle = |n: u8| {
        let text = format!("-----BEGIN CERTIFICATE-----\n{n}\n-----END CERTIFICATE-----\n");
        Some(json!({"spec": {"signerName": "a/b", "trustBundle": text}}))
    };
    let (named, signed) = ("named".into(), "signed".into());
    assert!(objects.trust_bundle(&named, "x").await.unwrap_err().is_not_found());
    server.is_watched(&format!("{bundles}/x")).await;
    server.put(&format!("{bundles}/x"), bundle(1));
    assert_eq!(notified_pod(&mut events).await, "named");
    assert!(objects.trust_bundle(&named, "x").await.unwrap().contains("\n1\n"));
    let everything = LabelSelector::default();
    assert!(objects.trust_bundles_of(&signed, "a/b", Some(&everything)).await.unwrap().contains("\n1\n"));
    assert!(objects.trust_bundles_of(&signed, "a/b", None).await.unwrap_err().is_not_found());
    objects.release(&named);
    server.is_watched(&format!("{bundles}/")).await;
    server.put(&format!("{bundles}/y"), bundle(2));
    assert_eq!(notified_pod(&mut events).await, "signed");
    let both = objects.trust_bundles_of(&signed, "a/b", Some(&everything)).await.unwrap();
    assert!(both.contains("\n1\n") && both.contains("\n2\n"));
    objects.release(&signed);
    assert_eq!(objects.inner.trust_bundles.len(), 0);
}

#[tokio::test]
async fn a_server_that_does_not_serve_trust_bundles_may_do_so_later() {
    let server = Server::default();
    let (objects, mut events, _dir) = server.start().await;
    server.fail_with(Some(404));
    assert!(objects.trust_bundle(&"p".into(), "x").await.unwrap_err().is_not_found());
    server.fail_with(None);
    assert_eq!(notified_pod(&mut events).await, "p");
}

#[tokio::test]
async fn runtime_classes_and_claims_are_read_on_request() {
    let server = Server::default();
    let (objects, _events, _dir) = server.start().await;
    server.put("/apis/node.k8s.io/v1/runtimeclasses/fast", Some(json!({"handler": "crun"})));
    assert_eq!(objects.runtime_handler("fast").await.unwrap(), "crun");
    assert!(objects.runtime_handler("none").await.unwrap_err().is_not_found());
    let claim = "/api/v1/namespaces/n/persistentvolumeclaims/c";
    server.put(claim, Some(json!({"spec": {"volumeName": "pv"}, "status": {"phase": "Pending"}})));
    assert!(objects.claim("n", "c").await.unwrap().1.is_none());
    server.put(claim, Some(json!({"spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}})));
    server.put("/api/v1/persistentvolumes/pv", Some(json!({"spec": {"local": {"path": "/d"}}})));
    let volume = objects.claim("n", "c").await.unwrap().1.unwrap();
    assert_eq!(volume.spec.unwrap().local.unwrap().path, "/d");
}
