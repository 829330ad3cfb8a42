//! Image references: `[domain[:port]/]path[:tag][@digest]`, with the short forms of Docker.

/// A valid image reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RegistryImage {
    /// As given, with `:latest` added if it has neither tag nor digest.
    pub(super) full: String,
    /// The registry host; `docker.io` if none was given.
    pub(super) domain: String,
    /// The repository; on docker.io a name without a slash is in `library`.
    pub(super) path: String,
}

/// Validates a reference and adds the defaults.
pub(super) fn parse_reference(text: &str) -> Result<RegistryImage, &'static str> {
    let (name, digest) = match text.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (text, None),
    };
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return Err(INVALID);
    }
    // A colon before the last slash belongs to the port.
    let (name, tag) = match name.rsplit_once(':') {
        Some((before, tag)) if !tag.contains('/') => (before, Some(tag)),
        _ => (name, None),
    };
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err(INVALID);
    }
    if name.is_empty() {
        return Err(INVALID);
    }
    if name.len() == 64 && digest.is_none() && tag.is_none() && name.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err("invalid repository name, cannot specify 64-byte hexadecimal strings");
    }
    let (domain, path) = split_domain(name);
    if path.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err("invalid reference format: repository name must be lowercase");
    }
    if !is_domain(domain) || !path.split('/').all(is_component) {
        return Err(INVALID);
    }
    if domain.len() + 1 + path.len() > NAME_LEN_MAX {
        return Err("repository name must not be more than 255 characters");
    }
    let domain = if domain == "index.docker.io" { "docker.io" } else { domain };
    let path = if domain == "docker.io" && !path.contains('/') { format!("library/{path}") } else { path.to_owned() };
    let full = if tag.is_none() && digest.is_none() { format!("{text}:latest") } else { text.to_owned() };
    Ok(RegistryImage { full, domain: domain.to_owned(), path })
}

/// The name under which runtimes list an image: with domain and repository, and with its digest, else its tag. `None`: it is not a
/// valid reference.
pub(crate) fn canonical_image_name(text: &str) -> Option<String> {
    let RegistryImage { full, domain, path } = parse_reference(text).ok()?;
    if let Some((_, digest)) = full.split_once('@') {
        return Some(format!("{domain}/{path}@{digest}"));
    }
    let (_, tag) = full.rsplit_once(':')?;
    Some(format!("{domain}/{path}:{tag}"))
}

/// The first component is a domain if it contains a dot, a colon or upper case letters, or is `localhost`; else it is docker.io.
fn split_domain(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((first, rest))
            if first == "localhost" || first.contains(['.', ':']) || first.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            (first, rest)
        }
        _ => ("docker.io", name),
    }
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = if domain.starts_with('[') {
        let Some((address, after)) = domain.split_once(']') else { return false };
        let address = &address[1..];
        let valid = !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
        if !valid || !(after.is_empty() || after.starts_with(':')) {
            return false;
        }
        return after.is_empty() || is_port(&after[1..]);
    } else {
        match domain.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (domain, None),
        }
    };
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.split('.').all(label) && port.is_none_or(is_port)
}

fn is_port(port: &str) -> bool {
    !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit())
}

/// Runs of lower case letters and digits, separated by one dot, one or two underscores, or dashes.
fn is_component(part: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    if !bytes.first().is_some_and(|b| alphanumeric(*b)) || !bytes.last().is_some_and(|b| alphanumeric(*b)) {
        return false;
    }
    part.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        .all(|separator| matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let bytes = tag.as_bytes();
    let word_character = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    bytes.len() <= 128
        && bytes.first().is_some_and(|b| word_character(*b))
        && bytes.iter().all(|b| word_character(*b) || matches!(b, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let algorithm_valid = algorithm.split(['-', '_', '+', '.']).all(|part| {
        part.bytes().next().is_some_and(|b| b.is_ascii_alphabetic()) && part.bytes().all(|b| b.is_ascii_alphanumeric())
    });
    let length_valid = match algorithm {
        "sha256" => hex.len() == 64,
        "sha384" => hex.len() == 96,
        "sha512" => hex.len() == 128,
        _ => hex.len() >= 32,
    };
    algorithm_valid && length_valid && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

const INVALID: &str = "invalid reference format";

/// The longest repository name that registries accept.
const NAME_LEN_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_references_are_completed() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let table = [
            ("nginx", "docker.io", "library/nginx", "nginx:latest"),
            ("nginx:1.27", "docker.io", "library/nginx", "nginx:1.27"),
            ("me/app", "docker.io", "me/app", "me/app:latest"),
            ("index.docker.io/app:x", "docker.io", "library/app", "index.docker.io/app:x"),
            ("localhost/app", "localhost", "app", "localhost/app:latest"),
            ("reg:5000/a/b:t", "reg:5000", "a/b", "reg:5000/a/b:t"),
            ("r.example/a__b/c--d/e.f_g", "r.example", "a__b/c--d/e.f_g", "r.example/a__b/c--d/e.f_g:latest"),
            ("[::1]:5000/app", "[::1]:5000", "app", "[::1]:5000/app:latest"),
            (&format!("app@{digest}"), "docker.io", "library/app", &format!("app@{digest}")),
            (&format!("r.io/app:t@{digest}"), "r.io", "app", &format!("r.io/app:t@{digest}")),
        ];
        for (text, domain, path, full) in table {
            let parsed = parse_reference(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            let parts = (parsed.domain.as_str(), parsed.path.as_str(), parsed.full.as_str());
            assert_eq!(parts, (domain, path, full), "{text}");
        }
    }

    #[test]
    fn invalid_references_are_rejected() {
        let hex = "a".repeat(64);
        let long = "a/".repeat(127) + "aa";
        let table = [
            "",
            ":tag",
            "@",
            "nginx:",
            "nginx:-x",
            "Nginx",
            "a//b",
            "/a",
            "a/",
            "a_-b",
            "a..b",
            "a/../b",
            "a b",
            "nginx@sha256:abc",
            "nginx@",
            "reg:port/a",
            "-r.io/a",
            "r..io/a",
            "[::1/a",
            "a\n",
            "http://r.io/a",
            &hex,
            &long,
            "app:t:t",
        ];
        for text in table {
            assert!(parse_reference(text).is_err(), "{text:?}");
        }
    }
}
