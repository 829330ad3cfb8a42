//! Syntax of names.

use super::{FieldErrors, quoted};

/// An RFC 1123 label: lower case letters, digits and dashes, at most 63.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_label_of_any_length(text)
}

/// An RFC 1123 subdomain: labels joined by dots, at most 253.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label_of_any_length)
}

fn is_label_of_any_length(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    edge(text.as_bytes().first())
        && edge(text.as_bytes().last())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

pub(super) fn label(text: &str, path: impl Into<String>, errors: &mut FieldErrors) {
    if !is_dns_label(text) {
        let text = quoted(text);
        errors.add(
            path,
            format!("{text} must be at most 63 lower case letters, digits and '-', beginning and ending with a letter or digit"),
        );
    }
}

pub(super) fn subdomain(text: &str, path: impl Into<String>, errors: &mut FieldErrors) {
    if !is_dns_subdomain(text) {
        let text = quoted(text);
        errors.add(
            path,
            format!("{text} must be at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends of each part"),
        );
    }
}

/// `name` or `prefix/name`, as the keys of labels and annotations.
pub(super) fn qualified(text: &str, path: impl Into<String>, errors: &mut FieldErrors) {
    if !is_qualified(text) {
        let text = quoted(text);
        errors.add(
            path,
            format!(
                "{text} must be a name of at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, \
                 and an optional DNS name before it, as in example.com/name"
            ),
        );
    }
}

pub(super) fn is_qualified(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    prefix.is_none_or(is_dns_subdomain) && !name.is_empty() && is_label_value(name)
}

pub(super) fn label_value(text: &str, path: impl Into<String>, errors: &mut FieldErrors) {
    if !is_label_value(text) {
        let text = quoted(text);
        errors.add(
            path,
            format!("the value {text} must be at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"),
        );
    }
}

fn is_label_value(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    text.len() <= 63
        && edge(text.as_bytes().first())
        && edge(text.as_bytes().last())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// An IANA service name.
pub(super) fn port_name(text: &str, path: impl Into<String>, errors: &mut FieldErrors) {
    let good = (1..=15).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && text.bytes().any(|b| b.is_ascii_lowercase())
        && !text.contains("--")
        && !text.starts_with('-')
        && !text.ends_with('-');
    if !good {
        let text = quoted(text);
        errors.add(
            path,
            format!("{text} must be at most 15 lower case letters, digits and single '-', with at least one letter, not beginning or ending with '-'"),
        );
    }
}

pub(super) fn port_number(port: i32, path: impl Into<String>, errors: &mut FieldErrors) {
    if !(1..=65535).contains(&port) {
        errors.add(path, format!("{port} must be a port between 1 and 65535"));
    }
}

/// An environment variable: printable ASCII without '='.
pub(super) fn environment(text: &str, path: impl Into<String>, errors: &mut FieldErrors) {
    if text.is_empty() || !text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        let text = quoted(text);
        errors.add(path, format!("{text} must be printable ASCII characters other than '='"));
    }
}

/// A key of a ConfigMap or Secret, which may become the name of a file.
pub(super) fn config_key(text: &str, path: impl Into<String>, errors: &mut FieldErrors) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if text.is_empty() || text.len() > 253 || text == "." || text.starts_with("..") || !text.bytes().all(plain) {
        let text = quoted(text);
        errors.add(
            path,
            format!("{text} must be at most 253 letters, digits, '-', '_' and '.', not beginning with '..'"),
        );
    }
}
