//! Images: is it here, and if not, get it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use podwright_core::model::{Answer, CallError, ImageFacts};
use podwright_cri::v1::{Image, ImageSpec};
use podwright_cri::{CriError, ImageService};

use super::read_failure;
use crate::host::Pool;
use crate::objects::Redacted;

mod credentials;
mod known;
mod pull_secrets;
mod pulls;
mod rate_limit;
mod reference;

pub use reference::{ImageReference, parse_reference};

use credentials::Keyring;
use known::KnownImages;
use pulls::Pulls;

/// How images are pulled.
#[derive(Clone, Debug)]
pub struct PullConfig {
    /// Pulls at once (`maxParallelImagePulls`); 1 is one after another (`serializeImagePulls`).
    pub parallel: usize,
    /// Of these, from one registry host: a registry that hangs must not take every place.
    pub parallel_per_host: usize,
    /// Pulls that may begin in a second, and how many of them at once (`registryPullQPS`, `registryBurst`); `None`: no limit.
    pub rate: Option<(u32, u32)>,
    /// Directories in which `config.json` or `.dockercfg` is looked for, the first one preferred.
    pub credential_dirs: Vec<PathBuf>,
}

impl PullConfig {
    /// The usual: five at once, two from one host; credentials from the root directory, then the user's.
    pub fn with_defaults(root_dir: PathBuf, home: Option<PathBuf>) -> Self {
        let home = home.into_iter().flat_map(|home| [home.join(".docker"), home]);
        let credential_dirs = [root_dir].into_iter().chain(home).collect();
        Self { parallel: 5, parallel_per_host: 2, rate: None, credential_dirs }
    }
}

/// The node's images.
pub(super) struct Images {
    service: Arc<dyn ImageService>,
    credential_dirs: Vec<PathBuf>,
    pulls: Pulls,
    known: KnownImages,
    pool: Pool,
}

impl Images {
    pub(super) fn new(service: Arc<dyn ImageService>, config: PullConfig, pool: Pool) -> Self {
        // More from one host than at all makes no sense, and neither does none.
        let parallel = config.parallel.max(1);
        let per_host = config.parallel_per_host.clamp(1, parallel);
        Self {
            pulls: Pulls::new(Arc::clone(&service), parallel, per_host, config.rate),
            service,
            credential_dirs: config.credential_dirs,
            known: KnownImages::default(),
            pool,
        }
    }

    /// The image is here, or not.
    pub(super) async fn status(&self, image: &str, limit: Duration) -> Result<Answer, CallError> {
        let reference = parsed(image)?;
        self.facts_of(&reference.full, INSPECT_REASON, limit).await.map(Answer::Image)
    }

    /// Pulls the image. Everyone who wants the same image with the same credentials shares one pull, which ends early
    /// when nobody wants it any more.
    pub(super) async fn pull(
        &self,
        image: &str,
        secrets: &[Redacted<Secret>],
        limit: Duration,
    ) -> Result<Answer, CallError> {
        let reference = parsed(image)?;
        let keyring = Keyring::load(&self.pool, &self.credential_dirs).await.with_secrets(secrets);
        let credentials = keyring.matching(&reference);
        let pulled = self.pulls.pull(&reference, credentials, limit).await;
        let id = pulled.map_err(|failed| failed.into_call_error(image))?;
        // The pull had its hour; asking what it brought is a matter of moments.
        let facts = self.facts_of(&id, INSPECT_REASON, limit.min(INSPECT_TIME_MAX)).await?;
        // Some runtimes answer a pull with a reference they do not find under that name a moment later.
        Ok(Answer::Image(Some(facts.unwrap_or(ImageFacts { id, ..ImageFacts::default() }))))
    }

    /// The facts of an image that was found a moment ago; asked for again only if it was not.
    pub(super) async fn facts_of_id(
        &self,
        id: &str,
        reason: &'static str,
        limit: Duration,
    ) -> Result<Option<ImageFacts>, CallError> {
        match self.known.get(id) {
            Some(facts) => Ok(Some(facts)),
            None => self.facts_of(id, reason, limit).await,
        }
    }

    /// What the image says of itself, if it is here.
    async fn facts_of(
        &self,
        image: &str,
        reason: &'static str,
        limit: Duration,
    ) -> Result<Option<ImageFacts>, CallError> {
        let spec = ImageSpec { image: image.to_owned(), ..ImageSpec::default() };
        match self.service.image_status(spec, false, limit).await {
            Ok(answer) => {
                let facts = answer.image.map(facts);
                facts.iter().for_each(|facts| self.known.keep(facts));
                Ok(facts)
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(inspect_failure(reason, image, &error)),
        }
    }
}

fn inspect_failure(reason: &'static str, image: &str, error: &CriError) -> CallError {
    read_failure(reason, error).map_message(|message| format!("Failed to inspect image {image:?}: {message}"))
}

fn facts(image: Image) -> ImageFacts {
    ImageFacts { id: image.id, uid: image.uid.map(|uid| uid.value), username: image.username }
}

fn parsed(image: &str) -> Result<ImageReference, CallError> {
    parse_reference(image).map_err(|why| {
        let message =
            format!("Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: {why}");
        CallError::with_reason("InvalidImageName", message)
    })
}

/// As `runtimeRequestTimeout` usually is.
const INSPECT_TIME_MAX: Duration = Duration::from_secs(120);

/// Kubernetes: ErrImageInspect.
const INSPECT_REASON: &str = "ImageInspectError";

#[cfg(test)]
mod tests;
