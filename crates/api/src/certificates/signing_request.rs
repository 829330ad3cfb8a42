//! A CertificateSigningRequest (certificates.k8s.io/v1): created with a new key, then watched until a signer has answered.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use podwright_core::certificates::CertificateNames;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::json;

use super::CertificateKind;
use crate::client::{ApiClient, request};
use crate::error::{ApiError, truncated};
use crate::watch_stream::{WatchEvent, WatchStream};

/// Why a request gave no certificate.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    /// No key, or no request for these names, can be made.
    #[error("make a key and a request: {0}")]
    Key(#[from] rcgen::Error),
    /// The API server did not accept the request.
    #[error("create a CertificateSigningRequest: {0}")]
    Create(ApiError),
    /// An administrator or a controller denied it.
    #[error("{name} was denied: {why}")]
    Denied {
        /// The request.
        name: String,
        /// Reason and message.
        why: String,
    },
    /// It was approved, and its signer cannot sign it.
    #[error("{name} cannot be signed: {why}")]
    Failed {
        /// The request.
        name: String,
        /// Reason and message.
        why: String,
    },
    /// It was deleted before a signer answered.
    #[error("{0} was deleted")]
    Deleted(String),
    /// There is another object of its name now.
    #[error("{0} was replaced by another request of this name")]
    Replaced(String),
}

/// A request in the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CreatedRequest {
    pub(super) name: String,
    uid: String,
}

/// A new key and the request for it.
pub(super) struct NewKey {
    /// PEM.
    pub(super) key: SecretString,
    /// PKCS #10, PEM.
    request: String,
}

impl NewKey {
    /// ECDSA with the curve P-256.
    pub(super) fn generate(names: &CertificateNames) -> Result<Self, SigningError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for organization in &names.organizations {
            params.distinguished_name.push(DnType::OrganizationName, organization.as_str());
        }
        params.distinguished_name.push(DnType::CommonName, names.common_name.as_str());
        for name in &names.dns_names {
            params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        params.subject_alt_names.extend(names.ip_addresses.iter().copied().map(SanType::IpAddress));
        let request = params.serialize_request(&key)?.pem()?;
        Ok(Self { key: key.serialize_pem().into(), request })
    }
}

/// Creates the object.
pub(super) async fn create(
    client: &ApiClient,
    kind: CertificateKind,
    key: &NewKey,
) -> Result<CreatedRequest, SigningError> {
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "csr-"},
        "spec": {"request": STANDARD.encode(&key.request), "signerName": kind.signer(), "usages": kind.usages()},
    });
    let content = Some(("application/json", object.to_string().into_bytes()));
    let body =
        client.call(request(Method::POST, REQUESTS, content), CALL_TIMEOUT).await.map_err(SigningError::Create)?;
    let created = RequestObject::parse(&body).map_err(SigningError::Create)?;
    Ok(CreatedRequest { name: created.metadata.name, uid: created.metadata.uid })
}

/// Waits for the certificate, as PEM. Has no limit of its own; the read is repeated if the API server does not answer.
pub(super) async fn issued(client: &ApiClient, created: &CreatedRequest) -> Result<Vec<u8>, SigningError> {
    loop {
        match read(client, created).await {
            Ok(object) => {
                if let Some(certificate) = verdict(created, &object)? {
                    return Ok(certificate);
                }
                if let Some(certificate) = watch(client, created, &object.metadata.resource_version).await? {
                    return Ok(certificate);
                }
            }
            Err(error) if error.is_not_found() => return Err(SigningError::Deleted(created.name.clone())),
            Err(error) => {
                tracing::debug!(request = created.name, %error, "certificate signing request cannot be read: retrying");
            }
        }
        tokio::time::sleep(REREAD).await;
    }
}

async fn read(client: &ApiClient, created: &CreatedRequest) -> Result<RequestObject, ApiError> {
    let path = format!("{REQUESTS}/{}", created.name);
    let body = client.call(request(Method::GET, &path, None), CALL_TIMEOUT).await?;
    RequestObject::parse(&body)
}

/// Follows the changes after this version. `None`: the watch ended, and the object must be read again.
async fn watch(client: &ApiClient, created: &CreatedRequest, version: &str) -> Result<Option<Vec<u8>>, SigningError> {
    let path = format!(
        "{REQUESTS}?fieldSelector=metadata.name%3D{}&watch=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}",
        created.name
    );
    let Ok(response) = client.send(request(Method::GET, &path, None)).await else { return Ok(None) };
    let mut stream = WatchStream::new(response.into_body());
    while let Some(Ok(line)) = stream.next().await {
        let Ok(event) = WatchEvent::parse(&line) else { return Ok(None) };
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" => {
                let Ok(object) = RequestObject::parse(event.object.get().as_bytes()) else { return Ok(None) };
                if let Some(certificate) = verdict(created, &object)? {
                    return Ok(Some(certificate));
                }
            }
            "DELETED" => return Err(SigningError::Deleted(created.name.clone())),
            "BOOKMARK" => {}
            _ => return Ok(None),
        }
    }
    Ok(None)
}

/// The certificate if it is there, `None` before an approver has decided.
fn verdict(created: &CreatedRequest, object: &RequestObject) -> Result<Option<Vec<u8>>, SigningError> {
    let name = || created.name.clone();
    if object.metadata.uid != created.uid {
        return Err(SigningError::Replaced(name()));
    }
    let found = |kind: &str| object.status.conditions.iter().find(|condition| condition.kind == kind);
    let why = |condition: &RequestCondition| {
        let parts = [condition.reason.as_str(), condition.message.as_str()];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        if parts.is_empty() { "no reason was given".to_owned() } else { truncated(parts.join(": ").as_bytes()) }
    };
    if let Some(denied) = found("Denied") {
        return Err(SigningError::Denied { name: name(), why: why(denied) });
    }
    if let Some(failed) = found("Failed") {
        return Err(SigningError::Failed { name: name(), why: why(failed) });
    }
    let certificate = object.status.certificate.as_deref().filter(|text| !text.is_empty());
    let Some(certificate) = certificate.filter(|_| found("Approved").is_some()) else { return Ok(None) };
    let invalid = || SigningError::Failed { name: name(), why: "the certificate is not base64".into() };
    STANDARD.decode(certificate).map(Some).map_err(|_| invalid())
}

/// The fields we use of the object.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RequestObject {
    metadata: RequestMetadata,
    status: RequestStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RequestMetadata {
    name: String,
    uid: String,
    resource_version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RequestStatus {
    conditions: Vec<RequestCondition>,
    /// Base64 of PEM.
    certificate: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RequestCondition {
    #[serde(rename = "type")]
    kind: String,
    reason: String,
    message: String,
}

impl RequestObject {
    fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let object: Self = serde_json::from_slice(body).map_err(|error| ApiError::Malformed(error.to_string()))?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        if object.metadata.name.is_empty()
            || !object.metadata.name.bytes().all(is_name)
            || object.metadata.uid.is_empty()
        {
            return Err(ApiError::Malformed("a CertificateSigningRequest without a valid name or UID".into()));
        }
        Ok(object)
    }
}

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
const WATCH_SECONDS: u64 = 300;
/// After a watch that ended, or a server that did not answer.
const REREAD: Duration = Duration::from_secs(1);
