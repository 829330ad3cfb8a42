//! Image references: `[registry[:port]/]repository[:tag][@digest]`, with the rules of `distribution/reference` that the kubelet
//! and containerd use (`reference.ParseDockerRef`).
//!
//! ```text
//! busybox                          docker.io/library/busybox:latest
//! example.com/team/app:1           as written
//! localhost/app                    localhost/app:latest        (a first part with a dot, a colon or "localhost" is a registry)
//! app:1@sha256:…                   docker.io/library/app@sha256:…   (the digest decides; the tag is dropped)
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::{Digest, DigestError, excerpt};

/// A normalised reference: registry and repository, and either a tag or a digest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageReference {
    registry: String,
    repository: String,
    version: Version,
}

/// What selects one image of a repository.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// A name that the registry may move to another image.
    Tag(String),
    /// The content itself.
    Digest(Digest),
}

/// Why a text is no image reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The text is empty.
    #[error("the image reference is empty")]
    Empty,
    /// Registry and repository together have more than 255 characters.
    #[error("image reference {0:?}: the name has more than {NAME_LENGTH_MAX} characters")]
    TooLong(String),
    /// The part before the first slash looks like a registry and is not a host name with an optional port.
    #[error("image reference {reference:?}: {registry:?} is not a valid registry (host name and optional port)")]
    Registry {
        /// The whole text.
        reference: String,
        /// The part in question.
        registry: String,
    },
    /// The repository has upper-case letters.
    #[error("image reference {0:?}: the repository name must be lower-case")]
    UpperCase(String),
    /// The repository has characters or separators that are not allowed.
    #[error(
        "image reference {reference:?}: {component:?} is not a valid part of a repository name (a-z, 0-9, separated by '.', '_', '__' or '-')"
    )]
    Repository {
        /// The whole text.
        reference: String,
        /// The part in question.
        component: String,
    },
    /// The tag has characters that are not allowed, or more than 128.
    #[error("image reference {reference:?}: invalid tag {tag:?} (at most 128 of A-Z, a-z, 0-9, '_', '.', '-')")]
    Tag {
        /// The whole text.
        reference: String,
        /// The tag.
        tag: String,
    },
    /// The part after `@` is no digest.
    #[error("image reference {reference:?}")]
    Digest {
        /// The whole text.
        reference: String,
        /// What is wrong with it.
        #[source]
        source: DigestError,
    },
    /// 64 hexadecimal digits, which would be an image id and not a repository.
    #[error("image reference {0:?}: a repository cannot be 64 hexadecimal digits, which is an image id")]
    ImageId(String),
}

impl ImageReference {
    /// The registry as written in references: `docker.io`, not the host that serves it.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The path below the registry, for example `library/busybox`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag or the digest.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// The tag, if this is no reference by digest.
    pub fn tag(&self) -> Option<&str> {
        match &self.version {
            Version::Tag(tag) => Some(tag),
            Version::Digest(_) => None,
        }
    }

    /// The digest, if this is a reference by digest.
    pub fn digest(&self) -> Option<Digest> {
        match self.version {
            Version::Tag(_) => None,
            Version::Digest(digest) => Some(digest),
        }
    }

    /// The same repository at this digest: the "repo digest" of an image.
    pub(crate) fn with_digest(&self, digest: Digest) -> Self {
        Self { version: Version::Digest(digest), ..self.clone() }
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registry, repository, version } = self;
        match version {
            Version::Tag(tag) => write!(f, "{registry}/{repository}:{tag}"),
            Version::Digest(digest) => write!(f, "{registry}/{repository}@{digest}"),
        }
    }
}

impl FromStr for ImageReference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        if text.is_empty() {
            return Err(ReferenceError::Empty);
        }
        let reference = || excerpt(text);
        if Digest::from_hex(text).is_some() {
            return Err(ReferenceError::ImageId(text.to_owned()));
        }
        let (named, digest) = match text.split_once('@') {
            Some((named, digest)) => (named, Some(digest)),
            None => (text, None),
        };
        let digest = digest.map(str::parse).transpose();
        let digest = digest.map_err(|source| ReferenceError::Digest { reference: reference(), source })?;
        let (registry, rest) = split_registry(named);
        // A colon in the last part only: elsewhere it belongs to no repository, and `component` refuses it.
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
            _ => (rest, None),
        };
        if !is_registry(registry) {
            return Err(ReferenceError::Registry { reference: reference(), registry: excerpt(registry) });
        }
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(ReferenceError::Tag { reference: reference(), tag: excerpt(tag) });
        }
        if repository.bytes().any(|c| c.is_ascii_uppercase()) {
            return Err(ReferenceError::UpperCase(reference()));
        }
        if let Some(component) = repository.split('/').find(|component| !is_component(component)) {
            return Err(ReferenceError::Repository { reference: reference(), component: excerpt(component) });
        }
        let official = registry == DEFAULT_REGISTRY && !repository.contains('/');
        let repository = if official { format!("library/{repository}") } else { repository.to_owned() };
        if registry.len() + 1 + repository.len() > NAME_LENGTH_MAX {
            return Err(ReferenceError::TooLong(reference()));
        }
        let version = match digest {
            Some(digest) => Version::Digest(digest),
            None => Version::Tag(tag.unwrap_or("latest").to_owned()),
        };
        Ok(Self { registry: registry.to_owned(), repository, version })
    }
}

impl Serialize for ImageReference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ImageReference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The registry and the rest. `splitDockerDomain` of `distribution/reference`: the first part is a registry if it has a dot, a
/// colon or an upper-case letter, or is `localhost`.
fn split_registry(named: &str) -> (&str, &str) {
    match named.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" || has_upper_case(first) => {
            (if first == LEGACY_REGISTRY { DEFAULT_REGISTRY } else { first }, rest)
        }
        _ => (DEFAULT_REGISTRY, named),
    }
}

fn has_upper_case(text: &str) -> bool {
    text.bytes().any(|c| c.is_ascii_uppercase())
}

/// A host name, an IPv4 address or an IPv6 address in brackets, with an optional port.
fn is_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) => {
                let fine = !address.is_empty() && address.bytes().all(|c| c.is_ascii_hexdigit() || c == b':');
                return fine && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
            }
            None => return false,
        },
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let is_label = |label: &str| {
        let inner = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    host.split('.').all(is_label) && port.is_none_or(is_port)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|c| c.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Letters and digits, with single `.`, one or two `_`, or any number of `-` between them.
fn is_component(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !text.starts_with(alphanumeric) || !text.ends_with(alphanumeric) {
        return false;
    }
    let mut separators = text.split(alphanumeric).filter(|between| !between.is_empty());
    separators.all(|s| matches!(s, "." | "_" | "__") || s.bytes().all(|c| c == b'-'))
}

fn is_tag(text: &str) -> bool {
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    text.len() <= 128
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|c| word(c) || matches!(c, b'.' | b'-'))
}

/// `distribution/reference`: `defaultDomain`.
const DEFAULT_REGISTRY: &str = "docker.io";
/// `distribution/reference`: `legacyDefaultDomain`.
const LEGACY_REGISTRY: &str = "index.docker.io";
/// `distribution/reference`: `RepositoryNameTotalLengthMax`.
const NAME_LENGTH_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn references_are_normalised_like_the_kubelets() {
        let digested = format!("docker.io/library/app@sha256:{HEX}");
        let rows = [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("team/app", "docker.io/team/app:latest"),
            ("index.docker.io/busybox", "docker.io/library/busybox:latest"),
            ("docker.io/busybox:1", "docker.io/library/busybox:1"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/app:2", "localhost:5000/app:2"),
            ("app:5000/x", "app:5000/x:latest"),
            ("app:5000", "docker.io/library/app:5000"),
            ("example.com/a/b/c-d__e.f:V_1.0-x", "example.com/a/b/c-d__e.f:V_1.0-x"),
            ("[2001:db8::1]:5000/app", "[2001:db8::1]:5000/app:latest"),
            ("Example.com/app", "Example.com/app:latest"),
            (&format!("app@sha256:{HEX}"), &digested),
            (&format!("app:1@sha256:{HEX}"), &digested),
        ];
        for (text, normal) in rows {
            let reference: ImageReference = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(reference.to_string(), normal);
            assert_eq!(normal.parse(), Ok(reference), "the normal form is stable");
        }
    }

    #[test]
    fn texts_that_are_no_reference_are_refused() {
        let long = "a".repeat(256);
        let tag = format!("a:{}", "t".repeat(129));
        let rows = [
            "",
            "Busybox",
            "a//b",
            "/a",
            "a/",
            "a..b",
            "a___b",
            "-a",
            "a:",
            "a:b:c",
            "a@",
            "a@sha256:12",
            "a b",
            "a:b/c d",
            "http://a/b",
            "a:0/b",
            "a:99999/b",
            "a.-b.c/d",
            "[::1/a",
            "[]/a",
            "../a",
            "a/../b",
            HEX,
            &long,
            &tag,
            "a\n",
            "a:\u{e9}",
        ];
        for text in rows {
            assert!(text.parse::<ImageReference>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn an_error_names_the_part_in_question() {
        let error = "example.com/a/B:1".parse::<ImageReference>().unwrap_err();
        assert_eq!(error.to_string(), r#"image reference "example.com/a/B:1": the repository name must be lower-case"#);
        let error = "a/b:!".parse::<ImageReference>().unwrap_err();
        assert!(error.to_string().contains(r#"invalid tag "!""#), "{error}");
    }
}
