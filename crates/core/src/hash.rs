//! The hash of a container, which detects that a running instance differs from its spec.
//!
//! A node may switch between the Go kubelet and this agent, so the hash in `io.kubernetes.container.hash` is the Go kubelet's own
//! (`HashContainer`, since 1.31): FNV-1a over the debug print of the JSON bytes of name and image. That print is
//! `([]uint8)[123 34 … 125]`: the type, then every byte in decimal. Only name and image count: no other field
//! of a container may change while it exists.

use std::fmt::Write;

use crate::model::Container;

/// The value of the annotation: hexadecimal, without leading zeros.
pub fn container_hash(container: &Container) -> String {
    let json = go_json(&container.name, container.image.as_deref().unwrap_or_default());
    let mut hash = fnv1a(START, b"([]uint8)[");
    for (i, byte) in json.bytes().enumerate() {
        if i > 0 {
            hash = fnv1a(hash, b" ");
        }
        let digits = [byte / 100, byte / 10 % 10, byte % 10].map(|digit| b'0' + digit);
        let zeros = usize::from(byte < 100) + usize::from(byte < 10);
        hash = fnv1a(hash, &digits[zeros..]);
    }
    format!("{:x}", fnv1a(hash, b"]"))
}

/// `{"image":…,"name":…}` as Go's encoder writes it: keys sorted, HTML characters escaped.
fn go_json(name: &str, image: &str) -> String {
    format!("{{\"image\":{},\"name\":{}}}", go_string(image), go_string(name))
}

fn go_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                write!(out, "\\u{:04x}", u32::from(c)).expect("writing to a string");
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Offset basis of 32-bit FNV-1a.
pub(crate) const START: u32 = 0x811c_9dc5;

/// Continues FNV-1a with more bytes.
pub(crate) fn fnv1a(hash: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made with Go 1.26 and go-spew 1.1.1, the printer settings of `k8s.io/utils/dump.ForHash`.
    #[test]
    fn the_hash_is_the_go_kubelets() {
        for (name, image, hash) in [
            ("", "", "edd67cc4"),
            ("web", "nginx", "9690f4d"),
            ("test-container", "registry.k8s.io/pause:3.10", "4ae5e3ea"),
            ("a", "b", "646fef1b"),
            ("foo", "bar@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "632dd9a1"),
            ("sidecar", "localhost:5000/team/app:v1.2.3", "447f13dc"),
            (
                "we<ird>&",
                "quo\"te\\ \u{e9} \u{2028} \u{2029} tab\t nl\n cr\r bs\u{8} ff\u{c} del\u{7f} ctl\u{1} \u{1f600}",
                "a1343391",
            ),
        ] {
            let container = Container { name: name.into(), image: Some(image.into()), ..Container::default() };
            assert_eq!(container_hash(&container), hash, "{name} {image}");
        }
    }

    #[test]
    fn only_name_and_image_count() {
        let plain = Container { name: "web".into(), image: Some("nginx".into()), ..Container::default() };
        let more = Container { command: Some(vec!["x".into()]), tty: Some(true), ..plain.clone() };
        assert_eq!(container_hash(&plain), container_hash(&more));
        assert_ne!(container_hash(&plain), container_hash(&Container { image: Some("nginx:1".into()), ..plain }));
    }
}
