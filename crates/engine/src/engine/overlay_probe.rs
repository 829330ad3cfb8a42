//! Whether overlayfs works in the directory of the engine: it is mounted once, attached nowhere.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use podwright_linux::beneath::remove_path;
use podwright_linux::fsctx::FsContext;

/// Why roots of containers can not be made.
#[derive(Debug, thiserror::Error)]
pub enum OverlayProbeError {
    /// The kernel does not know the file system, and could not load it.
    #[error("this kernel has no overlay file system")]
    Missing(#[source] io::Error),
    /// The file system of the directory can not hold the writable layers of containers.
    #[error("no overlay can be mounted on {}{message}", path.display())]
    Refused {
        /// The directory of the engine.
        path: PathBuf,
        /// What the kernel says, after a colon; empty: nothing.
        message: String,
        /// The error of the mount.
        #[source]
        source: io::Error,
    },
    /// The directory can not be written.
    #[error("write to {}", .0.display())]
    Directory(PathBuf, #[source] io::Error),
}

/// Mounts an overlay with a writable layer in `dir`. What it makes is removed again.
pub(super) fn probe(dir: &Path) -> Result<(), OverlayProbeError> {
    let overlay = FsContext::open("overlay").map_err(OverlayProbeError::Missing)?;
    let probe = dir.join("overlay-probe");
    let failed = |e: io::Error| OverlayProbeError::Directory(probe.clone(), e);
    // Of a probe that was cut off.
    remove_path(&probe).map_err(|e| failed(io::Error::other(e)))?;
    let mounted = mount_on(&overlay, &probe);
    let removed = remove_path(&probe).map_err(|e| failed(io::Error::other(e)));
    mounted.and(removed)
}

fn mount_on(overlay: &FsContext, probe: &Path) -> Result<(), OverlayProbeError> {
    let mut layers = vec![];
    for (option, name) in [("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "work")] {
        let path = probe.join(name);
        let opened = fs::create_dir_all(&path).and_then(|()| File::open(&path));
        layers.push((option, opened.map_err(|e| OverlayProbeError::Directory(path, e))?));
    }
    // By descriptor: the kernel takes at most 255 bytes, and a path may have a comma.
    let mut options = layers.iter().map(|(option, layer)| (option, format!("/proc/self/fd/{}", layer.as_raw_fd())));
    let mounted = options.try_for_each(|(option, path)| overlay.set(option, &path)).and_then(|()| overlay.mount(0));
    match mounted {
        Ok(_) => Ok(()),
        Err(source) => {
            let message = overlay.message().map_or_else(String::new, |text| format!(": {text}"));
            let path = probe.parent().unwrap_or(probe).to_owned();
            Err(OverlayProbeError::Refused { path, message, source })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_is_mounted_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        probe(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_system_that_overlayfs_refuses_is_named() {
        // An overlay takes files, but can not hold the writable layer of another one.
        let dir = tempfile::tempdir().unwrap();
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| dir.path().join(name));
        let overlay = FsContext::open("overlay").unwrap();
        for (option, path) in [("lowerdir", &lower), ("upperdir", &upper), ("workdir", &work)] {
            fs::create_dir(path).unwrap();
            overlay.set(option, path.to_str().unwrap()).unwrap();
        }
        let mount = overlay.mount(0).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        let error = probe(&path).unwrap_err();
        assert!(matches!(&error, OverlayProbeError::Refused { path: named, .. } if *named == path), "{error:?}");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        // procfs takes no files at all.
        let error = probe(Path::new("/proc/self")).unwrap_err();
        assert!(matches!(error, OverlayProbeError::Directory(..)), "{error:?}");
    }
}
