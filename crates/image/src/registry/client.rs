//! Requests to one repository: which host, with which credentials.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{HeaderName, Method, Response, StatusCode, Uri};
use hyper::body::Incoming;
use podwright_tasks::Pool;
use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::auth::{Challenge, RegistryCredentials, TokenRequest, TokenResponse, challenge};
use super::hosts_toml::{RegistryHost, registry_hosts};
use super::lookup::PooledLookup;
use super::tls::client_config;
use super::transport::{Fetch, RegistryHttpClient, http_client, read_bounded, shown, status_error};
use super::{RegistryError, RegistryOptions};
use crate::digest::Digest;
use crate::manifest::ACCEPTED;
use crate::reference::ImageReference;

/// Connections and tokens, shared by all pulls.
#[derive(Debug)]
pub(crate) struct RegistryClient {
    options: RegistryOptions,
    /// Name lookups and disk work.
    pool: Pool,
    plain: RegistryHttpClient,
    tokens: Mutex<BTreeMap<TokenKey, (HeaderValue, Instant)>>,
}

/// A token is for one host, scope and user.
type TokenKey = (String, String, Digest);

/// One pull's view of a repository.
#[derive(Debug)]
pub(crate) struct RepositorySession {
    pub(super) client: Arc<RegistryClient>,
    pub(super) reference: ImageReference,
    credentials: RegistryCredentials,
    pub(super) endpoints: Vec<Endpoint>,
}

/// A host with its connections.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) host: RegistryHost,
    http: RegistryHttpClient,
}

/// A manifest or index as a registry sent it.
#[derive(Debug)]
pub(crate) struct FetchedManifest {
    pub(crate) bytes: Vec<u8>,
    pub(crate) digest: Digest,
    /// `Content-Type`; empty if there was none.
    pub(crate) media_type: String,
}

impl RegistryClient {
    /// Reads the system's certificates.
    pub(crate) fn new(options: RegistryOptions, pool: Pool) -> Result<Self, RegistryError> {
        let plain = http_client(client_config(None)?, PooledLookup::new(pool.clone()));
        Ok(Self { options, pool, plain, tokens: Mutex::default() })
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn options(&self) -> &RegistryOptions {
        &self.options
    }

    /// Reads the configuration of the registry. Blocks.
    pub(crate) fn session(
        self: &Arc<Self>,
        reference: &ImageReference,
        credentials: RegistryCredentials,
    ) -> Result<RepositorySession, RegistryError> {
        let registry = reference.registry();
        let dir: Option<&PathBuf> = self.options.config_dir.as_ref();
        let hosts = registry_hosts(dir.map(PathBuf::as_path), registry);
        let hosts = hosts.map_err(|source| RegistryError::Hosts { registry: registry.to_owned(), source })?;
        let lookup = PooledLookup::new(self.pool.clone());
        let endpoint = |host: RegistryHost| {
            let own = host.skip_verify || !host.ca.is_empty() || !host.client.is_empty();
            let http = if own { http_client(client_config(Some(&host))?, lookup.clone()) } else { self.plain.clone() };
            Ok(Endpoint { host, http })
        };
        let endpoints = hosts.into_iter().map(endpoint).collect::<Result<_, RegistryError>>()?;
        Ok(RepositorySession { client: Arc::clone(self), reference: reference.clone(), credentials, endpoints })
    }

    fn token(&self, key: &TokenKey) -> Option<HeaderValue> {
        let tokens = self.tokens.lock().expect("no panic under this lock");
        tokens.get(key).filter(|(_, until)| *until > Instant::now()).map(|(token, _)| token.clone())
    }

    fn keep_token(&self, key: TokenKey, token: HeaderValue, expires_in: Option<u64>) {
        let seconds = expires_in.unwrap_or(TOKEN_SECONDS_DEFAULT).min(TOKEN_SECONDS_MAX);
        let until = Instant::now() + Duration::from_secs(seconds).saturating_sub(TOKEN_MARGIN);
        let mut tokens = self.tokens.lock().expect("no panic under this lock");
        tokens.retain(|_, (_, until)| *until > Instant::now());
        if tokens.len() >= TOKENS_MAX {
            tokens.clear();
        }
        tokens.insert(key, (token, until));
    }
}

impl RepositorySession {
    /// Fetches a manifest or index: by tag from hosts that may resolve, by digest from those that may pull.
    pub(crate) async fn manifest(
        &self,
        version: &str,
        expected: Option<Digest>,
        max: u64,
    ) -> Result<FetchedManifest, RegistryError> {
        let capability = if expected.is_some() { "pull" } else { "resolve" };
        let able = |endpoint: &&Endpoint| if expected.is_some() { endpoint.host.pull } else { endpoint.host.resolve };
        let mut attempts = vec![];
        for endpoint in self.endpoints.iter().filter(able) {
            match self.manifest_from(endpoint, version, expected, max).await {
                Ok(found) => return Ok(found),
                Err(error) => attempts.push(error),
            }
        }
        Err(self.exhausted(attempts, capability))
    }

    /// The hosts of this session, as the key under which transfers from them are shared.
    pub(crate) fn hosts(&self) -> String {
        self.endpoints.iter().map(|endpoint| endpoint.host.to_string()).collect::<Vec<_>>().join(" ")
    }

    /// The error when every host failed.
    pub(super) fn exhausted(&self, mut attempts: Vec<RegistryError>, capability: &'static str) -> RegistryError {
        let reference = self.reference.clone();
        match attempts.len() {
            0 => RegistryError::NoHost { reference, capability },
            1 => attempts.remove(0),
            _ => RegistryError::AllHosts { reference, attempts },
        }
    }

    async fn manifest_from(
        &self,
        endpoint: &Endpoint,
        version: &str,
        expected: Option<Digest>,
        max: u64,
    ) -> Result<FetchedManifest, RegistryError> {
        let limit = self.client.options.response_limit;
        let accept = HeaderValue::try_from(ACCEPTED.join(", ")).expect("constants are a header");
        let mut attempt = 0;
        let (url, response) = loop {
            let result = self.get(endpoint, &format!("manifests/{version}"), (ACCEPT, accept.clone())).await;
            match result {
                Err(error) if error.is_transient() && attempt < MANIFEST_RETRIES => attempt += 1,
                other => break other?,
            }
            tokio::time::sleep(RETRY_DELAY * attempt).await;
        };
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let media_type = header("content-type").unwrap_or_default();
        let announced = header("docker-content-digest").and_then(|text| text.parse::<Digest>().ok());
        let bytes = read_bounded(&url, response.into_body(), max, limit).await?;
        let actual = Digest::of(&bytes);
        if let Some(expected) = expected.or(announced).filter(|expected| *expected != actual) {
            return Err(RegistryError::Digest { url, expected, actual });
        }
        Ok(FetchedManifest { bytes, digest: actual, media_type })
    }

    /// A GET below the repository that ended with success. A server that asks for credentials is answered once.
    pub(super) async fn get(
        &self,
        endpoint: &Endpoint,
        path: &str,
        header: (HeaderName, HeaderValue),
    ) -> Result<(String, Response<Incoming>), RegistryError> {
        let limit = self.client.options.response_limit;
        let key = self.token_key(endpoint);
        let first = self.client.token(&key).or_else(|| self.credentials_for(endpoint).registry_token());
        let (url, response) = self.send(endpoint, path, &header, first).await?;
        let (url, response) = match challenge(response.headers()) {
            Some(challenge) if response.status() == StatusCode::UNAUTHORIZED => {
                let Some(answer) = self.answer(endpoint, &challenge, key).await? else {
                    return Err(status_error(url, response, limit).await);
                };
                drop(response);
                self.send(endpoint, path, &header, Some(answer)).await?
            }
            _ => (url, response),
        };
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok((url, response)),
            _ => Err(status_error(url, response, limit).await),
        }
    }

    async fn send(
        &self,
        endpoint: &Endpoint,
        path: &str,
        header: &(HeaderName, HeaderValue),
        authorization: Option<HeaderValue>,
    ) -> Result<(String, Response<Incoming>), RegistryError> {
        let mut private_headers: HeaderMap = endpoint.host.headers.iter().cloned().collect();
        private_headers.extend(authorization.map(|value| (AUTHORIZATION, value)));
        let fetch = Fetch {
            method: Method::GET,
            url: self.url(endpoint, path),
            private_headers,
            headers: HeaderMap::from_iter([header.clone()]),
            body: Bytes::new(),
            redirects_max: REDIRECTS_MAX,
            client: &endpoint.http,
            plain_client: &self.client.plain,
            limit: self.client.options.response_limit,
        };
        fetch.send().await
    }

    /// The header that answers a challenge; `None` if there is nothing to answer with.
    async fn answer(
        &self,
        endpoint: &Endpoint,
        challenge: &Challenge,
        key: TokenKey,
    ) -> Result<Option<HeaderValue>, RegistryError> {
        let credentials = self.credentials_for(endpoint);
        let (realm, service, scope) = match challenge {
            Challenge::Basic => return Ok(credentials.basic()),
            Challenge::Bearer { realm, service, scope } => (realm, service.as_deref(), scope.as_deref()),
        };
        let scope = scope.filter(|scope| !scope.is_empty()).unwrap_or(&key.1);
        let unusable = |url: String, reason| RegistryError::Token { url, reason };
        let Some(request) = TokenRequest::new(credentials, realm, service, scope) else {
            return Err(unusable(endpoint.host.to_string(), "the realm of the token server is no URL"));
        };
        let url = shown(&request.url);
        let schemes = (endpoint.host.scheme.as_str(), request.url.scheme_str());
        let secure = matches!(schemes, (_, Some("https")) | ("http", Some("http")));
        if !secure {
            return Err(unusable(url, "the token server is reached without TLS, the registry with it"));
        }
        let response = self.request_token(endpoint, request).await?;
        let Some(token) = response.authorization() else {
            return Err(unusable(url, "the token server sent no token"));
        };
        self.client.keep_token(key, token.clone(), response.expires_in);
        Ok(Some(token))
    }

    async fn request_token(&self, endpoint: &Endpoint, request: TokenRequest) -> Result<TokenResponse, RegistryError> {
        let limit = self.client.options.response_limit;
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        let (method, headers, body) = match &request.form {
            None => (Method::GET, HeaderMap::new(), Bytes::new()),
            Some(fields) => {
                let headers = HeaderMap::from_iter([(CONTENT_TYPE, form)]);
                (Method::POST, headers, Bytes::copy_from_slice(fields.expose_secret().as_bytes()))
            }
        };
        let private_headers = request.authorization.map(|value| (AUTHORIZATION, value)).into_iter().collect();
        let (client, plain_client) = (&endpoint.http, &self.client.plain);
        // A form with a refresh token must not be sent on to wherever a redirect leads.
        let url = request.url;
        let fetch =
            Fetch { method, url, private_headers, headers, body, redirects_max: 0, client, plain_client, limit };
        let (url, response) = fetch.send().await?;
        if response.status() != StatusCode::OK {
            return Err(status_error(url, response, limit).await);
        }
        let body = read_bounded(&url, response.into_body(), TOKEN_BYTES_MAX, limit).await?;
        let reason = "the answer of the token server is malformed";
        serde_json::from_slice(&body).map_err(|_| RegistryError::Token { url, reason })
    }

    /// A mirror is another party: it gets no credentials of the registry, unless the configuration says that the registry is there.
    fn credentials_for(&self, endpoint: &Endpoint) -> &RegistryCredentials {
        if endpoint.host.trusted { &self.credentials } else { &RegistryCredentials::Anonymous }
    }

    fn token_key(&self, endpoint: &Endpoint) -> TokenKey {
        let scope = format!("repository:{}:pull", self.reference.repository());
        (endpoint.host.to_string(), scope, self.credentials_for(endpoint).fingerprint())
    }

    fn url(&self, endpoint: &Endpoint, path: &str) -> Uri {
        let RegistryHost { scheme, authority, path: prefix, mirror, .. } = &endpoint.host;
        let namespace = if *mirror { format!("?ns={}", self.reference.registry()) } else { String::new() };
        let repository = self.reference.repository();
        let path = format!("{prefix}/{repository}/{path}{namespace}");
        let url = Uri::builder().scheme(scheme.clone()).authority(authority.clone()).path_and_query(path).build();
        url.expect("references and digests are plain text")
    }
}

/// containerd follows as many.
const REDIRECTS_MAX: usize = 10;
/// Times that a request for a manifest is repeated after a broken connection or a server's failure.
const MANIFEST_RETRIES: u32 = 2;
const RETRY_DELAY: Duration = Duration::from_millis(300);
/// The distribution specification: 60 s if the server does not say.
const TOKEN_SECONDS_DEFAULT: u64 = 60;
const TOKEN_SECONDS_MAX: u64 = 3600;
/// A token is not used in its last seconds.
const TOKEN_MARGIN: Duration = Duration::from_secs(10);
/// More repositories than a node pulls from at once.
const TOKENS_MAX: usize = 256;
const TOKEN_BYTES_MAX: u64 = 1 << 20;
