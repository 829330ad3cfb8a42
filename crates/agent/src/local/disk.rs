//! The store's files: one per pod, named by its UID, written whole or not at all.
//!
//! ```text
//! <root dir>/manifests/            mode 0700
//! ├─ <uid>.json                    mode 0600: one pod, as it was taken
//! └─ <uid>.json.broken             what could not be read, put aside
//! ```
//! A file is on disk, its name included, before anybody is told that the pod was taken; whatever cuts a write short leaves the
//! old content, and a file with a dot before its name that the next start removes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use podwright_core::model::{Pod, PodUid};
use podwright_core::validate::{is_dns_label, is_dns_subdomain};
use rustix::fs::OFlags;

/// The most one pod may have, as an API server's request.
pub const POD_BYTES_MAX: usize = 2 << 20;
/// Pods kept: far more than a node runs, and a bound for whoever submits without end.
pub const PODS_MAX: usize = 1000;

/// The directory of the files.
#[derive(Clone, Debug)]
pub(super) struct ManifestDir {
    dir: PathBuf,
}

/// A file that holds no pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BrokenFile {
    /// Whose it was, by its name.
    pub(super) uid: PodUid,
    /// Where it is.
    pub(super) path: PathBuf,
    /// What is wrong with it.
    pub(super) why: String,
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

    /// Where this pod's file is.
    pub(super) fn path(&self, uid: &PodUid) -> PathBuf {
        self.dir.join(format!("{uid}{ENDING}"))
    }

    /// Every pod there, ordered by file name, and what is no pod. What writes left that were cut short is removed.
    pub(super) fn load(&self) -> io::Result<(Vec<Pod>, Vec<BrokenFile>)> {
        let mut names: Vec<String> =
            fs::read_dir(&self.dir)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        let (mut pods, mut broken) = (Vec::new(), Vec::new());
        for name in names {
            if name.starts_with('.') {
                fs::remove_file(self.dir.join(&name))?;
                continue;
            }
            let Some(uid) = name.strip_suffix(ENDING) else { continue };
            let path = self.dir.join(&name);
            match read(&path, uid) {
                Ok(_) if pods.len() == PODS_MAX => {
                    broken.push(BrokenFile { uid: uid.into(), path, why: format!("more than {PODS_MAX} pods") });
                }
                Ok(pod) => pods.push(pod),
                Err(why) => broken.push(BrokenFile { uid: uid.into(), path, why }),
            }
        }
        Ok((pods, broken))
    }

    /// Put this text where the pod's file is, as one act that survives a loss of power.
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

    /// Remove the pod's file, so that it stays removed. Not there is success.
    pub(super) fn remove(&self, uid: &PodUid) -> io::Result<()> {
        match fs::remove_file(self.path(uid)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.sync(),
        }
    }

    /// Put a broken file out of the way, and keep it for whoever wants to know. Where it is now.
    pub(super) fn put_aside(&self, path: &Path) -> io::Result<PathBuf> {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".broken");
        fs::rename(path, &aside)?;
        Ok(aside.into())
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }
}

fn read(path: &Path, uid: &str) -> Result<Pod, String> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| error.to_string())?;
    let about = file.metadata().map_err(|error| error.to_string())?;
    // Grown by what the server writes into it.
    let max = 2 * POD_BYTES_MAX as u64;
    if !about.is_file() || about.len() > max {
        return Err(format!("no regular file of at most {max} bytes"));
    }
    let mut text = Vec::new();
    file.take(max).read_to_end(&mut text).map_err(|error| error.to_string())?;
    let pod: Pod = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let meta = &pod.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    if text(&meta.uid) != uid {
        return Err(format!("the pod in it has another uid, {:?}", text(&meta.uid)));
    }
    if !is_dns_subdomain(&text(&meta.name)) || !is_dns_label(&text(&meta.namespace)) || pod.spec.is_none() {
        return Err("the pod in it has no name, namespace or spec".into());
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
    fn what_was_written_is_read_and_what_was_cut_short_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = ManifestDir::open(dir.path()).unwrap();
        shelf.write(&"a".into(), text("a").as_bytes()).unwrap();
        shelf.write(&"a".into(), text("a").as_bytes()).unwrap();
        fs::write(dir.path().join("manifests/.b"), &text("b")[..20]).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&shelf.path(&"a".into())), mode(&dir.path().join("manifests"))), (0o600, 0o700));
        let (pods, broken) = ManifestDir::open(dir.path()).unwrap().load().unwrap();
        assert_eq!((pods.len(), pods[0].metadata.uid.as_deref(), broken.len()), (1, Some("a"), 0));
        assert!(!dir.path().join("manifests/.b").exists());
        shelf.remove(&"a".into()).unwrap();
        shelf.remove(&"a".into()).unwrap();
        assert!(shelf.load().unwrap().0.is_empty());
    }

    #[test]
    fn whatever_lies_there_is_named_and_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = ManifestDir::open(dir.path()).unwrap();
        let at = |name: &str| dir.path().join("manifests").join(name);
        fs::write(at("cut.json"), &text("cut")[..20]).unwrap();
        fs::write(at("other.json"), text("mine")).unwrap();
        fs::write(at("huge.json"), vec![b' '; 2 * POD_BYTES_MAX + 1]).unwrap();
        fs::write(at("empty.json"), "").unwrap();
        fs::create_dir(at("dir.json")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at("link.json")).unwrap();
        fs::write(at("note.txt"), "left alone").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe.json"), rustix::fs::Mode::RUSR).unwrap();
        let (pods, broken) = shelf.load().unwrap();
        let names: Vec<_> = broken.iter().map(|b| b.uid.as_str()).collect();
        assert_eq!((pods.len(), names), (0, vec!["cut", "dir", "empty", "huge", "link", "other", "pipe"]));
        let aside = shelf.put_aside(&broken[0].path).unwrap();
        assert!(aside.exists() && !broken[0].path.exists());
        assert_eq!(shelf.load().unwrap().1.len(), 6);
    }
}
