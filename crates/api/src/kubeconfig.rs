//! A kubeconfig file: which server, how it proves itself to us, how we prove ourselves to it.
//!
//! Reading it is split in two. [`Kubeconfig::read`] finds what is wrong for good: such a file stops the agent at its start. What
//! may be different in a minute, certificates and tokens in other files, is read again and again by `access`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use http::{HeaderValue, Uri};
use jiff::Timestamp;
use kube::config::{AuthInfo, Cluster, Kubeconfig as Parsed};
use secrecy::{ExposeSecret, SecretString};

use crate::exec;

/// Why a kubeconfig can't be used. Always names the file, and the field in it.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The file, or one that it names, can't be read.
    #[error("{}: read {}: {source}", kubeconfig.display(), path.display())]
    Read {
        /// The kubeconfig.
        kubeconfig: PathBuf,
        /// The file that can't be read.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something in it is wrong or missing.
    #[error("{}: {field}: {message}", kubeconfig.display())]
    Field {
        /// The kubeconfig.
        kubeconfig: PathBuf,
        /// The field's path.
        field: String,
        /// What is wrong.
        message: String,
    },
}

/// A kubeconfig whose context, cluster and user are there and make sense.
#[derive(Clone, Debug)]
pub struct Kubeconfig {
    path: PathBuf,
    cluster_name: String,
    user_name: String,
    cluster: Cluster,
    user: AuthInfo,
    server: Uri,
}

/// All that is needed to connect now.
#[derive(Clone)]
pub(crate) struct Access {
    /// `https://host:port/path`
    pub(crate) server: Uri,
    /// What the connection is made with; another one of these needs another connection.
    pub(crate) identity: Identity,
    /// The `Authorization` header.
    pub(crate) authorization: Option<HeaderValue>,
    /// Look again then.
    pub(crate) renew_at: Timestamp,
}

/// What a TLS connection is made with.
#[derive(Clone)]
pub(crate) struct Identity {
    /// Certificates (PEM) the server's may be signed with; `None`: the machine's own.
    pub(crate) roots: Option<Vec<u8>>,
    /// Our certificate and key (PEM).
    pub(crate) client: Option<(Vec<u8>, SecretString)>,
    /// The server's name, if not that of its address.
    pub(crate) server_name: Option<String>,
    /// The server's certificate is not looked at.
    pub(crate) insecure: bool,
}

impl Kubeconfig {
    /// Read a file and pick its current context.
    pub fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let wrong = |field: &str, message: String| KubeconfigError::Field {
            kubeconfig: path.to_owned(),
            field: field.into(),
            message,
        };
        // Refused when too large before it is parsed.
        read_file(path, path)?;
        let parsed = Parsed::read_from(path).map_err(|error| wrong("the document", place(&error.to_string())))?;
        let current = parsed.current_context.filter(|name| !name.is_empty());
        let current = current.ok_or_else(|| wrong("current-context", "is not set".into()))?;
        let context = parsed.contexts.into_iter().find(|named| named.name == current).and_then(|named| named.context);
        let context = context.ok_or_else(|| wrong("current-context", format!("there is no context {current:?}")))?;
        let cluster_name = context.cluster;
        let cluster = parsed.clusters.into_iter().find(|named| named.name == cluster_name);
        let cluster = cluster.and_then(|named| named.cluster);
        let field = format!("contexts[{current}].context.cluster");
        let cluster = cluster.ok_or_else(|| wrong(&field, format!("there is no cluster {cluster_name:?}")))?;
        let user_name = context.user.unwrap_or_default();
        let mut user = AuthInfo::default();
        if !user_name.is_empty() {
            let found = parsed.auth_infos.into_iter().find(|named| named.name == user_name);
            let field = format!("contexts[{current}].context.user");
            user = found
                .ok_or_else(|| wrong(&field, format!("there is no user {user_name:?}")))?
                .auth_info
                .unwrap_or_default();
        }
        let field = format!("clusters[{cluster_name}].cluster.server");
        let server = server(&cluster).map_err(|message| wrong(&field, message))?;
        let read = Self { path: path.to_owned(), cluster_name, user_name, cluster, user, server };
        read.check()?;
        Ok(read)
    }

    /// The server's address.
    pub fn server(&self) -> &Uri {
        &self.server
    }

    /// When our certificate ends, if we have one that is no plugin's.
    pub fn expires(&self) -> Option<Timestamp> {
        let (certificate, _) = self.client().ok()??;
        not_after(&certificate)
    }

    /// What can't be right at any time.
    fn check(&self) -> Result<(), KubeconfigError> {
        if self.cluster.proxy_url.as_deref().is_some_and(|url| !url.is_empty()) {
            return Err(self.in_cluster("proxy-url", "proxies are not supported"));
        }
        if let Some(provider) = &self.user.auth_provider {
            let message = format!("{:?} was removed from Kubernetes: use exec", provider.name);
            return Err(self.in_user("auth-provider", message));
        }
        if self.user.impersonate.is_some() || self.user.impersonate_groups.is_some() {
            return Err(self.in_user("as", "a node speaks for itself only"));
        }
        if self.user.username.is_some() || self.user.password.is_some() {
            return Err(self.in_user("username", "names and passwords were removed from Kubernetes"));
        }
        if let Some(exec) = &self.user.exec
            && exec.command.as_deref().unwrap_or_default().is_empty()
        {
            return Err(self.in_user("exec.command", "is missing"));
        }
        let roots = self.roots()?;
        if roots.as_deref().is_some_and(|pem| certificates(pem).is_none_or(|n| n == 0)) {
            let field = self.given("certificate-authority", self.cluster.certificate_authority_data.is_some());
            return Err(self.in_cluster(&field, "holds no certificate"));
        }
        if let Some((certificate, _)) = self.client()?
            && not_after(&certificate).is_none()
        {
            let field = self.given("client-certificate", self.user.client_certificate_data.is_some());
            return Err(self.in_user(&field, "holds no certificate"));
        }
        self.token()?;
        Ok(())
    }

    /// Read what changes: files, and what a plugin says. Blocks as long as the plugin takes, at most a minute.
    pub(crate) async fn access(&self) -> Result<Access, KubeconfigError> {
        let this = self.clone();
        let read = tokio::task::spawn_blocking(move || Ok((this.roots()?, this.client()?, this.token()?))).await;
        let (roots, client, token) = read.unwrap_or_else(|error| Err(self.in_user("", error.to_string())))?;
        let mut access = Access {
            server: self.server.clone(),
            identity: Identity {
                roots,
                client,
                server_name: self.cluster.tls_server_name.clone().filter(|name| !name.is_empty()),
                insecure: self.cluster.insecure_skip_tls_verify.unwrap_or(false),
            },
            authorization: None,
            renew_at: Timestamp::now() + REREAD,
        };
        let mut token = token;
        if token.is_none()
            && access.identity.client.is_none()
            && let Some(plugin) = &self.user.exec
        {
            let roots = access.identity.roots.as_deref();
            let given = exec::run(plugin, &self.cluster, roots).await.map_err(|error| self.in_user("exec", error))?;
            access.renew_at =
                given.expires.map_or(Timestamp::MAX, |at| at - RENEW_BEFORE).max(Timestamp::now() + LEAST);
            access.identity.client = given.certificate;
            token = given.token;
        }
        if let Some(token) = token {
            let header = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret().trim()));
            let mut header = header.map_err(|_| self.in_user("token", "has characters that no token has"))?;
            header.set_sensitive(true);
            access.authorization = Some(header);
        }
        Ok(access)
    }

    fn roots(&self) -> Result<Option<Vec<u8>>, KubeconfigError> {
        let cluster = &self.cluster;
        let data = cluster.certificate_authority_data.as_deref();
        self.data_or_file(data, cluster.certificate_authority.as_deref())
            .map_err(|error| self.undecodable(error, |m| self.in_cluster("certificate-authority-data", m)))
    }

    fn client(&self) -> Result<Option<(Vec<u8>, SecretString)>, KubeconfigError> {
        let user = &self.user;
        let certificate = self
            .data_or_file(user.client_certificate_data.as_deref(), user.client_certificate.as_deref())
            .map_err(|error| self.undecodable(error, |m| self.in_user("client-certificate-data", m)))?;
        let key = self
            .data_or_file(user.client_key_data.as_ref().map(ExposeSecret::expose_secret), user.client_key.as_deref())
            .map_err(|error| self.undecodable(error, |m| self.in_user("client-key-data", m)))?;
        match (certificate, key) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.in_user("client-key", "is missing")),
            (None, Some(_)) => Err(self.in_user("client-certificate", "is missing")),
            (Some(certificate), Some(key)) => {
                let key = String::from_utf8(key).map_err(|_| self.in_user("client-key", "is no PEM"))?;
                Ok(Some((certificate, key.into())))
            }
        }
    }

    fn token(&self) -> Result<Option<SecretString>, KubeconfigError> {
        let given = self.user.token.as_ref().filter(|token| !token.expose_secret().is_empty());
        // Where both are given, the file is the newer one.
        let Some(path) = self.user.token_file.as_deref().filter(|path| !path.is_empty()) else {
            return Ok(given.cloned());
        };
        let bytes = read_file(&self.path, Path::new(path))?;
        let text = String::from_utf8(bytes).map_err(|_| self.in_user("tokenFile", "is no text"))?;
        if text.trim().is_empty() {
            return Err(self.in_user("tokenFile", format!("{path} is empty")));
        }
        Ok(Some(text.trim().into()))
    }

    fn data_or_file(&self, data: Option<&str>, path: Option<&str>) -> Result<Option<Vec<u8>>, Unusable> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let bytes = base64::engine::general_purpose::STANDARD.decode(data.trim());
            return bytes.map(Some).map_err(|_| Unusable::Base64);
        }
        let Some(path) = path.filter(|path| !path.is_empty()) else { return Ok(None) };
        read_file(&self.path, Path::new(path)).map(Some).map_err(Unusable::File)
    }

    fn undecodable(&self, error: Unusable, field: impl Fn(&str) -> KubeconfigError) -> KubeconfigError {
        match error {
            Unusable::Base64 => field("is no base64"),
            Unusable::File(error) => error,
        }
    }

    fn given(&self, field: &str, inline: bool) -> String {
        if inline { format!("{field}-data") } else { field.into() }
    }

    fn in_cluster(&self, field: &str, message: impl Into<String>) -> KubeconfigError {
        let field = format!("clusters[{}].cluster.{field}", self.cluster_name);
        KubeconfigError::Field { kubeconfig: self.path.clone(), field, message: message.into() }
    }

    fn in_user(&self, field: &str, message: impl Into<String>) -> KubeconfigError {
        let field = format!("users[{}].user.{field}", self.user_name);
        KubeconfigError::Field { kubeconfig: self.path.clone(), field, message: message.into() }
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        let key = |identity: &Self| {
            identity.client.as_ref().map(|(cert, key)| (cert.clone(), key.expose_secret().to_owned()))
        };
        self.roots == other.roots
            && self.server_name == other.server_name
            && self.insecure == other.insecure
            && key(self) == key(other)
    }
}

/// Where a file stops making sense. Parsers quote what they can't read, and here that may be a secret: only the place is told.
fn place(error: &str) -> String {
    let from = error.find("line ").map(|at| &error[at..]).unwrap_or_default();
    let words: Vec<&str> = from.split_whitespace().take(4).collect();
    let is_place = matches!(words.as_slice(), ["line", _, "column", _]);
    let place = if is_place { format!(": {}", words.join(" ").trim_end_matches(':')) } else { String::new() };
    format!("can't be read as a kubeconfig{place}")
}

/// Why inline data or a file gives nothing.
enum Unusable {
    Base64,
    File(KubeconfigError),
}

fn server(cluster: &Cluster) -> Result<Uri, String> {
    let text = cluster.server.as_deref().filter(|server| !server.is_empty()).ok_or("is not set")?;
    let uri: Uri = text.trim_end_matches('/').parse().map_err(|error| format!("{text:?}: {error}"))?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("https" | "http"), Some(_)) => Ok(uri),
        _ => Err(format!("{text:?} must be https://HOST:PORT")),
    }
}

fn read_file(kubeconfig: &Path, path: &Path) -> Result<Vec<u8>, KubeconfigError> {
    let failed = |source| KubeconfigError::Read { kubeconfig: kubeconfig.to_owned(), path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(failed(std::io::Error::other(format!("has more than {FILE_MAX} bytes"))));
    }
    Ok(bytes)
}

/// How many certificates a PEM text has; `None` if one of them can't be read.
fn certificates(pem: &[u8]) -> Option<usize> {
    let parts = x509_parser::pem::Pem::iter_from_buffer(pem).collect::<Result<Vec<_>, _>>().ok()?;
    let certificates = parts.iter().filter(|part| part.label == "CERTIFICATE");
    certificates.map(|part| part.parse_x509().ok()).collect::<Option<Vec<_>>>().map(|all| all.len())
}

/// The end of the first certificate of a PEM text.
pub(crate) fn not_after(pem: &[u8]) -> Option<Timestamp> {
    let parts = x509_parser::pem::Pem::iter_from_buffer(pem).filter_map(Result::ok);
    let first = parts.into_iter().find(|part| part.label == "CERTIFICATE")?;
    Timestamp::from_second(first.parse_x509().ok()?.validity().not_after.timestamp()).ok()
}

/// Real ones have a few kilobytes.
const FILE_MAX: u64 = 1 << 20;
/// Files with tokens and certificates are looked at this often.
const REREAD: Duration = Duration::from_secs(60);
/// A plugin is asked this long before what it gave ends.
const RENEW_BEFORE: Duration = Duration::from_secs(60);
/// And never more often than this.
const LEAST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
