//! What the node's object says of the container runtime: what core knows of it, and the images that are here.

use std::sync::Arc;
use std::time::Duration;

use podwright_core::node_status::RuntimeFacts;
use podwright_cri::{ImageService, v1};
use tokio::sync::watch;
use tokio::time::Instant;

/// Wait a moment for the first word of the runtime; then go on listening in the future that is given back, as long as somebody
/// wants to know.
pub(super) async fn follow(
    mut said: watch::Receiver<Option<RuntimeFacts>>,
    images: Arc<dyn ImageService>,
) -> (impl Future<Output = ()> + Send, watch::Receiver<RuntimeFacts>) {
    let mut images = Images { service: images, names: vec![], due: Instant::now() };
    let first_word = async {
        if said.wait_for(Option::is_some).await.is_ok() {
            images.look().await;
        }
    };
    // A runtime that is away is no reason for the node not to be there.
    let _ = tokio::time::timeout(FIRST_WORD_MAX, first_word).await;
    let (sender, receiver) = watch::channel(facts(&mut said, &images.names));
    let listening = async move {
        loop {
            let answers = said.borrow().as_ref().is_some_and(|facts| facts.ready.is_none());
            tokio::select! {
                changed = said.changed() => if changed.is_err() { return },
                // Nobody waits for the images of a runtime that is away.
                () = tokio::time::sleep_until(images.due), if answers => images.look().await,
                () = sender.closed() => return,
            }
            let facts = facts(&mut said, &images.names);
            sender.send_if_modified(|told| {
                let changed = *told != facts;
                *told = facts;
                changed
            });
        }
    };
    (listening, receiver)
}

fn facts(said: &mut watch::Receiver<Option<RuntimeFacts>>, images: &[(Vec<String>, i64)]) -> RuntimeFacts {
    let facts = said.borrow_and_update().clone().unwrap_or_else(RuntimeFacts::unknown);
    RuntimeFacts { images: images.to_vec(), ..facts }
}

/// The images that are here, and when to look again.
struct Images {
    service: Arc<dyn ImageService>,
    names: Vec<(Vec<String>, i64)>,
    due: Instant,
}

impl Images {
    async fn look(&mut self) {
        match self.service.list_images(None, LIMIT).await {
            Ok(images) => self.names = images.into_iter().map(image).collect(),
            Err(error) => tracing::debug!(%error, "the images that are here are not known"),
        }
        self.due = Instant::now() + IMAGES_EVERY;
    }
}

fn image(image: v1::Image) -> (Vec<String>, i64) {
    let names = image.repo_digests.into_iter().chain(image.repo_tags).collect();
    (names, i64::try_from(image.size).unwrap_or(i64::MAX))
}

/// A runtime that answers does so in milliseconds.
const FIRST_WORD_MAX: Duration = Duration::from_millis(500);
const IMAGES_EVERY: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use podwright_core::node_status::readiness;

    use super::*;

    #[test]
    fn the_word_of_core_is_taken_and_the_images_are_added() {
        let (sender, mut said) = watch::channel(None);
        let images = [(vec!["docker.io/library/busybox:1".to_owned()], 7)];
        assert!(readiness(&facts(&mut said, &images)).is_err(), "nothing was said yet");
        sender.send_replace(Some(RuntimeFacts { version: "containerd://2".into(), ..RuntimeFacts::default() }));
        let facts = facts(&mut said, &images);
        assert_eq!((readiness(&facts), facts.version.as_str(), facts.images.len()), (Ok(()), "containerd://2", 1));
        assert!(!said.has_changed().unwrap(), "it was taken in");
    }
}
