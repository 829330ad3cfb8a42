//! Hooks and probes with loopback servers.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use podwright_core::model::{Call, HookKind, ProbeKind, ProbeVerdict, RuntimeCall};
use podwright_cri::v1::ExecSyncResponse;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::*;
use crate::perform::grpc::{HealthCheckRequest, HealthCheckResponse};

mod dead_name_server;
mod hooks;

/// An HTTP server that records requests and answers with the status in the path.
struct Server {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    _task: tokio_util::task::AbortOnDropHandle<()>,
}

fn respond(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let status: u16 = path.trim_matches('/').split('/').next().and_then(|s| s.parse().ok()).unwrap_or(200);
    let mut response = Response::builder().status(status);
    if path.ends_with("loop") {
        response = response.header("Location", &path);
    } else if let Some(query) = request.uri().query() {
        response = response.header("Location", query);
    }
    let body = if path.ends_with("big") { vec![b'x'; 1 << 20] } else { b"the body of the server".to_vec() };
    response.body(Full::from(body)).unwrap()
}

async fn serve(tls: Option<tokio_rustls::TlsAcceptor>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&requests);
    let task = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (log, tls) = (Arc::clone(&log), tls.clone());
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let header =
                        |name: &str| request.headers().get(name).map_or("-", |v| v.to_str().unwrap()).to_owned();
                    let line = format!(
                        "{} {} {} {}",
                        request.uri(),
                        header("host"),
                        header("user-agent"),
                        header("authorization")
                    );
                    log.lock().unwrap().push(line);
                    let response = respond(&request);
                    async move { Ok::<_, Infallible>(response) }
                });
                let builder = hyper::server::conn::http1::Builder::new();
                match tls {
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                        }
                    }
                    None => drop(builder.serve_connection(TokioIo::new(stream), service).await),
                }
            });
        }
    });
    Server { address, requests, _task: tokio_util::task::AbortOnDropHandle::new(task) }
}

fn tls_acceptor() -> tokio_rustls::TlsAcceptor {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["other.example".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    tokio_rustls::TlsAcceptor::from(Arc::new(config))
}

async fn probe(bench: &Bench, mut spec: Value) -> ProbeVerdict {
    spec["timeoutSeconds"] = spec.get("timeoutSeconds").cloned().unwrap_or(json!(1));
    let pod = json!({"containers": [{"name": "web", "readinessProbe": spec,
        "env": [{"name": "FILE", "value": "/ok"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "ports": [{"name": "http", "containerPort": 80}]}]});
    let ips = vec!["127.0.0.1".to_owned()];
    let call =
        Call::Runtime(RuntimeCall::Probe { kind: ProbeKind::Readiness, name: "web".into(), id: "c-1".into(), ips });
    match bench.call(pod, call).await.unwrap() {
        Answer::Probe(verdict) => verdict,
        other => panic!("{other:?}"),
    }
}

fn http_get(server: &Server, path: &str) -> Value {
    json!({"httpGet": {"port": server.address.port(), "path": path}})
}

fn failure(verdict: ProbeVerdict) -> String {
    match verdict {
        ProbeVerdict::Failure(message) => message,
        other => panic!("{other:?} is not a failure"),
    }
}

#[tokio::test]
async fn http_probes_use_the_status_code() {
    let bench = Bench::new();
    let server = serve(None).await;
    for path in ["/200", "/204", "/399", "/302", "200/big"] {
        assert_eq!(probe(&bench, http_get(&server, path)).await, ProbeVerdict::Success, "{path}");
    }
    for path in ["/400", "/404", "/500"] {
        let message = failure(probe(&bench, http_get(&server, path)).await);
        assert_eq!(message, format!("HTTP probe failed with statuscode: {}", path.trim_matches('/')));
    }
    let line = server.requests.lock().unwrap()[0].clone();
    assert_eq!(line, format!("/200 {} kube-probe/1.36 -", server.address));
}

#[tokio::test]
async fn http_probes_send_the_headers_of_the_spec() {
    let bench = Bench::new();
    let server = serve(None).await;
    let headers = json!([{"name": "Host", "value": "shop.example"}, {"name": "User-Agent", "value": "me"},
        {"name": "Authorization", "value": "x"}]);
    let action =
        json!({"port": server.address.port(), "path": "/a b?c=d", "httpHeaders": headers, "host": "127.0.0.1"});
    assert_eq!(probe(&bench, json!({"httpGet": action})).await, ProbeVerdict::Success);
    assert_eq!(server.requests.lock().unwrap()[0], "/a%20b?c=d shop.example me x");
}

#[tokio::test]
async fn redirects_on_the_same_host_are_followed() {
    let (bench, events) = Bench::with_events();
    let server = serve(None).await;
    let port = server.address.port();
    assert_eq!(probe(&bench, http_get(&server, "/301?/200")).await, ProbeVerdict::Success);
    let message = failure(probe(&bench, http_get(&server, &format!("/307?http://127.0.0.1:{port}/500"))).await);
    assert!(message.contains("statuscode: 500"));
    let before = server.requests.lock().unwrap().len();
    // A redirect to another host is a success and is not followed.
    assert_eq!(probe(&bench, http_get(&server, "/302?http://other.example/500")).await, ProbeVerdict::Success);
    assert_eq!(server.requests.lock().unwrap().len(), before + 1);
    let warning =
        "ProbeWarning: Readiness probe warning: Probe terminated redirects, Response body: the body of the server";
    assert_eq!(*events.lock().unwrap(), [warning]);
    server.requests.lock().unwrap().clear();
    let message = failure(probe(&bench, http_get(&server, "/302/loop")).await);
    assert!(message.contains("stopped after 10 redirects"), "{message}");
    assert_eq!(server.requests.lock().unwrap().len(), 10);
}

#[tokio::test]
async fn https_probes_accept_any_certificate() {
    let bench = Bench::new();
    let server = serve(Some(tls_acceptor())).await;
    let action = |path: &str| json!({"httpGet": {"port": server.address.port(), "path": path, "scheme": "HTTPS"}});
    assert_eq!(probe(&bench, action("/200")).await, ProbeVerdict::Success);
    assert!(failure(probe(&bench, action("/503")).await).contains("503"));
    let plain = serve(None).await;
    let action = json!({"httpGet": {"port": plain.address.port(), "scheme": "HTTPS"}});
    assert!(failure(probe(&bench, action).await).contains("TLS"));
}

#[tokio::test]
async fn a_server_without_a_valid_response_fails_the_probe() {
    let bench = Bench::new();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let began = Instant::now();
    let message = failure(probe(&bench, json!({"httpGet": {"port": port}})).await);
    assert!(message.contains("no answer within 1s"), "{message}");
    assert!(began.elapsed() < Duration::from_secs(3));

    let garbage = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = garbage.local_addr().unwrap().port();
    let _task = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        let (mut stream, _) = garbage.accept().await.unwrap();
        stream.write_all(b"SSH-2.0-x\r\n\r\n").await.unwrap();
    }));
    failure(probe(&bench, json!({"httpGet": {"port": port}})).await);
    drop(silent);
}

#[tokio::test]
async fn tcp_probes_only_connect() {
    let bench = Bench::new();
    let server = serve(None).await;
    let socket = |port: u16| json!({"tcpSocket": {"port": port}});
    assert_eq!(probe(&bench, socket(server.address.port())).await, ProbeVerdict::Success);
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    assert!(failure(probe(&bench, socket(free)).await).contains("dial tcp 127.0.0.1:"));
}

#[tokio::test]
async fn a_probe_that_can_not_be_run_is_unknown() {
    let bench = Bench::new();
    let table = [
        json!({"tcpSocket": {"port": "nope"}}),
        json!({"httpGet": {"port": 0}}),
        json!({"httpGet": {"port": 80, "scheme": "GOPHER"}}),
        json!({"grpc": {"port": 70000}}),
        json!({}),
    ];
    for spec in table {
        let verdict = probe(&bench, spec.clone()).await;
        assert!(matches!(verdict, ProbeVerdict::Unknown(_)), "{spec}: {verdict:?}");
    }
    let pod = json!({"containers": [{"name": "web", "readinessProbe": {"tcpSocket": {"port": 80}}}]});
    let call = Call::Runtime(RuntimeCall::Probe {
        kind: ProbeKind::Readiness,
        name: "web".into(),
        id: "c-1".into(),
        ips: vec![],
    });
    let verdict = bench.call(pod, call).await.unwrap();
    assert_eq!(verdict, Answer::Probe(ProbeVerdict::Unknown("the pod has no address".into())));
}

#[tokio::test(start_paused = true)]
async fn exec_probes_use_the_exit_code() {
    let bench = Bench::new();
    let exec = json!({"exec": {"command": ["test", "-e", "$(FILE)$(NODE)$(NONE)"]}, "timeoutSeconds": 3});
    assert_eq!(probe(&bench, exec.clone()).await, ProbeVerdict::Success);
    assert_eq!(bench.fake.calls(), ["ExecSync c-1 test -e /ok$(NONE) 3"]);
    let refused = ExecSyncResponse { exit_code: 1, stdout: "no".into(), stderr: " way".into() };
    bench.fake.exec.lock().unwrap().push_back(refused);
    assert_eq!(failure(probe(&bench, exec.clone()).await), "no way");
    let endless = ExecSyncResponse { exit_code: 1, stdout: vec![b'x'; 1 << 20].into(), ..Default::default() };
    bench.fake.exec.lock().unwrap().push_back(endless);
    assert_eq!(failure(probe(&bench, exec.clone()).await).len(), 10 * 1024);
    bench.fake.next("ExecSync", Step::Hang);
    let began = Instant::now();
    assert!(failure(probe(&bench, exec.clone()).await).contains("timed out"));
    assert!(began.elapsed() <= Duration::from_secs(6));
    bench.fake.next("ExecSync", Step::Fail(CriError::new(Code::Other, "ExecSync", "no such task")));
    assert!(matches!(probe(&bench, exec).await, ProbeVerdict::Unknown(_)));
}

#[tokio::test(start_paused = true)]
async fn an_exec_probe_that_expands_without_bound_is_not_run() {
    let bench = Bench::new();
    let run = async |command: serde_json::Value| {
        let env = json!([{"name": "A", "value": "x".repeat(1 << 16)}]);
        let probe = json!({"exec": {"command": command}});
        let pod = json!({"containers": [{"name": "web", "env": env, "readinessProbe": probe}]});
        let kind = ProbeKind::Readiness;
        let call = RuntimeCall::Probe { kind, name: "web".into(), id: "c-1".into(), ips: vec![] };
        bench.call(pod, Call::Runtime(call)).await.unwrap()
    };
    let verdict = run(json!(["$(A)", "$(A)".repeat(15), "$(A)"])).await;
    let message = "exec.command[2]: the command expands to more than 1048576 bytes";
    assert_eq!(verdict, Answer::Probe(ProbeVerdict::Unknown(message.into())));
    assert!(bench.fake.calls().is_empty());
    assert_eq!(run(json!(["$(A)", "$(A)".repeat(15)])).await, Answer::Probe(ProbeVerdict::Success));
}

#[tokio::test(start_paused = true)]
async fn messages_of_exec_probes_have_no_values_of_variables() {
    let bench = Bench::new();
    let exec = json!({"exec": {"command": ["$(FILE)", "-e"]}, "timeoutSeconds": 3});
    bench.fake.next("ExecSync", Step::Hang);
    let message = failure(probe(&bench, exec.clone()).await);
    assert_eq!(message, "command timed out: \"$(FILE) -e\" timed out after 3s");
    bench.fake.next("ExecSync", Step::Fail(CriError::new(Code::Other, "ExecSync", "exec: \"/ok\": no such file")));
    let ProbeVerdict::Unknown(message) = probe(&bench, exec).await else { panic!("not unknown") };
    assert!(message.contains("exec: \"$(FILE)\": no such file"), "{message}");
}

/// A health service whose answer depends on the service name.
#[derive(Clone)]
struct Health;

impl tonic::server::UnaryService<HealthCheckRequest> for Health {
    type Response = HealthCheckResponse;
    type Future = std::future::Ready<Result<tonic::Response<Self::Response>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<HealthCheckRequest>) -> Self::Future {
        std::future::ready(match request.into_inner().service.as_str() {
            "" | "good" => Ok(tonic::Response::new(HealthCheckResponse { status: 1 })),
            "bad" => Ok(tonic::Response::new(HealthCheckResponse { status: 2 })),
            "none" => Err(tonic::Status::unimplemented("no health here")),
            _ => Err(tonic::Status::not_found("unknown service")),
        })
    }
}

async fn serve_grpc() -> (u16, tokio_util::task::AbortOnDropHandle<()>) {
    use tonic::codegen::Service;
    #[derive(Clone)]
    struct Routes;
    impl Service<hyper::Request<Incoming>> for Routes {
        type Response = hyper::Response<tonic::body::Body>;
        type Error = Infallible;
        type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;
        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, request: hyper::Request<Incoming>) -> Self::Future {
            Box::pin(async move {
                assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                let mut grpc = tonic::server::Grpc::new(tonic_prost::ProstCodec::default());
                Ok(grpc.unary(Health, request).await)
            })
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper_util::service::TowerToHyperService::new(Routes);
            tokio::spawn(async move {
                let executor = hyper_util::rt::TokioExecutor::new();
                let builder = hyper::server::conn::http2::Builder::new(executor);
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (port, tokio_util::task::AbortOnDropHandle::new(task))
}

#[tokio::test]
async fn grpc_probes_call_the_health_service() {
    let bench = Bench::new();
    let (port, _task) = serve_grpc().await;
    let grpc = |service: &str| json!({"grpc": {"port": port, "service": service}});
    assert_eq!(probe(&bench, json!({"grpc": {"port": port}})).await, ProbeVerdict::Success);
    assert_eq!(probe(&bench, grpc("good")).await, ProbeVerdict::Success);
    let table = [
        ("bad", "service unhealthy (responded with \"NOT_SERVING\")"),
        ("none", "does not implement the grpc health protocol"),
        ("other", "health rpc probe failed"),
    ];
    for (service, expected) in table {
        let message = failure(probe(&bench, grpc(service)).await);
        assert!(message.contains(expected), "{service}: {message}");
    }
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    assert!(failure(probe(&bench, json!({"grpc": {"port": free}})).await).contains("failed to connect"));
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    assert!(failure(probe(&bench, json!({"grpc": {"port": port}})).await).contains("timeout"));
}
