//! Content digests: `sha256:` and 64 lower-case hexadecimal digits.
//!
//! Other algorithms of the OCI specification are refused by name: no registry in use serves them, and one algorithm keeps the
//! layout of the content store simple.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;

/// The SHA-256 digest of some content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A text that is no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// There is no `algorithm:` in front, or the rest is no hexadecimal number.
    #[error("invalid digest {0:?}: expected sha256: and 64 lower-case hexadecimal digits")]
    Invalid(String),
    /// A digest by another algorithm, for example sha512.
    #[error("digest algorithm {0:?} is not supported, only sha256")]
    Algorithm(String),
}

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = ContentHasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The 64 hexadecimal digits without the algorithm.
    pub fn hex(&self) -> String {
        use fmt::Write as _;
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a string takes every text");
            text
        })
    }

    /// Reads 64 hexadecimal digits.
    pub(crate) fn from_hex(hex: &str) -> Option<Self> {
        let digit = |c: u8| match c {
            b'0'..=b'9' => Some(c - b'0'),
            b'a'..=b'f' => Some(c - b'a' + 10),
            _ => None,
        };
        let text: &[u8; 64] = hex.as_bytes().try_into().ok()?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let invalid = || DigestError::Invalid(excerpt(text));
        let (algorithm, hex) = text.split_once(':').ok_or_else(invalid)?;
        if algorithm != "sha256" {
            return Err(DigestError::Algorithm(excerpt(algorithm)));
        }
        Self::from_hex(hex).ok_or_else(invalid)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Computes a digest piece by piece.
#[derive(Clone, Default)]
pub(crate) struct ContentHasher(sha2::Sha256);

impl ContentHasher {
    /// Adds the next bytes of the content.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of everything added.
    pub(crate) fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl fmt::Debug for ContentHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContentHasher")
    }
}

/// The beginning of a foreign text, so that an error message has a bound.
pub(crate) fn excerpt(text: &str) -> String {
    const CHARS_MAX: usize = 128;
    match text.char_indices().nth(CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_and_written() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.parse(), Ok(Digest::of(b"")));
    }

    #[test]
    fn texts_that_are_no_digest_are_refused() {
        let upper = format!("sha256:{}", "A".repeat(64));
        for text in ["", "sha256:", "sha256:12", "e3b0", &upper, &format!("sha256:{}", "é".repeat(32))] {
            assert_eq!(text.parse::<Digest>(), Err(DigestError::Invalid(text.into())), "{text}");
        }
        let other = format!("sha512:{}", "a".repeat(128));
        assert_eq!(other.parse::<Digest>(), Err(DigestError::Algorithm("sha512".into())));
        assert_eq!("../x:a".parse::<Digest>(), Err(DigestError::Algorithm("../x".into())));
    }
}
