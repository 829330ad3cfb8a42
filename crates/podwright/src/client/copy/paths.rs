//! The paths of a copy: what `tar` is called with, and the name of the copy.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use super::super::ClientError;

/// A path in a container, as arguments of `tar`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RemotePath {
    /// As the user wrote it.
    pub(super) text: String,
    /// The directory for `-C`.
    pub(super) parent: String,
    /// `./NAME`: never an option, whatever the name.
    pub(super) entry: String,
    /// The name of the copy in an existing directory; `None`: the content of a directory is copied (`/`, `dir/.`, `..`).
    pub(super) name: Option<String>,
}

impl RemotePath {
    pub(super) fn parse(text: &str) -> Self {
        let trimmed = text.trim_end_matches('/');
        let (parent, name) = trimmed.rsplit_once('/').unwrap_or((".", trimmed));
        let parent = if parent.is_empty() { "/" } else { parent };
        match name {
            "" | "." | ".." => {
                let whole = if trimmed.is_empty() { "/" } else { trimmed };
                Self { text: text.into(), parent: as_operand(whole), entry: ".".into(), name: None }
            }
            name => Self {
                text: text.into(),
                parent: as_operand(parent),
                entry: format!("./{name}"),
                name: Some(name.into()),
            },
        }
    }
}

/// A relative path that begins with a dash would be an option of `tar`.
fn as_operand(path: &str) -> String {
    if path.starts_with('-') { format!("./{path}") } else { path.to_owned() }
}

/// Where a copy from a container is written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LocalTarget {
    /// A directory that exists, or is created; named by the user, so it may contain symlinks.
    pub(super) dir: PathBuf,
    /// The name of the copy in it; `None`: the entries of the copied directory are written into `dir` itself.
    pub(super) name: Option<OsString>,
    /// The prefix of the entries in the tar stream: `NAME`; `None`: they have none.
    pub(super) strip: Option<String>,
}

pub(super) fn local_target(from: &RemotePath, to: &Path) -> Result<LocalTarget, ClientError> {
    let Some(name) = &from.name else {
        return Ok(LocalTarget { dir: to.to_owned(), name: None, strip: None });
    };
    let strip = Some(name.clone());
    let ends_with_slash = to.as_os_str().as_encoded_bytes().ends_with(b"/");
    if to.is_dir() || ends_with_slash {
        return Ok(LocalTarget { dir: to.to_owned(), name: Some(name.into()), strip });
    }
    let Some(new_name) = to.file_name() else {
        return Err(ClientError::Usage(format!("{} is not a directory", to.display())));
    };
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(LocalTarget { dir: parent.to_owned(), name: Some(new_name.into()), strip })
}

/// Where a copy to a container is written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RemoteTarget {
    /// The directory for `-C`.
    pub(super) parent: String,
    /// The name of the first entry.
    pub(super) name: PathBuf,
}

/// `is_dir`: the destination is a directory, which gets the copy inside of it.
pub(super) fn remote_target(from: &Path, to: &str, is_dir: bool) -> Result<RemoteTarget, ClientError> {
    if is_dir {
        // `.` and `..` have no name: their content is copied.
        let copies_content =
            matches!(from.components().next_back(), None | Some(Component::CurDir | Component::ParentDir));
        let name = from.file_name().filter(|_| !copies_content);
        return Ok(RemoteTarget { parent: as_operand(to), name: name.map_or_else(|| ".".into(), PathBuf::from) });
    }
    let RemotePath { parent, name, .. } = RemotePath::parse(to);
    let name = name.ok_or_else(|| ClientError::Usage(format!("{to} is not a directory")))?;
    Ok(RemoteTarget { parent, name: name.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_arguments_of_tar() {
        for (text, parent, entry, name) in [
            ("/etc/hosts", "/etc", "./hosts", Some("hosts")),
            ("/etc/", "/", "./etc", Some("etc")),
            ("a", ".", "./a", Some("a")),
            ("-rf/-x", "./-rf", "./-x", Some("-x")),
            ("/", "/", ".", None),
            ("/data/.", "/data/.", ".", None),
            ("..", "..", ".", None),
        ] {
            let path = RemotePath::parse(text);
            assert_eq!(
                (path.parent.as_str(), path.entry.as_str(), path.name.as_deref()),
                (parent, entry, name),
                "{text}"
            );
        }
    }

    #[test]
    fn an_existing_directory_gets_the_copy_inside() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = RemotePath::parse("/etc/hosts");
        let target = |from: &RemotePath, to: &Path| {
            let target = local_target(from, to).unwrap();
            (target.dir, target.name)
        };
        assert_eq!(target(&hosts, dir.path()), (dir.path().into(), Some("hosts".into())));
        assert_eq!(target(&hosts, &dir.path().join("new")), (dir.path().into(), Some("new".into())));
        assert_eq!(target(&hosts, &dir.path().join("new/")), (dir.path().join("new/"), Some("hosts".into())));
        assert_eq!(target(&RemotePath::parse("/"), &dir.path().join("new")), (dir.path().join("new"), None));
        assert_eq!(target(&hosts, Path::new("new")), (".".into(), Some("new".into())));
        let target = |from: &str, to: &str, is_dir| {
            let target = remote_target(Path::new(from), to, is_dir).unwrap();
            (target.parent, target.name.display().to_string())
        };
        assert_eq!(target("/a/b", "/data", true), ("/data".into(), "b".into()));
        assert_eq!(target("/a/b", "/data/c", false), ("/data".into(), "c".into()));
        assert_eq!(target(".", "/data", true), ("/data".into(), ".".into()));
    }
}
