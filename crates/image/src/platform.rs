//! Platforms of images: operating system, architecture and variant, with the rules of containerd's `platforms` package.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a program of an image runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// `linux` for everything this node can run.
    #[serde(default)]
    pub os: String,
    /// The name that Go uses: `amd64`, `arm64`.
    #[serde(default)]
    pub architecture: String,
    /// For example `v8` of arm64 or `v3` of amd64. `None`: the architecture's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// The platform of this node.
    pub fn host() -> Self {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", None),
            "aarch64" => ("arm64", Some("v8")),
            other => (other, None),
        };
        Self { os: "linux".into(), architecture: architecture.into(), variant: variant.map(str::to_owned) }
    }

    /// How well this host runs a program for `other`: `None` if not at all, else a higher number for a closer match.
    ///
    /// `platforms.Only`: the same variant first, then lower ones of the same architecture.
    pub(crate) fn rank(&self, other: &Self) -> Option<u32> {
        let (host, other) = (self.normalised(), other.normalised());
        if host.0 != other.0 || host.1 != other.1 {
            return None;
        }
        match (host.2, other.2) {
            (host, image) if host == image => Some(u32::MAX),
            (Some(host), Some(image)) => {
                let number = |variant: &str| variant.strip_prefix('v').and_then(|n| n.parse::<u32>().ok());
                let (host, image) = (number(&host)?, number(&image)?);
                (image < host).then_some(image)
            }
            _ => None,
        }
    }

    /// The lower-case names with their defaults, as `platforms.Normalize` has them.
    fn normalised(&self) -> (String, String, Option<String>) {
        let os = self.os.to_ascii_lowercase();
        let architecture = match self.architecture.to_ascii_lowercase().as_str() {
            "x86_64" | "x86-64" => "amd64".to_owned(),
            "aarch64" => "arm64".to_owned(),
            "i386" | "i686" => "386".to_owned(),
            other => other.to_owned(),
        };
        let variant = self.variant.as_deref().map(str::to_ascii_lowercase).filter(|variant| !variant.is_empty());
        let variant = match (architecture.as_str(), variant.as_deref()) {
            ("amd64", Some("v1")) => None,
            ("arm64", None | Some("8")) => Some("v8".to_owned()),
            ("arm", None | Some("7")) => Some("v7".to_owned()),
            _ => variant,
        };
        (os, architecture, variant)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        let mut parts = text.split('/').map(str::to_owned);
        let (os, architecture) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        Platform { os, architecture, variant: parts.next() }
    }

    #[test]
    fn a_host_runs_its_own_architecture_and_older_variants() {
        let rows = [
            ("linux/amd64", "linux/amd64", true),
            ("linux/amd64", "linux/x86_64", true),
            ("linux/amd64", "linux/amd64/v1", true),
            ("linux/amd64", "linux/amd64/v3", false),
            ("linux/amd64", "linux/arm64", false),
            ("linux/amd64", "windows/amd64", false),
            ("linux/amd64", "unknown/unknown", false),
            ("linux/arm64/v8", "linux/arm64", true),
            ("linux/arm64", "linux/arm64/v8", true),
            ("linux/arm/v7", "linux/arm/v6", true),
            ("linux/arm/v6", "linux/arm/v7", false),
        ];
        for (host, image, runs) in rows {
            assert_eq!(platform(host).rank(&platform(image)).is_some(), runs, "{image} on {host}");
        }
        let host = platform("linux/arm/v7");
        assert!(host.rank(&platform("linux/arm/v7")) > host.rank(&platform("linux/arm/v6")));
    }
}
