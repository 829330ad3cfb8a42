//! ImageStatus and PullImage.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use podwright_core::image_access::{ImageAccess, ImagePullSecret, PulledWith};
use podwright_core::model::{Answer, CallError, ImageFacts, PodUid};
use podwright_cri::v1::{Image, ImageSpec};
use podwright_cri::{CriError, ImageService};

use super::files::blocking;
use super::read_failure;
use crate::host::Pool;
use crate::objects::Redacted;

mod credentials;
mod known;
mod pull_records;
mod pull_secrets;
mod pulls;
mod rate_limit;
mod reference;
mod registry_key;

pub(crate) use reference::canonical_image_name;
use reference::{RegistryImage, parse_reference};

pub use pull_records::PullRecords;

use credentials::{Keyring, TrackedCredential};
use known::KnownImages;
use pull_records::RecordsError;
use pulls::Pulls;

/// Limits of pulls, and where credentials are.
#[derive(Clone, Debug)]
pub struct PullConfig {
    /// Parallel pulls (`maxParallelImagePulls`); 1 for `serializeImagePulls`.
    pub parallel: usize,
    /// Parallel pulls from one registry host: a registry that hangs must not block all pulls.
    pub parallel_per_host: usize,
    /// Pulls per second and burst (`registryPullQPS`, `registryBurst`); `None`: no limit.
    pub rate: Option<(u32, u32)>,
    /// Directories with a `config.json` or `.dockercfg`, in the order of preference.
    pub credential_dirs: Vec<PathBuf>,
    /// Which pods may use which images of the node; `None`: all may use all.
    pub records: Option<PullRecords>,
}

impl PullConfig {
    /// Five parallel pulls, two per host; credentials from the root directory, then from the user's home.
    pub fn with_defaults(root_dir: PathBuf, home: Option<PathBuf>) -> Self {
        let home = home.into_iter().flat_map(|home| [home.join(".docker"), home]);
        let credential_dirs = [root_dir].into_iter().chain(home).collect();
        Self { parallel: 5, parallel_per_host: 2, rate: None, credential_dirs, records: None }
    }
}

/// Pulls and inspects images.
pub(super) struct Images {
    service: Arc<dyn ImageService>,
    credential_dirs: Vec<PathBuf>,
    pulls: Pulls,
    known: KnownImages,
    records: Option<PullRecords>,
    pool: Pool,
}

impl Images {
    pub(super) fn new(service: Arc<dyn ImageService>, config: PullConfig, pool: Pool) -> Self {
        // At least one, and no more per host than in total.
        let parallel = config.parallel.max(1);
        let per_host = config.parallel_per_host.clamp(1, parallel);
        Self {
            pulls: Pulls::new(Arc::clone(&service), parallel, per_host, config.rate),
            service,
            credential_dirs: config.credential_dirs,
            known: KnownImages::default(),
            records: config.records,
            pool,
        }
    }

    /// The facts of the image; `None`: it is not present.
    pub(super) async fn status(&self, image: &str, limit: Duration) -> Result<Option<ImageFacts>, CallError> {
        let reference = parsed(image)?;
        self.facts_of(&reference.full, INSPECT_REASON, limit).await
    }

    /// Whether the pod may use the image that is present, or has to pull it. `secrets` are read only if they matter.
    pub(super) async fn may_use(
        &self,
        image: &str,
        id: &str,
        uid: &PodUid,
        secrets: impl AsyncFnOnce() -> Vec<Redacted<Secret>>,
    ) -> Result<bool, CallError> {
        let Some(records) = &self.records else { return Ok(true) };
        let history = match records.history(image, id).await {
            Ok(history) => history,
            Err(RecordsError::Pool(error)) => return Err(CallError::failed(error.to_string())),
            Err(error) => {
                tracing::warn!(image, %error, "records of image pulls can't be read, the image is pulled");
                return Ok(false);
            }
        };
        if records.decide(image, &history, &[]) != ImageAccess::MustPull {
            return Ok(true);
        }
        if history.record.is_none() {
            return Ok(false);
        }
        let credentials = self.credentials(&parsed(image)?, uid, secrets().await).await?;
        let own: Vec<ImagePullSecret> = credentials.into_iter().filter_map(|tracked| tracked.source).collect();
        match records.decide(image, &history, &own) {
            ImageAccess::MustPull => Ok(false),
            ImageAccess::Allowed { learned } => {
                if let Some(secret) = learned {
                    records.add_secret(image, id, secret).await;
                }
                Ok(true)
            }
        }
    }

    /// Pulls the image. Calls for the same image with the same credentials share one pull, which is aborted when all of them are
    /// cancelled.
    pub(super) async fn pull(
        &self,
        image: &str,
        uid: &PodUid,
        secrets: Vec<Redacted<Secret>>,
        limit: Duration,
    ) -> Result<Answer, CallError> {
        let reference = parsed(image)?;
        let credentials = self.credentials(&reference, uid, secrets).await?;
        let intent = match &self.records {
            Some(records) => {
                let intent = records.begin(image).await.map_err(|error| {
                    let message = format!("Failed to record image pull intent for container image {image:?}: {error}");
                    CallError::with_reason("ErrImagePull", message)
                })?;
                Some((records, intent))
            }
            None => None,
        };
        let plain = credentials.iter().map(|tracked| tracked.credential.clone()).collect();
        let pulled = match self.pulls.pull(uid, &reference, plain, limit).await {
            Ok(pulled) => pulled,
            Err(failed) => {
                if let Some((records, intent)) = intent {
                    records.end(intent, None).await;
                }
                return Err(failed.into_call_error(image));
            }
        };
        // The time limit of a pull is an hour; inspecting its result is quick.
        let facts = self.facts_of(&pulled.id, INSPECT_REASON, limit.min(INSPECT_TIME_MAX)).await?;
        // Some runtimes return a reference that ImageStatus does not find right after the pull.
        let facts = facts.unwrap_or(ImageFacts { id: pulled.id, ..ImageFacts::default() });
        if let Some((records, intent)) = intent {
            let source = pulled.credential.and_then(|at| credentials[at].source.clone());
            let with = source.map_or(PulledWith::Node, PulledWith::Secret);
            records.end(intent, Some((facts.id.clone(), with))).await;
        }
        Ok(Answer::Image(Some(facts)))
    }

    /// The credentials of the node and of the pod's secrets that match the image, in the order in which they are tried.
    async fn credentials(
        &self,
        reference: &RegistryImage,
        uid: &PodUid,
        secrets: Vec<Redacted<Secret>>,
    ) -> Result<Vec<TrackedCredential>, CallError> {
        let keyring = Keyring::load(&self.pool, &self.credential_dirs).await;
        if secrets.is_empty() {
            return Ok(keyring.matching(reference));
        }
        let reference = reference.clone();
        let key = format!("image pull secrets of pod {uid}");
        let matching = move || Ok::<_, Infallible>(keyring.with_secrets(&secrets).matching(&reference));
        blocking(&self.pool, &key, MATCH_TIME_MAX, matching).await
    }

    /// The facts of an image, from the cache if possible.
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

    /// The facts of the image; `None`: it is not present.
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
                facts.iter().for_each(|facts| self.known.insert(facts));
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

fn parsed(image: &str) -> Result<RegistryImage, CallError> {
    parse_reference(image).map_err(|why| {
        let message =
            format!("Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: {why}");
        CallError::with_reason("InvalidImageName", message)
    })
}

/// The default of `runtimeRequestTimeout`.
const INSPECT_TIME_MAX: Duration = Duration::from_secs(120);

/// Parsing the secrets of one pod takes milliseconds; the rest is waiting for a thread.
const MATCH_TIME_MAX: Duration = Duration::from_secs(10);

/// Kubernetes: ErrImageInspect.
const INSPECT_REASON: &str = "ImageInspectError";

/// Matches an image reference with the credentials of a pull secret, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub fn match_credentials(image: &str, config: &[u8]) {
    let secret = Secret {
        type_: Some("kubernetes.io/dockerconfigjson".into()),
        data: Some([(".dockerconfigjson".to_owned(), k8s_openapi::ByteString(config.to_vec()))].into()),
        ..Secret::default()
    };
    let keyring = Keyring::default().with_secrets(&[Redacted::new(secret)]);
    if let Ok(image) = parse_reference(image) {
        assert!(keyring.matching(&image).len() <= 1000);
    }
}

#[cfg(test)]
mod tests;
