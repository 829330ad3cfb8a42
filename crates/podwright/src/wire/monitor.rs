//! What the monitoring listener (`--listen`) serves: pods, metrics, health.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use podwright_agent::event_loop::Handle;
use podwright_agent::feed::PodView;
use podwright_agent::host::Pool;
use podwright_agent::stats::{SampleError, Sampler};
use podwright_core::model::FullName;
use podwright_core::status::is_quarantined_for_long;
use podwright_cri::BoxFuture;
use podwright_server::health_server::{AgentStatus, MetricsPage, PodListCache};

use super::certificates::CertificateMetrics;
use crate::cluster::kubelet_version;
use crate::config::{AgentConfig, go_arch};

/// The event loop handles something at least this often, because of the periodic list; a longer silence is a hang.
const SILENCE_MAX: Duration = Duration::from_secs(180);
/// Pods in quarantine that `/readyz` names.
const QUARANTINED_SHOWN: usize = 20;

/// The name of the node, and the version for which alerts compare nodes.
fn constant_metrics(node: &str) -> String {
    let version = kubelet_version();
    format!(
        "# HELP kubelet_node_name The node's name. The count is always 1.\n# TYPE kubelet_node_name gauge\n\
         kubelet_node_name{{node={node:?}}} 1\n\
         # HELP kubernetes_build_info A metric with a constant '1' value labeled by git version and platform.\n\
         # TYPE kubernetes_build_info gauge\n\
         kubernetes_build_info{{git_version={version:?},platform=\"linux/{}\"}} 1\n",
        go_arch()
    )
}

/// What `--listen` and the kubelet's API serve.
pub(super) struct Monitor {
    handle: Handle,
    sampler: Arc<Sampler>,
    pods: PodListCache,
    /// Metrics that do not change.
    constant: String,
    certificates: CertificateMetrics,
    /// Longer than the interval between two lists of the runtime.
    unobserved_max: Duration,
}

impl Monitor {
    pub(super) fn new(
        handle: Handle,
        sampler: Arc<Sampler>,
        config: &AgentConfig,
        pool: Pool,
        certificates: CertificateMetrics,
    ) -> Self {
        let pods = PodListCache::new(Arc::clone(handle.state().feed()), pool);
        let unobserved_max = SILENCE_MAX.max(config.node.sync_frequency * 3);
        let constant = constant_metrics(&config.node.node_name);
        Self { handle, sampler, pods, constant, certificates, unobserved_max }
    }
}

impl AgentStatus for Monitor {
    fn pods(&self) -> BoxFuture<'_, Option<Bytes>> {
        Box::pin(async { self.pods.body().await.ok() })
    }

    fn metrics(&self, page: MetricsPage) -> BoxFuture<'_, Bytes> {
        Box::pin(async move {
            let state = self.handle.state();
            let metrics = state.metrics();
            Bytes::from(match page {
                MetricsPage::Agent => {
                    let certificates = self.certificates.text(Timestamp::now());
                    metrics.text(&state.feed().list().1)
                        + &self.sampler.volume_metrics()
                        + &self.constant
                        + &certificates
                }
                MetricsPage::Cadvisor => self.sampler.cadvisor_metrics().await,
                MetricsPage::Resource => self.sampler.resource_metrics().await,
                MetricsPage::Probes => metrics.probes_text(),
                MetricsPage::Slis => metrics.slis_text(),
            })
        })
    }

    fn stats_summary(&self, only_cpu_and_memory: bool) -> BoxFuture<'_, Result<Bytes, SampleError>> {
        Box::pin(self.sampler.summary(only_cpu_and_memory))
    }

    fn record_healthcheck(&self, name: &str, passed: bool) {
        self.handle.state().metrics().healthchecks().record(name, passed);
    }

    fn reset_healthchecks(&self) {
        self.handle.state().metrics().healthchecks().reset();
    }

    fn static_pod_name<'a>(&'a self, mirror: &'a str) -> BoxFuture<'a, Option<FullName>> {
        Box::pin(self.handle.static_pod_name(mirror.into()))
    }

    fn not_live(&self) -> Option<String> {
        let now = podwright_linux::clock::boot_time();
        let silent = self.handle.state().last_heartbeat().map(|beat| now.saturating_sub(beat.boot));
        let silent = silent.filter(|silent| *silent > SILENCE_MAX)?;
        Some(format!("the event loop has done nothing for {} s", silent.as_secs()))
    }

    fn not_ready(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async {
            let now = podwright_linux::clock::boot_time();
            let mut not_ready: Vec<String> = self.handle.state().journal_error().into_iter().collect();
            if !self.handle.state().runtime_up() {
                not_ready.push("the container runtime does not answer".into());
            }
            let unobserved = self.handle.state().last_observation().map(|at| now.saturating_sub(at.boot));
            if let Some(unobserved) = unobserved.filter(|unobserved| *unobserved > self.unobserved_max) {
                not_ready.push(format!("the container runtime has not listed its pods for {} s", unobserved.as_secs()));
            }
            let views = self.handle.state().feed().list().1;
            let quarantined = |view: &&Arc<PodView>| view.status.as_deref().is_some_and(is_quarantined_for_long);
            for view in views.iter().filter(quarantined).take(QUARANTINED_SHOWN) {
                not_ready.push(format!("pod {}/{} is quarantined", view.namespace(), view.name()));
            }
            not_ready
        })
    }
}
