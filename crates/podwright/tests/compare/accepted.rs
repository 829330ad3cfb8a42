//! Differences that are there on purpose, each with its reason; `docs/kubelet-map.md` names them too.

use crate::difference::Accepted;

/// Of pods without a cluster.
pub(crate) const ACCEPTED: &[Accepted] = &[
    Accepted {
        fits: |d| d.theirs.is_none() && (d.path.starts_with("status.hostIP") || d.path.starts_with("status.podIP")),
        sometimes: false,
        why: "without an API server the Go kubelet does not know the node's addresses",
    },
    Accepted {
        fits: |d| d.path == "metadata.resourceVersion" && d.theirs.is_none(),
        sometimes: false,
        why: "here every pod is an object of the local API, which can be watched from a version on",
    },
];
