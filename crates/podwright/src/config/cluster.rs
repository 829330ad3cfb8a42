//! What makes this machine a node of a cluster: how to reach it, and what the node's object is made with.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;

use super::reader::{Reader, absolute};

/// The cluster a node belongs to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cluster {
    pub(crate) kubeconfig: PathBuf,
    /// Make the node's object if there is none.
    pub(crate) register: bool,
    /// What it is made with.
    pub(crate) taints: Vec<Taint>,
    /// For so long a renewed lease says that the node is alive.
    pub(crate) lease: Duration,
    /// The node's object is compared so often.
    pub(crate) check_every: Duration,
    /// A status that does not change is sent so often.
    pub(crate) report_every: Duration,
    /// The status names so many images.
    pub(crate) images_max: usize,
}

impl Reader<'_> {
    /// `None`: the node stands alone.
    pub(super) fn cluster(&mut self) -> Option<Cluster> {
        let taints = self.taints();
        let kubeconfig = absolute(self.flags.kubeconfig.as_deref()?);
        if let Err(error) = podwright_api::Kubeconfig::read(&kubeconfig) {
            self.errors.push(format!("--kubeconfig: {error}"));
        }
        let register = self.flags.register_node.or(self.file.register_node).unwrap_or(true);
        let lease = self.whole("nodeLeaseDurationSeconds", self.file.node_lease_duration_seconds, 40, 1, 86_400);
        let images_max = match self.file.node_status_max_images {
            Some(-1) => usize::MAX,
            given => self.whole("nodeStatusMaxImages", given, 50, 0, 100_000),
        };
        // Who says how often to compare, and not how often to send, means both (Kubernetes: SetDefaults_KubeletConfiguration).
        let check_every = self.file.node_status_update_frequency.filter(|given| !given.is_zero());
        let report_every = self.file.node_status_report_frequency.filter(|given| !given.is_zero());
        Some(Cluster {
            kubeconfig,
            register,
            taints,
            lease: Duration::from_secs(lease as u64),
            check_every: check_every.unwrap_or(Duration::from_secs(10)),
            report_every: report_every.or(check_every).unwrap_or(Duration::from_secs(300)),
            images_max,
        })
    }

    /// Proxies are not used, and whoever has set one should know before wondering.
    pub(super) fn proxies(&mut self, is_set: impl Fn(&str) -> bool) {
        let named = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
        let set: Vec<&str> = named.into_iter().filter(|name| is_set(name)).collect();
        if self.flags.kubeconfig.is_some() && !set.is_empty() {
            let names = set.join(", ");
            self.warnings.push(format!("{names}: the API server is reached directly, proxies are not supported"));
        }
    }

    fn taints(&mut self) -> Vec<Taint> {
        if self.flags.register_with_taints.is_empty() {
            let taints = self.file.register_with_taints.clone().unwrap_or_default();
            for taint in taints.iter().filter(|taint| !EFFECTS.contains(&taint.effect.as_str())) {
                self.errors.push(format!("registerWithTaints: the effect of {:?} must be {EFFECT_NAMES}", taint.key));
            }
            return taints;
        }
        let texts = self.flags.register_with_taints.iter().map(|text| text.trim()).filter(|text| !text.is_empty());
        let (mut taints, mut errors) = (vec![], vec![]);
        for text in texts {
            match taint(text) {
                Ok(taint) => taints.push(taint),
                Err(error) => errors.push(format!("--register-with-taints: {text:?}: {error}")),
            }
        }
        self.errors.append(&mut errors);
        taints
    }

    /// Kubernetes' own labels, and those of the user.
    pub(super) fn labels(&mut self) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::from([
            ("kubernetes.io/os".to_owned(), "linux".to_owned()),
            ("kubernetes.io/arch".to_owned(), go_arch().to_owned()),
            ("kubernetes.io/hostname".to_owned(), self.node_name_quietly()),
            // Old manifests select by these, and every kubelet has them.
            ("beta.kubernetes.io/os".to_owned(), "linux".to_owned()),
            ("beta.kubernetes.io/arch".to_owned(), go_arch().to_owned()),
        ]);
        for pair in self.flags.node_labels.iter().filter(|pair| !pair.trim().is_empty()) {
            match label(pair) {
                Ok((key, value)) => {
                    labels.insert(key, value);
                }
                Err(error) => self.errors.push(format!("--node-labels: {pair:?} {error}")),
            }
        }
        labels
    }
}

fn label(pair: &str) -> Result<(String, String), String> {
    let (key, value) = pair.split_once('=').ok_or("must be KEY=VALUE")?;
    let (key, value) = (key.trim(), value.trim());
    let (prefix, name) = key.split_once('/').unwrap_or(("", key));
    if !is_word(name) || (key.contains('/') && !is_domain(prefix)) {
        return Err("must be KEY=VALUE: the key is no label's name".into());
    }
    if !value.is_empty() && !is_word(value) {
        return Err("has a value that no label can have".into());
    }
    if is_kubernetes(prefix) && !may_set(key, prefix) {
        // An API server with NodeRestriction would refuse the whole node because of it.
        return Err("is a label of Kubernetes that a node may not give itself".into());
    }
    Ok((key.into(), value.into()))
}

fn is_kubernetes(prefix: &str) -> bool {
    ["kubernetes.io", "k8s.io"].iter().any(|own| prefix == *own || prefix.ends_with(&format!(".{own}")))
}

/// Kubernetes: labels of its own domains that a node may set.
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

/// `KEY=VALUE:EFFECT`, `KEY:EFFECT`.
fn taint(text: &str) -> Result<Taint, String> {
    let (rest, effect) = text.rsplit_once(':').ok_or("must be KEY=VALUE:EFFECT")?;
    let (key, value) = rest.split_once('=').map_or((rest, None), |(key, value)| (key, Some(value)));
    if !EFFECTS.contains(&effect) {
        return Err(format!("the effect must be {EFFECT_NAMES}"));
    }
    let (prefix, name) = key.split_once('/').unwrap_or(("", key));
    if !is_word(name) || (key.contains('/') && !is_domain(prefix)) {
        return Err("the key is no taint's name".into());
    }
    if value.is_some_and(|value| !value.is_empty() && !is_word(value)) {
        return Err("has a value that no taint can have".into());
    }
    let value = value.filter(|value| !value.is_empty()).map(ToOwned::to_owned);
    Ok(Taint { key: key.into(), value, effect: effect.into(), time_added: None })
}

/// Letters and digits at both ends; dashes, dots and underscores between.
fn is_word(text: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.len() <= 63 && ends(text.bytes().next()) && ends(text.bytes().next_back()) && text.bytes().all(inner)
}

fn is_domain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|part| is_word(part) && !part.contains('_')) && text == text.to_lowercase()
}

/// The processor as Go, and so Kubernetes, calls it.
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
    fn taints_are_read_as_kubectl_writes_them() {
        let read = taint("example.com/a=b:NoSchedule").unwrap();
        assert_eq!(
            (read.key.as_str(), read.value.as_deref(), read.effect.as_str()),
            ("example.com/a", Some("b"), "NoSchedule")
        );
        assert_eq!(taint("a:NoExecute").unwrap().value, None);
        for bad in ["a", "a=b", "a=b:Never", ":NoSchedule", "a b:NoSchedule", "a=b c:NoSchedule", "A/:NoExecute"] {
            taint(bad).expect_err(bad);
        }
    }

    #[test]
    fn labels_are_checked_as_the_kubelet_does() {
        for good in ["a=b", "a=", "example.com/x=1", "node.kubernetes.io/role=x", "topology.kubernetes.io/zone=z"] {
            label(good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for bad in ["a", "=b", "a b=c", "a=b c", "kubernetes.io/x=1", "node-role.kubernetes.io/worker=", "k8s.io/x=1"] {
            label(bad).expect_err(bad);
        }
    }
}
