//! Records of image pulls on disk, in the places and the format of the Go kubelet.
//!
//! ```text
//! <root dir>/image_manager/
//! ├─ pulling/sha256-<hash of the image>     a pull has begun
//! └─ pulled/sha256-<hash of the image id>   who may use the image
//! ```

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use podwright_core::image_access::{
    API_VERSION, ImageAccess, ImagePullSecret, ImagePulledRecord, PullHistory, PulledWith, VerificationPolicy, decide,
    recorded, repository,
};
use podwright_cri::{ImageService, v1};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::parse_reference;
use crate::host::{Pool, PoolError};
use crate::perform::files::read_bounded;

/// The records of all images.
#[derive(Clone, Debug)]
pub struct PullRecords {
    files: Arc<RecordFiles>,
    policy: VerificationPolicy,
    pool: Pool,
}

/// Why records can't be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordsError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// A pull under way. Dropped without a result, its file stays: the image may be complete all the same.
#[derive(Debug)]
pub(super) struct PullIntent {
    files: Arc<RecordFiles>,
    image: String,
}

impl Drop for PullIntent {
    fn drop(&mut self) {
        let mut under_way = self.files.under_way.lock().expect("no panic under this lock");
        if let Some(count) = under_way.get_mut(&self.image) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.image);
            }
        }
    }
}

#[derive(Debug)]
struct RecordFiles {
    pulling: PathBuf,
    pulled: PathBuf,
    /// Pulls under way by image. Never held while files are accessed.
    under_way: Mutex<HashMap<String, usize>>,
    /// Held on the pool's threads while files are read and written.
    access: Mutex<()>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IntentFile {
    kind: String,
    api_version: String,
    image: String,
}

impl PullRecords {
    /// Records under the root directory. Directories are created when they are needed.
    pub fn new(root_dir: &Path, policy: VerificationPolicy, pool: Pool) -> Self {
        let dir = root_dir.join("image_manager");
        let files = RecordFiles {
            pulling: dir.join("pulling"),
            pulled: dir.join("pulled"),
            under_way: Mutex::default(),
            access: Mutex::default(),
        };
        Self { files: Arc::new(files), policy, pool }
    }

    /// Removes the records of images that are gone, and turns pulls of former agent processes into records, every five minutes.
    pub async fn watch(self, images: Arc<dyn ImageService>, limit: Duration) {
        loop {
            let started = SystemTime::now();
            match images.list_images(None, limit).await {
                Ok(images) => {
                    if let Err(error) = self.run(move |files| files.reconcile(&images, started)).await {
                        tracing::warn!(%error, "checking the records of image pulls failed");
                    }
                }
                Err(error) => tracing::debug!(%error, "listing images failed"),
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    pub(super) async fn history(&self, image: &str, id: &str) -> Result<PullHistory, RecordsError> {
        let (image, id) = (image.to_owned(), id.to_owned());
        self.run(move |files| {
            let intent = files.is_under_way(&image) || file_of(&files.pulling, &image).exists();
            Ok(PullHistory { record: files.record(&id)?, intent })
        })
        .await
    }

    pub(super) fn decide(&self, image: &str, history: &PullHistory, secrets: &[ImagePullSecret]) -> ImageAccess {
        decide(&self.policy, image, history, secrets)
    }

    /// Records that a pull begins.
    pub(super) async fn begin(&self, image: &str) -> Result<PullIntent, RecordsError> {
        *self.files.under_way.lock().expect("no panic under this lock").entry(image.to_owned()).or_default() += 1;
        let intent = PullIntent { files: Arc::clone(&self.files), image: image.to_owned() };
        let (kind, api_version) = ("ImagePullIntent".to_owned(), API_VERSION.to_owned());
        let content = IntentFile { kind, api_version, image: image.to_owned() };
        self.run(move |files| write(&file_of(&files.pulling, &content.image), &content)).await?;
        Ok(intent)
    }

    /// Ends a pull; `pulled`: the image's id and the credential that worked. A failure is logged, and the intent stays.
    pub(super) async fn end(&self, intent: PullIntent, pulled: Option<(String, PulledWith)>) {
        let image = intent.image.clone();
        let ended = self.run(move |files| {
            if let Some((id, with)) = pulled {
                files.add(&intent.image, &id, Some(&with))?;
            }
            let image = intent.image.clone();
            drop(intent);
            if files.is_under_way(&image) { Ok(()) } else { remove(&file_of(&files.pulling, &image)) }
        });
        if let Err(error) = ended.await {
            tracing::warn!(image, %error, "recording an image pull failed");
        }
    }

    /// Adds a secret that gives access too. A failure is logged.
    pub(super) async fn add_secret(&self, image: &str, id: &str, secret: ImagePullSecret) {
        let (name, id) = (image.to_owned(), id.to_owned());
        let added = self.run(move |files| files.add(&name, &id, Some(&PulledWith::Secret(secret)))).await;
        if let Err(error) = added {
            tracing::warn!(image, %error, "recording an image pull secret failed");
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RecordFiles) -> Result<T, RecordsError> + Send + 'static,
    ) -> Result<T, RecordsError> {
        let files = Arc::clone(&self.files);
        let work = move || {
            let _access = files.access.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            work(&files)
        };
        self.pool.run("image pull records", TIME_MAX, work).await?
    }
}

impl RecordFiles {
    fn is_under_way(&self, image: &str) -> bool {
        self.under_way.lock().expect("no panic under this lock").contains_key(image)
    }

    fn record(&self, id: &str) -> Result<Option<ImagePulledRecord>, RecordsError> {
        read(&file_of(&self.pulled, id))
    }

    fn add(&self, image: &str, id: &str, with: Option<&PulledWith>) -> Result<(), RecordsError> {
        // A record that can't be read is replaced: pods verify again.
        let old = self.record(id).unwrap_or_default();
        match recorded(old, image, id, with, Timestamp::now()) {
            Some(record) => write(&file_of(&self.pulled, id), &record),
            None => Ok(()),
        }
    }

    fn reconcile(&self, images: &[v1::Image], started: SystemTime) -> Result<(), RecordsError> {
        for path in entries(&self.pulling) {
            let Ok(Some(intent)) = read::<IntentFile>(&path) else { continue };
            if self.is_under_way(&intent.image) {
                continue;
            }
            for image in images.iter().filter(|image| has_name(image, &intent.image)) {
                self.add(&intent.image, &image.id, None)?;
            }
            remove(&path)?;
        }
        let present: BTreeSet<PathBuf> = images.iter().map(|image| file_of(&self.pulled, &image.id)).collect();
        for path in entries(&self.pulled).filter(|path| !present.contains(path)) {
            let older = |meta: fs::Metadata| meta.modified().is_ok_and(|changed| changed < started);
            if fs::metadata(&path).is_ok_and(older) {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

/// Whether the runtime has the image under the name that a container uses.
fn has_name(image: &v1::Image, name: &str) -> bool {
    let Ok(reference) = parse_reference(name) else { return false };
    let suffix = &reference.full[repository(&reference.full).len()..];
    let full = format!("{}/{}{suffix}", reference.domain, reference.path);
    image.repo_tags.iter().chain(&image.repo_digests).any(|known| *known == full)
}

fn file_of(dir: &Path, name: &str) -> PathBuf {
    let hash: String = Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    dir.join(format!("sha256-{hash}"))
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("sha256-"))).map(|e| e.path())
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, RecordsError> {
    let content = match read_bounded(path, FILE_BYTES_MAX) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(RecordsError::Io { path: path.into(), source }),
    };
    let parsed = serde_json::from_slice(&content);
    parsed.map(Some).map_err(|source| RecordsError::Parse { path: path.into(), source })
}

/// Replaces the file, so that it is complete at any time.
fn write(path: &Path, content: &impl Serialize) -> Result<(), RecordsError> {
    let failed = |source| RecordsError::Io { path: path.into(), source };
    let text = serde_json::to_vec(content).map_err(|source| RecordsError::Parse { path: path.into(), source })?;
    let dir = path.parent().expect("a file of a directory");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    let temporary = dir.join(".new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary).map_err(failed)?;
    file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&temporary, path).map_err(failed)
}

fn remove(path: &Path) -> Result<(), RecordsError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(RecordsError::Io { path: path.into(), source }),
        _ => Ok(()),
    }
}

/// As image garbage collection.
const PERIOD: Duration = Duration::from_secs(300);
/// For one access; files are small and local.
const TIME_MAX: Duration = Duration::from_secs(10);
/// A record has at most 100 repositories of 100 secrets.
const FILE_BYTES_MAX: u64 = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, tag: &str) -> v1::Image {
        v1::Image { id: id.into(), repo_tags: vec![tag.into()], ..Default::default() }
    }

    #[tokio::test]
    async fn a_pull_leaves_an_intent_until_it_is_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let records = PullRecords::new(dir.path(), VerificationPolicy::default(), Pool::default());
        assert_eq!(records.history("app", "sha256:1").await.unwrap(), PullHistory::default());
        let intent = records.begin("app").await.unwrap();
        assert!(records.history("app", "sha256:1").await.unwrap().intent);
        let second = records.begin("app").await.unwrap();
        records.end(intent, Some(("sha256:1".into(), PulledWith::Node))).await;
        let history = records.history("app", "sha256:1").await.unwrap();
        assert!(history.intent && history.record.is_some());
        records.end(second, None).await;
        assert!(!records.history("app", "sha256:1").await.unwrap().intent);
        drop(records.begin("other").await.unwrap());
        let later = PullRecords::new(dir.path(), VerificationPolicy::default(), Pool::default());
        assert!(later.history("other", "sha256:2").await.unwrap().intent, "of a former process");
        fs::write(file_of(&dir.path().join("image_manager/pulled"), "sha256:1"), "broken").unwrap();
        assert!(later.history("app", "sha256:1").await.is_err());
    }

    #[tokio::test]
    async fn records_follow_the_images_of_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let records = PullRecords::new(dir.path(), VerificationPolicy::default(), Pool::default());
        for (name, id) in [("kept", "sha256:1"), ("gone", "sha256:2")] {
            let intent = records.begin(name).await.unwrap();
            records.end(intent, Some((id.into(), PulledWith::Node))).await;
        }
        // Completed by the runtime while the agent was away.
        drop(records.begin("late").await.unwrap());
        let under_way = records.begin("now").await.unwrap();
        let images = vec![
            image("sha256:1", "docker.io/library/kept:latest"),
            image("sha256:3", "docker.io/library/late:latest"),
        ];
        let later = SystemTime::now() + Duration::from_secs(60);
        records.run(move |files| files.reconcile(&images, later)).await.unwrap();
        let history = async |name: &str, id: &str| records.history(name, id).await.unwrap();
        assert!(history("kept", "sha256:1").await.record.is_some());
        assert_eq!(history("gone", "sha256:2").await, PullHistory::default());
        let late = history("late", "sha256:3").await;
        assert!(!late.intent && late.record.is_some_and(|record| record.credential_mapping.is_empty()));
        assert!(history("now", "sha256:4").await.intent);
        drop(under_way);
    }
}
