//! The URL source against a real server on loopback.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use podwright_core::model::{Manifest, Pod};
use podwright_core::validate::FieldError;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::fetch::{ProxyVariables, roots_file};
use super::*;

#[test]
fn certificate_files_of_distributions_are_found() {
    let here = tempfile::NamedTempFile::new().unwrap();
    let path = here.path().to_str().unwrap();
    assert_eq!(roots_file(None, &["/no/such/file", path]), here.path());
    assert_eq!(roots_file(Some("/named".into()), &[path]), PathBuf::from("/named"));
    assert_eq!(roots_file(Some("".into()), &["/no/such/file"]), PathBuf::from("/no/such/file"));
}

fn fetcher() -> Fetcher {
    Fetcher::new(Pool::default())
}

/// Responses of the server in order; the last one is repeated.
type Script = Arc<Mutex<VecDeque<(u16, Vec<u8>)>>>;

struct Bench {
    script: Script,
    seen: mpsc::Receiver<HeaderMap>,
    changes: mpsc::Receiver<(Source, SourceChange)>,
}

impl Bench {
    async fn start(answers: &[(u16, &str)]) -> Self {
        let script: Script =
            Arc::new(Mutex::new(answers.iter().map(|(code, body)| (*code, body.as_bytes().to_vec())).collect()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/manifest?x=1", listener.local_addr().unwrap());
        let (seen_tx, seen) = mpsc::channel(1000);
        tokio::spawn(serve(listener, script.clone(), seen_tx));
        let (tx, changes) = mpsc::channel(4);
        let config = UrlSourceConfig::new(&url, [("X-Token", "secret")], Duration::from_millis(30)).unwrap();
        assert!(!format!("{config:?}").contains("secret"));
        tokio::spawn(run(config, Arc::new(decode), tx, Pool::default()));
        Self { script, seen, changes }
    }

    async fn pods(&mut self) -> Vec<String> {
        let (source, change) = timeout(Duration::from_secs(10), self.changes.recv()).await.expect("a change").unwrap();
        assert_eq!(source, Source::Url);
        let SourceChange::Set { pods, broken } = change else { panic!("{change:?}") };
        assert_eq!(broken, []);
        assert!(pods.iter().all(|p| p.origin.starts_with("http://127.0.0.1:")));
        pods.iter().map(|m| m.pod.metadata.name.clone().unwrap()).collect()
    }

    /// Asserts that a few more fetches send nothing.
    async fn silent(&mut self) {
        while self.seen.try_recv().is_ok() {}
        for _ in 0..3 {
            timeout(Duration::from_secs(10), self.seen.recv()).await.expect("a fetch").unwrap();
        }
        assert!(self.changes.try_recv().is_err());
    }

    fn answer(&self, code: u16, body: &[u8]) {
        *self.script.lock().unwrap() = VecDeque::from([(code, body.to_vec())]);
    }
}

async fn serve(listener: TcpListener, script: Script, seen: mpsc::Sender<HeaderMap>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (script, seen) = (script.clone(), seen.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            assert_eq!(request.uri(), "/manifest?x=1");
            let _ = seen.try_send(request.headers().clone());
            let mut script = script.lock().unwrap();
            let (code, body) = if script.len() > 1 { script.pop_front().unwrap() } else { script[0].clone() };
            let response = Response::builder().status(code).body(Full::new(Bytes::from(body))).unwrap();
            async move { Ok::<_, std::convert::Infallible>(response) }
        });
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

fn nameless() -> Vec<FieldError> {
    vec![FieldError { path: "metadata.name".into(), message: "Required value".into() }]
}

fn decode(value: Value, origin: &str) -> Result<Vec<Manifest>, Vec<FieldError>> {
    let items = value["items"].as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    items
        .iter()
        .map(|item| {
            let mut pod = Pod::default();
            pod.metadata.name = Some(item["metadata"]["name"].as_str().ok_or_else(nameless)?.into());
            Ok(Manifest { pod: Arc::new(pod), origin: origin.into() })
        })
        .collect()
}

const A: &str = "metadata: {name: a}\n";
const B: &str = r#"{"kind": "PodList", "items": [{"metadata": {"name": "b"}}, {"metadata": {"name": "c"}}]}"#;

#[tokio::test]
async fn a_pod_or_a_list_is_sent_once_for_the_same_body() {
    let mut bench = Bench::start(&[(200, A)]).await;
    assert_eq!(bench.pods().await, ["a"]);
    let headers = bench.seen.recv().await.unwrap();
    assert_eq!(headers["x-token"], "secret");
    assert!(headers["host"].to_str().unwrap().starts_with("127.0.0.1:"));
    bench.silent().await;
    bench.answer(200, B.as_bytes());
    assert_eq!(bench.pods().await, ["b", "c"]);
    bench.silent().await;
}

#[tokio::test]
async fn manifests_are_decoded_off_the_async_workers() {
    let port = serve_by(|_| Response::new("kind: Pod\nmetadata: {name: a}".into())).await;
    let config = UrlSourceConfig::new(&format!("http://127.0.0.1:{port}/"), [], Duration::from_millis(30)).unwrap();
    let (tx, mut changes) = mpsc::channel(4);
    let (threads, mut used) = mpsc::unbounded_channel();
    let noting: Decode = Arc::new(move |value, origin| {
        threads.send(std::thread::current().id()).unwrap();
        decode(value, origin)
    });
    tokio::spawn(run(config, noting, tx, Pool::default()));
    timeout(Duration::from_secs(5), changes.recv()).await.unwrap().unwrap();
    assert_ne!(used.recv().await, Some(std::thread::current().id()), "the only worker decodes");
}

#[tokio::test]
async fn an_error_status_or_invalid_body_changes_nothing() {
    let mut bench = Bench::start(&[(500, A), (404, A), (302, A), (200, A)]).await;
    assert_eq!(bench.pods().await, ["a"]);
    for (code, body) in
        [(500, &b"metadata: {name: z}"[..]), (204, b""), (200, b"{broken"), (200, b"kind: Pod"), (200, b"\xff\xfe")]
    {
        bench.answer(code, body);
        bench.silent().await;
    }
    // The same bytes as last delivered: the failures between don't make them new.
    bench.answer(200, A.as_bytes());
    bench.silent().await;
}

#[tokio::test]
async fn an_empty_body_is_an_empty_set() {
    let mut bench = Bench::start(&[(200, A)]).await;
    assert_eq!(bench.pods().await, ["a"]);
    bench.answer(200, b"");
    assert!(bench.pods().await.is_empty());
    bench.silent().await;
    bench.answer(200, A.as_bytes());
    assert_eq!(bench.pods().await, ["a"]);
}

#[tokio::test]
async fn a_body_over_10_mib_is_rejected() {
    let mut bench = Bench::start(&[(200, A)]).await;
    assert_eq!(bench.pods().await, ["a"]);
    let large = [b"metadata: {name: large}\n#".to_vec(), vec![b'x'; 10 << 20]].concat();
    bench.answer(200, &large);
    bench.silent().await;
}

#[tokio::test]
async fn a_fetch_without_a_response_ends_at_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let hold = tokio::spawn(async move {
        let stream = listener.accept().await.unwrap();
        std::future::pending::<()>().await;
        drop(stream);
    });
    let config = UrlSourceConfig::new(&url, [], Duration::from_secs(20)).unwrap();
    let begin = std::time::Instant::now();
    let error = fetcher().fetch(&config).await.unwrap_err();
    assert!(matches!(error, FetchError::Timeout), "{error}");
    assert!((9..13).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
    hold.abort();
}

#[tokio::test]
async fn https_requires_a_trusted_certificate() {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![key.cert.der().clone()],
            rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        acceptor.accept(stream).await.map(|_| ()).map_err(|e| e.to_string())
    });
    let error = fetcher().fetch(&UrlSourceConfig::new(&url, [], Duration::from_secs(20)).unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer") || error.to_string().contains("read the trusted"), "{error}");
    if error.to_string().contains("UnknownIssuer") {
        assert!(
            serving.await.unwrap().unwrap_err().to_lowercase().contains("unknown"),
            "the handshake was refused by us"
        );
    }
}

#[test]
fn only_http_urls_and_valid_headers_are_accepted() {
    for url in ["", "manifest.yaml", "ftp://host/x", "http://", "/etc/x", "http://a b/"] {
        assert!(matches!(UrlSourceConfig::new(url, [], Duration::from_secs(1)), Err(UrlConfigError::Url(_))), "{url}");
    }
    let config = |headers: &[(&'static str, &'static str)]| {
        UrlSourceConfig::new("http://h", headers.iter().copied(), Duration::from_secs(1))
    };
    assert!(matches!(config(&[("bad header", "x")]), Err(UrlConfigError::Header(_))));
    assert!(matches!(config(&[("x", "a\nb")]), Err(UrlConfigError::Header(_))));
    let with_password = UrlSourceConfig::new("http://user:word@host/", [], Duration::from_secs(1)).unwrap_err();
    assert!(!with_password.to_string().contains("word"), "{with_password}");
}

#[test]
fn only_three_failures_and_the_recovery_are_logged() {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl io::Write for Lines {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(buf);
            Ok(buf.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, || {
        let mut state = UrlState::default();
        let uri = Uri::from_static("http://h/");
        for _ in 0..7 {
            state.log(&uri, Some(&FetchError::Timeout));
        }
        state.log(&uri, None);
        state.log(&uri, None);
    });
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[2].contains("not logged again") && lines[3].contains("succeeded again"), "{text}");
}

/// Answers each request by its target and headers.
async fn serve_by(answer: impl Fn(&Request<Incoming>) -> Response<String> + Clone + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let response = answer(&request).map(|body| Full::new(Bytes::from(body)));
                async move { Ok::<_, std::convert::Infallible>(response) }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    port
}

fn redirect_to(status: u16, location: &str) -> Response<String> {
    Response::builder().status(status).header("location", location).body(String::new()).unwrap()
}

#[tokio::test]
async fn redirects_are_followed_ten_times_and_credentials_stay_with_their_host() {
    let port = serve_by(|request| {
        let headers = request.headers();
        let has = |name: &'static str| if headers.contains_key(name) { name } else { "-" };
        match request.uri().path() {
            "/first" => redirect_to(302, "second"),
            "/second" => redirect_to(307, "//127.0.0.1:PORT/third".replace("PORT", port_of(request)).as_str()),
            "/away" => redirect_to(301, &format!("http://localhost:{}/third", port_of(request))),
            "/file" => redirect_to(302, "file:///etc/passwd"),
            "/loop" => redirect_to(302, "/loop"),
            _ => Response::new(format!("{} {}", has("authorization"), has("x-token"))),
        }
    })
    .await;
    let fetch = async |path: &str| {
        let url = format!("http://127.0.0.1:{port}{path}");
        let headers = [("Authorization", "secret"), ("X-Token", "t")];
        fetcher().fetch(&UrlSourceConfig::new(&url, headers, Duration::from_secs(20)).unwrap()).await
    };
    assert_eq!(fetch("/first").await.unwrap(), "authorization x-token");
    assert_eq!(fetch("/away").await.unwrap(), "- x-token", "another host does not get the credentials");
    assert!(matches!(fetch("/file").await.unwrap_err(), FetchError::RedirectUrl(_)));
    assert!(matches!(fetch("/loop").await.unwrap_err(), FetchError::Redirects));
}

fn port_of(request: &Request<Incoming>) -> &str {
    request.headers()["host"].to_str().unwrap().rsplit_once(':').unwrap().1
}

#[tokio::test]
async fn a_url_behind_a_proxy_is_requested_from_the_proxy() {
    let port = serve_by(|request| {
        let auth = request.headers().get("proxy-authorization").map(|value| value.to_str().unwrap());
        Response::new(format!("{} {} {auth:?}", request.method(), request.uri()))
    })
    .await;
    let proxies = ProxyVariables { http: format!("http://me:pw@127.0.0.1:{port}"), ..ProxyVariables::default() };
    let config = UrlSourceConfig::new("http://manifests.example/a?b", [], Duration::from_secs(20)).unwrap();
    let body = fetcher().with_proxies(proxies).fetch(&config).await.unwrap();
    assert_eq!(body, "GET http://manifests.example/a?b Some(\"Basic bWU6cHc=\")");

    let refused = ProxyVariables { https: format!("127.0.0.1:{port}"), ..ProxyVariables::default() };
    let config = UrlSourceConfig::new("https://manifests.example/a", [], Duration::from_secs(20)).unwrap();
    let socks = ProxyVariables { https: "socks5://127.0.0.1:1".into(), ..ProxyVariables::default() };
    let error = fetcher().with_proxies(socks).fetch(&config).await.unwrap_err();
    assert!(matches!(error, FetchError::ProxyScheme(_)), "{error}");
    // This server answers CONNECT with 200 and then speaks no TLS.
    let error = fetcher().with_proxies(refused).fetch(&config).await.unwrap_err();
    assert!(matches!(error, FetchError::Connect(_) | FetchError::Http(_) | FetchError::Roots(_)), "{error}");
}

#[test]
fn no_proxy_and_loopback_are_requested_directly() {
    let no = "internal.example, 10.0.0.0/8,registry.example:8443 ,192.0.2.7,[2001:db8::1]:443";
    let proxies = ProxyVariables { http: "http://p:1".into(), https: "http://p:2".into(), no: no.into() };
    let table = [
        ("http://a.example/", Some("http://p:1/")),
        ("https://a.example/", Some("http://p:2/")),
        ("https://internal.example/", None),
        ("https://x.internal.example/", None),
        ("https://notinternal.example/", Some("http://p:2/")),
        ("http://10.1.2.3/", None),
        ("http://192.0.2.7:81/", None),
        ("https://registry.example:8443/", None),
        ("https://registry.example/", Some("http://p:2/")),
        ("https://[2001:db8::1]/", None),
        ("http://[2001:db8::1]/", Some("http://p:1/")),
        ("http://localhost:80/", None),
        ("http://127.0.0.5/", None),
        ("http://[::1]/", None),
    ];
    for (url, expected) in table {
        let found = proxies.of(&url.parse().unwrap()).map(|proxy| proxy.uri().to_string());
        assert_eq!(found.as_deref(), expected, "{url}");
    }
    let all = ProxyVariables { no: "*".into(), ..proxies };
    assert!(all.of(&"http://a.example/".parse().unwrap()).is_none());
}
