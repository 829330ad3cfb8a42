//! Registry credentials from docker's files, matched to images the way the Go kubelet does.
//!
//! `config.json` holds `{"auths": {"registry/path": {…}}}`, the older `.dockercfg` only what is inside of `auths`. Keys may have
//! a scheme and `/v1/` or `/v2/`, and `*` in parts of the host. The longest key that matches is tried first.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use k8s_openapi::api::core::v1::Secret;
use podwright_cri::v1::AuthConfig;
use serde::Deserialize;

use super::ImageReference;
use crate::host::Pool;
use crate::objects::Redacted;
use crate::perform::situation::{blocking, read_bounded};

/// One login. Prints without its secrets.
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

    /// Texts that must not be seen anywhere.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        [&self.password, &self.identity_token, &self.registry_token].into_iter().map(String::as_str)
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("username", &self.username).finish_non_exhaustive()
    }
}

/// The logins of this node.
#[derive(Debug, Default)]
pub(super) struct Keyring {
    /// File by file, in each the longest key first.
    entries: Vec<(String, Credential)>,
}

impl Keyring {
    /// Reads what is there. A file that cannot be read is left out: the pull may do without it, and says so if not.
    pub(super) async fn load(pool: &Pool, dirs: &[PathBuf]) -> Self {
        if dirs.is_empty() {
            return Self::default();
        }
        let dirs = dirs.to_vec();
        let loaded = blocking(pool, "registry credentials", READ_TIME_MAX, move || {
            let mut keyring = Self::default();
            for file in dirs.iter().flat_map(|dir| FILES.map(|name| dir.join(name))) {
                match read(&file) {
                    Ok(entries) => keyring.add(entries),
                    Err(error) => tracing::warn!(file = %file.display(), error, "registry credentials are not read"),
                }
            }
            Ok(keyring)
        });
        loaded.await.unwrap_or_else(|error| {
            tracing::warn!(error = error.message(), "registry credentials are not read");
            Self::default()
        })
    }

    /// The logins a pod brings are tried before the node's own.
    pub(super) fn with_secrets(self, secrets: &[Redacted<Secret>]) -> Self {
        let mut entries = Vec::new();
        for secret in secrets {
            match of_secret(secret) {
                Ok(more) => entries.extend(more),
                Err(error) => {
                    let name = secret.metadata.name.as_deref().unwrap_or_default();
                    tracing::warn!(name, error, "the logins of an image pull secret are not used");
                }
            }
        }
        let mut keyring = Self::default();
        keyring.add(entries);
        keyring.entries.extend(self.entries);
        keyring
    }

    /// What may open this image, the best first. None: it is tried without.
    pub(super) fn matching(&self, image: &ImageReference) -> Vec<Credential> {
        let target = format!("{}/{}", image.domain, image.path);
        let mut found: Vec<Credential> = Vec::new();
        for (key, credential) in &self.entries {
            let default_registry = image.domain == "docker.io" && key == "index.docker.io";
            if (matches(key, &target) || default_registry) && !found.contains(credential) {
                found.push(credential.clone());
            }
        }
        found
    }

    fn add(&mut self, mut entries: Vec<(String, Credential)>) {
        entries.sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then_with(|| b.cmp(a)));
        self.entries.append(&mut entries);
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum File {
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

fn read(file: &Path) -> Result<Vec<(String, Credential)>, String> {
    let content = match read_bounded(file, FILE_BYTES_MAX) {
        Ok(content) => content,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.to_string()),
    };
    parse(&content)
}

/// The logins of a Secret for registries. Other types of secrets have none.
fn of_secret(secret: &Secret) -> Result<Vec<(String, Credential)>, String> {
    let key = match secret.type_.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => ".dockerconfigjson",
        Some("kubernetes.io/dockercfg") => ".dockercfg",
        _ => return Ok(Vec::new()),
    };
    match secret.data.as_ref().and_then(|data| data.get(key)) {
        Some(content) if !content.0.is_empty() => parse(&content.0),
        _ => Ok(Vec::new()),
    }
}

fn parse(content: &[u8]) -> Result<Vec<(String, Credential)>, String> {
    // What serde says of a broken file may quote it, secrets included.
    let file: File = serde_json::from_slice(content).map_err(|_| "it is not a docker configuration".to_owned())?;
    let entries = match file {
        File::Config { auths } | File::Legacy(auths) => auths,
    };
    let mut logins = Vec::new();
    for (key, entry) in entries {
        match (normal_key(&key), credential(entry)) {
            (Some(normal), Ok(Some(login))) => logins.push((normal, login)),
            (_, Err(error)) => tracing::warn!(key, error, "a registry's login is not used"),
            (None, _) | (_, Ok(None)) => {}
        }
    }
    Ok(logins)
}

/// `None`: nothing is said. The error never quotes what is wrong.
fn credential(entry: Entry) -> Result<Option<Credential>, &'static str> {
    let (mut username, mut password) = (entry.username, entry.password);
    if !entry.auth.is_empty() {
        let decoded = BASE64.decode(entry.auth.trim()).map_err(|_| "its auth is not base64")?;
        let decoded = String::from_utf8(decoded).map_err(|_| "its auth is not text")?;
        let (user, secret) = decoded.split_once(':').ok_or("its auth is not base64 of user:password")?;
        username = user.to_owned();
        password = secret.trim_end_matches('\0').to_owned();
    }
    let credential =
        Credential { username, password, identity_token: entry.identitytoken, registry_token: entry.registrytoken };
    Ok((credential != Credential::default()).then_some(credential))
}

/// `https://r.example/v1/team` is `r.example/team`.
fn normal_key(key: &str) -> Option<String> {
    let bare = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let (host, path) = bare.split_once('/').unwrap_or((bare, ""));
    let path = match path.split_once('/') {
        Some(("v1" | "v2", rest)) => rest,
        _ => path,
    };
    let path = path.trim_end_matches('/');
    if host.is_empty() {
        return None;
    }
    Some(if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") })
}

/// Host part by part with wildcards, then the path as a mere prefix, which may end inside of a part (Go kubelet: `URLsMatch`).
fn matches(key: &str, target: &str) -> bool {
    let (key_host, key_path) = key.split_once('/').unwrap_or((key, ""));
    let (host, path) = target.split_once('/').unwrap_or((target, ""));
    let split = |host: &str| match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name.to_owned(), port.to_owned()),
        _ => (host.to_owned(), String::new()),
    };
    let ((key_name, key_port), (name, port)) = (split(key_host), split(host));
    let hosts_match = key_port == port
        && key_name.split('.').count() == name.split('.').count()
        && key_name.split('.').zip(name.split('.')).all(|(glob, part)| glob_match(glob.as_bytes(), part.as_bytes()));
    hosts_match && path.starts_with(key_path)
}

fn glob_match(glob: &[u8], text: &[u8]) -> bool {
    match (glob.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => (0..=text.len()).any(|skip| glob_match(rest, &text[skip..])),
        (Some((b'?', rest)), Some((_, text))) => glob_match(rest, text),
        (Some((a, rest)), Some((b, text))) if a == b => glob_match(rest, text),
        _ => false,
    }
}

/// With its padding or without: both are written.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The newer form first, as the Go kubelet looks for them.
const FILES: [&str; 2] = ["config.json", ".dockercfg"];

const FILE_BYTES_MAX: u64 = 1 << 20;

/// Longer, and the pull goes on without credentials.
const READ_TIME_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perform::image::parse_reference;

    #[test]
    fn keys_match_hosts_and_the_beginnings_of_paths() {
        let table = [
            ("r.example", "r.example/a/b", true),
            ("r.example/a", "r.example/a/b", true),
            ("r.example/a", "r.example/ab", true),
            ("r.example/ab", "r.example/a", false),
            ("*.example", "r.example/a", true),
            ("*.example", "x.r.example/a", false),
            ("r*.example", "reg.example/a", true),
            ("r.example:5000", "r.example/a", false),
            ("r.example:5000", "r.example:5000/a", true),
            ("*", "r.example/a", false),
            ("other.example", "r.example/a", false),
        ];
        for (key, target, expected) in table {
            assert_eq!(matches(key, target), expected, "{key} {target}");
        }
        assert_eq!(normal_key("https://index.docker.io/v1/").as_deref(), Some("index.docker.io"));
        assert_eq!(normal_key("http://r.example/v2/team/").as_deref(), Some("r.example/team"));
        assert_eq!(normal_key("https://"), None);
    }

    #[test]
    fn a_broken_login_is_named_and_never_quoted() {
        let with = |auth: &str| credential(Entry { auth: auth.into(), ..Entry::default() });
        for (auth, why) in [("%%%", "not base64"), ("dXNlcg==", "user:password"), ("/w==", "not text")] {
            let error = with(auth).unwrap_err();
            assert!(error.contains(why) && !error.contains(auth), "{error}");
        }
        assert_eq!(with("dTpw").unwrap().unwrap().username, "u");
        assert_eq!(credential(Entry::default()), Ok(None));
    }

    #[test]
    fn a_pods_own_logins_come_first_whatever_their_form() {
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
            credential(Entry { username: "node".into(), ..Entry::default() }).unwrap().unwrap(),
        )]);
        let keyring = node.with_secrets(&[
            secret("dockerconfigjson", ".dockerconfigjson", new),
            secret("dockercfg", ".dockercfg", old),
            secret("dockercfg", ".dockercfg", "broken"),
            secret("tls", ".dockercfg", old),
        ]);
        let found = keyring.matching(&parse_reference("r.example/team/app").unwrap());
        assert_eq!(found.iter().map(|c| c.username.as_str()).collect::<Vec<_>>(), ["old", "new", "node"]);
    }

    #[tokio::test]
    async fn both_kinds_of_file_are_read_and_the_longest_key_comes_first() {
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
            keyring.matching(&parse_reference(image).unwrap()).into_iter().map(|c| c.username).collect()
        };
        assert_eq!(users("r.example/team/app"), ["u2", "u1"]);
        assert_eq!(users("r.example/other"), ["u1"]);
        assert_eq!(users("nginx"), ["u3"]);
        assert_eq!(users("bare.example/a"), ["u4"], "without its padding");
        assert!(users("broken.example/a").is_empty() && users("unknown.example/a").is_empty());
        let token = keyring.matching(&parse_reference("token.example/a").unwrap());
        assert_eq!(token[0].auth_config().identity_token, "t");
        assert!(!format!("{keyring:?}").contains("p2"));
    }
}
