//! What the API server adds or rejects beyond the rules for pods, and intended differences.
//! `docs/validation.md` lists them too.

use std::collections::BTreeSet;

use serde_json::Value;

/// A difference, recognised by texts in its description, and its reason.
struct KnownDifference {
    texts: &'static [&'static str],
    why: &'static str,
}

const KNOWN: &[KnownDifference] = &[
    KnownDifference {
        texts: &["only the API server rejects", "pods \"p\" is forbidden: "],
        why: "an admission plugin rejects it, because of other objects of the cluster",
    },
    KnownDifference {
        texts: &["meta/namespace", "does not match the namespace sent on the request"],
        why: "a rule for requests, not for pods",
    },
    KnownDifference {
        texts: &["ephemeralContainers", "cannot be set on create"],
        why: "a running pod may have them; manifests with them are rejected elsewhere",
    },
    KnownDifference {
        texts: &["only our rules reject", "terminationGracePeriodSeconds: -1 must be at least 0"],
        why: "the API server treats a negative grace period as 1 s: it is more likely a mistake",
    },
    KnownDifference {
        texts: &["only our rules reject", "port/hostIP", "nowhere"],
        why: "the API server does not validate it: it would reach the host's packet filter",
    },
    KnownDifference {
        texts: &["stopSignal"],
        why: "the server's feature gate is off by default: it drops the field silently",
    },
    KnownDifference {
        texts: &["clusterTrustBundle"],
        why: "the server's feature gate is off by default: it drops the field silently",
    },
    KnownDifference {
        texts: &["seLinuxChangePolicy", "MountOption"],
        why: "the server's feature gate is off by default: it accepts only Recursive",
    },
    KnownDifference {
        texts: &["container.apparmor.security.beta.kubernetes.io"],
        why: "the deprecated annotation is not read: use appArmorProfile",
    },
    KnownDifference {
        texts: &["only the API server rejects", "windows"],
        why: "pods for Windows can't run here anyway",
    },
    KnownDifference { texts: &["volume = {\"csi\""], why: "such volumes are not supported: an event reports it" },
    KnownDifference { texts: &["volume = {\"ephemeral\""], why: "such volumes are not supported: an event reports it" },
    KnownDifference { texts: &["volume = {\"iscsi\""], why: "such volumes are not supported: an event reports it" },
    KnownDifference { texts: &["volume = {\"nfs\""], why: "such volumes are not supported: an event reports it" },
];

/// The index of the rule that matches this difference.
pub(crate) fn why(difference: &str) -> Option<usize> {
    KNOWN.iter().position(|rule| rule.texts.iter().all(|text| difference.contains(text)))
}

/// Rules that matched nothing, to be removed.
pub(crate) fn unused(seen: &BTreeSet<usize>) -> Vec<&'static str> {
    KNOWN.iter().enumerate().filter(|(n, _)| !seen.contains(n)).map(|(_, rule)| rule.why).collect()
}

/// Removes what admission plugins add to a created pod: these are not defaults and depend on the cluster.
pub(crate) fn without_admission(response: &mut Value, request: &Value) {
    let spec = &mut response["spec"];
    // ServiceAccount: its name, and the volume with its token.
    for field in ["serviceAccount", "serviceAccountName"] {
        if request["spec"]["serviceAccount"].is_null() && request["spec"]["serviceAccountName"].is_null() {
            spec[field].take();
        }
    }
    let is_token = |value: &Value| value["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-"));
    if let Some(volumes) = spec["volumes"].as_array_mut() {
        volumes.retain(|volume| !is_token(volume));
    }
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            if let Some(mounts) = container["volumeMounts"].as_array_mut() {
                mounts.retain(|mount| !is_token(mount));
            }
        }
    }
    // DefaultTolerationSeconds.
    if let Some(tolerations) = spec["tolerations"].as_array_mut() {
        let added = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
        tolerations.retain(|toleration| !added.iter().any(|key| toleration["key"] == *key));
    }
    // Priority.
    spec["priority"].take();
    if request["spec"]["preemptionPolicy"].is_null() {
        spec["preemptionPolicy"].take();
    }
}
