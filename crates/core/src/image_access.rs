//! Whether a pod may use an image that is on the node: `imagePullCredentialsVerificationPolicy`.
//!
//! An image that was pulled with the secret of one pod must not run in a pod that could not pull it. Each successful pull is
//! recorded with the credentials that worked; a pod without one of them has to pull again, so that the registry decides. The rules
//! and the format of the records are the Go kubelet's (`pullmanager.PullManager`).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// `imagePullCredentialsVerificationPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// Every pod may use every image of the node.
    NeverVerify,
    /// Images that this node did not pull may be used by all pods.
    #[default]
    NeverVerifyPreloadedImages,
    /// Images on the list may be used by all pods.
    NeverVerifyAllowlistedImages(ImageAllowlist),
    /// Every image is verified.
    AlwaysVerify,
}

/// `preloadedImagesVerificationAllowlist`: names without tag and digest, or prefixes that end in `/*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageAllowlist {
    names: Vec<String>,
    /// With the slash.
    prefixes: Vec<String>,
}

/// A pattern of the list that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Leading or trailing spaces.
    #[error("leading/trailing spaces are not allowed: {0}")]
    Spaces(String),
    /// Nothing before the wildcard.
    #[error("at least registry hostname is required: {0}")]
    TooShort(String),
    /// A wildcard elsewhere.
    #[error("not a valid wildcard pattern, only patterns ending with '/*' are allowed: {0}")]
    Wildcard(String),
    /// A tag or digest.
    #[error("neither tag nor digest is accepted in an image reference: {0}")]
    TagOrDigest(String),
}

impl ImageAllowlist {
    /// Parses the patterns of the configuration.
    pub fn parse(patterns: &[String]) -> Result<Self, PatternError> {
        let mut list = Self::default();
        for pattern in patterns {
            if pattern.trim() != pattern {
                return Err(PatternError::Spaces(pattern.clone()));
            }
            let (text, is_prefix) = match pattern.strip_suffix("/*") {
                Some(prefix) => (format!("{prefix}/"), true),
                None => (pattern.clone(), false),
            };
            if text.is_empty() || text == "/" {
                return Err(PatternError::TooShort(pattern.clone()));
            }
            if text.contains('*') {
                return Err(PatternError::Wildcard(pattern.clone()));
            }
            if is_prefix {
                list.prefixes.push(text);
            } else if repository(&text) != text {
                return Err(PatternError::TagOrDigest(pattern.clone()));
            } else {
                list.names.push(text);
            }
        }
        Ok(list)
    }

    fn contains(&self, image: &str) -> bool {
        let name = repository(image);
        self.names.iter().any(|known| known == name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// The record of the pulls of one image, as in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImagePulledRecord {
    /// `ImagePulledRecord`.
    pub kind: String,
    /// `kubelet.config.k8s.io/v1beta1`.
    pub api_version: String,
    /// Of the last change of the record.
    pub last_updated_time: Timestamp,
    /// The image's id in the runtime.
    pub image_ref: String,
    /// Credentials by repository: the image of a container without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credential_mapping: BTreeMap<String, ImagePullCredentials>,
}

/// Credentials that give access to an image under one of its names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImagePullCredentials {
    /// Secrets with which the image was pulled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_secrets: Vec<ImagePullSecret>,
    /// The image was pulled with credentials of the node, or without any: all pods may use it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

/// A secret, without its content.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImagePullSecret {
    /// UID of the Secret.
    pub uid: String,
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
    /// SHA-256 of the credential, in hexadecimal.
    pub credential_hash: String,
}

/// The credential with which a pull succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PulledWith {
    /// Credentials of the node, or none.
    Node,
    /// A secret of the pod.
    Secret(ImagePullSecret),
}

/// Recorded pulls of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullHistory {
    /// The record of the image's id.
    pub record: Option<ImagePulledRecord>,
    /// A pull of this image has begun and was not recorded: it may have been completed by a former agent process.
    pub intent: bool,
}

/// Whether a pod may use an image that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageAccess {
    /// The pod may use it.
    Allowed {
        /// To be added to the record.
        learned: Option<ImagePullSecret>,
    },
    /// Only after a pull with its own credentials.
    MustPull,
}

/// Decides by the policy, the history of the image, and the secrets of the pod that match it (Go kubelet: `MustAttemptImagePull`).
pub fn decide(
    policy: &VerificationPolicy,
    image: &str,
    history: &PullHistory,
    secrets: &[ImagePullSecret],
) -> ImageAccess {
    const ALLOWED: ImageAccess = ImageAccess::Allowed { learned: None };
    let pulled_here = history.record.is_some() || history.intent;
    let verify = match policy {
        VerificationPolicy::NeverVerify => false,
        VerificationPolicy::NeverVerifyPreloadedImages => pulled_here,
        VerificationPolicy::NeverVerifyAllowlistedImages(list) => !list.contains(image),
        VerificationPolicy::AlwaysVerify => true,
    };
    if !verify {
        return ALLOWED;
    }
    let known = history.record.as_ref().and_then(|record| record.credential_mapping.get(repository(image)));
    let Some(known) = known else { return ImageAccess::MustPull };
    if known.node_pods_accessible {
        return ALLOWED;
    }
    let has_room = known.kubernetes_secrets.len() < SECRETS_MAX;
    for secret in secrets {
        for cached in &known.kubernetes_secrets {
            let same_hash = !cached.credential_hash.is_empty() && cached.credential_hash == secret.credential_hash;
            let same_object =
                (&cached.uid, &cached.namespace, &cached.name) == (&secret.uid, &secret.namespace, &secret.name);
            match (same_hash, same_object) {
                (true, true) => return ALLOWED,
                // Another secret with the same credential, or the same secret with a new one.
                (true, false) => return ImageAccess::Allowed { learned: has_room.then(|| secret.clone()) },
                (false, true) if has_room => return ImageAccess::Allowed { learned: Some(secret.clone()) },
                _ => {}
            }
        }
    }
    ImageAccess::MustPull
}

/// The record after a successful pull, or with a learned secret; `None`: it does not change (Go kubelet: `writePulledRecordIfChanged`).
pub fn recorded(
    record: Option<ImagePulledRecord>,
    image: &str,
    image_ref: &str,
    with: Option<&PulledWith>,
    now: Timestamp,
) -> Option<ImagePulledRecord> {
    let is_new = record.is_none();
    let mut record = record.unwrap_or_else(|| ImagePulledRecord {
        kind: RECORD_KIND.into(),
        api_version: API_VERSION.into(),
        last_updated_time: now,
        image_ref: image_ref.into(),
        credential_mapping: BTreeMap::new(),
    });
    let Some(with) = with else { return is_new.then_some(record) };
    let is_full = record.credential_mapping.len() >= REPOSITORIES_MAX;
    let name = repository(image);
    if is_full && !record.credential_mapping.contains_key(name) {
        return is_new.then_some(record);
    }
    let known = record.credential_mapping.entry(name.to_owned()).or_default();
    let before = known.clone();
    match with {
        _ if known.node_pods_accessible => {}
        PulledWith::Node => *known = ImagePullCredentials { node_pods_accessible: true, ..Default::default() },
        PulledWith::Secret(secret) => {
            let other =
                |s: &ImagePullSecret| (&s.uid, &s.namespace, &s.name) != (&secret.uid, &secret.namespace, &secret.name);
            known.kubernetes_secrets.retain(other);
            // One secret is dropped from a full list: its pods have to pull again.
            known.kubernetes_secrets.truncate(SECRETS_MAX - 1);
            known.kubernetes_secrets.push(secret.clone());
            known
                .kubernetes_secrets
                .sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        }
    }
    if *known == before && !is_new {
        return None;
    }
    record.last_updated_time = now;
    Some(record)
}

/// An image without tag and digest (Go kubelet: `trimImageTagDigest`).
pub fn repository(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    match name.rsplit_once(':') {
        Some((before, tag)) if !tag.contains('/') => before,
        _ => name,
    }
}

/// `kind` of the record's file.
pub(crate) const RECORD_KIND: &str = "ImagePulledRecord";
/// `apiVersion` of the record's file.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Secrets of one repository in a record (Go kubelet: writeRecordWhileMatchingLimit).
const SECRETS_MAX: usize = 100;
/// Names of one image in a record.
const REPOSITORIES_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: &str = "r.example:5000/team/app:v1";

    fn secret(name: &str, hash: &str) -> ImagePullSecret {
        let name = name.to_owned();
        ImagePullSecret { uid: format!("uid-{name}"), namespace: "ns".into(), name, credential_hash: hash.into() }
    }

    fn pulled(with: Option<&PulledWith>) -> PullHistory {
        PullHistory { record: recorded(None, IMAGE, "sha256:1", with, Timestamp::UNIX_EPOCH), intent: false }
    }

    fn allowed(policy: &VerificationPolicy, history: &PullHistory, secrets: &[ImagePullSecret]) -> bool {
        decide(policy, IMAGE, history, secrets) != ImageAccess::MustPull
    }

    #[test]
    fn a_pod_may_use_an_image_only_with_a_secret_that_pulled_it() {
        let policy = VerificationPolicy::default();
        let history = pulled(Some(&PulledWith::Secret(secret("a", "h1"))));
        assert!(!allowed(&policy, &history, &[]), "without a secret");
        assert!(!allowed(&policy, &history, &[secret("b", "h2")]), "with another secret");
        assert_eq!(decide(&policy, IMAGE, &history, &[secret("a", "h1")]), ImageAccess::Allowed { learned: None });
        let (same_content, rotated) = (secret("b", "h1"), secret("a", "h3"));
        for learned in [same_content, rotated] {
            let access = decide(&policy, IMAGE, &history, std::slice::from_ref(&learned));
            assert_eq!(access, ImageAccess::Allowed { learned: Some(learned) });
        }
        let other_name = decide(&policy, "other.example/app", &history, &[secret("a", "h1")]);
        assert_eq!(other_name, ImageAccess::MustPull, "the same image under another name");
        assert!(allowed(&policy, &pulled(Some(&PulledWith::Node)), &[]));
        assert!(!allowed(&policy, &pulled(None), &[]), "pulled in unknown circumstances");
    }

    #[test]
    fn the_policy_decides_which_images_are_verified() {
        let (preloaded, unfinished) = (PullHistory::default(), PullHistory { record: None, intent: true });
        let of_secret = pulled(Some(&PulledWith::Secret(secret("a", "h1"))));
        let list = |pattern: &str| {
            VerificationPolicy::NeverVerifyAllowlistedImages(ImageAllowlist::parse(&[pattern.into()]).unwrap())
        };
        let table = [
            (VerificationPolicy::NeverVerify, [true, true, true]),
            (VerificationPolicy::NeverVerifyPreloadedImages, [true, false, false]),
            (VerificationPolicy::AlwaysVerify, [false, false, false]),
            (list("r.example:5000/team/app"), [true, true, true]),
            (list("r.example:5000/*"), [true, true, true]),
            (list("r.example:5000/tea"), [false, false, false]),
        ];
        for (policy, expected) in table {
            let found = [&preloaded, &unfinished, &of_secret].map(|history| allowed(&policy, history, &[]));
            assert_eq!(found, expected, "{policy:?}");
        }
    }

    #[test]
    fn the_secrets_of_a_record_are_bounded() {
        let mut record = None;
        for n in 0..2 * SECRETS_MAX {
            let with = PulledWith::Secret(secret(&format!("s{n:03}"), "h"));
            record = recorded(record, IMAGE, "sha256:1", Some(&with), Timestamp::UNIX_EPOCH);
        }
        let record = record.expect("changed");
        assert_eq!(record.credential_mapping["r.example:5000/team/app"].kubernetes_secrets.len(), SECRETS_MAX);
    }

    #[test]
    fn records_are_merged_and_change_only_if_needed() {
        let (first, later) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(60).unwrap());
        let a = PulledWith::Secret(secret("a", "h1"));
        let record = recorded(None, IMAGE, "sha256:1", Some(&a), first).unwrap();
        assert_eq!(recorded(Some(record.clone()), IMAGE, "sha256:1", Some(&a), later), None);
        assert_eq!(recorded(Some(record.clone()), IMAGE, "sha256:1", None, later), None);
        let rotated = PulledWith::Secret(secret("a", "h2"));
        let record = recorded(Some(record), IMAGE, "sha256:1", Some(&rotated), later).unwrap();
        assert_eq!(record.credential_mapping["r.example:5000/team/app"].kubernetes_secrets, [secret("a", "h2")]);
        assert_eq!(record.last_updated_time, later);
        let mut record = recorded(Some(record), IMAGE, "sha256:1", Some(&PulledWith::Node), later).unwrap();
        let known = &record.credential_mapping["r.example:5000/team/app"];
        assert!(known.node_pods_accessible && known.kubernetes_secrets.is_empty());
        for n in 1..REPOSITORIES_MAX {
            let with = PulledWith::Secret(secret("s", "h"));
            record = recorded(Some(record), &format!("r/{n}:x"), "sha256:1", Some(&with), later).expect("changed");
        }
        assert_eq!(record.credential_mapping.len(), REPOSITORIES_MAX);
        let one_more = recorded(Some(record), "r/more", "sha256:1", Some(&PulledWith::Node), later);
        assert_eq!(one_more, None, "bounded");
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for bad in [" a", "a ", "", "/*", "*", "a/*/b", "a*", "app:v1", "app@sha256:00"] {
            assert!(ImageAllowlist::parse(&[bad.to_owned()]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_format_is_that_of_the_go_kubelet() {
        let text = r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2025-01-01T00:00:00Z",
            "imageRef":"sha256:1","credentialMapping":{"r/app":{"kubernetesSecrets":[{"uid":"u","namespace":"n","name":"s",
            "credentialHash":"h"}]},"r/public":{"nodePodsAccessible":true}}}"#;
        let record: ImagePulledRecord = serde_json::from_str(text).unwrap();
        assert_eq!(record.credential_mapping["r/app"].kubernetes_secrets[0].name, "s");
        let written: serde_json::Value = serde_json::to_value(&record).unwrap();
        assert_eq!(written, serde_json::from_str::<serde_json::Value>(text).unwrap());
    }
}
