//! The supported fields of `KubeletConfiguration`, as they are in the file, without defaults.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{ConfigError, fields, schema};
use crate::go_duration;

/// `None`: the field is not set.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct KubeletFile {
    pub(super) address: Option<String>,
    pub(super) authentication: Option<AuthenticationFields>,
    pub(super) authorization: Option<AuthorizationFields>,
    pub(super) cgroup_driver: Option<String>,
    pub(super) cgroup_root: Option<String>,
    #[serde(rename = "cgroupsPerQOS")]
    pub(super) cgroups_per_qos: Option<bool>,
    pub(super) allowed_unsafe_sysctls: Option<Vec<String>>,
    #[serde(rename = "clusterDNS")]
    pub(super) cluster_dns: Option<Vec<String>>,
    pub(super) cluster_domain: Option<String>,
    pub(super) container_log_max_files: Option<i64>,
    pub(super) container_log_max_size: Option<String>,
    #[serde(deserialize_with = "go_duration")]
    pub(super) container_log_monitor_interval: Option<Duration>,
    pub(super) container_runtime_endpoint: Option<String>,
    #[serde(rename = "cpuCFSQuota")]
    pub(super) cpu_cfs_quota: Option<bool>,
    #[serde(rename = "cpuCFSQuotaPeriod", deserialize_with = "go_duration")]
    pub(super) cpu_cfs_quota_period: Option<Duration>,
    pub(super) crash_loop_back_off: Option<CrashLoopBackOff>,
    pub(super) enable_debug_flags_handler: Option<bool>,
    pub(super) enable_debugging_handlers: Option<bool>,
    pub(super) enable_profiling_handler: Option<bool>,
    pub(super) enable_server: Option<bool>,
    pub(super) enable_system_log_handler: Option<bool>,
    pub(super) enforce_node_allocatable: Option<Vec<String>>,
    pub(super) eviction_hard: Option<BTreeMap<String, String>>,
    pub(super) eviction_max_pod_grace_period: Option<i64>,
    pub(super) eviction_minimum_reclaim: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "go_duration")]
    pub(super) eviction_pressure_transition_period: Option<Duration>,
    pub(super) eviction_soft: Option<BTreeMap<String, String>>,
    pub(super) eviction_soft_grace_period: Option<BTreeMap<String, String>>,
    pub(super) fail_swap_on: Option<bool>,
    #[serde(deserialize_with = "go_duration")]
    pub(super) file_check_frequency: Option<Duration>,
    pub(super) healthz_bind_address: Option<String>,
    pub(super) healthz_port: Option<i64>,
    #[serde(deserialize_with = "go_duration")]
    pub(super) http_check_frequency: Option<Duration>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub(super) image_gc_high_threshold_percent: Option<i64>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub(super) image_gc_low_threshold_percent: Option<i64>,
    #[serde(rename = "imageMaximumGCAge", deserialize_with = "go_duration")]
    pub(super) image_maximum_gc_age: Option<Duration>,
    #[serde(rename = "imageMinimumGCAge", deserialize_with = "go_duration")]
    pub(super) image_minimum_gc_age: Option<Duration>,
    pub(super) image_pull_credentials_verification_policy: Option<String>,
    pub(super) image_service_endpoint: Option<String>,
    pub(super) local_storage_capacity_isolation: Option<bool>,
    pub(super) logging: Option<LoggingFields>,
    pub(super) kube_reserved: Option<BTreeMap<String, String>>,
    pub(super) merge_default_eviction_settings: Option<bool>,
    pub(super) max_parallel_image_pulls: Option<i64>,
    pub(super) max_pods: Option<i64>,
    pub(super) node_lease_duration_seconds: Option<i64>,
    pub(super) node_status_max_images: Option<i64>,
    #[serde(deserialize_with = "go_duration")]
    pub(super) node_status_report_frequency: Option<Duration>,
    #[serde(deserialize_with = "go_duration")]
    pub(super) node_status_update_frequency: Option<Duration>,
    #[serde(rename = "podCIDR")]
    pub(super) pod_cidr: Option<String>,
    pub(super) pod_logs_dir: Option<String>,
    pub(super) pod_pids_limit: Option<i64>,
    pub(super) port: Option<i64>,
    pub(super) preloaded_images_verification_allowlist: Option<Vec<String>>,
    pub(super) read_only_port: Option<i64>,
    pub(super) register_node: Option<bool>,
    pub(super) register_with_taints: Option<Vec<Taint>>,
    pub(super) registry_burst: Option<i64>,
    #[serde(rename = "registryPullQPS")]
    pub(super) registry_pull_qps: Option<i64>,
    #[serde(rename = "reservedSystemCPUs")]
    pub(super) reserved_system_cpus: Option<String>,
    pub(super) resolv_conf: Option<String>,
    pub(super) rotate_certificates: Option<bool>,
    #[serde(deserialize_with = "go_duration")]
    pub(super) runtime_request_timeout: Option<Duration>,
    pub(super) seccomp_default: Option<bool>,
    pub(super) serialize_image_pulls: Option<bool>,
    #[serde(rename = "serverTLSBootstrap")]
    pub(super) server_tls_bootstrap: Option<bool>,
    #[serde(deserialize_with = "go_duration")]
    pub(super) shutdown_grace_period: Option<Duration>,
    pub(super) shutdown_grace_period_by_pod_priority: Option<Vec<PriorityPeriodFields>>,
    #[serde(deserialize_with = "go_duration")]
    pub(super) shutdown_grace_period_critical_pods: Option<Duration>,
    #[serde(rename = "singleProcessOOMKill")]
    pub(super) single_process_oom_kill: Option<bool>,
    pub(super) static_pod_path: Option<String>,
    #[serde(rename = "staticPodURL")]
    pub(super) static_pod_url: Option<String>,
    #[serde(rename = "staticPodURLHeader")]
    pub(super) static_pod_url_header: Option<BTreeMap<String, Vec<String>>>,
    #[serde(deserialize_with = "go_duration")]
    pub(super) streaming_connection_idle_timeout: Option<Duration>,
    #[serde(deserialize_with = "go_duration")]
    pub(super) sync_frequency: Option<Duration>,
    pub(super) system_reserved: Option<BTreeMap<String, String>>,
    pub(super) tls_cert_file: Option<String>,
    pub(super) tls_cipher_suites: Option<Vec<String>>,
    pub(super) tls_min_version: Option<String>,
    pub(super) tls_private_key_file: Option<String>,
    /// A duration; a negative one switches the measurements off.
    pub(super) volume_stats_agg_period: Option<String>,
}

/// The field `authentication`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct AuthenticationFields {
    pub(super) anonymous: Option<AnonymousFields>,
    pub(super) webhook: Option<TokenWebhookFields>,
    pub(super) x509: Option<ClientCertificateFields>,
}

/// The field `authentication.anonymous`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct AnonymousFields {
    pub(super) enabled: Option<bool>,
}

/// The field `authentication.webhook`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct TokenWebhookFields {
    pub(super) enabled: Option<bool>,
    #[serde(rename = "cacheTTL", deserialize_with = "go_duration")]
    pub(super) cache_ttl: Option<Duration>,
}

/// The field `authentication.x509`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct ClientCertificateFields {
    #[serde(rename = "clientCAFile")]
    pub(super) client_ca_file: Option<String>,
}

/// The field `authorization`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct AuthorizationFields {
    pub(super) mode: Option<String>,
    pub(super) webhook: Option<AccessWebhookFields>,
}

/// The field `authorization.webhook`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct AccessWebhookFields {
    #[serde(rename = "cacheAuthorizedTTL", deserialize_with = "go_duration")]
    pub(super) cache_authorized_ttl: Option<Duration>,
    #[serde(rename = "cacheUnauthorizedTTL", deserialize_with = "go_duration")]
    pub(super) cache_unauthorized_ttl: Option<Duration>,
}

/// The field `crashLoopBackOff`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct CrashLoopBackOff {
    #[serde(deserialize_with = "go_duration")]
    pub(super) max_container_restart_period: Option<Duration>,
}

/// The field `logging`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub(super) struct LoggingFields {
    pub(super) format: Option<String>,
    pub(super) verbosity: Option<i64>,
}

/// An entry of `shutdownGracePeriodByPodPriority`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PriorityPeriodFields {
    pub(super) priority: i64,
    pub(super) shutdown_grace_period_seconds: i64,
}

/// Reads the document in this file.
pub(super) fn read(path: &Path) -> Result<Value, ConfigError> {
    let unreadable = |source| ConfigError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(SIZE_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > SIZE_MAX {
        return Err(ConfigError::invalid(path, vec![format!("larger than {SIZE_MAX} bytes")]));
    }
    document(&bytes).map_err(|errors| ConfigError::invalid(path, errors))
}

/// Parses the only document of a file, and checks its kind and version.
pub(super) fn document(bytes: &[u8]) -> Result<Value, Vec<String>> {
    let mut documents = podwright_agent::sources::documents(bytes).map_err(|error| vec![error.to_string()])?;
    if documents.len() != 1 {
        return Err(vec![format!("expected one document, found {}", documents.len())]);
    }
    let document = documents.remove(0);
    for (field, expected) in [("kind", "KubeletConfiguration"), ("apiVersion", "kubelet.config.k8s.io/v1beta1")] {
        if document.get(field).and_then(Value::as_str) != Some(expected) {
            return Err(vec![format!("{field}: must be {expected}")]);
        }
    }
    Ok(document)
}

impl KubeletFile {
    /// Decodes a document. Returns the warnings about unknown and unsupported fields too, or all errors.
    pub(super) fn decode(document: Value) -> Result<(Self, Vec<String>), Vec<String>> {
        let findings = schema::check(&document, fields::FIELDS);
        if !findings.errors.is_empty() {
            return Err(findings.errors);
        }
        let file = serde_json::from_value(document).map_err(|error| vec![error.to_string()])?;
        Ok((file, findings.warnings))
    }
}

fn go_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| go_duration::parse(&text).map_err(serde::de::Error::custom)).transpose()
}

/// Real configurations have a few kilobytes.
const SIZE_MAX: u64 = 1 << 20;
