//! The credentials of a pull request.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use podwright_cri::v1;
use podwright_image::{ImageReference, RegistryCredentials};

/// Why the credentials of a request cannot be used. Secrets are not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CredentialsError {
    /// `auth` is no base64 of `user:password`.
    #[error("field auth of the credentials is not the base64 of user:password")]
    Auth,
    /// Some fields are set, but none of those that are used.
    #[error("the credentials have neither a username nor a token")]
    Incomplete,
}

/// containerd's `ParseAuth`: a user name first, then an identity token, then `auth`, then a registry token. Credentials for another
/// server are not used.
pub(super) fn credentials(
    auth: Option<&v1::AuthConfig>,
    image: &ImageReference,
) -> Result<RegistryCredentials, CredentialsError> {
    let Some(auth) = auth.filter(|auth| **auth != v1::AuthConfig::default()) else {
        return Ok(RegistryCredentials::Anonymous);
    };
    if !auth.server_address.is_empty() && !is_for(&auth.server_address, image.registry()) {
        return Ok(RegistryCredentials::Anonymous);
    }
    let basic = |username: &str, password: &str| RegistryCredentials::Basic {
        username: username.to_owned(),
        password: password.to_owned().into(),
    };
    if !auth.username.is_empty() {
        return Ok(basic(&auth.username, &auth.password));
    }
    if !auth.identity_token.is_empty() {
        return Ok(RegistryCredentials::IdentityToken(auth.identity_token.clone().into()));
    }
    if !auth.auth.is_empty() {
        let text = BASE64_STANDARD.decode(&auth.auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let text = text.ok_or(CredentialsError::Auth)?;
        let (username, password) = text.split_once(':').ok_or(CredentialsError::Auth)?;
        // Docker pads with zero bytes.
        return Ok(basic(username, password.trim_end_matches('\0')));
    }
    if !auth.registry_token.is_empty() {
        return Ok(RegistryCredentials::RegistryToken(auth.registry_token.clone().into()));
    }
    // A server address alone.
    if auth.password.is_empty() { Ok(RegistryCredentials::Anonymous) } else { Err(CredentialsError::Incomplete) }
}

/// `server` is a host or a URL. Docker Hub has two names.
fn is_for(server: &str, registry: &str) -> bool {
    let host = server.split_once("://").map_or(server, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or_default();
    let hub = |host: &str| matches!(host, "docker.io" | "index.docker.io" | "registry-1.docker.io");
    host == registry || (hub(host) && hub(registry))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(auth: v1::AuthConfig) -> String {
        let image = "registry.example:5000/app:1".parse().unwrap();
        match credentials(Some(&auth), &image) {
            Ok(RegistryCredentials::Anonymous) => "anonymous".into(),
            Ok(RegistryCredentials::Basic { username, password }) => {
                use secrecy::ExposeSecret;
                format!("{username}/{}", password.expose_secret())
            }
            Ok(RegistryCredentials::IdentityToken(_)) => "identity".into(),
            Ok(RegistryCredentials::RegistryToken(_)) => "registry".into(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn credentials_are_read_as_containerd_does() {
        let none = v1::AuthConfig::default;
        assert_eq!(shown(none()), "anonymous");
        assert_eq!(shown(v1::AuthConfig { username: "u".into(), password: "p".into(), ..none() }), "u/p");
        let auth = BASE64_STANDARD.encode("me:pass:word\0");
        assert_eq!(shown(v1::AuthConfig { auth: auth.clone(), ..none() }), "me/pass:word");
        assert_eq!(shown(v1::AuthConfig { identity_token: "t".into(), auth: auth.clone(), ..none() }), "identity");
        assert_eq!(shown(v1::AuthConfig { registry_token: "t".into(), ..none() }), "registry");
        assert!(shown(v1::AuthConfig { auth: "?".into(), ..none() }).contains("base64"));
        let elsewhere =
            v1::AuthConfig { server_address: "https://other.example/v1/".into(), auth: auth.clone(), ..none() };
        assert_eq!(shown(elsewhere), "anonymous");
        let here = v1::AuthConfig { server_address: "https://registry.example:5000/v2/".into(), auth, ..none() };
        assert_eq!(shown(here), "me/pass:word");
        assert!(shown(v1::AuthConfig { password: "p".into(), ..none() }).contains("neither"));
        assert!(is_for("https://index.docker.io/v1/", "docker.io"));
    }
}
