//! Requests for certificates: what a signer may answer, rotation, and connections that follow.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use podwright_api::ApiClient;
use podwright_api::certificates::{CertificateKind, CertificateRotation, CertificateStore, RotationClients};
use podwright_core::certificates::{CertificateNames, client_names, serving_names};
use podwright_core::node_status::NodeEvent;
use rcgen::{CertificateParams, CertificateSigningRequestParams, DnType, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::fake::{FakeApiServer, ReceivedRequest, Reply, line, status, wait_until};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// A signer whose certificates are valid for this long.
struct FakeSigner {
    issuer: Issuer<'static, KeyPair>,
    lifetime: Duration,
}

impl FakeSigner {
    fn new(lifetime: Duration) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "signer");
        Self { issuer: Issuer::new(params, KeyPair::generate().unwrap()), lifetime }
    }

    /// The certificate for the request in this object, as in a status.
    fn sign(&self, object: &Value) -> String {
        let pem = STANDARD.decode(object["spec"]["request"].as_str().unwrap()).unwrap();
        let mut request = CertificateSigningRequestParams::from_pem(std::str::from_utf8(&pem).unwrap()).unwrap();
        request.params.not_before = std::time::SystemTime::now().into();
        request.params.not_after = (std::time::SystemTime::now() + self.lifetime).into();
        STANDARD.encode(request.signed_by(&self.issuer).unwrap().pem())
    }
}

/// An answer to a request: the status of the object, or what happens to it.
#[derive(Clone, Copy)]
enum Answer {
    Issue,
    Deny,
    Fail,
    Delete,
    Replace,
    /// Issued only as an event of the watch.
    IssueLater,
    /// Approved, and no certificate ever.
    ApproveOnly,
    Refuse(u16),
}

/// The object that the server has for the request with this number.
fn stored(created: &Value, number: usize, answer: Answer, signer: &FakeSigner) -> Value {
    let condition = |kind: &str| json!([{"type": kind, "status": "True", "reason": "Because", "message": "of rules"}]);
    let mut object = created.clone();
    object["metadata"] =
        json!({"name": format!("csr-{number}"), "uid": format!("uid-{number}"), "resourceVersion": "7"});
    object["status"] = match answer {
        Answer::Issue => json!({"conditions": condition("Approved"), "certificate": signer.sign(created)}),
        Answer::Deny => json!({"conditions": condition("Denied")}),
        Answer::Fail => json!({"conditions": condition("Failed")}),
        Answer::ApproveOnly => json!({"conditions": condition("Approved")}),
        _ => json!({}),
    };
    if matches!(answer, Answer::Replace) {
        object["metadata"]["uid"] = json!("another");
    }
    object
}

/// A server that answers the requests in this order, the last answer for all others.
async fn server(answers: Vec<Answer>, lifetime: Duration) -> FakeApiServer {
    let signer = FakeSigner::new(lifetime);
    let requests: Mutex<Vec<Value>> = Mutex::default();
    let answer = move |number: usize| answers[number.min(answers.len() - 1)];
    FakeApiServer::start(move |seen: &ReceivedRequest| {
        let mut requests = requests.lock().unwrap();
        if seen.method == "POST" && seen.path == REQUESTS {
            if let Answer::Refuse(code) = answer(requests.len()) {
                requests.push(json!({}));
                return status(code, "Refused", "not you");
            }
            requests.push(seen.body.clone());
            return Reply::Json(201, stored(&seen.body, requests.len() - 1, Answer::ApproveOnly, &signer));
        }
        let Some((_, rest)) = seen.path.split_once("csr-") else { return Reply::Hang };
        let number: usize = rest.split('&').next().unwrap().parse().unwrap();
        let created = &requests[number];
        let is_watch = seen.path.contains("watch=true");
        match answer(number) {
            Answer::Delete if !is_watch => status(404, "NotFound", "gone"),
            Answer::IssueLater if is_watch => {
                let (lines, stream) = mpsc::channel(4);
                lines.try_send(line("BOOKMARK", &json!({"metadata": {}}))).unwrap();
                lines.try_send(line("MODIFIED", &stored(created, number, Answer::Issue, &signer))).unwrap();
                tokio::spawn(async move { lines.closed().await });
                Reply::Stream(stream)
            }
            Answer::ApproveOnly | Answer::IssueLater if is_watch => Reply::Hang,
            other => Reply::Json(200, stored(created, number, other, &signer)),
        }
    })
    .await
}

/// A running rotation.
struct Running {
    current: watch::Receiver<Option<Arc<podwright_api::certificates::CertificatePair>>>,
    status: podwright_api::certificates::CertificateStatus,
    wanted: watch::Sender<Option<CertificateNames>>,
    events: mpsc::Receiver<NodeEvent>,
    dir: tempfile::TempDir,
}

async fn start(server: &FakeApiServer, kind: CertificateKind, names: Option<CertificateNames>) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let store = CertificateStore::new(dir.path().into(), kind, None);
    let rotation = CertificateRotation::open("n", store, None).await;
    let status = rotation.status();
    let (wanted, names) = watch::channel(names);
    let (to, events) = mpsc::channel(8);
    let clients = RotationClients { own: server.client(), bootstrap: Some(server.kubeconfig()) };
    tokio::spawn(rotation.run(clients, names, to, false));
    Running { current: status.current(), status, wanted, events, dir }
}

async fn first(running: &mut Running) -> Arc<podwright_api::certificates::CertificatePair> {
    let wait = running.current.wait_for(Option::is_some);
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("a certificate").unwrap().clone().unwrap()
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

#[tokio::test]
async fn a_client_certificate_is_requested_issued_and_stored() {
    for answer in [Answer::Issue, Answer::IssueLater] {
        let server = server(vec![answer], YEAR).await;
        let mut running = start(&server, CertificateKind::Client, Some(client_names("n"))).await;
        let pair = first(&mut running).await;
        assert_eq!(pair.facts().names, client_names("n"));
        let body = &server.requests("POST", REQUESTS)[0].body;
        assert_eq!(body["metadata"], json!({"generateName": "csr-"}));
        assert_eq!(body["spec"]["signerName"], "kubernetes.io/kube-apiserver-client-kubelet");
        assert_eq!(body["spec"]["usages"], json!(["digital signature", "client auth"]));
        assert_eq!(server.requests("POST", REQUESTS).len(), 1);
        let store = CertificateStore::new(running.dir.path().into(), CertificateKind::Client, None);
        let stored = store.read(jiff::Timestamp::now()).expect("it is stored");
        assert_eq!(stored.certificates(), pair.certificates());
        let ttl = running.status.ttl_seconds(jiff::Timestamp::now());
        assert!(ttl > 31_535_000.0 && ttl <= 31_536_000.0, "{ttl}");
        assert_eq!(running.status.failures(), 0);
        // A restarted agent has it, and requests nothing.
        let again = CertificateRotation::open("n", store, None).await;
        assert_eq!(again.status().current().borrow().as_ref().unwrap().certificates(), pair.certificates());
    }
}

#[tokio::test]
async fn answers_that_are_no_certificate_are_errors_and_the_next_attempt_has_a_new_key() {
    for (answer, event) in [
        (Answer::Deny, Some("was denied: Because: of rules")),
        (Answer::Fail, Some("cannot be signed: Because: of rules")),
        (Answer::Delete, None),
        (Answer::Replace, None),
        (Answer::Refuse(403), None),
    ] {
        let server = server(vec![answer, Answer::Issue], YEAR).await;
        let mut running = start(&server, CertificateKind::Client, Some(client_names("n"))).await;
        assert_eq!(running.status.ttl_seconds(jiff::Timestamp::now()), f64::INFINITY);
        wait_until("the failure", || running.status.failures() == 1).await;
        assert!(running.current.borrow().is_none());
        let began = std::time::Instant::now();
        first(&mut running).await;
        assert!(began.elapsed() > Duration::from_secs(1), "it waits before the next try");
        let requests = server.requests("POST", REQUESTS);
        assert_eq!(requests.len(), 2);
        assert_ne!(requests[0].body["spec"]["request"], requests[1].body["spec"]["request"], "a new key");
        let reported = running.events.try_recv().ok().map(|event| event.message);
        assert_eq!(reported.is_some(), event.is_some(), "{reported:?}");
        assert!(reported.unwrap_or_default().contains(event.unwrap_or_default()));
    }
}

#[tokio::test]
async fn a_pending_serving_request_is_named_and_replaced_when_an_address_is_added() {
    let server = server(vec![Answer::ApproveOnly, Answer::Issue], YEAR).await;
    let mut running = start(&server, CertificateKind::Serving, serving_names("n", ["n"])).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(server.requests("POST", REQUESTS).is_empty(), "there is no IP address yet");
    running.wanted.send_replace(serving_names("n", ["n", "10.0.0.1"]));
    wait_until("the first request", || server.requests("POST", REQUESTS).len() == 1).await;
    let body = &server.requests("POST", REQUESTS)[0].body;
    assert_eq!(body["spec"]["signerName"], "kubernetes.io/kubelet-serving");
    assert_eq!(body["spec"]["usages"], json!(["digital signature", "server auth"]));
    let event = tokio::time::timeout(Duration::from_secs(10), running.events.recv()).await.unwrap().unwrap();
    assert_eq!((event.reason, event.warning), ("CertificateRequestPending", true));
    assert!(event.message.contains("kubectl certificate approve csr-0"), "{event:?}");
    let began = std::time::Instant::now();
    running.wanted.send_replace(serving_names("n", ["n", "10.0.0.2", "10.0.0.1"]));
    let pair = first(&mut running).await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(Some(pair.facts().names.clone()), serving_names("n", ["n", "10.0.0.1", "10.0.0.2"]));
    assert_eq!(running.status.failures(), 0, "a change is no failure");
}

#[tokio::test]
async fn short_lived_certificates_are_rotated_before_they_expire() {
    let server = server(vec![Answer::Issue], Duration::from_secs(5)).await;
    let mut running = start(&server, CertificateKind::Client, Some(client_names("n"))).await;
    let mut last = first(&mut running).await;
    for _ in 0..2 {
        running.current.changed().await.unwrap();
        let now = jiff::Timestamp::now();
        assert!(!last.facts().is_expired(now), "{now} {last:?}");
        let next = running.current.borrow_and_update().clone().unwrap();
        assert!(next.facts().not_after > last.facts().not_after);
        last = next;
    }
    assert_eq!(running.status.failures(), 0);
}

#[tokio::test]
async fn a_refused_certificate_is_replaced_with_the_bootstrap_credentials() {
    let server = server(vec![Answer::Issue, Answer::Refuse(401), Answer::Issue], Duration::from_secs(5)).await;
    std::fs::write(server.dir.path().join("bootstrap-token"), "bootstrap").unwrap();
    let text =
        std::fs::read_to_string(server.kubeconfig()).unwrap().replace("tokenFile: token", "tokenFile: bootstrap-token");
    let bootstrap = server.dir.path().join("bootstrap");
    std::fs::write(&bootstrap, text).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = CertificateStore::new(dir.path().into(), CertificateKind::Client, None);
    let rotation = CertificateRotation::open("n", store, None).await;
    let status = rotation.status();
    let (_wanted, names) = watch::channel(Some(client_names("n")));
    let (events, _events) = mpsc::channel(8);
    let clients = RotationClients { own: server.client(), bootstrap: Some(bootstrap) };
    tokio::spawn(rotation.run(clients, names, events, false));
    wait_until("three requests", || server.requests("POST", REQUESTS).len() == 3).await;
    let used: Vec<String> = server.requests("POST", REQUESTS).into_iter().map(|seen| seen.authorization).collect();
    assert_eq!(used, ["Bearer bootstrap", "Bearer first", "Bearer bootstrap"]);
    assert_eq!(status.failures(), 1);
}

#[tokio::test]
async fn requests_wait_for_the_first_certificate_and_watches_move_to_the_next() {
    let watches = Arc::new(AtomicUsize::new(0));
    let seen_watches = Arc::clone(&watches);
    let server = FakeApiServer::start(move |seen: &ReceivedRequest| {
        if seen.path.contains("watch=true") {
            seen_watches.fetch_add(1, Ordering::Relaxed);
            let (lines, stream) = mpsc::channel(1);
            tokio::spawn(async move { lines.closed().await });
            return Reply::Stream(stream);
        }
        Reply::Json(200, json!({}))
    })
    .await;
    let pair = || {
        let key = KeyPair::generate().unwrap();
        let pem = CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap().pem();
        let parse = podwright_api::certificates::CertificatePair::parse;
        Some(Arc::new(parse(pem.as_bytes(), key.serialize_pem().as_bytes()).unwrap()))
    };
    let (current, receiver) = watch::channel(None);
    let client = ApiClient::open_rotated(&server.kubeconfig(), receiver).unwrap();
    let get = |path: &str| podwright_api::client::request(http::Method::GET, path, None);
    let early = client.clone();
    let early = tokio::spawn(async move { early.call(get("/early"), Duration::from_secs(5)).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(server.requests("GET", "/").is_empty(), "nothing is sent without a certificate");
    current.send_replace(pair());
    early.await.unwrap().unwrap();
    assert_eq!(server.requests("GET", "/early")[0].authorization, "", "the token of the kubeconfig is not used");
    assert_eq!(server.connections(), 1);
    let mut body = client.send(get("/watched?watch=true")).await.unwrap().into_body();
    client.call(get("/again"), Duration::from_secs(5)).await.unwrap();
    assert_eq!(server.connections(), 1);
    let other = client.new_connection();
    other.call(get("/other"), Duration::from_secs(5)).await.unwrap();
    assert_eq!(server.connections(), 2);
    current.send_replace(pair());
    let end = tokio::time::timeout(Duration::from_secs(5), http_body_util::BodyExt::frame(&mut body)).await;
    assert!(end.expect("the watch ends").is_none());
    client.call(get("/new"), Duration::from_secs(5)).await.unwrap();
    other.call(get("/new"), Duration::from_secs(5)).await.unwrap();
    assert_eq!(server.connections(), 4, "both clients have new connections");
    wait_until("the old connections to be closed", || server.open_connections() == 2).await;
}
