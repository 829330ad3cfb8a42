//! The API server's rules for pods, so that nothing strange reaches the hands.
//!
//! Pods from an API server were held to these rules there; manifests are held to them here. Every message says what to write
//! instead. Rules that only concern Windows, or volume plugins that no node agent here has, are not checked. The
//! pod has its defaults filled in; nothing said in a field that has a default is no error.

mod container;
mod devices;
mod downward;
mod handler;
mod names;
mod resources;
mod scheduling;
mod security;
mod spec;
mod update;
mod volume;

use std::fmt;
use std::net::IpAddr;

use crate::model::Pod;

pub use names::{is_dns_label, is_dns_subdomain};
pub use update::{validate_change, validate_pod_update};

/// One thing wrong with a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Where: `spec.containers[0].image`.
    pub path: String,
    /// What is wrong, and what to write instead.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Everything wrong with a pod; the first hundred things of it.
pub fn validate_pod(pod: &Pod) -> Vec<FieldError> {
    let mut findings = Findings::default();
    metadata(pod, &mut findings);
    match &pod.spec {
        Some(spec) => spec::check(spec, &mut findings),
        None => findings.add("spec", "must be given, with at least one container"),
    }
    findings.errors
}

fn metadata(pod: &Pod, findings: &mut Findings) {
    let meta = &pod.metadata;
    match meta.name.as_deref().unwrap_or_default() {
        "" => findings.add("metadata.name", "must be given"),
        name => names::subdomain(name, "metadata.name", findings),
    }
    if let Some(namespace) = meta.namespace.as_deref() {
        names::label(namespace, "metadata.namespace", findings);
    }
    for (key, value) in meta.labels.iter().flatten() {
        let at = format!("metadata.labels[{}]", shown(key));
        names::qualified(key, &at, findings);
        names::label_value(value, &at, findings);
    }
    for (i, finalizer) in meta.finalizers.iter().flatten().enumerate() {
        let at = format!("metadata.finalizers[{i}]");
        names::qualified(finalizer, &at, findings);
        if !finalizer.contains('/') && !["orphan", "foregroundDeletion", "kubernetes"].contains(&finalizer.as_str()) {
            findings.add(at, format!("{} must have a domain, as in example.com/name", shown(finalizer)));
        }
    }
    let mut size = 0;
    for (key, value) in meta.annotations.iter().flatten() {
        size += key.len() + value.len();
        names::qualified(&key.to_lowercase(), format!("metadata.annotations[{}]", shown(key)), findings);
    }
    if size > MAX_ANNOTATIONS {
        findings.add("metadata.annotations", format!("must not be larger than {MAX_ANNOTATIONS} bytes in all"));
    }
}

/// Collects what is wrong.
#[derive(Default)]
struct Findings {
    errors: Vec<FieldError>,
}

impl Findings {
    fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(FieldError { path: path.into(), message: message.into() });
        }
    }

    /// The value must be one of these, if it is given.
    fn one_of(&mut self, value: Option<&str>, allowed: &[&str], path: impl Into<String>) {
        if let Some(value) = value.filter(|value| !value.is_empty() && !allowed.contains(value)) {
            self.add(path, format!("{} must be one of {}", shown(value), allowed.join(", ")));
        }
    }

    /// As [`Self::one_of`], where an empty text is a value like any other.
    fn given_one_of(&mut self, value: Option<&str>, allowed: &[&str], path: impl Into<String>) {
        if let Some(value) = value.filter(|value| !allowed.contains(value)) {
            self.add(path, format!("{} must be one of {}", shown(value), allowed.join(", ")));
        }
    }

    fn at_least(&mut self, value: Option<i64>, least: i64, path: impl Into<String>) {
        if let Some(value) = value.filter(|value| *value < least) {
            self.add(path, format!("{value} must be at least {least}"));
        }
    }

    /// File permissions.
    fn mode(&mut self, mode: Option<i32>, path: impl Into<String>) {
        if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
            self.add(path, format!("{mode} must be file permissions between 0 and 0777 (decimal 511)"));
        }
    }

    /// A path that stays below where it begins.
    fn descending(&mut self, text: &str, path: &str) {
        if text.starts_with('/') {
            self.add(path, format!("{} must be relative: remove the leading /", shown(text)));
        }
        self.no_backsteps(text, path);
    }

    fn no_backsteps(&mut self, text: &str, path: &str) {
        if text.split('/').any(|part| part == "..") {
            self.add(path, format!("{} must not contain '..'", shown(text)));
        }
        if text.contains('\0') {
            self.add(path, "must not contain a zero byte");
        }
    }

    fn ip(&mut self, text: &str, path: impl Into<String>) {
        match text.parse::<IpAddr>() {
            Err(_) => self.add(path, format!("{} must be an IP address, such as 10.0.0.1 or fd00::1", shown(text))),
            Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => {
                self.add(path, format!("{} must be written as an IPv4 address", shown(text)));
            }
            Ok(_) => {}
        }
    }
}

/// A value for an error message: quoted, and not longer than a line.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    if short.len() < text.len() { format!("{short:?}…") } else { format!("{short:?}") }
}

/// Kubernetes: the total size of all annotations.
const MAX_ANNOTATIONS: usize = 256 * 1024;
/// Nobody reads more, and a hostile manifest could cause millions.
const MAX_ERRORS: usize = 100;

#[cfg(test)]
mod tests;
