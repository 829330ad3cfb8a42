//! A kubeconfig file: the server's address, its CA certificates, and our credentials.
//!
//! Reading is split in two. [`Kubeconfig::read`] finds permanent errors, which stop the agent at its start. `access` reads what may
//! change later, certificates and tokens in other files, and is called repeatedly.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use http::{HeaderValue, Uri};
use jiff::Timestamp;
use kube::config::{AuthInfo, Cluster, Kubeconfig as Parsed};
use podwright_tasks::Pool;
use secrecy::{ExposeSecret, SecretString};

use crate::{certificate, credential_plugin};

mod rotated;

pub use rotated::ClientCertificateSource;

/// Why a kubeconfig can't be used. Always names the file, and the field in it if one is wrong.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The file, or a file that it refers to, can't be read.
    #[error("{}: read {}: {source}", kubeconfig.display(), path.display())]
    Read {
        /// The kubeconfig's path.
        kubeconfig: PathBuf,
        /// The file that can't be read.
        path: PathBuf,
        /// The error of open or read.
        source: std::io::Error,
    },
    /// A field is invalid or missing.
    #[error("{}: {field}: {message}", kubeconfig.display())]
    Field {
        /// The kubeconfig's path.
        kubeconfig: PathBuf,
        /// The field's path, e.g. `users[admin].user.client-key`.
        field: String,
        /// What is wrong with it, without its value where that may be a secret.
        message: String,
    },
}

/// A kubeconfig whose current context, cluster and user exist and are valid.
#[derive(Clone, Debug)]
pub struct Kubeconfig {
    path: PathBuf,
    cluster_name: String,
    user_name: String,
    cluster: Cluster,
    user: AuthInfo,
    server: Uri,
}

/// Everything needed to connect and authenticate, as of one reading.
#[derive(Clone)]
pub(crate) struct Access {
    /// `https://host:port/path`
    pub(crate) server: Uri,
    /// The TLS parameters; when they change, a new connection is needed.
    pub(crate) identity: Identity,
    /// The `Authorization` header; `None`: the client certificate authenticates.
    pub(crate) authorization: Option<HeaderValue>,
    /// When to call `access` again.
    pub(crate) renew_at: Timestamp,
}

/// The TLS parameters of a connection.
#[derive(Clone)]
pub(crate) struct Identity {
    /// CA certificates (PEM) for the server's certificate; `None`: those of the host.
    pub(crate) roots: Option<Vec<u8>>,
    /// The client certificate and its key (PEM).
    pub(crate) client: Option<(Vec<u8>, SecretString)>,
    /// The name in the server's certificate, if not the host of its address.
    pub(crate) server_name: Option<String>,
    /// The server's certificate is not verified.
    pub(crate) insecure: bool,
}

impl Kubeconfig {
    /// Reads a file and selects its current context.
    pub fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let read = Self::parse(path)?;
        read.check()?;
        Ok(read)
    }

    fn parse(path: &Path) -> Result<Self, KubeconfigError> {
        let invalid = |field: &str, message: String| KubeconfigError::Field {
            kubeconfig: path.to_owned(),
            field: field.into(),
            message,
        };
        // Refuses a file that is too large before it is parsed.
        let content = read_file(path, path)?;
        // kube-client 5.0 panics here.
        if (content.starts_with(&[0xff, 0xfe]) || content.starts_with(&[0xfe, 0xff]))
            && !content.len().is_multiple_of(2)
        {
            return Err(invalid("the document", "is UTF-16 and ends within a character".into()));
        }
        let parsed =
            Parsed::read_from(path).map_err(|error| invalid("the document", parse_position(&error.to_string())))?;
        let current = parsed.current_context.filter(|name| !name.is_empty());
        let current = current.ok_or_else(|| invalid("current-context", "is not set".into()))?;
        let context = parsed.contexts.into_iter().find(|named| named.name == current).and_then(|named| named.context);
        let context = context.ok_or_else(|| invalid("current-context", format!("there is no context {current:?}")))?;
        let cluster_name = context.cluster;
        let cluster = parsed.clusters.into_iter().find(|named| named.name == cluster_name);
        let cluster = cluster.and_then(|named| named.cluster);
        let field = format!("contexts[{current}].context.cluster");
        let cluster = cluster.ok_or_else(|| invalid(&field, format!("there is no cluster {cluster_name:?}")))?;
        let user_name = context.user.unwrap_or_default();
        let mut user = AuthInfo::default();
        if !user_name.is_empty() {
            let found = parsed.auth_infos.into_iter().find(|named| named.name == user_name);
            let field = format!("contexts[{current}].context.user");
            user = found
                .ok_or_else(|| invalid(&field, format!("there is no user {user_name:?}")))?
                .auth_info
                .unwrap_or_default();
        }
        let field = format!("clusters[{cluster_name}].cluster.server");
        let server = server(&cluster).map_err(|error| invalid(&field, error.to_string()))?;
        Ok(Self { path: path.to_owned(), cluster_name, user_name, cluster, user, server })
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The server's address.
    pub(crate) fn server(&self) -> &Uri {
        &self.server
    }

    /// The end of validity of the client certificate; `None` without one, or if a plugin provides it.
    pub(crate) fn expires(&self) -> Option<Timestamp> {
        let (certificate, _) = self.client().ok()??;
        certificate::not_after(&certificate)
    }

    /// Finds errors that reading again can't repair.
    fn check(&self) -> Result<(), KubeconfigError> {
        if self.cluster.proxy_url.as_deref().is_some_and(|url| !url.is_empty()) {
            return Err(self.in_cluster("proxy-url", "proxies are not supported"));
        }
        if let Some(provider) = &self.user.auth_provider {
            let message = format!("{:?} was removed from Kubernetes: use exec", provider.name);
            return Err(self.in_user("auth-provider", message));
        }
        if self.user.impersonate.is_some() || self.user.impersonate_groups.is_some() {
            return Err(self.in_user("as", "impersonation is not supported"));
        }
        if self.user.username.is_some() || self.user.password.is_some() {
            return Err(self.in_user("username", "basic authentication was removed from Kubernetes"));
        }
        if let Some(exec) = &self.user.exec
            && exec.command.as_deref().unwrap_or_default().is_empty()
        {
            return Err(self.in_user("exec.command", "is missing"));
        }
        let roots = self.roots()?;
        if roots.as_deref().is_some_and(|pem| certificate::count(pem).is_none_or(|n| n == 0)) {
            let field = self.data_field("certificate-authority", self.cluster.certificate_authority_data.is_some());
            return Err(self.in_cluster(&field, "holds no certificate"));
        }
        if let Some((certificate, _)) = self.client()?
            && certificate::not_after(&certificate).is_none()
        {
            let field = self.data_field("client-certificate", self.user.client_certificate_data.is_some());
            return Err(self.in_user(&field, "holds no certificate"));
        }
        self.token()?;
        Ok(())
    }

    /// Reads what may change: files, and the output of a credential plugin, which may take a minute.
    pub(crate) async fn access(&self, pool: &Pool) -> Result<Access, KubeconfigError> {
        let this = self.clone();
        let read = move || Ok((this.roots()?, this.client()?, this.token()?));
        let read = pool.run("credential files", READ_TIMEOUT, read).await;
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
            let credential = credential_plugin::run(plugin, &self.cluster, roots).await;
            let credential = credential.map_err(|error| self.in_user("exec", error.to_string()))?;
            let renew_at = |at: Timestamp| at.checked_sub(RENEW_BEFORE).unwrap_or(Timestamp::MIN);
            access.renew_at = credential.expires.map_or(Timestamp::MAX, renew_at).max(Timestamp::now() + RENEW_MIN);
            access.identity.client = credential.certificate;
            token = credential.token;
        }
        if let Some(token) = token {
            let header = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret().trim()));
            let mut header =
                header.map_err(|_| self.in_user("token", "has characters that are invalid in a header"))?;
            header.set_sensitive(true);
            access.authorization = Some(header);
        }
        Ok(access)
    }

    fn roots(&self) -> Result<Option<Vec<u8>>, KubeconfigError> {
        let cluster = &self.cluster;
        let data = cluster.certificate_authority_data.as_deref();
        self.data_or_file(data, cluster.certificate_authority.as_deref())
            .map_err(|error| error.into_kubeconfig_error(|m| self.in_cluster("certificate-authority-data", m)))
    }

    fn client(&self) -> Result<Option<(Vec<u8>, SecretString)>, KubeconfigError> {
        let user = &self.user;
        let certificate = self
            .data_or_file(user.client_certificate_data.as_deref(), user.client_certificate.as_deref())
            .map_err(|error| error.into_kubeconfig_error(|m| self.in_user("client-certificate-data", m)))?;
        let key = self
            .data_or_file(user.client_key_data.as_ref().map(ExposeSecret::expose_secret), user.client_key.as_deref())
            .map_err(|error| error.into_kubeconfig_error(|m| self.in_user("client-key-data", m)))?;
        match (certificate, key) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.in_user("client-key", "is missing")),
            (None, Some(_)) => Err(self.in_user("client-certificate", "is missing")),
            (Some(certificate), Some(key)) => {
                let key = String::from_utf8(key).map_err(|_| self.in_user("client-key", "is not PEM"))?;
                Ok(Some((certificate, key.into())))
            }
        }
    }

    fn token(&self) -> Result<Option<SecretString>, KubeconfigError> {
        let inline = self.user.token.as_ref().filter(|token| !token.expose_secret().is_empty());
        // The file takes precedence (Kubernetes: client-go's rest.Config BearerTokenFile).
        let Some(path) = self.user.token_file.as_deref().filter(|path| !path.is_empty()) else {
            return Ok(inline.cloned());
        };
        let bytes = read_file(&self.path, Path::new(path))?;
        let text = String::from_utf8(bytes).map_err(|_| self.in_user("tokenFile", "is not text"))?;
        if text.trim().is_empty() {
            return Err(self.in_user("tokenFile", format!("{path} is empty")));
        }
        Ok(Some(text.trim().into()))
    }

    fn data_or_file(&self, data: Option<&str>, path: Option<&str>) -> Result<Option<Vec<u8>>, DataError> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let bytes = base64::engine::general_purpose::STANDARD.decode(data.trim());
            return bytes.map(Some).map_err(|_| DataError::Base64);
        }
        let Some(path) = path.filter(|path| !path.is_empty()) else { return Ok(None) };
        read_file(&self.path, Path::new(path)).map(Some).map_err(DataError::File)
    }

    /// The field that the data came from.
    fn data_field(&self, field: &str, inline: bool) -> String {
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

/// The position of a parse error. Parsers quote what they can't parse, which may be a secret, so only the position is reported.
fn parse_position(error: &str) -> String {
    let from = error.find("line ").map(|at| &error[at..]).unwrap_or_default();
    let tokens: Vec<&str> = from.split_whitespace().take(4).collect();
    let is_position = matches!(tokens.as_slice(), ["line", _, "column", _]);
    let position = if is_position { format!(": {}", tokens.join(" ").trim_end_matches(':')) } else { String::new() };
    format!("can't be parsed as a kubeconfig{position}")
}

/// Why neither inline data nor a file could be read.
enum DataError {
    Base64,
    File(KubeconfigError),
}

impl DataError {
    fn into_kubeconfig_error(self, in_field: impl Fn(&str) -> KubeconfigError) -> KubeconfigError {
        match self {
            Self::Base64 => in_field("is not base64"),
            Self::File(error) => error,
        }
    }
}

/// Why a cluster's `server` is not usable.
#[derive(Debug, thiserror::Error)]
enum ServerError {
    #[error("is not set")]
    Missing,
    #[error("{text:?}: {source}")]
    Uri { text: String, source: http::uri::InvalidUri },
    #[error("{0:?} must be https://HOST:PORT")]
    NoHost(String),
}

fn server(cluster: &Cluster) -> Result<Uri, ServerError> {
    let text = cluster.server.as_deref().filter(|server| !server.is_empty()).ok_or(ServerError::Missing)?;
    let uri = text.trim_end_matches('/').parse::<Uri>();
    let uri = uri.map_err(|source| ServerError::Uri { text: text.to_owned(), source })?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("https" | "http"), Some(_)) => Ok(uri),
        _ => Err(ServerError::NoHost(text.to_owned())),
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

/// Real files have a few kilobytes.
const FILE_MAX: u64 = 1 << 20;
/// For the files that a kubeconfig refers to.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval for reading token and certificate files again.
const REREAD: Duration = Duration::from_secs(60);
/// A plugin runs again this long before its credential expires.
const RENEW_BEFORE: Duration = Duration::from_secs(60);
/// Minimum interval between two runs of a plugin.
const RENEW_MIN: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
