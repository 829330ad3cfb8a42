//! A `grpc.health.v1.Health` server whose response the test chooses.

use std::convert::Infallible;
use std::future::Ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Question {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Answer {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// Serves on all addresses until it is dropped.
pub(crate) struct HealthServer {
    serves: Arc<AtomicBool>,
    pub(crate) port: u16,
    _runtime: tokio::runtime::Runtime,
}

impl HealthServer {
    /// Starts with NOT_SERVING.
    pub(crate) fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let serves = Arc::new(AtomicBool::new(false));
        let port = podwright_testbed::free_port().expect("a port");
        let service = Health { serves: Arc::clone(&serves) };
        let address = ([0, 0, 0, 0], port).into();
        runtime.spawn(tonic::transport::Server::builder().add_service(service).serve(address));
        Self { serves, port, _runtime: runtime }
    }

    /// Sets the reported status.
    pub(crate) fn set(&self, serves: bool) {
        self.serves.store(serves, Ordering::SeqCst);
    }
}

#[derive(Clone)]
struct Health {
    serves: Arc<AtomicBool>,
}

impl NamedService for Health {
    const NAME: &'static str = "grpc.health.v1.Health";
}

impl UnaryService<Question> for Health {
    type Response = Answer;
    type Future = Ready<Result<tonic::Response<Answer>, tonic::Status>>;

    fn call(&mut self, _: tonic::Request<Question>) -> Self::Future {
        let status = if self.serves.load(Ordering::SeqCst) { 1 } else { 2 };
        std::future::ready(Ok(tonic::Response::new(Answer { status })))
    }
}

impl Service<http::Request<tonic::body::Body>> for Health {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let health = self.clone();
        Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).unary(health, request).await) })
    }
}
