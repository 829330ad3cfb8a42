//! What the node's object says of the container runtime: asked every few seconds, told only when it changed.

use std::sync::Arc;
use std::time::Duration;

use podwright_core::node_status::{Handler, RuntimeFacts};
use podwright_cri::{CriError, ImageService, RuntimeService, v1};
use tokio::sync::watch;
use tokio::time::Instant;

/// Look once, then go on looking in the future that is given back, as long as somebody wants to know.
pub(super) async fn follow(
    runtime: Arc<dyn RuntimeService>,
    images: Arc<dyn ImageService>,
) -> (impl Future<Output = ()> + Send, watch::Receiver<RuntimeFacts>) {
    let mut eye = Eye { runtime, images, failures: 0, images_due: Instant::now() };
    let mut facts = RuntimeFacts { ready: Some(NOT_YET.into()), ..RuntimeFacts::default() };
    eye.look(&mut facts).await;
    let (sender, receiver) = watch::channel(facts.clone());
    let looks = async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = sender.closed() => return,
            }
            eye.look(&mut facts).await;
            sender.send_if_modified(|told| {
                let changed = *told != facts;
                told.clone_from(&facts);
                changed
            });
        }
    };
    (looks, receiver)
}

struct Eye {
    runtime: Arc<dyn RuntimeService>,
    images: Arc<dyn ImageService>,
    failures: u32,
    images_due: Instant,
}

impl Eye {
    async fn look(&mut self, facts: &mut RuntimeFacts) {
        match self.status(facts).await {
            Ok(()) => self.failures = 0,
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                failed(self.failures, facts);
                tracing::debug!(%error, failures = self.failures, "the runtime's status is not known");
                return;
            }
        }
        if self.images_due <= Instant::now()
            && let Ok(images) = self.images.list_images(None, LIMIT).await
        {
            facts.images = images.into_iter().map(image).collect();
            self.images_due = Instant::now() + IMAGES_EVERY;
        }
    }

    async fn status(&self, facts: &mut RuntimeFacts) -> Result<(), CriError> {
        let answer = self.runtime.status(false, LIMIT).await?;
        if facts.version.is_empty() || self.failures > 0 {
            let version = self.runtime.version(LIMIT).await?;
            facts.version = format!("{}://{}", version.runtime_name, version.runtime_version);
        }
        take_in(answer, facts);
        Ok(())
    }
}

/// One call that failed is no runtime that is down; before the first answer nothing is known.
fn failed(failures: u32, facts: &mut RuntimeFacts) {
    if failures >= DOWN_AFTER {
        facts.ready = Some(DOWN.into());
    }
}

/// What the runtime says of itself, in the kubelet's words.
fn take_in(answer: v1::StatusResponse, facts: &mut RuntimeFacts) {
    let conditions = answer.status.map(|status| status.conditions).unwrap_or_default();
    let lacks = |kind: &str, what: &str| {
        let condition = conditions.iter().find(|condition| condition.r#type == kind);
        match condition {
            Some(condition) if condition.status => None,
            Some(v1::RuntimeCondition { reason, message, .. }) => {
                Some(format!("{what} not ready: {kind}=false reason:{reason} message:{message}"))
            }
            None => Some(format!("{what} not ready: the runtime does not say that it is")),
        }
    };
    facts.ready = lacks("RuntimeReady", "container runtime");
    facts.network = lacks("NetworkReady", "container runtime network");
    facts.handlers = answer.runtime_handlers.iter().map(handler).collect();
    facts.supplemental_groups_policy = answer.features.is_some_and(|features| features.supplemental_groups_policy);
}

fn handler(handler: &v1::RuntimeHandler) -> Handler {
    let features = handler.features.unwrap_or_default();
    Handler {
        name: handler.name.clone(),
        recursive_read_only_mounts: features.recursive_read_only_mounts,
        user_namespaces: features.user_namespaces,
    }
}

fn image(image: v1::Image) -> (Vec<String>, i64) {
    let names = image.repo_digests.into_iter().chain(image.repo_tags).collect();
    (names, i64::try_from(image.size).unwrap_or(i64::MAX))
}

const EVERY: Duration = Duration::from_secs(5);
const IMAGES_EVERY: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(5);
const DOWN_AFTER: u32 = 2;
/// As the kubelet words it.
const DOWN: &str = "container runtime is down";
const NOT_YET: &str = "container runtime status check may not have completed yet";

#[cfg(test)]
mod tests {
    use podwright_core::node_status::readiness;

    use super::*;

    fn says(runtime: bool, network: bool) -> v1::StatusResponse {
        let condition = |kind: &str, status: bool| v1::RuntimeCondition {
            r#type: kind.into(),
            status,
            reason: "Why".into(),
            message: "because".into(),
        };
        let conditions = vec![condition("RuntimeReady", runtime), condition("NetworkReady", network)];
        v1::StatusResponse { status: Some(v1::RuntimeStatus { conditions }), ..v1::StatusResponse::default() }
    }

    #[test]
    fn readiness_is_what_the_runtime_says() {
        let mut facts = RuntimeFacts { ready: Some(NOT_YET.into()), ..RuntimeFacts::default() };
        take_in(says(true, true), &mut facts);
        assert_eq!(readiness(&facts), Ok(()));
        take_in(says(true, false), &mut facts);
        let network = "container runtime network not ready: NetworkReady=false reason:Why message:because";
        assert_eq!(readiness(&facts), Err(network.into()));
        take_in(v1::StatusResponse::default(), &mut facts);
        assert!(readiness(&facts).unwrap_err().contains("does not say"));
    }

    #[test]
    fn one_call_that_failed_is_no_runtime_that_is_down() {
        let mut facts = RuntimeFacts::default();
        failed(1, &mut facts);
        assert_eq!(readiness(&facts), Ok(()));
        failed(2, &mut facts);
        assert_eq!(readiness(&facts), Err(DOWN.into()));
        take_in(says(true, true), &mut facts);
        assert_eq!(readiness(&facts), Ok(()));
    }
}
