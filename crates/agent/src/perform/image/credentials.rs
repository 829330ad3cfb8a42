//! Registry credentials in Docker's file formats, matched to images as in the Go kubelet.
//!
//! `config.json` contains `{"auths": {"registry/path": {…}}}`, the older `.dockercfg` only the value of `auths`. Keys may have a
//! scheme and `/v1/` or `/v2/`, and `*` in parts of the host. The longest matching key is tried first.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use k8s_openapi::api::core::v1::Secret;
use podwright_core::image_access::ImagePullSecret;
use podwright_cri::v1::AuthConfig;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::RegistryImage;
use super::registry_key::{key_matches, normalize_key};
use crate::host::Pool;
use crate::objects::Redacted;
use crate::perform::files::{blocking, read_bounded};

/// One credential. Its `Debug` output contains no secrets.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Credential {
    username: String,
    password: String,
    identity_token: String,
    registry_token: String,
}

impl Credential {
    pub(super) fn auth_config(&self) -> AuthConfig {
        AuthConfig {
            username: self.username.clone(),
            password: self.password.clone(),
            identity_token: self.identity_token.clone(),
            registry_token: self.registry_token.clone(),
            ..AuthConfig::default()
        }
    }

    /// Identifies the credential in records (Go kubelet: `hashAuthConfig`, of the same JSON).
    fn hash(&self) -> String {
        let fields = [
            ("username", &self.username),
            ("password", &self.password),
            ("identitytoken", &self.identity_token),
            ("registrytoken", &self.registry_token),
        ];
        let given = fields.iter().filter(|(_, value)| !value.is_empty());
        let text: Vec<String> = given.map(|(name, value)| format!("\"{name}\":{}", serde_json::json!(value))).collect();
        let digest = Sha256::digest(format!("{{{}}}", text.join(",")).as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Values that must not appear in messages.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        [&self.password, &self.identity_token, &self.registry_token].into_iter().map(String::as_str)
    }
}

/// A credential and the secret it comes from.
#[derive(Clone, Debug)]
pub(super) struct TrackedCredential {
    pub(super) credential: Credential,
    /// `None`: of the node.
    pub(super) source: Option<ImagePullSecret>,
}

impl From<Credential> for TrackedCredential {
    fn from(credential: Credential) -> Self {
        Self { credential, source: None }
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("username", &self.username).finish_non_exhaustive()
    }
}

/// Credentials by registry.
#[derive(Debug, Default)]
pub(super) struct Keyring {
    /// In the order of the files, within a file the longest key first.
    entries: Vec<(String, TrackedCredential)>,
}

impl Keyring {
    /// Reads the files in these directories. A file that can't be read is left out with a warning: the pull may succeed without it.
    pub(super) async fn load(pool: &Pool, dirs: &[PathBuf]) -> Self {
        if dirs.is_empty() {
            return Self::default();
        }
        let dirs = dirs.to_vec();
        let loaded = blocking(pool, "registry credentials", READ_TIME_MAX, move || {
            let mut keyring = Self::default();
            for file in dirs.iter().flat_map(|dir| FILES.map(|name| dir.join(name))) {
                match read(&file) {
                    Ok(entries) => keyring.add(entries.into_iter().map(|(key, one)| (key, one.into())).collect()),
                    Err(error) => tracing::warn!(path = %file.display(), %error, "reading registry credentials failed"),
                }
            }
            Ok::<_, CredentialsError>(keyring)
        });
        loaded.await.unwrap_or_else(|error| {
            tracing::warn!(error = error.message(), "reading registry credentials failed");
            Self::default()
        })
    }

    /// Adds the credentials of a pod, which are tried before those of the node. Parses up to 1 MiB per secret: not for async workers.
    pub(super) fn with_secrets(self, secrets: &[Redacted<Secret>]) -> Self {
        let mut entries = Vec::new();
        if secrets.len() > SECRETS_MAX {
            tracing::warn!(count = secrets.len(), limit = SECRETS_MAX, "image pull secrets beyond the limit ignored");
        }
        for secret in secrets.iter().take(SECRETS_MAX) {
            match of_secret(secret) {
                Ok(more) => entries.extend(more.into_iter().map(|(key, one)| (key, of_object(secret, one)))),
                Err(error) => {
                    let name = secret.metadata.name.as_deref().unwrap_or_default();
                    tracing::warn!(secret = name, %error, "image pull secret ignored");
                }
            }
        }
        let mut keyring = Self::default();
        keyring.add(entries);
        keyring.entries.extend(self.entries);
        keyring
    }

    /// The credentials for this image, the best first, at most [`CREDENTIALS_MAX`]. If empty, the image is pulled anonymously.
    pub(super) fn matching(&self, image: &RegistryImage) -> Vec<TrackedCredential> {
        let target = format!("{}/{}", image.domain, image.path);
        let mut found: Vec<TrackedCredential> = Vec::new();
        for (key, credential) in &self.entries {
            let default_registry = image.domain == "docker.io" && key == "index.docker.io";
            let is_new = || found.iter().all(|known| known.credential != credential.credential);
            if (key_matches(key, &target) || default_registry) && is_new() {
                found.push(credential.clone());
            }
            if found.len() == CREDENTIALS_MAX {
                break;
            }
        }
        found
    }

    fn add(&mut self, mut entries: Vec<(String, TrackedCredential)>) {
        entries.sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then_with(|| b.cmp(a)));
        self.entries.append(&mut entries);
    }
}

/// Why credentials were not read.
#[derive(Debug, thiserror::Error)]
enum CredentialsError {
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error("larger than {FILE_BYTES_MAX} bytes")]
    TooLarge,
    /// Without the error of serde, which may quote secrets.
    #[error("not a valid docker configuration")]
    Parse,
}

/// Why an entry is not used. Does not quote the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum EntryError {
    #[error("auth is not base64")]
    Base64,
    #[error("auth is not valid UTF-8")]
    Utf8,
    #[error("auth is not base64 of user:password")]
    NoColon,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ConfigFile {
    Config { auths: BTreeMap<String, Entry> },
    Legacy(BTreeMap<String, Entry>),
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
    registrytoken: String,
}

fn read(file: &Path) -> Result<Vec<(String, Credential)>, CredentialsError> {
    let content = match read_bounded(file, FILE_BYTES_MAX) {
        Ok(content) => content,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    parse(&content)
}

/// The credentials of a Secret for registries; empty for other types of secrets.
fn of_secret(secret: &Secret) -> Result<Vec<(String, Credential)>, CredentialsError> {
    let key = match secret.type_.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => ".dockerconfigjson",
        Some("kubernetes.io/dockercfg") => ".dockercfg",
        _ => return Ok(Vec::new()),
    };
    match secret.data.as_ref().and_then(|data| data.get(key)) {
        Some(content) if content.0.len() as u64 > FILE_BYTES_MAX => Err(CredentialsError::TooLarge),
        Some(content) if !content.0.is_empty() => parse(&content.0),
        _ => Ok(Vec::new()),
    }
}

fn of_object(secret: &Secret, credential: Credential) -> TrackedCredential {
    let meta = &secret.metadata;
    let [uid, namespace, name] = [&meta.uid, &meta.namespace, &meta.name].map(|text| text.clone().unwrap_or_default());
    let source = ImagePullSecret { uid, namespace, name, credential_hash: credential.hash() };
    TrackedCredential { credential, source: Some(source) }
}

fn parse(content: &[u8]) -> Result<Vec<(String, Credential)>, CredentialsError> {
    let file: ConfigFile = serde_json::from_slice(content).map_err(|_| CredentialsError::Parse)?;
    let entries = match file {
        ConfigFile::Config { auths } | ConfigFile::Legacy(auths) => auths,
    };
    let mut credentials = Vec::new();
    if entries.len() > ENTRIES_MAX {
        tracing::warn!(count = entries.len(), limit = ENTRIES_MAX, "registry credentials beyond the limit ignored");
    }
    for (key, entry) in entries.into_iter().take(ENTRIES_MAX) {
        match (normalize_key(&key), credential(entry)) {
            (Some(key), Ok(Some(credential))) => credentials.push((key, credential)),
            (_, Err(error)) => tracing::warn!(registry = key, %error, "registry credential ignored"),
            (None, _) | (_, Ok(None)) => {}
        }
    }
    Ok(credentials)
}

/// `None`: the entry is empty.
fn credential(entry: Entry) -> Result<Option<Credential>, EntryError> {
    let (mut username, mut password) = (entry.username, entry.password);
    if !entry.auth.is_empty() {
        let decoded = BASE64.decode(entry.auth.trim()).map_err(|_| EntryError::Base64)?;
        let decoded = String::from_utf8(decoded).map_err(|_| EntryError::Utf8)?;
        let (user, secret) = decoded.split_once(':').ok_or(EntryError::NoColon)?;
        username = user.to_owned();
        password = secret.trim_end_matches('\0').to_owned();
    }
    let credential =
        Credential { username, password, identity_token: entry.identitytoken, registry_token: entry.registrytoken };
    Ok((credential != Credential::default()).then_some(credential))
}

/// Files have base64 with and without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The newer format first, as in the Go kubelet.
const FILES: [&str; 2] = ["config.json", ".dockercfg"];

/// The API server's limit of a secret; also for files.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Entries of one file or secret.
const ENTRIES_MAX: usize = 1000;

/// Secrets of one pod.
const SECRETS_MAX: usize = 64;

/// Credentials tried for one pull: each attempt occupies the pull's permit.
const CREDENTIALS_MAX: usize = 32;

/// If reading takes longer, the pull continues without credentials.
const READ_TIME_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perform::image::parse_reference;

    #[test]
    fn the_numbers_of_entries_secrets_and_attempts_are_bounded() {
        let entries: serde_json::Map<_, _> = (0..5000)
            .map(|n| (format!("r{n}.example"), serde_json::json!({"username": "u", "password": "p"})))
            .collect();
        assert_eq!(parse(serde_json::Value::from(entries).to_string().as_bytes()).unwrap().len(), ENTRIES_MAX);
        let secret = |n: usize| {
            let content = format!(r#"{{"r.example": {{"username": "u{n}", "password": "p"}}}}"#);
            let encoded = base64::engine::general_purpose::STANDARD.encode(content);
            let object = serde_json::json!({"type": "kubernetes.io/dockercfg", "data": {".dockercfg": encoded}});
            Redacted::new(serde_json::from_value::<Secret>(object).unwrap())
        };
        let secrets: Vec<_> = (0..200).map(secret).collect();
        let keyring = Keyring::default().with_secrets(&secrets);
        assert_eq!(keyring.entries.len(), SECRETS_MAX);
        assert_eq!(keyring.matching(&parse_reference("r.example/a").unwrap()).len(), CREDENTIALS_MAX);
        let large =
            serde_json::json!({"type": "kubernetes.io/dockercfg", "data": {".dockercfg": "e30".repeat(1 << 19)}});
        assert!(matches!(of_secret(&serde_json::from_value(large).unwrap()), Err(CredentialsError::TooLarge)));
    }

    #[test]
    fn the_error_of_an_invalid_credential_does_not_quote_it() {
        let with = |auth: &str| credential(Entry { auth: auth.into(), ..Entry::default() });
        for (auth, why) in [("%%%", "not base64"), ("dXNlcg==", "user:password"), ("/w==", "not valid UTF-8")] {
            let error = with(auth).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains(auth), "{error}");
        }
        assert_eq!(with("dTpw").unwrap().unwrap().username, "u");
        assert_eq!(credential(Entry::default()), Ok(None));
    }

    #[test]
    fn the_credentials_of_a_pod_come_first_in_both_formats() {
        let encoded = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let secret = |kind: &str, key: &str, content: &str| {
            let object = serde_json::json!({"type": format!("kubernetes.io/{kind}"), "data": {key: encoded(content)}});
            Redacted::new(serde_json::from_value::<Secret>(object).unwrap())
        };
        let new = r#"{"auths": {"r.example": {"username": "new", "password": "p"}}}"#;
        let old = r#"{"r.example/team": {"username": "old", "password": "p"}}"#;
        let mut node = Keyring::default();
        node.add(vec![(
            "r.example/team/app".into(),
            credential(Entry { username: "node".into(), ..Entry::default() }).unwrap().unwrap().into(),
        )]);
        let keyring = node.with_secrets(&[
            secret("dockerconfigjson", ".dockerconfigjson", new),
            secret("dockercfg", ".dockercfg", old),
            secret("dockercfg", ".dockercfg", "broken"),
            secret("tls", ".dockercfg", old),
        ]);
        let found = keyring.matching(&parse_reference("r.example/team/app").unwrap());
        assert_eq!(found.iter().map(|c| c.credential.username.as_str()).collect::<Vec<_>>(), ["old", "new", "node"]);
    }

    #[tokio::test]
    async fn both_file_formats_are_read_and_the_longest_key_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        let (root, home) = (dir.path().join("root"), dir.path().join("home"));
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(&home).unwrap();
        let config = r#"{"auths": {
            "r.example": {"auth": "dTE6cDE="}, "r.example/team": {"username": "u2", "password": "p2"},
            "bare.example": {"auth": "dTQ6cDQ"}, "broken.example": {"auth": "%%%"}, "token.example": {"identitytoken": "t"}}}"#;
        std::fs::write(root.join("config.json"), config).unwrap();
        std::fs::write(
            home.join(".dockercfg"),
            r#"{"https://index.docker.io/v1/": {"auth": "dTM6cDM=", "email": "x"}}"#,
        )
        .unwrap();
        std::fs::write(home.join("config.json"), "not json hunter2").unwrap();
        let keyring = Keyring::load(&Pool::default(), &[root, home, dir.path().join("absent")]).await;
        let users = |image: &str| -> Vec<String> {
            keyring.matching(&parse_reference(image).unwrap()).into_iter().map(|c| c.credential.username).collect()
        };
        assert_eq!(users("r.example/team/app"), ["u2", "u1"]);
        assert_eq!(users("r.example/other"), ["u1"]);
        assert_eq!(users("nginx"), ["u3"]);
        assert_eq!(users("bare.example/a"), ["u4"], "without its padding");
        assert!(users("broken.example/a").is_empty() && users("unknown.example/a").is_empty());
        let token = keyring.matching(&parse_reference("token.example/a").unwrap());
        assert_eq!(token[0].credential.auth_config().identity_token, "t");
        assert!(!format!("{keyring:?}").contains("p2"));
    }
}
