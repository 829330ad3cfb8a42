//! Authentication and authorization of a request. The first credential that is valid identifies the user: client certificate, bearer
//! token; a request without any is anonymous, if that is enabled.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderMap, HeaderValue, StatusCode};
use podwright_core::kubelet_api::access::{forbidden, review_failed, subresources, verb};
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

use super::KubeletAccess;
use super::review_cache::{ReviewCache, ReviewKey, review_key};
use super::reviews::{AccessReview, BoundedReviewer, UserInfo};
use super::tls::{ClientChain, ServerTls};
use crate::serve::{HttpResponse, text, too_many};

/// `authentication` and `authorization` of KubeletConfiguration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessConfig {
    /// Requests without credentials are served as `system:anonymous`.
    pub anonymous: bool,
    /// How long the review of a token is kept; `None`: tokens are not accepted.
    pub tokens: Option<Duration>,
    /// Who may do what.
    pub authorization: AuthorizationMode,
}

/// `authorization.mode`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Every authenticated user may do everything.
    AlwaysAllow,
    /// The API server decides.
    Webhook {
        /// How long a permission is kept.
        allowed: Duration,
        /// How long a refusal is kept.
        denied: Duration,
    },
}

/// Decides about requests.
pub(super) struct AccessControl {
    config: AccessConfig,
    tls: Arc<ServerTls>,
    node: String,
    reviewer: Option<BoundedReviewer>,
    valid_tokens: ReviewCache<Arc<UserInfo>>,
    /// Apart from the valid ones, which a client with many bad tokens must not displace.
    bad_tokens: ReviewCache<()>,
    decisions: ReviewCache<bool>,
}

impl AccessControl {
    pub(super) fn new(access: KubeletAccess, tls: Arc<ServerTls>, node: String) -> Self {
        Self {
            config: access.config,
            tls,
            node,
            reviewer: access.reviewer.map(BoundedReviewer::new),
            valid_tokens: ReviewCache::new(),
            bad_tokens: ReviewCache::new(),
            decisions: ReviewCache::new(),
        }
    }

    /// The user of a request, or the response for a client without one. Removes the token from the headers: it must not reach the
    /// container runtime.
    pub(super) async fn authenticate(
        &self,
        client: IpAddr,
        certificates: &ClientChain,
        headers: &mut HeaderMap,
    ) -> Result<Arc<UserInfo>, Box<HttpResponse>> {
        let token = take_token(headers);
        let trusted = self.tls.is_trusted(certificates);
        if let Some(user) = certificates.own().filter(|_| trusted).and_then(certificate_user) {
            return Ok(Arc::new(user));
        }
        match token {
            Some(token) => self.token_user(client, &token).await,
            // A certificate that is not trusted is a failed authentication and not an anonymous request.
            None if self.config.anonymous && (certificates.own().is_none() || trusted) => Ok(Arc::new(anonymous())),
            None => Err(unauthorized()),
        }
    }

    async fn token_user(&self, client: IpAddr, token: &str) -> Result<Arc<UserInfo>, Box<HttpResponse>> {
        let (Some(keep), Some(reviewer)) = (self.config.tokens, &self.reviewer) else { return Err(unauthorized()) };
        if token.len() > TOKEN_BYTES_MAX {
            return Err(unauthorized());
        }
        let key = review_key(token.as_bytes());
        if let Some(user) = self.valid_tokens.get(&key) {
            return Ok(user);
        }
        if self.bad_tokens.get(&key).is_some() {
            return Err(unauthorized());
        }
        let reviewed = reviewer.token(client, token).await;
        match reviewed.ok_or_else(|| Box::new(too_many("too many tokens to review\n")))? {
            Ok(Some(user)) => {
                let user = Arc::new(authenticated(user));
                self.valid_tokens.put(key, Arc::clone(&user), keep);
                return Ok(user);
            }
            Ok(None) => self.bad_tokens.put(key, (), keep),
            // Not cached: the error may pass, and the token may be valid.
            Err(error) if error.rejected => tracing::debug!(%error, "token was rejected"),
            Err(error) => tracing::warn!(%error, "token could not be reviewed"),
        }
        Err(unauthorized())
    }

    /// Fails with the response for the client unless the user may send this request.
    pub(super) async fn authorize(
        &self,
        user: &Arc<UserInfo>,
        method: &str,
        path: &str,
    ) -> Result<(), Box<HttpResponse>> {
        let AuthorizationMode::Webhook { allowed, denied } = self.config.authorization else { return Ok(()) };
        let (verb, subresources) = (verb(method), subresources(path));
        for subresource in subresources {
            let review = AccessReview { user: Arc::clone(user), node: self.node.clone(), verb, subresource };
            match self.decide(&review, allowed, denied).await {
                Some(true) => return Ok(()),
                Some(false) => {}
                None => {
                    let message = review_failed(&user.name, verb, subresource);
                    return Err(Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, message)));
                }
            }
        }
        Err(Box::new(text(StatusCode::FORBIDDEN, forbidden(&user.name, verb, subresources))))
    }

    /// `None`: there is no decision.
    async fn decide(&self, review: &AccessReview, allowed: Duration, denied: Duration) -> Option<bool> {
        let key = cache_key(review);
        if let Some(decision) = key.as_ref().and_then(|key| self.decisions.get(key)) {
            return Some(decision);
        }
        match self.reviewer.as_ref()?.access(review).await {
            Ok(decision) => {
                if let Some(key) = key {
                    self.decisions.put(key, decision, if decision { allowed } else { denied });
                }
                Some(decision)
            }
            Err(error) => {
                tracing::warn!(user = review.user.name, %error, "access could not be reviewed");
                None
            }
        }
    }
}

/// `None` if the attributes are too large to be cached (Kubernetes: `maxControllerAttrCacheSize`).
fn cache_key(review: &AccessReview) -> Option<ReviewKey> {
    let bytes = serde_json::to_vec(review).ok()?;
    (bytes.len() <= CACHED_BYTES_MAX).then(|| review_key(&bytes))
}

/// Takes the bearer token out of the headers: of `Authorization`, or of a websocket's protocols, where browsers send it.
fn take_token(headers: &mut HeaderMap) -> Option<String> {
    let header = headers.remove(AUTHORIZATION);
    let bearer = header.as_ref().and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, token) = value.trim().split_once(' ')?;
        Some(token.trim().to_owned()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
    });
    bearer.or_else(|| take_websocket_token(headers))
}

fn take_websocket_token(headers: &mut HeaderMap) -> Option<String> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let all: Vec<String> = values.flat_map(|value| value.split(',')).map(|part| part.trim().to_owned()).collect();
    let (tokens, others): (Vec<&String>, Vec<&String>) = all.iter().partition(|part| part.starts_with(TOKEN_PROTOCOL));
    // Exactly one, in addition to a protocol that the server can select.
    let [token] = tokens.as_slice() else { return None };
    if others.is_empty() {
        return None;
    }
    let decoded = URL_SAFE_NO_PAD.decode(&token[TOKEN_PROTOCOL.len()..]).ok()?;
    let token = String::from_utf8(decoded).ok().filter(|token| !token.is_empty())?;
    let others: Vec<&str> = others.iter().map(|part| part.as_str()).collect();
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(&others.join(", ")).ok()?);
    Some(token)
}

/// The user in a certificate: common name, UID and organizations. `None` without a common name, or with several UIDs.
fn certificate_user(certificate: &CertificateDer<'_>) -> Option<UserInfo> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let subject = parsed.subject();
    let name = subject.iter_common_name().last()?.as_str().ok().filter(|name| !name.is_empty())?;
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok()).map(ToOwned::to_owned);
    let uid = certificate_uid(subject)?;
    let hash: String = Sha256::digest(certificate).iter().map(|byte| format!("{byte:02x}")).collect();
    let extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={hash}")])]);
    Some(authenticated(UserInfo { name: name.to_owned(), uid, groups: groups.collect(), extra }))
}

/// Kubernetes: `parseUIDFromCert`. Empty without a UID; `None`: it is not text, or there are several.
fn certificate_uid(subject: &X509Name<'_>) -> Option<String> {
    let mut uids = subject.iter_attributes().filter(|attribute| attribute.attr_type().to_id_string() == UID_OID);
    let uid = uids.next().map_or(Some(""), |attribute| attribute.as_str().ok())?;
    uids.next().is_none().then(|| uid.to_owned())
}

fn authenticated(mut user: UserInfo) -> UserInfo {
    if !user.groups.iter().any(|group| group == AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.into());
    }
    user
}

fn unauthorized() -> Box<HttpResponse> {
    Box::new(text(StatusCode::UNAUTHORIZED, "Unauthorized"))
}

fn anonymous() -> UserInfo {
    UserInfo { name: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()], ..UserInfo::default() }
}

const AUTHENTICATED: &str = "system:authenticated";
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// Kubernetes: `asn1.X509UID`.
const UID_OID: &str = "1.3.6.1.4.1.57683.2";
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";
const CACHED_BYTES_MAX: usize = 10_000;
/// Tokens of service accounts have about 1 KiB. Larger ones than this are not sent to the API server.
const TOKEN_BYTES_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn tokens_are_taken_out_of_the_headers() {
        for (value, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic abc", None),
            ("", None),
        ] {
            let mut given = headers(&[("authorization", value), ("host", "x")]);
            assert_eq!(take_token(&mut given).as_deref(), expected, "{value:?}");
            assert!(!given.contains_key(AUTHORIZATION) && given.contains_key("host"), "{value:?}");
        }
        let protocol = |value| {
            let mut given = headers(&[("sec-websocket-protocol", value)]);
            let token = take_token(&mut given);
            (token, given[SEC_WEBSOCKET_PROTOCOL].to_str().unwrap().to_owned())
        };
        let both = "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWJj";
        assert_eq!(protocol(both), (Some("abc".into()), "v4.channel.k8s.io".into()));
        for without in ["base64url.bearer.authorization.k8s.io.YWJj", "v4.channel.k8s.io"] {
            assert_eq!(protocol(without).0, None, "{without}");
        }
    }

    #[test]
    fn the_user_of_a_certificate_has_its_name_groups_and_hash() {
        let certificate = |name: &str| {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
            params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().clone()
        };
        let der = certificate("admin");
        let user = certificate_user(&der).unwrap();
        assert_eq!((user.name.as_str(), user.groups), ("admin", vec!["system:masters".into(), AUTHENTICATED.into()]));
        let id = &user.extra[CREDENTIAL_ID][0];
        assert!(id.starts_with("X509SHA256=") && id.len() == "X509SHA256=".len() + 64, "{id}");
        assert_eq!(certificate_user(&certificate("")), None);
        assert_eq!(certificate_user(&CertificateDer::from(vec![1, 2, 3])), None);
    }

    #[test]
    fn a_certificate_may_have_one_uid() {
        let user = |uids: &[&str]| {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::CommonName, "jane");
            for uid in uids {
                params.distinguished_name.push(rcgen::DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]), *uid);
            }
            let der = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().clone();
            certificate_user(&der).map(|user| user.uid)
        };
        assert_eq!(user(&[]).as_deref(), Some(""));
        assert_eq!(user(&["4711"]).as_deref(), Some("4711"));
    }

    #[test]
    fn large_attributes_are_not_cached() {
        let review = |name: String| AccessReview {
            user: Arc::new(UserInfo { name, ..UserInfo::default() }),
            node: "n".into(),
            verb: "get",
            subresource: "pods",
        };
        assert!(cache_key(&review("jane".into())).is_some());
        assert_ne!(cache_key(&review("jane".into())), cache_key(&review("joe".into())));
        assert!(cache_key(&review("x".repeat(10_001))).is_none());
    }
}
