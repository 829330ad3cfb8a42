//! Values of `fieldRef` and `resourceFieldRef`, for environment variables and for files of downwardAPI volumes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podwright_core::model::{Pod, find_container};
use podwright_core::quantity::{Amount, QuantityError};

use super::{is_host_network, pod_name, pod_namespace, pod_uid};

/// The node's allocatable resources: the reported limit of a container without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocatable {
    /// Thousandths of a core.
    pub cpu_millis: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes.
    pub ephemeral_storage: i64,
}

/// A reference without a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldRefError {
    /// A field path that Kubernetes does not offer.
    #[error("unsupported fieldPath: {0}")]
    Unsupported(String),
    /// A subscript after a field that is not a map.
    #[error("fieldPath {0:?} does not support subscript")]
    NotAMap(String),
    /// A subscript that is not a qualified name.
    #[error("invalid key subscript in {0}")]
    InvalidKey(String),
    /// The pod has no container of this name.
    #[error("container {0} not found")]
    NoContainer(String),
    /// A resource that Kubernetes does not offer.
    #[error("unsupported container resource: {0}")]
    UnsupportedResource(String),
    /// A limit, request or divisor that is not a quantity.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
}

/// The value of a `fieldRef` in an environment variable. `ips` are the pod's addresses.
pub(crate) fn field_value(
    pod: &Pod,
    path: &str,
    ips: &[String],
    host_ips: &[String],
    node_name: &str,
) -> Result<String, FieldRefError> {
    let spec = pod.spec.as_ref();
    Ok(match path {
        "spec.nodeName" => {
            let given = spec.and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty());
            given.unwrap_or(node_name).into()
        }
        "spec.serviceAccountName" => spec.and_then(|s| s.service_account_name.clone()).unwrap_or_default(),
        "status.hostIP" => host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => host_ips.join(","),
        "status.podIP" => pod_ips(pod, ips, host_ips).first().copied().unwrap_or_default().into(),
        "status.podIPs" => pod_ips(pod, ips, host_ips).join(","),
        path => return metadata_value(pod, path),
    })
}

/// The pod's addresses. A pod on the host network has those of the node, at most one of each family (Go kubelet:
/// `generateAPIPodStatus`).
fn pod_ips<'a>(pod: &Pod, ips: &'a [String], host_ips: &'a [String]) -> Vec<&'a str> {
    if !ips.is_empty() || !is_host_network(pod) {
        return ips.iter().map(String::as_str).collect();
    }
    let is_v6 = |ip: &str| ip.contains(':');
    let first = host_ips.first().map(String::as_str);
    let second = host_ips.get(1).map(String::as_str).filter(|ip| first.is_some_and(|first| is_v6(first) != is_v6(ip)));
    first.into_iter().chain(second).collect()
}

/// The value of a `fieldRef` in a downwardAPI volume, which offers metadata only (Go kubelet: `ExtractFieldPathAsString`).
pub(crate) fn metadata_value(pod: &Pod, path: &str) -> Result<String, FieldRefError> {
    let meta = &pod.metadata;
    if let Some((map, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let map = match map {
            "metadata.annotations" => &meta.annotations,
            "metadata.labels" => &meta.labels,
            _ => return Err(FieldRefError::NotAMap(path.into())),
        };
        if !is_qualified_name(key) {
            return Err(FieldRefError::InvalidKey(path.into()));
        }
        return Ok(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.annotations" => lines(meta.annotations.as_ref()),
        "metadata.labels" => lines(meta.labels.as_ref()),
        "metadata.name" => pod_name(pod).into(),
        "metadata.namespace" => pod_namespace(pod).into(),
        "metadata.uid" => pod_uid(pod).into(),
        _ => return Err(FieldRefError::Unsupported(path.into())),
    })
}

/// The value of a `resourceFieldRef`: a request or limit of a container in units of the divisor, rounded up.
pub(crate) fn resource_value(
    pod: &Pod,
    container: &str,
    resource: &str,
    divisor: Option<&Quantity>,
    node: &Allocatable,
) -> Result<String, FieldRefError> {
    let found = find_container(pod, container).ok_or_else(|| FieldRefError::NoContainer(container.into()))?;
    let unsupported = || FieldRefError::UnsupportedResource(resource.into());
    let (kind, name) = resource.split_once('.').ok_or_else(unsupported)?;
    let known = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    if !known || !matches!(kind, "limits" | "requests") {
        return Err(unsupported());
    }
    let own = amount_of(found.container.resources.as_ref(), kind, name)?.filter(|a| !a.is_zero());
    // A container without a limit has that of its pod (Go kubelet: `defaultPodLimitsForDownwardAPI`).
    let of_pod = match (own, kind, name) {
        (None, "limits", "cpu" | "memory") => {
            amount_of(pod.spec.as_ref().and_then(|s| s.resources.as_ref()), kind, name)?
        }
        _ => None,
    };
    let amount = own.or(of_pod.filter(|a| !a.is_zero()));
    let is_cpu = name == "cpu";
    let value = match (amount, kind, name) {
        (Some(amount), ..) if is_cpu => amount.milli_value(),
        (Some(amount), ..) => amount.value(),
        (None, "limits", "cpu") => node.cpu_millis,
        (None, "limits", "memory") => node.memory,
        (None, "limits", "ephemeral-storage") => node.ephemeral_storage,
        (None, ..) => 0,
    };
    let divisor = match divisor.map(Amount::try_from).transpose()?.filter(|d| !d.is_zero()) {
        Some(divisor) => divisor,
        None => Amount::from_whole(1),
    };
    let divisor = if is_cpu { divisor.milli_value() } else { divisor.value() };
    Ok(div_up(value, divisor).to_string())
}

fn amount_of(
    resources: Option<&ResourceRequirements>,
    kind: &str,
    name: &str,
) -> Result<Option<Amount>, FieldRefError> {
    let Some(resources) = resources else { return Ok(None) };
    let map = if kind == "limits" { &resources.limits } else { &resources.requests };
    Ok(map.as_ref().and_then(|m| m.get(name)).map(Amount::try_from).transpose()?)
}

/// Rounds up. `by` is not zero: the caller replaces a zero divisor with one.
fn div_up(value: i64, by: i64) -> i64 {
    let (value, by) = (i128::from(value), i128::from(by));
    let up = i128::from(value % by != 0 && (value < 0) == (by < 0));
    i64::try_from(value / by + up).unwrap_or(i64::MAX)
}

/// `key="value"` lines, sorted by key, without a trailing newline.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map.into_iter().flatten().map(|(k, v)| format!("{k}={}", quoted(v))).collect();
    lines.join("\n")
}

/// A string as Go's `%q` writes it, which programs that read these files expect.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        let short = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\u{7}' => "\\a",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{b}' => "\\v",
            _ => "",
        };
        // In addition to control characters: other spaces, formatting characters, private use.
        let invisible = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{e0000}'..);
        let unprintable = c.is_control() || invisible || (c.is_whitespace() && c != ' ');
        // Writing to a string cannot fail.
        let _ = match u32::from(c) {
            _ if !short.is_empty() => write!(out, "{short}"),
            _ if !unprintable => write!(out, "{c}"),
            n @ ..0x80 => write!(out, "\\x{n:02x}"),
            n @ ..0x1_0000 => write!(out, "\\u{n:04x}"),
            n => write!(out, "\\U{n:08x}"),
        };
    }
    out.push('"');
    out
}

/// Whether a key of a label or annotation has the form `[prefix/]name`; annotations may have capitals in the prefix.
fn is_qualified_name(key: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_alphanumeric();
    let is_name = |name: &str, max: usize, others: &[u8]| {
        let bytes = name.as_bytes();
        bytes.len() <= max
            && bytes.first().is_some_and(|b| alphanumeric(*b))
            && bytes.last().is_some_and(|b| alphanumeric(*b))
            && bytes.iter().all(|b| alphanumeric(*b) || others.contains(b))
    };
    match key.split_once('/') {
        Some((prefix, name)) => is_name(prefix, 253, b"-.") && is_name(name, 63, b"-_."),
        None => is_name(key, 63, b"-_."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NODE: Allocatable = Allocatable { cpu_millis: 2500, memory: 1 << 30, ephemeral_storage: 1 << 20 };

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u1",
                "labels": {"tier": "front", "app": "web"},
                "annotations": {"note": "a \"quoted\"\nline\u{1}é\u{200b}", "example.com/Owner": "me"},
            },
            "spec": {
                "serviceAccountName": "robot",
                "containers": [
                    {"name": "app", "resources": {
                        "limits": {"cpu": "1500m", "memory": "100Mi", "hugepages-2Mi": "4Mi"},
                        "requests": {"cpu": "250m"}}},
                    {"name": "bare"},
                ],
            },
        }))
        .unwrap()
    }

    #[test]
    fn the_addresses_of_a_pod_on_the_host_network_are_those_of_the_node() {
        let mut pod = pod();
        let host_ips = ["192.0.2.1".to_owned(), "2001:db8::1".to_owned()];
        let value = |pod: &Pod, path: &str, host_ips: &[String]| field_value(pod, path, &[], host_ips, "n").unwrap();
        assert_eq!(value(&pod, "status.podIP", &host_ips), "", "not known yet");
        pod.spec.as_mut().unwrap().host_network = Some(true);
        assert_eq!(value(&pod, "status.podIP", &host_ips), "192.0.2.1");
        assert_eq!(value(&pod, "status.podIPs", &host_ips), "192.0.2.1,2001:db8::1");
        let same_family = ["192.0.2.1".to_owned(), "192.0.2.2".to_owned()];
        assert_eq!(value(&pod, "status.podIPs", &same_family), "192.0.2.1");
    }

    #[test]
    fn field_refs_have_the_values_of_the_pod() {
        let ips = ["10.0.0.5".to_owned(), "fd00::5".to_owned()];
        let host_ips = ["192.0.2.1".to_owned(), "2001:db8::1".to_owned()];
        for (path, value) in [
            ("metadata.name", "web"),
            ("metadata.namespace", "shop"),
            ("metadata.uid", "u1"),
            ("metadata.labels['app']", "web"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations['example.com/Owner']", "me"),
            ("metadata.labels", "app=\"web\"\ntier=\"front\""),
            ("spec.nodeName", "node-1"),
            ("spec.serviceAccountName", "robot"),
            ("status.hostIP", "192.0.2.1"),
            ("status.hostIPs", "192.0.2.1,2001:db8::1"),
            ("status.podIP", "10.0.0.5"),
            ("status.podIPs", "10.0.0.5,fd00::5"),
        ] {
            assert_eq!(field_value(&pod(), path, &ips, &host_ips, "node-1").as_deref(), Ok(value), "{path}");
        }
        assert_eq!(
            metadata_value(&pod(), "metadata.annotations").unwrap(),
            "example.com/Owner=\"me\"\nnote=\"a \\\"quoted\\\"\\nline\\x01é\\u200b\""
        );
    }

    #[test]
    fn unsupported_field_paths_are_rejected() {
        for path in
            ["spec.containers", "metadata.labels['']", "metadata.labels['a b']", "spec['x']", "status.podIP", ""]
        {
            assert!(metadata_value(&pod(), path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_pod_level_limit_takes_precedence_over_the_nodes_allocatable() {
        let mut pod = pod();
        let whole = json!({"limits": {"cpu": "2", "memory": "0", "hugepages-2Mi": "2Mi"}, "requests": {"cpu": "1"}});
        pod.spec.as_mut().unwrap().resources = Some(serde_json::from_value(whole).unwrap());
        let value = |container, resource| resource_value(&pod, container, resource, None, &NODE).unwrap();
        assert_eq!(value("bare", "limits.cpu"), "2");
        assert_eq!(value("bare", "limits.memory"), (1 << 30).to_string(), "zero is no limit");
        assert_eq!(value("app", "limits.memory"), "104857600", "the container's own limit takes precedence");
        assert_eq!(value("bare", "limits.hugepages-2Mi"), "0");
        assert_eq!(value("bare", "requests.cpu"), "0");
    }

    #[test]
    fn resource_field_refs_are_divided_and_rounded_up() {
        let value = |container, resource, divisor: Option<&str>| {
            let divisor = divisor.map(|d| Quantity(d.into()));
            resource_value(&pod(), container, resource, divisor.as_ref(), &NODE)
        };
        for (container, resource, divisor, expected) in [
            ("app", "limits.cpu", None, "2"),
            ("app", "limits.cpu", Some("1m"), "1500"),
            ("app", "limits.cpu", Some("0"), "2"),
            ("app", "requests.cpu", Some("100m"), "3"),
            ("app", "limits.memory", None, "104857600"),
            ("app", "limits.memory", Some("1Mi"), "100"),
            ("app", "limits.memory", Some("1G"), "1"),
            ("app", "limits.hugepages-2Mi", Some("1Mi"), "4"),
            ("app", "requests.memory", None, "0"),
            ("bare", "limits.cpu", None, "3"),
            ("bare", "limits.memory", Some("1Gi"), "1"),
            ("bare", "limits.ephemeral-storage", None, "1048576"),
            ("bare", "limits.hugepages-2Mi", None, "0"),
            ("bare", "requests.cpu", None, "0"),
        ] {
            assert_eq!(
                value(container, resource, divisor).as_deref(),
                Ok(expected),
                "{container} {resource} {divisor:?}"
            );
        }
        for (container, resource) in [("none", "limits.cpu"), ("app", "limits.gpu"), ("app", "cpu"), ("app", "x.cpu")] {
            assert!(value(container, resource, None).is_err(), "{container} {resource}");
        }
        assert!(matches!(value("app", "limits.cpu", Some("many")), Err(FieldRefError::Quantity(_))));
    }
}
