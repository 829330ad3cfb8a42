//! Names derived from a pod: its hostname and domain, its log path, and its name in messages.

use podwright_core::model::Pod;

/// A hostname or domain that can't be derived from the pod's spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostnameError {
    /// The pod has no spec.
    #[error("the pod has no spec")]
    NoSpec,
    /// `hostnameOverride` is not a DNS subdomain.
    #[error("pod hostnameOverride {0:?} is not a valid DNS subdomain")]
    InvalidOverride(String),
    /// `hostname` is not a DNS label.
    #[error("pod hostname {0:?} is not a valid DNS label")]
    InvalidHostname(String),
    /// `subdomain` is not a DNS label.
    #[error("pod subdomain {0:?} is not a valid DNS label")]
    InvalidSubdomain(String),
    /// Nothing is left of the hostname after truncation.
    #[error("hostname {0:?} is invalid")]
    Empty(String),
    /// The FQDN exceeds the kernel's limit.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {0} is too long \
         ({FQDN_LEN_MAX} characters is the max, {len} characters requested)",
        len = .0.len()
    )]
    FqdnTooLong(String),
}

/// The pod in the kubelet's messages: `name_namespace(uid)`.
pub(crate) fn display_name(pod: &Pod) -> String {
    format!("{}_{}({})", pod_name(pod), pod_namespace(pod), pod_uid(pod))
}

/// A container's log file, relative to the pod's log directory.
pub(crate) fn container_log_path(container: &str, attempt: u32) -> String {
    format!("{container}/{attempt}.log")
}

/// The pod's hostname, and its domain if it has a subdomain, else an empty one (Go kubelet:
/// `GeneratePodHostNameAndDomain`).
pub(crate) fn hostname_and_domain(pod: &Pod, cluster_domain: &str) -> Result<(String, String), HostnameError> {
    let Some(spec) = &pod.spec else { return Err(HostnameError::NoSpec) };
    if let Some(name) = &spec.hostname_override {
        if !is_dns_subdomain(name) {
            return Err(HostnameError::InvalidOverride(name.clone()));
        }
        return Ok((truncate(name)?, String::new()));
    }
    let hostname = match spec.hostname.as_deref().filter(|name| !name.is_empty()) {
        Some(name) if !is_dns_label(name) => {
            return Err(HostnameError::InvalidHostname(name.into()));
        }
        Some(name) => name,
        None => pod_name(pod),
    };
    let domain = match spec.subdomain.as_deref().filter(|name| !name.is_empty()) {
        Some(name) if !is_dns_label(name) => {
            return Err(HostnameError::InvalidSubdomain(name.into()));
        }
        Some(name) => format!("{name}.{}.svc.{cluster_domain}", pod_namespace(pod)),
        None => String::new(),
    };
    Ok((truncate(hostname)?, domain))
}

/// The hostname that the sandbox sets: the short one, or the FQDN with `setHostnameAsFQDN`.
pub(crate) fn kernel_hostname(pod: &Pod, cluster_domain: &str) -> Result<String, HostnameError> {
    let (hostname, domain) = hostname_and_domain(pod, cluster_domain)?;
    let full = pod.spec.as_ref().and_then(|spec| spec.set_hostname_as_fqdn).unwrap_or_default();
    if !full || domain.is_empty() {
        return Ok(hostname);
    }
    let name = format!("{hostname}.{domain}");
    if name.len() > FQDN_LEN_MAX {
        return Err(HostnameError::FqdnTooLong(name));
    }
    Ok(name)
}

pub(crate) fn pod_name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub(crate) fn pod_namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

pub(crate) fn pod_uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The names that runtimes give to the cgroup of a container, under that of its pod.
pub(crate) fn container_cgroup_names(id: &str) -> [String; 3] {
    [id.to_owned(), format!("cri-containerd-{id}.scope"), format!("crio-{id}.scope")]
}

pub(crate) fn is_host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default()
}

/// Truncated to the kernel's limit, without a trailing dash or dot.
fn truncate(hostname: &str) -> Result<String, HostnameError> {
    let mut end = hostname.len().min(HOSTNAME_LEN_MAX);
    while !hostname.is_char_boundary(end) {
        end -= 1;
    }
    let name = if end < hostname.len() { hostname[..end].trim_end_matches(['-', '.']) } else { hostname };
    if name.is_empty() {
        return Err(HostnameError::Empty(hostname.into()));
    }
    Ok(name.to_owned())
}

fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(|b| alphanumeric(*b))
        && bytes.last().is_some_and(|b| alphanumeric(*b))
        && bytes.iter().all(|b| alphanumeric(*b) || *b == b'-')
}

fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

/// The kernel's nodename has 64 bytes with the terminating NUL.
const HOSTNAME_LEN_MAX: usize = 63;

/// The Go kubelet's limit for an FQDN.
const FQDN_LEN_MAX: usize = 64;
