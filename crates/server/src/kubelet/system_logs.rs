//! `/logs/`: the files below `/var/log`, as a listing of a directory or the content of a file.
//!
//! Every path is resolved by the kernel inside that directory (`openat2`): neither `..` nor a symbolic link leads out of it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::unfold;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderValue, StatusCode};
use podwright_agent::host::{Pool, PoolError};
use podwright_linux::beneath::ConfinedDir;
use rustix::fs::OFlags;

use super::connection::WRITE_TIMEOUT;
use super::state::ServerState;
use crate::log::paced;
use crate::serve::{HttpResponse, WriteTimeout, text, too_many, try_stream};

/// What a path leads to.
enum LogEntry {
    File(File, u64),
    /// Names of the entries, directories with a slash at the end.
    Directory(Vec<String>),
}

/// Why nothing is shown.
#[derive(Debug, thiserror::Error)]
enum SystemLogError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// `path` begins with a slash, or is empty.
pub(super) async fn respond(state: &ServerState, user: &str, path: &str) -> HttpResponse {
    let (root, relative) = (state.api.system_logs.clone(), path.trim_start_matches('/').to_owned());
    let pool = state.api.pool.clone();
    let opened =
        async { Ok::<_, SystemLogError>(pool.run(POOL_KEY, READ_TIMEOUT, move || open(&root, &relative)).await??) };
    match opened.await {
        // Relative links in the listing need the slash.
        Ok(LogEntry::Directory(_)) if !path.ends_with('/') => {
            let name = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("logs");
            let mut response = text(StatusCode::MOVED_PERMANENTLY, "");
            if let Ok(location) = HeaderValue::from_str(&format!("{}/", escape_url(name))) {
                response.headers_mut().insert(LOCATION, location);
            }
            response
        }
        Ok(LogEntry::Directory(names)) => listing(&names),
        Ok(LogEntry::File(file, size)) => match state.stream_permit(user) {
            Some(permit) => {
                let parts = content(Arc::new(file), size, pool, Arc::new(permit));
                try_stream(false, paced(parts, WRITE_TIMEOUT), WriteTimeout::After(WRITE_TIMEOUT))
            }
            None => too_many("too many open logs and execs\n"),
        },
        Err(SystemLogError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            text(StatusCode::NOT_FOUND, "404 page not found\n")
        }
        Err(SystemLogError::Io(error)) => {
            tracing::debug!(%error, "system log is not shown");
            text(StatusCode::FORBIDDEN, "403 Forbidden\n")
        }
        Err(error) => {
            tracing::warn!(%error, "system log cannot be read");
            text(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error\n")
        }
    }
}

fn open(root: &Path, relative: &str) -> io::Result<LogEntry> {
    let relative = if relative.is_empty() { "." } else { relative.trim_end_matches('/') };
    let relative = PathBuf::from(OsStr::from_bytes(relative.as_bytes()));
    // Without O_NONBLOCK the open would block on a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let root = root.canonicalize()?;
    let dir = ConfinedDir::open(&root)?;
    let file = match dir.open_beneath(&relative, flags) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            dir.open_beneath(&resolve(&root, &relative)?, flags)
        }
        opened => opened,
    };
    let file = File::from(file?);
    let about = file.metadata()?;
    if about.is_file() {
        return Ok(LogEntry::File(file, about.len()));
    }
    if !about.is_dir() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let entries = std::fs::read_dir(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let name = |entry: std::fs::DirEntry| {
        let slash = if entry.file_type().is_ok_and(|kind| kind.is_dir()) { "/" } else { "" };
        format!("{}{slash}", entry.file_name().to_string_lossy())
    };
    let mut names: Vec<String> = entries.take(ENTRIES_MAX).filter_map(Result::ok).map(name).collect();
    names.sort();
    Ok(LogEntry::Directory(names))
}

/// A path through absolute links, such as those in /var/log/containers, if it ends in the directory. The result is opened inside
/// of it again: what changes meanwhile leads nowhere else.
fn resolve(root: &Path, relative: &Path) -> io::Result<PathBuf> {
    // Nothing outside is reported, not even that it does not exist.
    let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
    let path = root.join(relative).canonicalize().map_err(|_| refused())?;
    path.strip_prefix(root).map(Path::to_owned).map_err(|_| refused())
}

/// The form of Go's `http.FileServer`.
fn listing(names: &[String]) -> HttpResponse {
    let head = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n";
    let links = names.iter().map(|name| format!("<a href=\"{}\">{}</a>\n", escape_url(name), escape_html(name)));
    let body = format!("{head}{}</pre>\n", links.collect::<String>());
    let mut response = text(StatusCode::OK, body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

/// The bytes that the file had when it was opened.
fn content(
    file: Arc<File>,
    size: u64,
    pool: Pool,
    permit: Arc<dyn Send + Sync>,
) -> impl futures::Stream<Item = io::Result<Bytes>> + Send + 'static {
    unfold(0_u64, move |offset| {
        let (file, pool, permit) = (Arc::clone(&file), pool.clone(), Arc::clone(&permit));
        async move {
            let _permit = permit;
            let length = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(CHUNK);
            let read = move || {
                let mut chunk = vec![0; length];
                let read = file.read_at(&mut chunk, offset)?;
                chunk.truncate(read);
                Ok::<_, io::Error>(chunk)
            };
            match pool.run(POOL_KEY, READ_TIMEOUT, read).await.map_err(io::Error::other).flatten() {
                Ok(chunk) if chunk.is_empty() => None,
                Ok(chunk) => {
                    let end = offset + chunk.len() as u64;
                    Some((Ok(Bytes::from(chunk)), end))
                }
                // Nothing is read after an error.
                Err(error) => Some((Err(error), size)),
            }
        }
    })
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;").replace('\'', "&#39;")
}

fn escape_url(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(escape).collect()
}

const POOL_KEY: &str = "system logs";
/// For one read of a file or directory.
const READ_TIMEOUT: Duration = Duration::from_secs(8);
const CHUNK: usize = 64 << 10;
/// Entries of a directory that are listed.
const ENTRIES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_path_leads_out_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("log");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(root.join("a.log"), "inside").unwrap();
        fs::write(dir.path().join("secret"), "outside").unwrap();
        symlink("../secret", root.join("up")).unwrap();
        symlink("/etc", root.join("etc")).unwrap();
        symlink("a.log", root.join("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.join("pipe"), rustix::fs::Mode::RUSR).unwrap();
        for path in ["a.log", "link", "sub/../a.log", "a.log/"] {
            assert!(matches!(open(&root, path), Ok(LogEntry::File(_, 6))), "{path}");
        }
        for path in ["../secret", "up", "etc/passwd", "sub/../../secret", "etc", "..", "pipe"] {
            let error = open(&root, path).err().unwrap_or_else(|| panic!("{path} was opened"));
            assert_ne!(error.kind(), io::ErrorKind::NotFound, "{path}: {error}");
        }
        assert_eq!(open(&root, "none").err().unwrap().kind(), io::ErrorKind::NotFound);
        let Ok(LogEntry::Directory(names)) = open(&root, "") else { panic!("no listing") };
        assert_eq!(names, ["a.log", "etc", "link", "pipe", "sub/", "up"]);
    }

    #[test]
    fn an_absolute_link_to_a_file_in_the_directory_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("log");
        fs::create_dir_all(root.join("pods/web")).unwrap();
        fs::create_dir_all(root.join("containers")).unwrap();
        fs::write(root.join("pods/web/0.log"), "inside").unwrap();
        fs::write(dir.path().join("secret"), "outside").unwrap();
        symlink(root.join("pods/web/0.log"), root.join("containers/web.log")).unwrap();
        symlink(root.join("pods"), root.join("all")).unwrap();
        symlink(root.join("../secret"), root.join("containers/out.log")).unwrap();
        symlink(root.join("containers/loop.log"), root.join("containers/loop.log")).unwrap();
        for path in ["containers/web.log", "all/web/0.log"] {
            assert!(matches!(open(&root, path), Ok(LogEntry::File(_, 6))), "{path}");
        }
        for path in ["containers/out.log", "containers/loop.log"] {
            let error = open(&root, path).err().unwrap_or_else(|| panic!("{path} was opened"));
            assert_ne!(error.kind(), io::ErrorKind::NotFound, "{path}: {error}");
        }
    }

    #[test]
    fn names_are_escaped_in_listings() {
        assert_eq!(escape_html("<a href=\"'&"), "&lt;a href=&#34;&#39;&amp;");
        assert_eq!(escape_url("a b/<c>?#%"), "a%20b/%3Cc%3E%3F%23%25");
    }
}
