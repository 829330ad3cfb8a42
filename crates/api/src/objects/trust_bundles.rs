//! ClusterTrustBundles: CA certificates that projected volumes show to pods, watched like ConfigMaps. A server may not serve this API.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use podwright_core::model::PodUid;
use serde::Deserialize;

use super::ReferencedObjects;
use crate::error::ApiError;
use crate::trimmed::ObjectIdentity;
use crate::watch_cache::{Cacheable, Selection, metadata, not_found};

/// A ClusterTrustBundle's metadata and its PEM text.
pub(super) struct TrustBundle {
    metadata: ObjectMeta,
    certificates: String,
}

impl Cacheable for TrustBundle {
    const RESOURCE: &'static str = "clustertrustbundles";
    const NOTIFY_CHANGES: bool = true;

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Trimmed {
            metadata: ObjectIdentity,
            spec: Spec,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            #[serde(default)]
            trust_bundle: String,
        }
        let Trimmed { metadata: identity, spec } = serde_json::from_slice(json)?;
        Ok(Self { metadata: metadata(identity), certificates: spec.trust_bundle })
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn is_same(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }

    fn is_immutable(&self) -> bool {
        false
    }
}

impl ReferencedObjects {
    /// The certificates of the bundle of this name.
    pub async fn trust_bundle(&self, uid: &PodUid, name: &str) -> Result<String, ApiError> {
        let found = self.inner.trust_bundles.selected(uid, Selection::named(PATH, name)?).await?;
        found.get(name).map(|bundle| distinct([bundle])).ok_or_else(|| not_found(TrustBundle::RESOURCE, name))
    }

    /// The certificates of all bundles of a signer that match the selector; a 404 error if none does.
    pub async fn trust_bundles_of(
        &self,
        uid: &PodUid,
        signer: &str,
        labels: Option<&LabelSelector>,
    ) -> Result<String, ApiError> {
        // Kubernetes: no selector matches nothing, an empty one matches everything.
        let Some(labels) = labels else { return Err(none_selected(signer)) };
        let labels = selector(labels)?;
        let path = format!("{PATH}?fieldSelector=spec.signerName%3D{}&labelSelector={labels}", escaped(signer));
        let found = self.inner.trust_bundles.selected(uid, Selection::at(path)).await?;
        if found.is_empty() { Err(none_selected(signer)) } else { Ok(distinct(found.values())) }
    }
}

/// The certificates of all bundles without duplicates.
fn distinct<'a>(bundles: impl IntoIterator<Item = &'a Arc<TrustBundle>>) -> String {
    let mut blocks = BTreeSet::new();
    for bundle in bundles {
        let parts = bundle.certificates.split_inclusive("-----END CERTIFICATE-----").map(str::to_owned);
        let pem = parts.filter_map(|part| part.find("-----BEGIN").map(|at| part[at..].to_owned()));
        blocks.extend(pem);
    }
    blocks.into_iter().map(|block| block + "\n").collect()
}

fn selector(labels: &LabelSelector) -> Result<String, ApiError> {
    let mut terms: Vec<String> =
        labels.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
    for rule in labels.match_expressions.iter().flatten() {
        let values = rule.values.as_deref().unwrap_or_default().join(",");
        terms.push(match rule.operator.as_str() {
            "In" => format!("{} in ({values})", rule.key),
            "NotIn" => format!("{} notin ({values})", rule.key),
            "Exists" => rule.key.clone(),
            "DoesNotExist" => format!("!{}", rule.key),
            other => return Err(ApiError::Malformed(format!("label selector operator {other:?}"))),
        });
    }
    Ok(escaped(&terms.join(",")))
}

fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn none_selected(signer: &str) -> ApiError {
    let message = format!("no ClusterTrustBundle of signer {signer:?} matches the selector");
    ApiError::Status { code: 404, reason: "NotFound".into(), message, retry_after: None }
}

const PATH: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_certificates_are_removed() {
        let cert = |n: u8| format!("-----BEGIN CERTIFICATE-----\n{n}\n-----END CERTIFICATE-----");
        let bundle = |certificates: String| Arc::new(TrustBundle { metadata: ObjectMeta::default(), certificates });
        let all = distinct(&[bundle(format!("{}\n{}\n", cert(1), cert(2))), bundle(format!("note\n{}", cert(1)))]);
        assert_eq!(all, format!("{}\n{}\n", cert(1), cert(2)));
    }

    #[test]
    fn a_label_selector_is_encoded_as_a_query_parameter() {
        let labels = serde_json::from_value(serde_json::json!({
            "matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "In", "values": ["x", "y"]}]}));
        assert_eq!(selector(&labels.unwrap()).unwrap(), "a%3D1%2Cb%20in%20%28x%2Cy%29");
    }
}
