//! A kubelet on a runtime.

use std::collections::BTreeMap;
use std::fmt;

use podwright_testbed::Flavor;

use super::fields::Fields;

/// Which kubelet runs the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kubelet {
    Podwright,
    Go,
}

/// Every pair is compared with the Go kubelet on containerd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) kubelet: Kubelet,
    pub(crate) runtime: Flavor,
}

/// The fields of every pod, by the name of its case.
pub(crate) type Observed = BTreeMap<&'static str, Fields>;

/// What the others are compared with.
pub(crate) const REFERENCE: Pair = Pair { kubelet: Kubelet::Go, runtime: Flavor::V2 };

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kubelet = match self.kubelet {
            Kubelet::Podwright => "podwright",
            Kubelet::Go => "the Go kubelet",
        };
        let runtime = match self.runtime {
            Flavor::Engine => "the engine",
            Flavor::Debian16 | Flavor::V2 => "containerd",
        };
        write!(f, "{kubelet} on {runtime}")
    }
}
