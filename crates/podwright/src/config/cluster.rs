//! Cluster membership: the connection to the API server, and the settings of the Node object.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;

use super::certificates::{self, CertificateConfig};
use super::diagnostics::Diagnostics;
use super::inputs::{ConfigInputs, absolute};

/// How the node takes part in a cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClusterConfig {
    pub(crate) kubeconfig: PathBuf,
    /// Certificates that are requested from the API server.
    pub(crate) certificates: CertificateConfig,
    /// Create the Node object if it does not exist.
    pub(crate) register: bool,
    /// Taints of a Node object that is created.
    pub(crate) taints: Vec<Taint>,
    /// Duration of the node lease.
    pub(crate) lease: Duration,
    /// How often the node status is compared with the Node object.
    pub(crate) check_every: Duration,
    /// How often an unchanged status is sent.
    pub(crate) report_every: Duration,
    /// Maximum number of images in the node status.
    pub(crate) images_max: usize,
}

/// `None`: the node is standalone.
pub(super) fn read(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> Option<ClusterConfig> {
    let (flags, file) = (inputs.flags, &inputs.file);
    let taints = taints(inputs, diagnostics);
    certificates::check_standalone(inputs, diagnostics);
    let kubeconfig = absolute(flags.kubeconfig.as_deref()?);
    let certificates = certificates::read(inputs, &kubeconfig, diagnostics);
    let register = flags.register_node.or(file.register_node).unwrap_or(true);
    let lease = diagnostics.integer("nodeLeaseDurationSeconds", file.node_lease_duration_seconds, 40, 1, 86_400);
    let images_max = match file.node_status_max_images {
        Some(-1) => usize::MAX,
        given => diagnostics.integer("nodeStatusMaxImages", given, 50, 0, 100_000),
    };
    // If only the update frequency is set, it is the report frequency too (Kubernetes: SetDefaults_KubeletConfiguration).
    let check_every = file.node_status_update_frequency.filter(|given| !given.is_zero());
    let report_every = file.node_status_report_frequency.filter(|given| !given.is_zero());
    Some(ClusterConfig {
        kubeconfig,
        certificates,
        register,
        taints,
        lease: Duration::from_secs(lease as u64),
        check_every: check_every.unwrap_or(Duration::from_secs(10)),
        report_every: report_every.or(check_every).unwrap_or(Duration::from_secs(300)),
        images_max,
    })
}

/// Proxies are not supported; a user who has set one should know.
pub(super) fn warn_about_proxies(
    inputs: &ConfigInputs<'_>,
    is_set: impl Fn(&str) -> bool,
    diagnostics: &mut Diagnostics,
) {
    let names = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
    let set: Vec<&str> = names.into_iter().filter(|name| is_set(name)).collect();
    if inputs.flags.kubeconfig.is_some() && !set.is_empty() {
        diagnostics.warning(&set.join(", "), "proxies are not supported; the API server is contacted directly");
    }
}

fn taints(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> Vec<Taint> {
    if inputs.flags.register_with_taints.is_empty() {
        let taints = inputs.file.register_with_taints.clone().unwrap_or_default();
        for taint in taints.iter().filter(|taint| !EFFECTS.contains(&taint.effect.as_str())) {
            let error = format!("the effect of {:?} must be {EFFECT_NAMES}", taint.key);
            diagnostics.error("registerWithTaints", error);
        }
        return taints;
    }
    let texts = inputs.flags.register_with_taints.iter().map(|text| text.trim()).filter(|text| !text.is_empty());
    let mut taints = vec![];
    for text in texts {
        match parse_taint(text) {
            Ok(taint) => taints.push(taint),
            Err(error) => diagnostics.error("--register-with-taints", format!("{text:?}: {error}")),
        }
    }
    taints
}

/// The labels every kubelet sets, and those of `--node-labels`.
pub(super) fn labels(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("kubernetes.io/arch".to_owned(), go_arch().to_owned()),
        ("kubernetes.io/hostname".to_owned(), inputs.hostname()),
        // Deprecated, but still set by every kubelet and used by old manifests.
        ("beta.kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("beta.kubernetes.io/arch".to_owned(), go_arch().to_owned()),
    ]);
    for pair in inputs.flags.node_labels.iter().filter(|pair| !pair.trim().is_empty()) {
        match parse_label(pair) {
            Ok((key, value)) => {
                labels.insert(key, value);
            }
            Err(error) => diagnostics.error("--node-labels", format!("{pair:?}: {error}")),
        }
    }
    labels
}

/// Why a label of `--node-labels` cannot be used.
#[derive(Debug, thiserror::Error)]
enum LabelError {
    #[error("must be KEY=VALUE")]
    Syntax,
    #[error("the key is not a valid label name")]
    Key,
    #[error("the value is not a valid label value")]
    Value,
    #[error("a node may not set this label of Kubernetes itself")]
    Restricted,
}

fn parse_label(pair: &str) -> Result<(String, String), LabelError> {
    let (key, value) = pair.split_once('=').ok_or(LabelError::Syntax)?;
    let (key, value) = (key.trim(), value.trim());
    let (prefix, name) = key.split_once('/').unwrap_or(("", key));
    if !is_name(name) || (key.contains('/') && !is_domain(prefix)) {
        return Err(LabelError::Key);
    }
    if !value.is_empty() && !is_name(value) {
        return Err(LabelError::Value);
    }
    if is_kubernetes(prefix) && !may_set(key, prefix) {
        // An API server with NodeRestriction would reject the whole Node object.
        return Err(LabelError::Restricted);
    }
    Ok((key.into(), value.into()))
}

fn is_kubernetes(prefix: &str) -> bool {
    ["kubernetes.io", "k8s.io"].iter().any(|own| prefix == *own || prefix.ends_with(&format!(".{own}")))
}

/// The labels in the domains of Kubernetes that a node may set (Kubernetes: `IsKubeletLabel`).
fn may_set(key: &str, prefix: &str) -> bool {
    const NAMED: [&str; 10] = [
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
    ];
    let of = |domain: &str| prefix == domain || prefix.ends_with(&format!(".{domain}"));
    NAMED.contains(&key) || of("kubelet.kubernetes.io") || of("node.kubernetes.io")
}

/// Why a taint of `--register-with-taints` cannot be used.
#[derive(Debug, thiserror::Error)]
enum TaintError {
    #[error("must be KEY=VALUE:EFFECT")]
    Syntax,
    #[error("the effect must be {EFFECT_NAMES}")]
    Effect,
    #[error("the key is not a valid taint key")]
    Key,
    #[error("the value is not a valid taint value")]
    Value,
}

/// Parses `KEY=VALUE:EFFECT` or `KEY:EFFECT`.
fn parse_taint(text: &str) -> Result<Taint, TaintError> {
    let (rest, effect) = text.rsplit_once(':').ok_or(TaintError::Syntax)?;
    let (key, value) = rest.split_once('=').map_or((rest, None), |(key, value)| (key, Some(value)));
    if !EFFECTS.contains(&effect) {
        return Err(TaintError::Effect);
    }
    let (prefix, name) = key.split_once('/').unwrap_or(("", key));
    if !is_name(name) || (key.contains('/') && !is_domain(prefix)) {
        return Err(TaintError::Key);
    }
    if value.is_some_and(|value| !value.is_empty() && !is_name(value)) {
        return Err(TaintError::Value);
    }
    let value = value.filter(|value| !value.is_empty()).map(ToOwned::to_owned);
    Ok(Taint { key: key.into(), value, effect: effect.into(), time_added: None })
}

/// Letters and digits at both ends; also dashes, dots and underscores between; at most 63 characters.
fn is_name(text: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.len() <= 63 && ends(text.bytes().next()) && ends(text.bytes().next_back()) && text.bytes().all(inner)
}

fn is_domain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|part| is_name(part) && !part.contains('_')) && text == text.to_lowercase()
}

/// The CPU architecture in the names of Go and Kubernetes.
pub(crate) fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const EFFECT_NAMES: &str = "NoSchedule, PreferNoSchedule or NoExecute";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_parsed_like_kubectl() {
        let read = parse_taint("example.com/a=b:NoSchedule").unwrap();
        assert_eq!(
            (read.key.as_str(), read.value.as_deref(), read.effect.as_str()),
            ("example.com/a", Some("b"), "NoSchedule")
        );
        assert_eq!(parse_taint("a:NoExecute").unwrap().value, None);
        for bad in ["a", "a=b", "a=b:Never", ":NoSchedule", "a b:NoSchedule", "a=b c:NoSchedule", "A/:NoExecute"] {
            parse_taint(bad).expect_err(bad);
        }
    }

    #[test]
    fn labels_are_checked_like_the_kubelet() {
        for good in ["a=b", "a=", "example.com/x=1", "node.kubernetes.io/role=x", "topology.kubernetes.io/zone=z"] {
            parse_label(good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for bad in ["a", "=b", "a b=c", "a=b c", "kubernetes.io/x=1", "node-role.kubernetes.io/worker=", "k8s.io/x=1"] {
            parse_label(bad).expect_err(bad);
        }
    }
}
