//! What the API server adds or refuses beyond the rules for pods, and differences that are there on purpose.
//! `docs/validation.md` names them too.

use std::collections::BTreeSet;

use serde_json::Value;

/// A difference by the words in its description, and why it is there.
struct Known {
    words: &'static [&'static str],
    why: &'static str,
}

const KNOWN: &[Known] = &[
    Known {
        words: &["only the API server refuses", "pods \"p\" is forbidden: "],
        why: "an admission plugin refuses it, because of other objects of the cluster",
    },
    Known {
        words: &["meta/namespace", "does not match the namespace sent on the request"],
        why: "a rule for requests, not for pods",
    },
    Known {
        words: &["ephemeralContainers", "cannot be set on create"],
        why: "a living pod may have them; manifests with them are refused elsewhere",
    },
    Known {
        words: &["only we refuse", "terminationGracePeriodSeconds: -1 must be at least 0"],
        why: "the API server takes a negative grace for 1 s: more likely a mistake than a wish",
    },
    Known {
        words: &["only we refuse", "port/hostIP", "nowhere"],
        why: "the API server does not look at it: it would reach the host's packet filter",
    },
    Known { words: &["stopSignal"], why: "the server's gate is off by default: it drops the field in silence" },
    Known { words: &["clusterTrustBundle"], why: "the server's gate is off by default: it drops the field in silence" },
    Known {
        words: &["seLinuxChangePolicy", "MountOption"],
        why: "the server's gate is off by default: it knows only Recursive",
    },
    Known {
        words: &["container.apparmor.security.beta.kubernetes.io"],
        why: "the annotation of old is not read: write appArmorProfile",
    },
    Known { words: &["only the API server refuses", "windows"], why: "pods for Windows can't run here anyway" },
    Known { words: &["volume = {\"csi\""], why: "no such volume can be mounted: an event says so" },
    Known { words: &["volume = {\"ephemeral\""], why: "no such volume can be mounted: an event says so" },
    Known { words: &["volume = {\"iscsi\""], why: "no such volume can be mounted: an event says so" },
    Known { words: &["volume = {\"nfs\""], why: "no such volume can be mounted: an event says so" },
];

/// The rule that allows this difference.
pub(crate) fn why(difference: &str) -> Option<usize> {
    KNOWN.iter().position(|rule| rule.words.iter().all(|word| difference.contains(word)))
}

/// Rules that allowed nothing: the list must not outlive its reasons.
pub(crate) fn unused(seen: &BTreeSet<usize>) -> Vec<&'static str> {
    KNOWN.iter().enumerate().filter(|(n, _)| !seen.contains(n)).map(|(_, rule)| rule.why).collect()
}

/// Take away what admission adds to a pod that is created: it is no default and depends on the cluster.
pub(crate) fn without_admission(answer: &mut Value, asked: &Value) {
    let spec = &mut answer["spec"];
    // ServiceAccount: its name, and the volume with its token.
    for field in ["serviceAccount", "serviceAccountName"] {
        if asked["spec"]["serviceAccount"].is_null() && asked["spec"]["serviceAccountName"].is_null() {
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
    if asked["spec"]["preemptionPolicy"].is_null() {
        spec["preemptionPolicy"].take();
    }
}
