//! A pull as lines: how far it is while it runs, and the image at its end.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, ready};
use futures::stream::{self, unfold};
use podwright_image::{ImageRecord, ImageReference, LayerProgress, PullError, Puller, RegistryCredentials};
use podwright_server::local::{ImageLine, ImageLines, ImageRequestError, LayerAmount, PullRequest};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::errors::{no_reference, pull_error};
use super::shown;

/// Pulls while the stream is polled; dropping it ends the pull, unless others wait for it.
pub(super) fn lines(puller: &Arc<Puller>, request: PullRequest) -> ImageLines {
    let image: ImageReference = match request.image.parse() {
        Ok(image) => image,
        Err(error) => return Box::pin(stream::once(ready(Err(no_reference(&request.image, &error))))),
    };
    let credentials = match request.username {
        Some(username) => {
            RegistryCredentials::Basic { username, password: request.password.unwrap_or_default().into() }
        }
        None => RegistryCredentials::Anonymous,
    };
    let (of_pull, reference) = (Arc::clone(puller), image.clone());
    // People may save what they pulled.
    let pull = async move { of_pull.pull_complete(&reference, credentials).await };
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let run = PullLines { puller: Arc::clone(puller), image, pull: Some(Box::pin(pull)), ticks, last: vec![] };
    Box::pin(unfold(run, |mut run| async move { Some((run.next().await?, run)) }))
}

struct PullLines {
    puller: Arc<Puller>,
    image: ImageReference,
    /// `None`: it has ended.
    pull: Option<BoxFuture<'static, Result<ImageRecord, Arc<PullError>>>>,
    ticks: Interval,
    /// The progress that was shown last.
    last: Vec<LayerAmount>,
}

impl PullLines {
    async fn next(&mut self) -> Option<Result<ImageLine, ImageRequestError>> {
        let pull = self.pull.as_mut()?;
        loop {
            tokio::select! {
                result = &mut *pull => {
                    self.pull = None;
                    let image = result.map_err(|error| pull_error(&error));
                    return Some(image.map(|image| ImageLine::Image(shown(&image))));
                }
                _ = self.ticks.tick() => {
                    let progress = self.puller.progress(&self.image).unwrap_or_default();
                    let layers: Vec<LayerAmount> = progress.layers.iter().map(layer_amount).collect();
                    if layers != self.last {
                        self.last.clone_from(&layers);
                        return Some(Ok(ImageLine::Progress(layers)));
                    }
                }
            }
        }
    }
}

fn layer_amount(layer: &LayerProgress) -> LayerAmount {
    let LayerProgress { digest, size, received, unpacked } = *layer;
    LayerAmount { digest: digest.to_string(), size, received, unpacked }
}

/// Between two lines of progress.
const TICK: Duration = Duration::from_millis(100);
