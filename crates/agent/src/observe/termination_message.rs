//! A container's last words: the file it wrote them to, or, if its pod wants that, the end of its log.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use podwright_core::model::PodUid;
use podwright_cri::{labels, v1};
use rustix::fs::OFlags;

use super::convert::run_state;
use crate::host::Pool;

/// What an exited container left. Nothing for any other.
pub(super) async fn of(pool: &Pool, uid: &PodUid, status: &v1::ContainerStatus, limit: Duration) -> Option<String> {
    if run_state(status.state) != podwright_core::model::RunState::Exited {
        return None;
    }
    let note = |key: &str| status.annotations.get(key).map(String::as_str).unwrap_or_default();
    // One that could not even be started has no log.
    let from_log = note(labels::TERMINATION_MESSAGE_POLICY) == "FallbackToLogsOnError"
        && status.exit_code != 0
        && status.reason != "ContainerCannotRun";
    let path = note(labels::TERMINATION_MESSAGE_PATH);
    let path = if path.starts_with('/') || path.is_empty() { path.to_owned() } else { format!("/{path}") };
    let file = status.mounts.iter().find(|mount| !path.is_empty() && mount.container_path == path);
    let file = file.map(|mount| mount.host_path.clone());
    let log = (from_log && !status.log_path.is_empty()).then(|| status.log_path.clone());
    if file.is_none() && log.is_none() {
        return None;
    }
    let read = move || read(file.as_deref(), log.as_deref());
    match pool.run(&format!("pod {uid}"), limit.min(READ_TIME_MAX), read).await {
        Ok(words) => Some(words).filter(|words| !words.is_empty()),
        Err(error) => Some(format!("Error on reading termination message: {error}")),
    }
}

fn read(file: Option<&str>, log: Option<&str>) -> String {
    if let Some(file) = file {
        match tail(Path::new(file), FILE_BYTES_MAX) {
            Ok((_, words)) if !words.is_empty() => return String::from_utf8_lossy(&words).into_owned(),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return format!("Error on reading termination log {file}: {error}");
            }
            _ => {}
        }
    }
    let Some(log) = log else { return String::new() };
    match tail(Path::new(log), LOG_WINDOW_BYTES) {
        Ok((whole, window)) => end_of_log(&window, whole),
        Err(error) => format!("Error on reading termination message from logs: {error}"),
    }
}

/// The last bytes of a plain file, and whether that is all of it. The container owns its content and, with a volume there,
/// what kind of file it is: a pipe or a device is not waited for.
fn tail(path: &Path, max: u64) -> std::io::Result<(bool, Vec<u8>)> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).expect("open flags are ints");
    let mut file: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let from = about.len().saturating_sub(max);
    file.seek(SeekFrom::Start(from))?;
    let mut content = Vec::new();
    file.take(max).read_to_end(&mut content)?;
    Ok((from == 0, content))
}

/// The content of the last lines of a CRI log: `<time> <stream> <F|P> <content>`.
fn end_of_log(window: &[u8], whole: bool) -> String {
    let mut lines: Vec<&[u8]> = window.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    // The first one of a window is most likely not whole.
    if !whole && lines.len() > 1 {
        lines.remove(0);
    }
    let mut words: Vec<u8> = Vec::new();
    for line in &lines[lines.len().saturating_sub(LOG_LINES_MAX)..] {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let (Some(_), Some(stream), Some(tag), content) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if stream != b"stdout" && stream != b"stderr" {
            continue;
        }
        words.extend_from_slice(content.unwrap_or_default());
        if !tag.starts_with(b"P") {
            words.push(b'\n');
        }
    }
    let from = words.len().saturating_sub(LOG_BYTES_MAX);
    String::from_utf8_lossy(&words[from..]).into_owned()
}

/// Kubernetes: MaxContainerTerminationMessageLength.
const FILE_BYTES_MAX: u64 = 4096;
/// Kubernetes: MaxContainerTerminationMessageLogLength.
const LOG_BYTES_MAX: usize = 2048;
/// Kubernetes: MaxContainerTerminationMessageLogLines.
const LOG_LINES_MAX: usize = 80;
/// Lines are cut at 16 KiB by the runtimes: this much holds the beginning of the last one for certain.
const LOG_WINDOW_BYTES: u64 = 40 * 1024;
/// A hung file system makes an observation late, not impossible.
const READ_TIME_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_its_content() {
        let log =
            b"2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr P tw\n2026-01-01T00:00:00Z stderr F o\n\
            garbage\n2026-01-01T00:00:00Z stdout F \n";
        assert_eq!(end_of_log(log, true), "one\ntwo\n\n");
        assert_eq!(end_of_log(log, false), "two\n\n", "a line that is not whole is left out");
        let many: String = (0..200).map(|n| format!("t stdout F {n}\n")).collect();
        let end = end_of_log(many.as_bytes(), true);
        assert_eq!((end.lines().count(), end.lines().next()), (80, Some("120")));
        let long = format!("t stdout F {}\n", "x".repeat(5000));
        assert_eq!(end_of_log(long.as_bytes(), true).len(), 2048);
        assert_eq!(end_of_log(b"", true), "");
    }

    #[test]
    fn only_plain_files_are_read_and_only_their_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("words");
        std::fs::write(&file, [vec![b'a'; 5000], b"end".to_vec()].concat()).unwrap();
        let (whole, words) = tail(&file, 4096).unwrap();
        assert!(!whole && words.len() == 4096 && words.ends_with(b"end"));
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
