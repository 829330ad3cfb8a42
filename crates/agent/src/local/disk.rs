//! The store's files: one per pod, named by its UID, written atomically.
//!
//! ```text
//! <root dir>/manifests/            mode 0700
//! ├─ <uid>.json                    mode 0600: one pod
//! └─ <uid>.json.broken             a file that could not be read
//! ```
//! File and directory are synced before the pod is accepted. An interrupted write leaves the old content, and a temporary file
//! with a leading dot that the next start removes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use podwright_core::model::{Pod, PodUid};
use podwright_core::validate::{is_dns_label, is_dns_subdomain};
use rustix::fs::OFlags;

/// The maximum size of a pod in bytes, as for requests to an API server.
pub const POD_BYTES_MAX: usize = 2 << 20;
/// The maximum number of pods: far more than a node runs.
pub const PODS_MAX: usize = 1000;

/// The directory of the pods' files.
#[derive(Clone, Debug)]
pub(super) struct ManifestDir {
    dir: PathBuf,
}

/// A file without a valid pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BrokenFile {
    /// From the file name.
    pub(super) uid: PodUid,
    pub(super) path: PathBuf,
    /// The error.
    pub(super) why: String,
    /// The disk did not return it: its content may be valid.
    pub(super) is_unread: bool,
}

impl ManifestDir {
    pub(super) fn open(root_dir: &Path) -> io::Result<Self> {
        let dir = root_dir.join("manifests");
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        Ok(Self { dir })
    }

    /// The path of the pod's file.
    pub(super) fn path(&self, uid: &PodUid) -> PathBuf {
        self.dir.join(format!("{uid}{ENDING}"))
    }

    /// All pods in the order of file names, and the broken files. Removes temporary files of interrupted writes.
    pub(super) fn load(&self) -> io::Result<(Vec<Pod>, Vec<BrokenFile>)> {
        // A pod that is missing in the list would be terminated.
        let entries = fs::read_dir(&self.dir)?.collect::<io::Result<Vec<_>>>()?;
        let mut names: Vec<String> = entries.iter().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        let (mut pods, mut broken) = (Vec::new(), Vec::new());
        for name in names {
            if name.starts_with('.') {
                let path = self.dir.join(&name);
                if let Err(error) = fs::remove_file(&path) {
                    tracing::warn!(path = %path.display(), %error, "removing the rest of an interrupted write failed");
                }
                continue;
            }
            let Some(uid) = name.strip_suffix(ENDING) else { continue };
            let path = self.dir.join(&name);
            let (why, is_unread) = match read(&path, uid) {
                Ok(pod) if pods.len() < PODS_MAX => {
                    pods.push(pod);
                    continue;
                }
                Ok(_) => (format!("more than {PODS_MAX} pods"), false),
                Err(error) => (error.to_string(), error.is_unread()),
            };
            broken.push(BrokenFile { uid: uid.into(), path, why, is_unread });
        }
        Ok((pods, broken))
    }

    /// Writes the pod's file atomically and durably.
    pub(super) fn write(&self, uid: &PodUid, text: &[u8]) -> io::Result<()> {
        let new = self.dir.join(format!(".{uid}"));
        let nofollow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).custom_flags(nofollow).open(&new)?;
        let written =
            file.write_all(text).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&new, self.path(uid)));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written?;
        self.sync()
    }

    /// Removes the pod's file durably. A missing file is success.
    pub(super) fn remove(&self, uid: &PodUid) -> io::Result<()> {
        match fs::remove_file(self.path(uid)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.sync(),
        }
    }

    /// Renames a broken file and returns its new path.
    pub(super) fn rename_broken(&self, path: &Path) -> io::Result<PathBuf> {
        let mut renamed = path.as_os_str().to_owned();
        renamed.push(".broken");
        fs::rename(path, &renamed)?;
        Ok(renamed.into())
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }
}

/// A file without a valid pod.
#[derive(Debug, thiserror::Error)]
enum ReadPodError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Decode(#[from] serde_json::Error),
    #[error("not a regular file of at most {max} bytes")]
    NotRegular { max: u64 },
    #[error("the pod in it has another uid, {0:?}")]
    OtherUid(String),
    #[error("the pod in it has no name, namespace or spec")]
    Incomplete,
}

impl ReadPodError {
    /// A link, which is not followed, is wrong content.
    fn is_unread(&self) -> bool {
        matches!(self, Self::Io(error) if error.raw_os_error() != Some(rustix::io::Errno::LOOP.raw_os_error()))
    }
}

fn read(path: &Path, uid: &str) -> Result<Pod, ReadPodError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    // The server adds fields to what was submitted.
    let max = 2 * POD_BYTES_MAX as u64;
    if !about.is_file() || about.len() > max {
        return Err(ReadPodError::NotRegular { max });
    }
    let mut text = Vec::new();
    file.take(max).read_to_end(&mut text)?;
    let pod: Pod = serde_json::from_slice(&text)?;
    let meta = &pod.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    if text(&meta.uid) != uid {
        return Err(ReadPodError::OtherUid(text(&meta.uid)));
    }
    if !is_dns_subdomain(&text(&meta.name)) || !is_dns_label(&text(&meta.namespace)) || pod.spec.is_none() {
        return Err(ReadPodError::Incomplete);
    }
    Ok(pod)
}

const ENDING: &str = ".json";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn text(uid: &str) -> String {
        format!(r#"{{"metadata":{{"uid":"{uid}","name":"p","namespace":"default"}},"spec":{{"containers":[]}}}}"#)
    }

    #[test]
    fn written_pods_are_loaded_and_interrupted_writes_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = ManifestDir::open(dir.path()).unwrap();
        store.write(&"a".into(), text("a").as_bytes()).unwrap();
        store.write(&"a".into(), text("a").as_bytes()).unwrap();
        fs::write(dir.path().join("manifests/.b"), &text("b")[..20]).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&store.path(&"a".into())), mode(&dir.path().join("manifests"))), (0o600, 0o700));
        let (pods, broken) = ManifestDir::open(dir.path()).unwrap().load().unwrap();
        assert_eq!((pods.len(), pods[0].metadata.uid.as_deref(), broken.len()), (1, Some("a"), 0));
        assert!(!dir.path().join("manifests/.b").exists());
        store.remove(&"a".into()).unwrap();
        store.remove(&"a".into()).unwrap();
        assert!(store.load().unwrap().0.is_empty());
    }

    #[test]
    fn broken_files_are_reported_and_links_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let store = ManifestDir::open(dir.path()).unwrap();
        let at = |name: &str| dir.path().join("manifests").join(name);
        fs::write(at("cut.json"), &text("cut")[..20]).unwrap();
        fs::write(at("other.json"), text("mine")).unwrap();
        fs::write(at("huge.json"), vec![b' '; 2 * POD_BYTES_MAX + 1]).unwrap();
        fs::write(at("empty.json"), "").unwrap();
        fs::create_dir(at("dir.json")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at("link.json")).unwrap();
        fs::write(at("note.txt"), "left alone").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe.json"), rustix::fs::Mode::RUSR).unwrap();
        let (pods, broken) = store.load().unwrap();
        let names: Vec<_> = broken.iter().map(|b| b.uid.as_str()).collect();
        assert_eq!((pods.len(), names), (0, vec!["cut", "dir", "empty", "huge", "link", "other", "pipe"]));
        let renamed = store.rename_broken(&broken[0].path).unwrap();
        assert!(renamed.exists() && !broken[0].path.exists());
        assert_eq!(store.load().unwrap().1.len(), 6);
    }
}
