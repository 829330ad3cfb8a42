//! The facts of the container runtime in the node status: those that core reports, and the list of images.

use std::sync::Arc;
use std::time::Duration;

use podwright_core::node_status::RuntimeFacts;
use podwright_cri::{ImageService, v1};
use tokio::sync::watch;
use tokio::time::Instant;

/// Waits at most [`FIRST_REPORT_MAX`] for the first report of the runtime. The returned future keeps the facts up to date as long as
/// the receiver exists.
pub(super) async fn follow(
    mut reported: watch::Receiver<Option<RuntimeFacts>>,
    images: Arc<dyn ImageService>,
) -> (impl Future<Output = ()> + Send, watch::Receiver<RuntimeFacts>) {
    let mut images = ImageList { service: images, names: vec![], due: Instant::now() };
    let first_report = async {
        if reported.wait_for(Option::is_some).await.is_ok() {
            images.refresh().await;
        }
    };
    // Without a runtime the node is registered nevertheless.
    let _ = tokio::time::timeout(FIRST_REPORT_MAX, first_report).await;
    let (sender, receiver) = watch::channel(facts(&mut reported, &images.names));
    let listening = async move {
        loop {
            let responds = reported.borrow().as_ref().is_some_and(|facts| facts.ready.is_none());
            tokio::select! {
                changed = reported.changed() => if changed.is_err() { return },
                // Images are only listed while the runtime responds.
                () = tokio::time::sleep_until(images.due), if responds => images.refresh().await,
                () = sender.closed() => return,
            }
            let facts = facts(&mut reported, &images.names);
            sender.send_if_modified(|current| {
                let changed = *current != facts;
                *current = facts;
                changed
            });
        }
    };
    (listening, receiver)
}

fn facts(reported: &mut watch::Receiver<Option<RuntimeFacts>>, images: &[(Vec<String>, i64)]) -> RuntimeFacts {
    let facts = reported.borrow_and_update().clone().unwrap_or_else(RuntimeFacts::unknown);
    RuntimeFacts { images: images.to_vec(), ..facts }
}

/// The images on this node, and when to list them again.
struct ImageList {
    service: Arc<dyn ImageService>,
    names: Vec<(Vec<String>, i64)>,
    due: Instant,
}

impl ImageList {
    async fn refresh(&mut self) {
        match self.service.list_images(None, LIMIT).await {
            Ok(images) => self.names = images.into_iter().map(image).collect(),
            Err(error) => tracing::debug!(%error, "image list failed"),
        }
        self.due = Instant::now() + IMAGES_EVERY;
    }
}

fn image(image: v1::Image) -> (Vec<String>, i64) {
    let names = image.repo_digests.into_iter().chain(image.repo_tags).collect();
    (names, i64::try_from(image.size).unwrap_or(i64::MAX))
}

/// A working runtime responds in milliseconds.
const FIRST_REPORT_MAX: Duration = Duration::from_millis(500);
const IMAGES_EVERY: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use podwright_core::node_status::readiness;

    use super::*;

    #[test]
    fn facts_combine_the_report_of_core_and_the_image_list() {
        let (sender, mut reported) = watch::channel(None);
        let images = [(vec!["docker.io/library/busybox:1".to_owned()], 7)];
        assert!(readiness(&facts(&mut reported, &images)).is_err(), "nothing was reported yet");
        sender.send_replace(Some(RuntimeFacts { version: "containerd://2".into(), ..RuntimeFacts::default() }));
        let facts = facts(&mut reported, &images);
        assert_eq!((readiness(&facts), facts.version.as_str(), facts.images.len()), (Ok(()), "containerd://2", 1));
        assert!(!reported.has_changed().unwrap(), "the report is marked as seen");
    }
}
