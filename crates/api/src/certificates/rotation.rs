//! Keeps one certificate of the node valid: performs the steps that core decides.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::certificates::{
    AbandonReason, CertificateNames, RequestFailure, Requester, Rotation, RotationStep,
};
use podwright_core::model::Now;
use podwright_core::node_status::NodeEvent;
use podwright_tasks::{Pool, PoolError};
use secrecy::ExposeSecret;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::CertificateKind;
use super::signing_request::{self, CreatedRequest, NewKey, SigningError};
use super::store::{CertificateFileError, CertificateStore};
use crate::certificate_pair::{CertificatePair, CurrentCertificate, PairError};
use crate::client::ApiClient;
use crate::kubeconfig::{Kubeconfig, KubeconfigError};

/// Why a request for a certificate failed.
#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    /// The bootstrap credentials cannot be read.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// The request gave no certificate.
    #[error(transparent)]
    Signing(#[from] SigningError),
    /// The signer's certificate cannot be used.
    #[error("the issued certificate: {0}")]
    Certificate(#[from] PairError),
    /// The files cannot be written.
    #[error("store the certificate: {0}")]
    Store(#[from] CertificateFileError),
    /// The file system does not answer.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Sends requests for certificates.
pub struct RotationClients {
    /// With the node's own credentials.
    pub own: ApiClient,
    /// Kubeconfig for requests while there is no valid certificate; `None`: `own` is used.
    pub bootstrap: Option<PathBuf>,
}

/// State of a certificate, for metrics and for its users.
#[derive(Clone, Debug)]
pub struct CertificateStatus {
    current: CurrentCertificate,
    failures: Arc<AtomicU64>,
}

impl CertificateStatus {
    /// The newest certificate.
    pub fn current(&self) -> CurrentCertificate {
        self.current.clone()
    }

    /// Seconds until the certificate expires, negative after it; infinite without one.
    pub fn ttl_seconds(&self, now: Timestamp) -> f64 {
        let end = self.current.borrow().as_ref().map(|pair| pair.facts().not_after);
        end.map_or(f64::INFINITY, |end| end.duration_since(now).as_secs_f64().trunc())
    }

    /// Requests that failed since the start.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

/// Requests, stores and publishes one certificate.
pub struct CertificateRotation {
    node: String,
    store: CertificateStore,
    machine: Rotation,
    current: watch::Sender<Option<Arc<CertificatePair>>>,
    failures: Arc<AtomicU64>,
    pool: Pool,
    /// The zero of core's boot clock.
    anchor: Instant,
}

impl CertificateRotation {
    /// Reads the files. `temporary` is a certificate from the kubeconfig: without a valid one in the files it is stored and
    /// replaced at once (Kubernetes: `getCurrentCertificateOrBootstrap`).
    pub async fn open(node: &str, store: CertificateStore, temporary: Option<CertificatePair>) -> Self {
        let machine = Rotation::new(format!("{node}/{}", store.kind().name()));
        let (current, failures) = (watch::Sender::new(None), Arc::default());
        let (pool, anchor) = (Pool::default(), Instant::now());
        let mut rotation = Self { node: node.into(), store, machine, current, failures, pool, anchor };
        if rotation.read_files().await {
            return rotation;
        }
        if let Some(pair) = temporary.filter(|pair| !pair.facts().is_expired(Timestamp::now())) {
            if let Err(error) = rotation.write(&pair).await {
                tracing::warn!(%error, "certificate of the kubeconfig cannot be stored");
            }
            rotation.machine.found(Some(pair.facts().clone()), true);
            rotation.current.send_replace(Some(Arc::new(pair)));
        }
        rotation
    }

    /// For monitoring, and for users of the certificate.
    pub fn status(&self) -> CertificateStatus {
        CertificateStatus { current: self.current.subscribe(), failures: Arc::clone(&self.failures) }
    }

    /// Requests a certificate whenever one is needed. `once`: ends with the first valid one. Else ends when the sender of `wanted`
    /// is dropped. Events are dropped while their queue is full.
    pub async fn run(
        mut self,
        clients: RotationClients,
        mut wanted: watch::Receiver<Option<CertificateNames>>,
        events: mpsc::Sender<NodeEvent>,
        once: bool,
    ) {
        loop {
            if !self.has_valid() {
                self.read_files().await;
            }
            if once && self.has_valid() {
                return;
            }
            self.machine.want(wanted.borrow_and_update().clone());
            let step = self.machine.step(self.now());
            match step {
                RotationStep::Request { names, requester } => {
                    let done = self.request(&clients, &names, requester, &mut wanted, &events).await;
                    self.report(done, &events);
                }
                RotationStep::Wait(until) => {
                    let Some(()) = self.wait(until, &mut wanted).await else { return };
                }
                // Only while a request is pending.
                RotationStep::ReportPending(_) | RotationStep::Abandon(_) => {}
            }
        }
    }

    /// One request until its end: a certificate that is in use, `None` if it was abandoned, or a failure.
    async fn request(
        &mut self,
        clients: &RotationClients,
        names: &CertificateNames,
        requester: Requester,
        wanted: &mut watch::Receiver<Option<CertificateNames>>,
        events: &mpsc::Sender<NodeEvent>,
    ) -> Result<Option<Arc<CertificatePair>>, RotationError> {
        let client = match (requester, &clients.bootstrap) {
            (Requester::Bootstrap, Some(path)) => {
                let path = path.clone();
                let read = move || Kubeconfig::read(&path);
                ApiClient::of(&self.pool.run("bootstrap kubeconfig", FILE_TIMEOUT, read).await??)
            }
            _ => clients.own.clone(),
        };
        let key = NewKey::generate(names)?;
        let kind = self.store.kind();
        let created = signing_request::create(&client, kind, &key).await?;
        tracing::info!(certificate = kind.name(), request = created.name, user = ?requester, "certificate requested");
        self.machine.created(&created.name);
        let Some(certificates) = self.pending(&client, &created, wanted, events).await? else { return Ok(None) };
        let pair = CertificatePair::parse(&certificates, key.key.expose_secret().as_bytes())?;
        self.write(&pair).await?;
        Ok(Some(Arc::new(pair)))
    }

    /// Waits for the signer as long as core wants. `None`: abandoned.
    async fn pending(
        &mut self,
        client: &ApiClient,
        created: &CreatedRequest,
        wanted: &mut watch::Receiver<Option<CertificateNames>>,
        events: &mpsc::Sender<NodeEvent>,
    ) -> Result<Option<Vec<u8>>, SigningError> {
        let mut issued = std::pin::pin!(signing_request::issued(client, created));
        loop {
            self.machine.want(wanted.borrow_and_update().clone());
            let until = match self.machine.step(self.now()) {
                RotationStep::Wait(until) => until,
                RotationStep::ReportPending(name) => {
                    self.report_pending(&name, events);
                    continue;
                }
                RotationStep::Abandon(reason) => {
                    tracing::info!(request = created.name, ?reason, "certificate signing request is abandoned");
                    if reason == AbandonReason::TooLong {
                        self.failures.fetch_add(1, Ordering::Relaxed);
                    }
                    return Ok(None);
                }
                // It is pending already.
                RotationStep::Request { .. } => return Ok(None),
            };
            tokio::select! {
                result = &mut issued => return result.map(Some),
                waited = self.wait(until, wanted) => if waited.is_none() { return Ok(None) },
            }
        }
    }

    /// Until this moment, or a change of what is wanted. `None`: its sender was dropped.
    async fn wait(
        &self,
        until: Option<Duration>,
        wanted: &mut watch::Receiver<Option<CertificateNames>>,
    ) -> Option<()> {
        let reached = async {
            match until {
                Some(until) => tokio::time::sleep_until(self.anchor + until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = reached => Some(()),
            changed = wanted.changed() => changed.ok(),
        }
    }

    fn report(&mut self, done: Result<Option<Arc<CertificatePair>>, RotationError>, events: &mpsc::Sender<NodeEvent>) {
        let (now, certificate) = (self.now(), self.store.kind().name());
        match done {
            Ok(Some(pair)) => {
                self.machine.issued(pair.facts().clone(), now);
                tracing::info!(certificate, not_after = %pair.facts().not_after, "certificate issued");
                if let Some(missing) = self.machine.missing() {
                    tracing::warn!(certificate, note = %missing, "the signer left out what was requested");
                }
                self.current.send_replace(Some(pair));
            }
            Ok(None) => {}
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                let unauthorized =
                    matches!(&error, RotationError::Signing(SigningError::Create(error)) if error.code() == Some(401));
                let failure = if unauthorized { RequestFailure::Unauthorized } else { RequestFailure::Other };
                self.machine.failed(failure, now);
                let attempt = self.machine.failures();
                tracing::warn!(certificate, attempt, %error, "certificate request failed: retrying");
                if let RotationError::Signing(SigningError::Denied { .. } | SigningError::Failed { .. }) = &error {
                    let message = format!("No {certificate} certificate for node {}: {error}", self.node);
                    send(events, "CertificateRequestFailed", message);
                }
            }
        }
    }

    fn report_pending(&self, request: &str, events: &mpsc::Sender<NodeEvent>) {
        let certificate = self.store.kind().name();
        tracing::warn!(certificate, request, "certificate signing request waits for approval");
        let mut message = format!(
            "CertificateSigningRequest {request} for the {certificate} certificate of node {} waits for approval: \
             kubectl certificate approve {request}",
            self.node
        );
        if self.store.kind() == CertificateKind::Serving && self.current.borrow().is_none() {
            message.push_str(". Until then kubectl logs and exec fail on this node");
        }
        send(events, "CertificateRequestPending", message);
    }

    /// Uses a valid certificate of the files. `false`: there is none.
    async fn read_files(&mut self) -> bool {
        let store = self.store.clone();
        let read = self.pool.run("certificate files", FILE_TIMEOUT, move || store.read(Timestamp::now())).await;
        let read = read.unwrap_or_else(|error| {
            tracing::warn!(%error, "certificate files cannot be read");
            None
        });
        let valid = read.filter(|pair| !pair.facts().is_expired(Timestamp::now()));
        let Some(pair) = valid else { return false };
        self.machine.found(Some(pair.facts().clone()), false);
        self.current.send_replace(Some(Arc::new(pair)));
        true
    }

    async fn write(&self, pair: &CertificatePair) -> Result<(), RotationError> {
        let (store, pair) = (self.store.clone(), pair.clone());
        let write = move || store.write(&pair, Timestamp::now());
        Ok(self.pool.run("certificate files", FILE_TIMEOUT, write).await??)
    }

    fn has_valid(&self) -> bool {
        self.machine.current().is_some_and(|current| !current.is_expired(Timestamp::now()))
    }

    fn now(&self) -> Now {
        Now { boot: self.anchor.elapsed(), wall: Timestamp::now() }
    }
}

fn send(events: &mpsc::Sender<NodeEvent>, reason: &'static str, message: String) {
    let _ = events.try_send(NodeEvent { warning: true, reason, message });
}

const FILE_TIMEOUT: Duration = Duration::from_secs(10);
