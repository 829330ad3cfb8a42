//! The kubelet's API over real TLS connections.

mod credentials;
mod hostile;
mod routes;

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use podwright_agent::stats::SampleError;
use podwright_core::model::{FullName, Pod, Source};
use podwright_cri::{BoxFuture, CriError, v1};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::health_server::MetricsPage;
use crate::streaming_proxy::RunningObjects;

/// A certificate authority and its clients.
struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl TestAuthority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn client(&self, user: &str) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    }
}

/// Knows the token `good` of `jane`; `admin` may do everything, and jane what was allowed to her.
#[derive(Default)]
struct FakeReviewer {
    down: AtomicBool,
    /// `verb subresource` that jane may use.
    allowed: Mutex<Vec<String>>,
    reviews: AtomicUsize,
}

impl FakeReviewer {
    fn answer<T>(&self, value: T) -> BoxFuture<'_, Result<T, ReviewError>>
    where
        T: Send + 'static,
    {
        self.reviews.fetch_add(1, Ordering::SeqCst);
        let down = self.down.load(Ordering::SeqCst);
        let error = ReviewError { message: "connection refused".into(), retry: false, rejected: false };
        Box::pin(async move { if down { Err(error) } else { Ok(value) } })
    }
}

impl Reviewer for FakeReviewer {
    fn review_token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<UserInfo>, ReviewError>> {
        let user = UserInfo { name: "jane".into(), ..UserInfo::default() };
        self.answer((token == "good").then_some(user))
    }

    fn review_access<'a>(&'a self, review: &'a AccessReview) -> BoxFuture<'a, Result<bool, ReviewError>> {
        assert_eq!(review.node, "node");
        let group =
            if review.user.name == "system:anonymous" { "system:unauthenticated" } else { "system:authenticated" };
        assert!(review.user.groups.iter().any(|own| own == group), "{review:?}");
        let named = self.allowed.lock().unwrap().contains(&format!("{} {}", review.verb, review.subresource));
        self.answer(review.user.name == "admin" || named)
    }
}

struct FakeStatus;

impl AgentStatus for FakeStatus {
    fn pods(&self) -> BoxFuture<'_, Option<Bytes>> {
        Box::pin(async { None })
    }
    fn metrics(&self, page: MetricsPage) -> BoxFuture<'_, Bytes> {
        Box::pin(async move {
            match page {
                MetricsPage::Agent => Bytes::from_static(b"kubelet_running_pods 1\n"),
                other => Bytes::from(format!("page {other:?}\n")),
            }
        })
    }
    fn stats_summary(&self, only_cpu_and_memory: bool) -> BoxFuture<'_, Result<Bytes, SampleError>> {
        Box::pin(async move { Ok(Bytes::from(format!("{{\"only\":{only_cpu_and_memory}}}"))) })
    }
    fn record_healthcheck(&self, _: &str, _: bool) {}
    fn reset_healthchecks(&self) {}
    fn static_pod_name<'a>(&'a self, mirror: &'a str) -> BoxFuture<'a, Option<FullName>> {
        let name = (mirror == "mirror").then(|| FullName { namespace: "default".into(), name: "static-node".into() });
        Box::pin(async { name })
    }
    fn not_live(&self) -> Option<String> {
        None
    }
    fn not_ready(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async { vec![] })
    }
}

struct FakeRuntime {
    streams: String,
}

impl StreamingRuntime for FakeRuntime {
    fn exec(&self, request: v1::ExecRequest) -> BoxFuture<'_, Result<String, CriError>> {
        assert_eq!((request.container_id.as_str(), request.cmd), ("abc", vec!["ls".to_owned(), "-l".to_owned()]));
        Box::pin(async { Ok(format!("{}/exec/token", self.streams)) })
    }
    fn attach(&self, request: v1::AttachRequest) -> BoxFuture<'_, Result<String, CriError>> {
        assert!(request.tty, "the terminal of the spec");
        Box::pin(async { Ok(format!("{}/attach/token", self.streams)) })
    }
    fn port_forward(&self, request: v1::PortForwardRequest) -> BoxFuture<'_, Result<String, CriError>> {
        assert_eq!(request.pod_sandbox_id, "new");
        Box::pin(async { Ok(format!("{}/portforward/token", self.streams)) })
    }
    fn exec_sync(
        &self,
        request: v1::ExecSyncRequest,
        _: Duration,
    ) -> BoxFuture<'_, Result<v1::ExecSyncResponse, CriError>> {
        let exit_code = if request.cmd[0] == "false" { 3 } else { 0 };
        let stdout = request.cmd.join("|").into_bytes();
        Box::pin(async move {
            Ok(v1::ExecSyncResponse { stdout: stdout.into(), stderr: Bytes::from_static(b"!"), exit_code })
        })
    }
    fn running(&self) -> BoxFuture<'_, Result<RunningObjects, CriError>> {
        let owner = podwright_cri::labels::Owner { name: "web", namespace: "default", uid: "1", container: None };
        let sandbox = |id: &str, created_at| v1::PodSandbox {
            id: id.into(),
            created_at,
            labels: owner.to_labels(),
            ..Default::default()
        };
        let all = vec![sandbox("old", 1), sandbox("new", 2)];
        Box::pin(async { Ok((all, vec![])) })
    }
}

struct TestServer {
    dir: tempfile::TempDir,
    address: SocketAddr,
    authority: TestAuthority,
    reviewer: Arc<FakeReviewer>,
    verbosity: Arc<AtomicU8>,
    _stop: tokio_util::sync::DropGuard,
}

#[derive(Default)]
struct Options {
    streams: String,
    anonymous: bool,
    allow_all: bool,
}

async fn start(options: Options) -> TestServer {
    let dir = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    let ca = dir.path().join("ca.crt");
    fs::write(&ca, &authority.pem).unwrap();
    let files = TlsFiles {
        serving: ServingSource::SelfSigned,
        cert_dir: dir.path().join("pki"),
        hostname: "node".into(),
        client_ca: Some(ca),
    };
    let pool = Pool::default();
    let tls = Arc::new(ServerTls::open(files, &TlsPolicy::default(), &pool).await.unwrap());
    let (reviewer, verbosity) = (Arc::new(FakeReviewer::default()), Arc::new(AtomicU8::new(0)));
    let minutes = Duration::from_secs(120);
    let authorization = match options.allow_all {
        true => AuthorizationMode::AlwaysAllow,
        false => AuthorizationMode::Webhook { allowed: minutes, denied: Duration::ZERO },
    };
    let access = KubeletAccess {
        config: AccessConfig { anonymous: options.anonymous, tokens: Some(minutes), authorization },
        reviewer: Some(reviewer.clone()),
    };
    let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let api = api(dir.path(), pool, options.streams, Arc::clone(&verbosity));
    tokio::spawn(serve(listener, tls, access, api, stop.clone()));
    TestServer { dir, address, authority, reviewer, verbosity, _stop: stop.drop_guard() }
}

fn api(dir: &Path, pool: Pool, streams: String, verbosity: Arc<AtomicU8>) -> KubeletApi {
    let feed = Arc::new(PodFeed::default());
    let status = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}},
                        "containerID": "containerd://abc"});
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "1"},
        "spec": {"containers": [{"name": "c", "tty": true, "env": [{"name": "A", "value": "shown"}]}, {"name": "other"}]},
        "status": {"containerStatuses": [status]},
    }))
    .unwrap();
    let mut static_pod = pod.clone();
    static_pod.metadata.name = Some("static-node".into());
    static_pod.metadata.uid = Some("static".into());
    feed.put_object(Arc::new(pod), Source::Api, None);
    feed.put_object(Arc::new(static_pod), Source::File, None);
    let logs = dir.join("pods/default_web_1/c");
    fs::create_dir_all(&logs).unwrap();
    fs::write(logs.join("0.log"), "2024-01-01T00:00:00Z stdout F hello\n").unwrap();
    let system_logs = dir.join("log");
    fs::create_dir_all(&system_logs).unwrap();
    fs::write(system_logs.join("syslog"), "booted\n").unwrap();
    let paths = HostPaths {
        root_dir: dir.into(),
        pod_logs_dir: dir.join("pods"),
        container_logs_dir: dir.into(),
        cgroup_root: "/".into(),
    };
    KubeletApi {
        node: "node".into(),
        paths,
        pods: PodListCache::complete(Arc::clone(&feed), pool.clone()),
        feed,
        runtime: Arc::new(FakeRuntime { streams }),
        status: Arc::new(FakeStatus),
        configz: Bytes::from_static(br#"{"kubeletconfig":{}}"#),
        set_verbosity: Arc::new(move |level| verbosity.store(level, Ordering::SeqCst)),
        pool,
        handlers: HandlerSwitches::default(),
        system_logs,
        run_timeout: Duration::from_secs(5),
        stream_idle: None,
    }
}

/// How a test client authenticates.
#[derive(Clone, Copy, Debug)]
enum Credential<'a> {
    None,
    Token(&'a str),
    Certificate(&'a str),
}

impl TestServer {
    /// A connection with the certificate of this user, or none.
    async fn connect(&self, user: Option<&str>, protocol: &[u8]) -> TlsStream<TcpStream> {
        let own = user.map(|user| self.authority.client(user));
        self.connect_as(own, protocol).await
    }

    async fn connect_as(
        &self,
        own: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
        protocol: &[u8],
    ) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        let pem = fs::read(self.dir.path().join("pki/kubelet.crt")).unwrap();
        roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let mut config = match own {
            Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("node").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    /// Sends one request; returns status and body.
    async fn request(&self, as_user: Credential<'_>, line: &str, body: &str) -> (u16, String) {
        let (user, header) = match as_user {
            Credential::None => (None, String::new()),
            Credential::Token(token) => (None, format!("Authorization: Bearer {token}\r\n")),
            Credential::Certificate(user) => (Some(user), String::new()),
        };
        let mut stream = self.connect(user, b"http/1.1").await;
        let head = format!("{line} HTTP/1.0\r\nHost: x\r\n{header}Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response).await;
        let text = String::from_utf8_lossy(&response).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        (head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0), body.to_owned())
    }

    async fn admin(&self, line: &str) -> (u16, String) {
        self.request(Credential::Certificate("admin"), line, "").await
    }
}
