//! Limits of the files that containers can write outside their volumes: `/etc/hosts` and the termination message.
//!
//! They are on the node's disk and belong to no quota. A file above its limit is cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::HostPaths;

/// Cuts the oversized files of these pods. Failures are logged: the next round tries again.
pub(crate) fn cut_oversized<'u>(paths: &HostPaths, uids: impl IntoIterator<Item = &'u str>) {
    for uid in uids {
        cut(&paths.etc_hosts(uid), ETC_HOSTS_BYTES_MAX, Keep::Beginning);
        for container in entries(&paths.containers_dir(uid)) {
            for file in entries(&container.path()) {
                cut(&file.path(), TERMINATION_LOG_BYTES_MAX, Keep::End);
            }
        }
    }
}

/// The part of an oversized file that is kept.
#[derive(Clone, Copy)]
enum Keep {
    Beginning,
    /// The last bytes, which become the termination message.
    End,
}

fn entries(dir: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(dir).into_iter().flatten().flatten()
}

fn cut(path: &Path, max: u64, keep: Keep) {
    // A sparse file of any length takes no space.
    let oversized = fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.blocks() * 512 > max);
    if !oversized {
        return;
    }
    match cut_file(path, max, keep) {
        Ok(()) => {
            tracing::warn!(path = %path.display(), limit_bytes = max, "file written by a container is too large, truncated")
        }
        Err(error) => tracing::warn!(path = %path.display(), %error, "truncating a file written by a container failed"),
    }
}

fn cut_file(path: &Path, max: u64, keep: Keep) -> io::Result<()> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).expect("open flags are ints");
    let mut file: File = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    match keep {
        Keep::Beginning => file.set_len(max),
        Keep::End => {
            let mut end = Vec::new();
            file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(KEPT_BYTES)))?;
            (&mut file).take(KEPT_BYTES).read_to_end(&mut end)?;
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(&end)
        }
    }
}

/// More than a pod's hosts file can have with the node's file in it.
const ETC_HOSTS_BYTES_MAX: u64 = 4 << 20;
/// Well above the 4096 bytes that are used.
const TERMINATION_LOG_BYTES_MAX: u64 = 256 << 10;
/// Kubernetes: MaxContainerTerminationMessageLength.
const KEPT_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::NodeSettings;

    #[test]
    fn oversized_files_of_containers_are_cut() {
        let root = tempfile::tempdir().unwrap();
        let paths = HostPaths { root_dir: root.path().to_owned(), ..NodeSettings::default().paths };
        let log = paths.termination_log("u1", "web", 0);
        fs::create_dir_all(log.parent().unwrap()).unwrap();
        fs::write(&log, [vec![b'x'; 1 << 20], b"the end".to_vec()].concat()).unwrap();
        let small = paths.termination_log("u1", "web", 1);
        fs::write(&small, "small").unwrap();
        fs::write(paths.etc_hosts("u1"), vec![b'#'; 5 << 20]).unwrap();
        cut_oversized(&paths, ["u1", "none"]);
        let left = fs::read(&log).unwrap();
        assert!(left.len() == 4096 && left.ends_with(b"the end"));
        assert_eq!(fs::read(&small).unwrap(), b"small");
        assert_eq!(fs::metadata(paths.etc_hosts("u1")).unwrap().len(), ETC_HOSTS_BYTES_MAX);
        // A container may replace nothing here, but a link is not followed all the same.
        let link = paths.termination_log("u1", "web", 2);
        let target = root.path().join("target");
        fs::write(&target, vec![b'x'; 1 << 20]).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        cut_oversized(&paths, ["u1"]);
        assert_eq!(fs::metadata(&target).unwrap().len(), 1 << 20);
    }
}
