//! Authentication to registries: challenges of servers, and the headers that answer them.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, Uri, header};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use crate::digest::{ContentHasher, Digest};

/// What a pull may use at the registry of its image. Neither `Debug` nor errors show secrets.
#[derive(Clone, Debug, Default)]
pub enum RegistryCredentials {
    /// No credentials: public images only.
    #[default]
    Anonymous,
    /// User name and password, for the registry or its token server.
    Basic {
        /// The user.
        username: String,
        /// The password or access token.
        password: SecretString,
    },
    /// A refresh token, exchanged at the token server.
    IdentityToken(SecretString),
    /// A bearer token that the registry takes as it is.
    RegistryToken(SecretString),
}

impl RegistryCredentials {
    /// Equal credentials have equal fingerprints; the secret can't be computed from it.
    pub(crate) fn fingerprint(&self) -> Digest {
        let mut hasher = ContentHasher::default();
        let parts: [&str; 3] = match self {
            Self::Anonymous => ["anonymous", "", ""],
            Self::Basic { username, password } => ["basic", username, password.expose_secret()],
            Self::IdentityToken(token) => ["identity", "", token.expose_secret()],
            Self::RegistryToken(token) => ["registry", "", token.expose_secret()],
        };
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.finish()
    }

    /// The header for a server that asks for `Basic`; `None` if these credentials have no password.
    pub(super) fn basic(&self) -> Option<HeaderValue> {
        let Self::Basic { username, password } = self else { return None };
        let text = STANDARD.encode(format!("{username}:{}", password.expose_secret()));
        secret_header(&format!("Basic {text}"))
    }

    /// The header that needs no challenge.
    pub(super) fn registry_token(&self) -> Option<HeaderValue> {
        let Self::RegistryToken(token) = self else { return None };
        bearer(token.expose_secret())
    }
}

pub(super) fn bearer(token: &str) -> Option<HeaderValue> {
    secret_header(&format!("Bearer {token}"))
}

/// Marked, so that it is not shown in logs of headers.
fn secret_header(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A challenge of a server (`WWW-Authenticate`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// The challenge to answer; a token is preferred. `None` if the server asks for nothing that is known.
pub(super) fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    let texts = headers.get_all(header::WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let mut found: Vec<Challenge> = texts.take(CHALLENGES_MAX).flat_map(challenges).collect();
    found.sort_by_key(|challenge| *challenge == Challenge::Basic);
    found.into_iter().next()
}

/// All challenges of one header: `Scheme key=value, key="value", Scheme …`.
fn challenges(text: &str) -> Vec<Challenge> {
    let mut found: Vec<(String, Vec<(String, String)>)> = vec![];
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', ',', '\t']);
        let end = rest.find([' ', ',', '=', '\t']).unwrap_or(rest.len());
        let (token, after) = rest.split_at(end);
        if token.is_empty() {
            break;
        }
        match after.strip_prefix('=') {
            None => found.push((token.to_ascii_lowercase(), vec![])),
            Some(value) => {
                let (value, after) = parameter(value);
                if let Some((_, parameters)) = found.last_mut() {
                    parameters.push((token.to_ascii_lowercase(), value));
                }
                rest = after;
                continue;
            }
        }
        rest = after;
    }
    found.into_iter().filter_map(|(scheme, parameters)| known(&scheme, parameters)).collect()
}

fn known(scheme: &str, parameters: Vec<(String, String)>) -> Option<Challenge> {
    let get = |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    match scheme {
        "basic" => Some(Challenge::Basic),
        "bearer" => Some(Challenge::Bearer { realm: get("realm")?, service: get("service"), scope: get("scope") }),
        _ => None,
    }
}

/// A quoted or plain value, and what follows it.
fn parameter(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let (mut value, mut escaped) = (String::new(), false);
    for (at, c) in quoted.char_indices() {
        match c {
            _ if escaped => {
                value.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (value, &quoted[at + 1..]),
            other => value.push(other),
        }
    }
    (value, "")
}

/// A request for a token.
pub(super) struct TokenRequest {
    pub(super) url: Uri,
    pub(super) authorization: Option<HeaderValue>,
    /// A form for POST; `None`: GET.
    pub(super) form: Option<SecretString>,
}

impl TokenRequest {
    /// The request that answers a challenge; `None` if the realm is no URL.
    pub(super) fn new(
        credentials: &RegistryCredentials,
        realm: &str,
        service: Option<&str>,
        scope: &str,
    ) -> Option<Self> {
        let mut fields = vec![("scope", scope)];
        fields.extend(service.map(|service| ("service", service)));
        if let RegistryCredentials::IdentityToken(token) = credentials {
            fields.extend([("grant_type", "refresh_token"), ("client_id", "podwright")]);
            fields.push(("refresh_token", token.expose_secret()));
            let form = Some(encode(&fields).into());
            return Some(Self { url: realm.parse().ok()?, authorization: None, form });
        }
        if let RegistryCredentials::Basic { username, .. } = credentials {
            fields.push(("account", username));
        }
        let separator = if realm.contains('?') { '&' } else { '?' };
        let url = format!("{realm}{separator}{}", encode(&fields)).parse().ok()?;
        Some(Self { url, authorization: credentials.basic(), form: None })
    }
}

/// A token server's answer.
#[derive(Deserialize)]
pub(super) struct TokenResponse {
    token: Option<String>,
    access_token: Option<String>,
    /// Seconds.
    pub(super) expires_in: Option<u64>,
}

impl TokenResponse {
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        let token = [&self.token, &self.access_token].into_iter().flatten().find(|token| !token.is_empty())?;
        bearer(token)
    }
}

impl fmt::Debug for TokenResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenResponse(expires in {:?} s)", self.expires_in)
    }
}

/// `application/x-www-form-urlencoded`.
fn encode(fields: &[(&str, &str)]) -> String {
    let escape = |text: &str| {
        text.bytes().fold(String::new(), |mut out, byte| {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b':' => {
                    out.push(byte.into())
                }
                other => out.push_str(&format!("%{other:02X}")),
            }
            out
        })
    };
    fields.iter().map(|(key, value)| format!("{key}={}", escape(value))).collect::<Vec<_>>().join("&")
}

/// Headers of one response that are read.
const CHALLENGES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::WWW_AUTHENTICATE, HeaderValue::try_from(*value).unwrap());
        }
        challenge(&headers)
    }

    #[test]
    fn challenges_are_read_and_a_token_is_preferred() {
        let text = r#"Bearer realm="https://auth.example/token",service="s \"x\"",scope="repository:a/b:pull,push""#;
        let bearer = Challenge::Bearer {
            realm: "https://auth.example/token".into(),
            service: Some("s \"x\"".into()),
            scope: Some("repository:a/b:pull,push".into()),
        };
        assert_eq!(of(&[text]), Some(bearer.clone()));
        assert_eq!(of(&["Basic realm=\"x\"", text]), Some(bearer.clone()));
        assert_eq!(of(&[&format!("Basic realm=\"x\", {text}")]), Some(bearer));
        assert_eq!(of(&["basic realm=plain"]), Some(Challenge::Basic));
        for nothing in ["", "Negotiate", "Bearer service=\"x\"", "=\"", "Bearer realm=\"unterminated"] {
            let known = of(&[nothing]);
            assert!(known.is_none() || nothing.contains("unterminated"), "{nothing}: {known:?}");
        }
    }

    #[test]
    fn secrets_are_sent_and_never_shown() {
        let basic = RegistryCredentials::Basic { username: "u".into(), password: "geheim".into() };
        let token = RegistryCredentials::IdentityToken("geheim".into());
        let shown = format!("{basic:?} {token:?} {:?} {:?}", basic.basic(), basic.fingerprint());
        assert!(!shown.contains("geheim") && !shown.contains("Z2VoZWlt") && !shown.contains("OmdlaGVpbQ"), "{shown}");
        let request = TokenRequest::new(&basic, "https://a/token", Some("s t"), "repository:a:pull").unwrap();
        assert_eq!(request.url, "https://a/token?scope=repository:a:pull&service=s%20t&account=u");
        assert_eq!(request.authorization.unwrap().to_str().unwrap(), "Basic dTpnZWhlaW0=");
        let request = TokenRequest::new(&token, "https://a/token?x=1", None, "s").unwrap();
        assert!(request.form.unwrap().expose_secret().ends_with("refresh_token=geheim"));
        assert_ne!(basic.fingerprint(), token.fingerprint());
    }
}
