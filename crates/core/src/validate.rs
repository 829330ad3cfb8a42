//! The API server's validation of pods, so that no invalid pod reaches the runtime.
//!
//! The API server validates its pods; manifests are validated here. Every message says what to write instead. Rules for Windows
//! and for volume plugins that are not supported are not checked. The pod has its defaults, so that an unset field with a default
//! is no error.

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

/// One validation error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field: `spec.containers[0].image`.
    pub path: String,
    /// What is wrong, and what to write instead.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// All validation errors of a pod, at most 100.
pub fn validate_pod(pod: &Pod) -> Vec<FieldError> {
    let mut errors = FieldErrors::default();
    metadata(pod, &mut errors);
    match &pod.spec {
        Some(spec) => spec::check(spec, &mut errors),
        None => errors.add("spec", "must be given, with at least one container"),
    }
    errors.errors
}

fn metadata(pod: &Pod, errors: &mut FieldErrors) {
    let meta = &pod.metadata;
    match meta.name.as_deref().unwrap_or_default() {
        "" => errors.add("metadata.name", "must be given"),
        name => names::subdomain(name, "metadata.name", errors),
    }
    if let Some(namespace) = meta.namespace.as_deref() {
        names::label(namespace, "metadata.namespace", errors);
    }
    for (key, value) in meta.labels.iter().flatten() {
        let at = format!("metadata.labels[{}]", quoted(key));
        names::qualified(key, &at, errors);
        names::label_value(value, &at, errors);
    }
    for (i, finalizer) in meta.finalizers.iter().flatten().enumerate() {
        let at = format!("metadata.finalizers[{i}]");
        names::qualified(finalizer, &at, errors);
        if !finalizer.contains('/') && !["orphan", "foregroundDeletion", "kubernetes"].contains(&finalizer.as_str()) {
            errors.add(at, format!("{} must have a domain, as in example.com/name", quoted(finalizer)));
        }
    }
    let mut size = 0;
    for (key, value) in meta.annotations.iter().flatten() {
        size += key.len() + value.len();
        names::qualified(&key.to_lowercase(), format!("metadata.annotations[{}]", quoted(key)), errors);
    }
    if size > MAX_ANNOTATIONS {
        errors.add("metadata.annotations", format!("must not be larger than {MAX_ANNOTATIONS} bytes in all"));
    }
}

/// Collects validation errors.
#[derive(Default)]
struct FieldErrors {
    errors: Vec<FieldError>,
}

impl FieldErrors {
    fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(FieldError { path: path.into(), message: message.into() });
        }
    }

    /// The value, if not empty, must be one of these.
    fn one_of(&mut self, value: Option<&str>, allowed: &[&str], path: impl Into<String>) {
        if let Some(value) = value.filter(|value| !value.is_empty() && !allowed.contains(value)) {
            self.add(path, format!("{} must be one of {}", quoted(value), allowed.join(", ")));
        }
    }

    /// As [`Self::one_of`], but an empty value is an error.
    fn set_one_of(&mut self, value: Option<&str>, allowed: &[&str], path: impl Into<String>) {
        if let Some(value) = value.filter(|value| !allowed.contains(value)) {
            self.add(path, format!("{} must be one of {}", quoted(value), allowed.join(", ")));
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

    /// A relative path without `..`.
    fn relative_path(&mut self, text: &str, path: &str) {
        if text.starts_with('/') {
            self.add(path, format!("{} must be relative: remove the leading /", quoted(text)));
        }
        self.no_parent_components(text, path);
    }

    fn no_parent_components(&mut self, text: &str, path: &str) {
        if text.split('/').any(|part| part == "..") {
            self.add(path, format!("{} must not contain '..'", quoted(text)));
        }
        if text.contains('\0') {
            self.add(path, "must not contain a zero byte");
        }
    }

    fn ip(&mut self, text: &str, path: impl Into<String>) {
        match text.parse::<IpAddr>() {
            Err(_) => self.add(path, format!("{} must be an IP address, such as 10.0.0.1 or fd00::1", quoted(text))),
            Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => {
                self.add(path, format!("{} must be written as an IPv4 address", quoted(text)));
            }
            Ok(_) => {}
        }
    }
}

/// A value in an error message: quoted, at most 60 characters.
fn quoted(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    if short.len() < text.len() { format!("{short:?}…") } else { format!("{short:?}") }
}

/// Kubernetes: the total size of all annotations.
const MAX_ANNOTATIONS: usize = 256 * 1024;
/// Bound for hostile manifests, which could cause millions of errors.
const MAX_ERRORS: usize = 100;

#[cfg(test)]
mod tests;
