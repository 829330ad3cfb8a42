//! `imagePullSecrets` of a pod.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use podwright_core::model::{Answer, CallError, FullName, KubeEvent, Pod, PodUid};
use tokio::time::timeout;

use crate::objects::Redacted;
use crate::perform::CallExecutor;

impl CallExecutor {
    /// Pulls an image with the pod's secrets. A secret that can't be read causes an event; the pull may succeed without it.
    pub(in crate::perform) async fn pull_image(
        &self,
        uid: &PodUid,
        pod: &Pod,
        image: &str,
        limit: Duration,
    ) -> Result<Answer, CallError> {
        let secrets = self.pull_secrets(uid, pod).await;
        self.images.pull(image, uid, secrets, limit).await
    }

    /// The image if it is present and the pod may use it. An image that it may not use counts as absent, so that the pod does not learn
    /// that it exists (Go kubelet: `EnsureImageExists`).
    pub(in crate::perform) async fn image_status(
        &self,
        uid: &PodUid,
        pod: &Pod,
        image: &str,
        limit: Duration,
    ) -> Result<Answer, CallError> {
        let Some(facts) = self.images.status(image, limit).await? else { return Ok(Answer::Image(None)) };
        let allowed = self.images.may_use(image, &facts.id, uid, async || self.pull_secrets(uid, pod).await).await?;
        Ok(Answer::Image(allowed.then_some(facts)))
    }

    async fn pull_secrets(&self, uid: &PodUid, pod: &Pod) -> Vec<Redacted<Secret>> {
        let named = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
        let names: Vec<&str> = named.map(|secret| secret.name.as_str()).filter(|name| !name.is_empty()).collect();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let results =
            join_all(names.iter().map(|name| timeout(FETCH_MAX, self.objects.secret(uid, namespace, name)))).await;
        let (mut secrets, mut missing) = (Vec::new(), Vec::new());
        for (name, result) in names.into_iter().zip(results) {
            match result {
                Ok(Ok(secret)) => secrets.push(secret),
                Ok(Err(_)) | Err(_) => missing.push(name),
            }
        }
        if !missing.is_empty() {
            let names = missing.join(", ");
            (self.events)(KubeEvent {
                annotations: vec![],
                uid: Some(uid.clone()),
                pod: FullName {
                    namespace: namespace.into(),
                    name: pod.metadata.name.as_deref().unwrap_or_default().into(),
                },
                container: None,
                warning: true,
                reason: "FailedToRetrieveImagePullSecret",
                message: format!(
                    "Unable to retrieve some image pull secrets ({names}); attempting to pull the image may not succeed."
                ),
            });
        }
        secrets
    }
}

/// Time limit for reading the secrets.
const FETCH_MAX: Duration = Duration::from_secs(20);
