//! Names derived from a pod: its hostname, its log, and how messages call it.

use podwright_core::model::Pod;

use super::TranslateError;

/// How the kubelet's messages call a pod: `name_namespace(uid)`.
pub fn display_name(pod: &Pod) -> String {
    format!("{}_{}({})", pod_name(pod), pod_namespace(pod), pod_uid(pod))
}

/// A container's log file, relative to the pod's log directory.
pub fn container_log_path(container: &str, attempt: u32) -> String {
    format!("{container}/{attempt}.log")
}

/// The pod's hostname, and its domain if it has a subdomain (Go kubelet: GeneratePodHostNameAndDomain).
pub fn hostname_and_domain(pod: &Pod, cluster_domain: &str) -> Result<(String, String), TranslateError> {
    let Some(spec) = &pod.spec else { return Err(TranslateError::sandbox("the pod has no spec")) };
    if let Some(name) = &spec.hostname_override {
        if !is_dns_subdomain(name) {
            return Err(TranslateError::sandbox(format!("pod hostnameOverride {name:?} is not a valid DNS subdomain")));
        }
        return Ok((shortened(name)?, String::new()));
    }
    let hostname = match spec.hostname.as_deref().filter(|name| !name.is_empty()) {
        Some(name) if !is_dns_label(name) => {
            return Err(TranslateError::sandbox(format!("pod hostname {name:?} is not a valid DNS label")));
        }
        Some(name) => name,
        None => pod_name(pod),
    };
    let domain = match spec.subdomain.as_deref().filter(|name| !name.is_empty()) {
        Some(name) if !is_dns_label(name) => {
            return Err(TranslateError::sandbox(format!("pod subdomain {name:?} is not a valid DNS label")));
        }
        Some(name) => format!("{name}.{}.svc.{cluster_domain}", pod_namespace(pod)),
        None => String::new(),
    };
    Ok((shortened(hostname)?, domain))
}

/// What the kernel is told: the hostname, or the full name with `setHostnameAsFQDN`.
pub(super) fn kernel_hostname(pod: &Pod, cluster_domain: &str) -> Result<String, TranslateError> {
    let (hostname, domain) = hostname_and_domain(pod, cluster_domain)?;
    let full = pod.spec.as_ref().and_then(|spec| spec.set_hostname_as_fqdn).unwrap_or_default();
    if !full || domain.is_empty() {
        return Ok(hostname);
    }
    let name = format!("{hostname}.{domain}");
    if name.len() > FQDN_LEN_MAX {
        return Err(TranslateError::sandbox(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long \
             ({FQDN_LEN_MAX} characters is the max, {} characters requested)",
            name.len()
        )));
    }
    Ok(name)
}

pub(super) fn pod_name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub(super) fn pod_namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

pub(super) fn pod_uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub(super) fn is_host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default()
}

/// Cut to what the kernel takes, without a dash or dot at its end.
fn shortened(hostname: &str) -> Result<String, TranslateError> {
    let mut end = hostname.len().min(HOSTNAME_LEN_MAX);
    while !hostname.is_char_boundary(end) {
        end -= 1;
    }
    let name = if end < hostname.len() { hostname[..end].trim_end_matches(['-', '.']) } else { hostname };
    if name.is_empty() {
        return Err(TranslateError::sandbox(format!("hostname {hostname:?} is invalid")));
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

/// The kernel's nodename is 64 bytes with its terminator.
const HOSTNAME_LEN_MAX: usize = 63;

/// The Go kubelet's bound for a full name; the kernel takes 64 characters.
const FQDN_LEN_MAX: usize = 64;
