//! Keys of registry credentials: a host with wildcards and an optional path, matched to images as in the Go kubelet.

/// `https://r.example/v1/team` becomes `r.example/team`. `None`: the key has no host or is too long.
pub(super) fn normalize_key(key: &str) -> Option<String> {
    let bare = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let (host, path) = bare.split_once('/').unwrap_or((bare, ""));
    let path = match path.split_once('/') {
        Some(("v1" | "v2", rest)) => rest,
        _ => path,
    };
    let path = path.trim_end_matches('/');
    if host.is_empty() || bare.len() > KEY_BYTES_MAX {
        return None;
    }
    Some(if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") })
}

/// Matches the host label by label with wildcards, and the path as a prefix that may end within a component (Go kubelet:
/// `URLsMatch`).
pub(super) fn key_matches(key: &str, target: &str) -> bool {
    let (key_host, key_path) = key.split_once('/').unwrap_or((key, ""));
    let (host, path) = target.split_once('/').unwrap_or((target, ""));
    let split = |host: &str| match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name.to_owned(), port.to_owned()),
        _ => (host.to_owned(), String::new()),
    };
    let ((key_name, key_port), (name, port)) = (split(key_host), split(host));
    let hosts_match = key_port == port
        && key_name.split('.').count() == name.split('.').count()
        && key_name.split('.').zip(name.split('.')).all(|(glob, part)| glob_match(glob.as_bytes(), part.as_bytes()));
    hosts_match && path.starts_with(key_path)
}

/// `*` matches any text, `?` one byte. Remembers only the last `*`: an earlier one never needs to match more, so the time is at most
/// the product of the two lengths.
fn glob_match(glob: &[u8], text: &[u8]) -> bool {
    let (mut g, mut t) = (0, 0);
    // The position after the last `*`, and where in the text its match ends.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match glob.get(g) {
            Some(b'*') => {
                g += 1;
                star = Some((g, t));
            }
            Some(c) if *c == b'?' || *c == text[t] => {
                g += 1;
                t += 1;
            }
            _ => {
                let Some((after, end)) = star else { return false };
                g = after;
                t = end + 1;
                star = Some((after, end + 1));
            }
        }
    }
    glob[g..].iter().all(|c| *c == b'*')
}

/// Longer keys are not used. An image name has at most 255 characters, so a longer key consists of wildcards.
const KEY_BYTES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn keys_match_hosts_and_prefixes_of_paths() {
        let table = [
            ("r.example", "r.example/a/b", true),
            ("r.example/a", "r.example/a/b", true),
            ("r.example/a", "r.example/ab", true),
            ("r.example/ab", "r.example/a", false),
            ("*.example", "r.example/a", true),
            ("*.example", "x.r.example/a", false),
            ("r*.example", "reg.example/a", true),
            ("r.example:5000", "r.example/a", false),
            ("r.example:5000", "r.example:5000/a", true),
            ("*", "r.example/a", false),
            ("other.example", "r.example/a", false),
        ];
        for (key, target, expected) in table {
            assert_eq!(key_matches(key, target), expected, "{key} {target}");
        }
        assert_eq!(normalize_key("https://index.docker.io/v1/").as_deref(), Some("index.docker.io"));
        assert_eq!(normalize_key("http://r.example/v2/team/").as_deref(), Some("r.example/team"));
        assert_eq!(normalize_key("https://"), None);
        assert_eq!(normalize_key(&"*".repeat(KEY_BYTES_MAX + 1)), None);
        assert!(normalize_key(&"a".repeat(KEY_BYTES_MAX)).is_some());
    }

    #[test]
    fn a_key_with_many_wildcards_is_matched_in_bounded_time() {
        let began = Instant::now();
        let target = format!("{}.example/app", "a".repeat(200));
        let key = format!("{}b.example", "*a".repeat(20));
        assert!(!key_matches(&key, &target));
        assert!(key_matches(&format!("{}*.example", "*a".repeat(20)), &target));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }

    #[test]
    fn wildcards_match_within_one_label() {
        let table = [
            ("", "", true),
            ("*", "", true),
            ("**", "abc", true),
            ("a*", "a", true),
            ("*c", "abcbc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("?b", "ab", true),
            ("?", "", false),
            ("*?", "", false),
            ("*?", "x", true),
            ("ab", "abc", false),
        ];
        for (glob, text, expected) in table {
            assert_eq!(glob_match(glob.as_bytes(), text.as_bytes()), expected, "{glob} {text}");
        }
    }
}
