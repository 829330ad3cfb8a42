//! Ids and names of pods, containers and sandboxes, and the sources of pods.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The plain text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl From<&str> for $name {
            fn from(s: &str) -> Self {
                Self(s.into())
            }
        }
        impl From<String> for $name {
            fn from(s: String) -> Self {
                Self(s.into())
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

id!(/// A pod's UID: a pod that is created again under its name has another one.
    PodUid);
id!(/// A container's name within its pod.
    Name);
id!(/// The runtime's id of one container instance.
    ContainerId);
id!(/// The runtime's id of one sandbox.
    SandboxId);

/// Namespace and name of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FullName {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl fmt::Display for FullName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Where a pod comes from. The text forms are the values of the `kubernetes.io/config.source` annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A manifest file or a directory of them.
    File,
    /// A manifest fetched from a URL.
    #[serde(rename = "http")]
    Url,
    /// The API server.
    Api,
    /// This node's own local API.
    Local,
}

impl Source {
    /// The annotation's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Url => "http",
            Self::Api => "api",
            Self::Local => "local",
        }
    }

    /// Reads the annotation's value.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::File, Self::Url, Self::Api, Self::Local].into_iter().find(|s| s.as_str() == text)
    }

    /// Pods of static sources exist without any API object.
    pub fn is_static(self) -> bool {
        matches!(self, Self::File | Self::Url)
    }
}
