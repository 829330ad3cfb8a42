//! A registry on the loopback interface that behaves as badly as a test wants.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;

use crate::digest::Digest;
use crate::manifest::{OCI_CONFIG, OCI_INDEX, OCI_LAYER, OCI_MANIFEST};
use crate::platform::Platform;
use crate::reference::ImageReference;
use crate::tests::TestLayer;

/// A request as the registry got it.
#[derive(Clone, Debug)]
pub(super) struct Got {
    pub(super) method: String,
    /// With the query.
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Got {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// What the registry answers.
pub(super) enum Reply {
    Content(StatusCode, Vec<(&'static str, String)>, Bytes),
    /// No response, ever.
    Hang,
    /// These bytes, then nothing more, with this length announced.
    Stall(Bytes, u64),
    /// These bytes, then the connection breaks.
    Cut(StatusCode, Vec<(&'static str, String)>, Bytes),
    /// A body without end, and without a length.
    Endless,
    /// A byte now and then.
    Trickle(u64),
}

impl Reply {
    pub(super) fn ok(body: impl Into<Bytes>) -> Self {
        Self::Content(StatusCode::OK, vec![], body.into())
    }

    pub(super) fn status(status: u16) -> Self {
        Self::Content(StatusCode::from_u16(status).unwrap(), vec![], Bytes::new())
    }

    pub(super) fn redirect(location: impl Into<String>) -> Self {
        Self::Content(StatusCode::TEMPORARY_REDIRECT, vec![("location", location.into())], Bytes::new())
    }
}

type Handler = dyn Fn(&Got) -> Reply + Send + Sync;

/// A server; ends with the test's runtime.
pub(super) struct FakeRegistry {
    pub(super) address: String,
    requests: Arc<Mutex<Vec<Got>>>,
}

impl FakeRegistry {
    pub(super) async fn start(handler: impl Fn(&Got) -> Reply + Send + Sync + 'static) -> Self {
        Self::listen(None, Arc::new(handler)).await
    }

    pub(super) async fn start_tls(tls: TlsAcceptor, handler: impl Fn(&Got) -> Reply + Send + Sync + 'static) -> Self {
        Self::listen(Some(tls), Arc::new(handler)).await
    }

    async fn listen(tls: Option<TlsAcceptor>, handler: Arc<Handler>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(vec![]));
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, handler, tls) = (Arc::clone(&seen), Arc::clone(&handler), tls.clone());
                let service = service_fn(move |request| serve(request, Arc::clone(&seen), Arc::clone(&handler)));
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(async move {
                    match tls {
                        None => drop(http.serve_connection(TokioIo::new(stream), service).await),
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                drop(http.serve_connection(TokioIo::new(stream), service).await);
                            }
                        }
                    }
                });
            }
        });
        Self { address, requests }
    }

    /// Serves these images properly.
    pub(super) async fn with(images: &[&TestImage]) -> Self {
        let content: BTreeMap<String, (String, Bytes)> = images.iter().flat_map(|image| image.routes()).collect();
        Self::start(move |got| serve_content(&content, got)).await
    }

    pub(super) fn reference(&self, name: &str) -> ImageReference {
        format!("{}/{name}", self.address).parse().unwrap()
    }

    pub(super) fn requests(&self) -> Vec<Got> {
        self.requests.lock().unwrap().clone()
    }

    /// Requests whose path has this text.
    pub(super) fn count(&self, text: &str) -> usize {
        self.requests().iter().filter(|got| got.path.contains(text)).count()
    }
}

/// The content of a route, whole or from an offset.
pub(super) fn serve_content(content: &BTreeMap<String, (String, Bytes)>, got: &Got) -> Reply {
    let Some((media_type, body)) = content.get(&got.path) else { return Reply::status(404) };
    let header = vec![("content-type", media_type.clone())];
    match got.header("range").strip_prefix("bytes=").and_then(|range| range.strip_suffix('-')?.parse::<usize>().ok()) {
        None => Reply::Content(StatusCode::OK, header, body.clone()),
        Some(from) => {
            let range = format!("bytes {from}-{}/{}", body.len() - 1, body.len());
            Reply::Content(StatusCode::PARTIAL_CONTENT, vec![("content-range", range)], body.slice(from..))
        }
    }
}

type TestBody = StreamBody<BoxStream<'static, Result<Frame<Bytes>, std::io::Error>>>;

async fn serve(
    request: Request<Incoming>,
    seen: Arc<Mutex<Vec<Got>>>,
    handler: Arc<Handler>,
) -> Result<Response<TestBody>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let path = parts.uri.path_and_query().unwrap().to_string();
    let body = String::from_utf8_lossy(&body).into_owned();
    let got = Got { method: parts.method.to_string(), path, headers: parts.headers, body };
    seen.lock().unwrap().push(got.clone());
    let mut response = Response::new(());
    let data = |bytes: Bytes| Ok(Frame::data(bytes));
    let body: BoxStream<'static, _> = match handler(&got) {
        Reply::Hang => std::future::pending().await,
        Reply::Content(status, headers, bytes) => {
            *response.status_mut() = status;
            for (name, value) in headers {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response.headers_mut().insert("content-length", bytes.len().to_string().parse().unwrap());
            stream::iter([data(bytes)]).boxed()
        }
        Reply::Stall(bytes, length) => {
            response.headers_mut().insert("content-length", length.to_string().parse().unwrap());
            stream::iter([data(bytes)]).chain(stream::pending()).boxed()
        }
        Reply::Cut(status, headers, bytes) => {
            *response.status_mut() = status;
            for (name, value) in headers {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            let cut = stream::once(async {
                // Only when the bytes before were sent.
                tokio::time::sleep(Duration::from_millis(50)).await;
                Err(std::io::Error::other("cut"))
            });
            stream::iter([data(bytes)]).chain(cut).boxed()
        }
        Reply::Endless => stream::repeat_with(move || data(Bytes::from_static(&[7; 8192]))).boxed(),
        Reply::Trickle(milliseconds) => stream::repeat(())
            .then(move |()| async move {
                tokio::time::sleep(Duration::from_millis(milliseconds)).await;
                data(Bytes::from_static(b"x"))
            })
            .boxed(),
    };
    Ok(response.map(|()| StreamBody::new(body)))
}

/// An image with all its documents.
#[derive(Clone)]
pub(super) struct TestImage {
    pub(super) name: String,
    pub(super) blobs: BTreeMap<Digest, Bytes>,
    pub(super) manifest: Bytes,
    pub(super) config: Digest,
    pub(super) layers: Vec<Digest>,
}

impl TestImage {
    /// Layers are compressed with gzip and zstd in turn.
    pub(super) fn new(name: &str, layers: &[TestLayer]) -> Self {
        let host = Platform::host();
        Self::with_config(name, layers, |diff_ids| {
            json!({"os": host.os, "architecture": host.architecture, "config": {"Cmd": ["sh"], "User": name},
                   "rootfs": {"type": "layers", "diff_ids": diff_ids}})
        })
    }

    pub(super) fn with_config(name: &str, layers: &[TestLayer], config: impl FnOnce(Vec<Digest>) -> Value) -> Self {
        let mut blobs = BTreeMap::new();
        let mut keep = |bytes: Vec<u8>| {
            let digest = Digest::of(&bytes);
            blobs.insert(digest, Bytes::from(bytes));
            digest
        };
        let diff_ids = layers.iter().map(|layer| Digest::of(&layer.tar())).collect();
        let layers: Vec<Digest> =
            layers.iter().enumerate().map(|(n, layer)| keep(compressed(&layer.tar(), n))).collect();
        let config = keep(config(diff_ids).to_string().into_bytes());
        let size = |digest: &Digest| blobs[digest].len();
        let descriptor =
            |digest: &Digest| json!({"mediaType": format!("{OCI_LAYER}+gzip"), "digest": digest, "size": size(digest)});
        let manifest = json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST,
            "config": {"mediaType": OCI_CONFIG, "digest": config, "size": size(&config)},
            "layers": layers.iter().map(descriptor).collect::<Vec<_>>(),
        });
        Self { name: name.to_owned(), manifest: manifest.to_string().into(), blobs, config, layers }
    }

    pub(super) fn manifest_digest(&self) -> Digest {
        Digest::of(&self.manifest)
    }

    /// What a registry serves, by path.
    pub(super) fn routes(&self) -> BTreeMap<String, (String, Bytes)> {
        let (repository, tag) = self.name.split_once(':').unwrap();
        let route = |path: String, kind: &str, bytes: &Bytes| {
            (format!("/v2/{repository}/{path}"), (kind.to_owned(), bytes.clone()))
        };
        let blobs = self
            .blobs
            .iter()
            .map(|(digest, bytes)| route(format!("blobs/{digest}"), "application/octet-stream", bytes));
        let mut routes: BTreeMap<_, _> = blobs.collect();
        routes.extend(
            [tag.to_owned(), self.manifest_digest().to_string()]
                .map(|v| route(format!("manifests/{v}"), OCI_MANIFEST, &self.manifest)),
        );
        routes
    }

    /// The same below an index with other platforms.
    pub(super) fn indexed(&self) -> (Digest, BTreeMap<String, (String, Bytes)>) {
        let host = Platform::host();
        let other = json!({"mediaType": OCI_MANIFEST, "digest": Digest::of(b"other"), "size": 9, "platform": {"os": "linux", "architecture": "s390x"}});
        let own = json!({"mediaType": OCI_MANIFEST, "digest": self.manifest_digest(), "size": self.manifest.len(), "platform": host});
        let index: Bytes =
            json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [other, own]}).to_string().into();
        let (repository, tag) = self.name.split_once(':').unwrap();
        let mut routes = self.routes();
        routes.insert(format!("/v2/{repository}/manifests/{tag}"), (OCI_INDEX.to_owned(), index.clone()));
        (Digest::of(&index), routes)
    }
}

fn compressed(tar: &[u8], n: usize) -> Vec<u8> {
    if n % 2 == 1 {
        return zstd::encode_all(tar, 1).unwrap();
    }
    let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    encoder.write_all(tar).unwrap();
    encoder.finish().unwrap()
}
