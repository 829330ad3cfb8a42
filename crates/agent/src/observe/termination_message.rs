//! The termination message of a container: from its `terminationMessagePath`, or with `FallbackToLogsOnError` the end of its log.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwright_core::model::PodUid;
use podwright_cri::{labels, v1};
use rustix::fs::OFlags;

use super::convert::run_state;
use crate::host::{HostPaths, Pool};

/// The message of an exited container. `None` if it has not exited or left no message.
pub(super) async fn of(
    pool: &Pool,
    paths: &HostPaths,
    uid: &PodUid,
    status: &v1::ContainerStatus,
    limit: Duration,
) -> Option<String> {
    if run_state(status.state) != podwright_core::model::RunState::Exited {
        return None;
    }
    let annotation = |key: &str| status.annotations.get(key).map(String::as_str).unwrap_or_default();
    // A container that could not be started has no log.
    let from_log = annotation(labels::TERMINATION_MESSAGE_POLICY) == "FallbackToLogsOnError"
        && status.exit_code != 0
        && status.reason != "ContainerCannotRun";
    let path = annotation(labels::TERMINATION_MESSAGE_PATH);
    let path = if path.starts_with('/') || path.is_empty() { path.to_owned() } else { format!("/{path}") };
    let mounted = status.mounts.iter().filter(|mount| !path.is_empty() && mount.container_path == path);
    let file = own_file(mounted, paths, uid, label_name(status)).map(|file| file.to_string_lossy().into_owned());
    let log = (from_log && !status.log_path.is_empty()).then(|| status.log_path.clone());
    if file.is_none() && log.is_none() {
        return None;
    }
    let read = move || read(file.as_deref(), log.as_deref());
    match pool.run(format!("pod {uid}"), limit.min(READ_TIME_MAX), read).await {
        Ok(message) => Some(message).filter(|message| !message.is_empty()),
        Err(error) => Some(format!("Error on reading termination message: {error}")),
    }
}

/// The file that was created for the message: it is in the container's directory, which is not mounted into any container. Volumes can
/// be mounted at the same path, and their files may be readable for root only.
fn own_file<'m>(
    mut mounted: impl Iterator<Item = &'m v1::Mount>,
    paths: &HostPaths,
    uid: &PodUid,
    container: &str,
) -> Option<PathBuf> {
    let dir = paths.container_dir(uid.as_str(), container);
    mounted.find_map(|mount| {
        let host_path = Path::new(&mount.host_path);
        let name = host_path.file_name().filter(|_| host_path.parent() == Some(&dir))?;
        Some(dir.join(name))
    })
}

fn label_name(status: &v1::ContainerStatus) -> &str {
    status.labels.get(labels::CONTAINER_NAME).map(String::as_str).unwrap_or_default()
}

fn read(file: Option<&str>, log: Option<&str>) -> String {
    if let Some(file) = file {
        match tail(Path::new(file), FILE_BYTES_MAX) {
            Ok((_, content)) if !content.is_empty() => return String::from_utf8_lossy(&content).into_owned(),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return format!("Error on reading termination log {file}: {error}");
            }
            _ => {}
        }
    }
    let Some(log) = log else { return String::new() };
    match tail(Path::new(log), LOG_WINDOW_BYTES) {
        Ok((complete, window)) => end_of_log(&window, complete),
        Err(error) => format!("Error on reading termination message from logs: {error}"),
    }
}

/// The last bytes of a regular file, and whether that is the complete file. The container controls the content and, if a volume is
/// mounted there, the type of the file: opening a pipe or a device must not block.
fn tail(path: &Path, max: u64) -> std::io::Result<(bool, Vec<u8>)> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).expect("open flags are ints");
    let mut file: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let from = metadata.len().saturating_sub(max);
    file.seek(SeekFrom::Start(from))?;
    let mut content = Vec::new();
    file.take(max).read_to_end(&mut content)?;
    Ok((from == 0, content))
}

/// The content of the last lines of a CRI log: `<time> <stream> <F|P> <content>`.
fn end_of_log(window: &[u8], complete: bool) -> String {
    let mut lines: Vec<&[u8]> = window.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    // The first line of a window is most likely incomplete.
    if !complete && lines.len() > 1 {
        lines.remove(0);
    }
    let mut message: Vec<u8> = Vec::new();
    for line in &lines[lines.len().saturating_sub(LOG_LINES_MAX)..] {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let (Some(_), Some(stream), Some(tag), content) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if stream != b"stdout" && stream != b"stderr" {
            continue;
        }
        message.extend_from_slice(content.unwrap_or_default());
        if !tag.starts_with(b"P") {
            message.push(b'\n');
        }
    }
    let from = message.len().saturating_sub(LOG_BYTES_MAX);
    String::from_utf8_lossy(&message[from..]).into_owned()
}

/// Kubernetes: MaxContainerTerminationMessageLength.
const FILE_BYTES_MAX: u64 = 4096;
/// Kubernetes: MaxContainerTerminationMessageLogLength.
const LOG_BYTES_MAX: usize = 2048;
/// Kubernetes: MaxContainerTerminationMessageLogLines.
const LOG_LINES_MAX: usize = 80;
/// Runtimes split lines at 16 KiB: a window of this size always contains the beginning of the last one.
const LOG_WINDOW_BYTES: u64 = 40 * 1024;
/// A hung file system delays an observation by at most this.
const READ_TIME_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_returned_without_its_prefixes() {
        let log =
            b"2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr P tw\n2026-01-01T00:00:00Z stderr F o\n\
            garbage\n2026-01-01T00:00:00Z stdout F \n";
        assert_eq!(end_of_log(log, true), "one\ntwo\n\n");
        assert_eq!(end_of_log(log, false), "two\n\n", "an incomplete line is left out");
        let many: String = (0..200).map(|n| format!("t stdout F {n}\n")).collect();
        let end = end_of_log(many.as_bytes(), true);
        assert_eq!((end.lines().count(), end.lines().next()), (80, Some("120")));
        let long = format!("t stdout F {}\n", "x".repeat(5000));
        assert_eq!(end_of_log(long.as_bytes(), true).len(), 2048);
        assert_eq!(end_of_log(b"", true), "");
    }

    #[test]
    fn only_regular_files_are_read_and_only_their_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("message");
        std::fs::write(&file, [vec![b'a'; 5000], b"end".to_vec()].concat()).unwrap();
        let (complete, content) = tail(&file, 4096).unwrap();
        assert!(!complete && content.len() == 4096 && content.ends_with(b"end"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert!(tail(&link, 4096).is_err());
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        assert_eq!(tail(&pipe, 4096).unwrap_err().to_string(), "not a regular file");
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        assert_eq!(read(Some(&text(&dir.path().join("absent"))), None), "");
        assert!(read(Some(&text(&pipe)), None).starts_with("Error on reading termination log"));
    }
}
