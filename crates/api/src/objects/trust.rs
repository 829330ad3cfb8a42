//! ClusterTrustBundles: certificates that pods are told to trust, followed like ConfigMaps. A server may not have any such thing.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use podwright_core::model::PodUid;
use serde::Deserialize;

use super::Objects;
use super::cacheable::{Cacheable, metadata};
use super::watch_cache::{Selection, not_found};
use crate::error::ApiError;
use crate::trimmed::Who;

/// Some certificates.
pub(super) struct TrustBundle {
    metadata: ObjectMeta,
    certificates: String,
}

impl Cacheable for TrustBundle {
    const RESOURCE: &'static str = "clustertrustbundles";
    const TOLD: bool = true;

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Trimmed {
            metadata: Who,
            spec: Spec,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            #[serde(default)]
            trust_bundle: String,
        }
        let Trimmed { metadata: who, spec } = serde_json::from_slice(json)?;
        Ok(Self { metadata: metadata(who), certificates: spec.trust_bundle })
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

impl Objects {
    /// The certificates of the bundle of this name.
    pub async fn trust_bundle(&self, uid: &PodUid, name: &str) -> Result<String, ApiError> {
        let found = self.inner.trust_bundles.selected(uid, Selection::named(PATH, name)?).await?;
        found.get(name).map(|bundle| distinct([bundle])).ok_or_else(|| not_found(TrustBundle::RESOURCE, name))
    }

    /// The certificates of all bundles of a signer that a selector takes; none selected is not found.
    pub async fn trust_bundles_of(
        &self,
        uid: &PodUid,
        signer: &str,
        labels: Option<&LabelSelector>,
    ) -> Result<String, ApiError> {
        // Kubernetes: no selector takes nothing, an empty one everything.
        let Some(labels) = labels else { return Err(nothing(signer)) };
        let labels = selector(labels)?;
        let path = format!("{PATH}?fieldSelector=spec.signerName%3D{}&labelSelector={labels}", escaped(signer));
        let found = self.inner.trust_bundles.selected(uid, Selection::at(path)).await?;
        if found.is_empty() { Err(nothing(signer)) } else { Ok(distinct(found.values())) }
    }
}

/// Every certificate once, whichever bundles have it.
fn distinct<'a>(bundles: impl IntoIterator<Item = &'a Arc<TrustBundle>>) -> String {
    let mut blocks = BTreeSet::new();
    for bundle in bundles {
        let parts = bundle.certificates.split_inclusive("-----END CERTIFICATE-----").map(str::to_owned);
        let begun = parts.filter_map(|part| part.find("-----BEGIN").map(|at| part[at..].to_owned()));
        blocks.extend(begun);
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
            other => return Err(ApiError::Garbage(format!("label selector operator {other:?}"))),
        });
    }
    Ok(escaped(&terms.join(",")))
}

fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn nothing(signer: &str) -> ApiError {
    let message = format!("no ClusterTrustBundle of signer {signer:?} is selected");
    ApiError::Answer { code: 404, reason: "NotFound".into(), message, retry_after: None }
}

const PATH: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_told_once() {
        let cert = |n: u8| format!("-----BEGIN CERTIFICATE-----\n{n}\n-----END CERTIFICATE-----");
        let bundle = |certificates: String| Arc::new(TrustBundle { metadata: ObjectMeta::default(), certificates });
        let all = distinct(&[bundle(format!("{}\n{}\n", cert(1), cert(2))), bundle(format!("note\n{}", cert(1)))]);
        assert_eq!(all, format!("{}\n{}\n", cert(1), cert(2)));
    }

    #[test]
    fn selectors_are_said_as_queries() {
        let labels = serde_json::from_value(serde_json::json!({
            "matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "In", "values": ["x", "y"]}]}));
        assert_eq!(selector(&labels.unwrap()).unwrap(), "a%3D1%2Cb%20in%20%28x%2Cy%29");
    }
}
