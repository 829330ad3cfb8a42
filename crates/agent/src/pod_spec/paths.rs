//! The paths of a pod's directories and files on the node, in the layout of the Go kubelet, so that either agent can take
//! over a node from the other.
//!
//! ```text
//! <root dir>/pods/<uid>/
//! ├─ volumes/kubernetes.io~<kind>/<volume>/
//! ├─ volume-subpaths/<volume>/<container>/<index>
//! ├─ plugins/kubernetes.io~empty-dir/<volume>/ready
//! ├─ containers/<container>/<8 hex digits>        the termination message of one attempt
//! └─ etc-hosts
//! <pod logs dir>/<namespace>_<name>_<uid>/<container>/<attempt>.log
//! <container logs dir>/<name>_<namespace>_<container>-<id>.log → the log file
//! ```
//! Names come from manifests. A name that could leave its directory is escaped with `%XX`, so that every path stays inside.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use podwright_core::model::Pod;

use super::{pod_name, pod_namespace, pod_uid};

/// The directories below which the agent keeps the pods' files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPaths {
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `podLogsDir`.
    pub pod_logs_dir: PathBuf,
    /// The directory of links to the logs of all containers: `/var/log/containers`.
    pub container_logs_dir: PathBuf,
    /// The cgroup above `kubepods`.
    pub cgroup_root: String,
}

impl HostPaths {
    /// The directory of all pods.
    pub(crate) fn pods_dir(&self) -> PathBuf {
        self.root_dir.join("pods")
    }

    /// The directory of one pod: everything but its logs.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.pods_dir().join(&*path_component(uid))
    }

    /// The directory of a pod's volumes.
    pub(crate) fn volumes_dir(&self, uid: &str) -> PathBuf {
        self.pod_dir(uid).join("volumes")
    }

    /// The directory of one volume; `kind` as the Go kubelet spells it: `empty-dir`, `downward-api`, `projected`.
    pub(crate) fn volume_dir(&self, uid: &str, kind: &str, volume: &str) -> PathBuf {
        self.volumes_dir(uid).join(format!("kubernetes.io~{kind}")).join(&*path_component(volume))
    }

    /// The directory of markers about volumes.
    pub(crate) fn plugins_dir(&self, uid: &str) -> PathBuf {
        self.pod_dir(uid).join("plugins")
    }

    /// The marker file of an emptyDir that was set up completely.
    pub(crate) fn ready_file(&self, uid: &str, volume: &str) -> PathBuf {
        self.plugins_dir(uid).join("kubernetes.io~empty-dir").join(&*path_component(volume)).join("ready")
    }

    /// The directory of the bind mounts of subPaths.
    pub(crate) fn subpaths_dir(&self, uid: &str) -> PathBuf {
        self.pod_dir(uid).join("volume-subpaths")
    }

    /// The bind mount of the `index`th volume mount of a container.
    pub(crate) fn subpath(&self, uid: &str, volume: &str, container: &str, index: usize) -> PathBuf {
        self.subpaths_dir(uid).join(&*path_component(volume)).join(&*path_component(container)).join(index.to_string())
    }

    /// The parent of all directories of [`Self::container_dir`].
    pub(crate) fn containers_dir(&self, uid: &str) -> PathBuf {
        self.pod_dir(uid).join("containers")
    }

    /// The directory of one container.
    pub(crate) fn container_dir(&self, uid: &str, container: &str) -> PathBuf {
        self.containers_dir(uid).join(&*path_component(container))
    }

    /// The termination message file of one attempt of a container. The Go kubelet uses a random name; here it is a hash, so
    /// that the code that creates the file and the code that mounts it need no shared state.
    pub fn termination_log(&self, uid: &str, container: &str, attempt: u32) -> PathBuf {
        let hash = fnv1a([uid.as_bytes(), b"/", container.as_bytes(), &attempt.to_be_bytes()]);
        self.container_dir(uid, container).join(format!("{hash:08x}"))
    }

    /// The pod's `/etc/hosts`.
    pub(crate) fn etc_hosts(&self, uid: &str) -> PathBuf {
        self.pod_dir(uid).join("etc-hosts")
    }

    /// The pod's log directory.
    pub fn pod_logs(&self, pod: &Pod) -> PathBuf {
        let (namespace, name, uid) = (pod_namespace(pod), pod_name(pod), pod_uid(pod));
        self.pod_logs_dir.join(&*path_component(&format!("{namespace}_{name}_{uid}")))
    }

    /// The log directory of a container.
    pub fn container_logs(&self, pod: &Pod, container: &str) -> PathBuf {
        self.pod_logs(pod).join(&*path_component(container))
    }

    /// The log file of one attempt of a container.
    pub fn log_file(&self, pod: &Pod, container: &str, attempt: u32) -> PathBuf {
        self.container_logs(pod, container).join(format!("{attempt}.log"))
    }

    /// The link to a container's log, named by the runtime's container id. Truncated to the longest file name, as in the
    /// Go kubelet.
    pub(crate) fn log_link(&self, pod: &Pod, container: &str, id: &str) -> PathBuf {
        let mut link =
            path_component(&format!("{}_{}_{container}-{id}", pod_name(pod), pod_namespace(pod))).into_owned();
        let mut end = link.len().min(NAME_LEN_MAX - ".log".len());
        while !link.is_char_boundary(end) {
            end -= 1;
        }
        link.truncate(end);
        self.container_logs_dir.join(link + ".log")
    }
}

/// A name as one component of a path, escaped if needed.
fn path_component(name: &str) -> Cow<'_, str> {
    let safe = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    if safe {
        return name.into();
    }
    let escape = |c: char| match c {
        '/' | '\0' | '.' | '%' => format!("%{:02X}", u32::from(c)),
        c => c.to_string(),
    };
    // The empty name must not collide with an escaped one: those have hex digits after the percent sign.
    if name.is_empty() { "%".into() } else { name.chars().map(escape).collect::<String>().into() }
}

/// Whether a name is used unescaped in a path, so that it can be read back from one.
pub(crate) fn is_plain_name(name: &str) -> bool {
    matches!(path_component(name), Cow::Borrowed(_)) && Path::new(name).components().count() == 1
}

/// FNV-1a: short, and stable across versions of the agent.
fn fnv1a<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    parts.into_iter().flatten().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The limit of ext4 and most other file systems, in bytes.
const NAME_LEN_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> HostPaths {
        HostPaths {
            root_dir: "/r".into(),
            pod_logs_dir: "/l".into(),
            container_logs_dir: "/c".into(),
            cgroup_root: "/".into(),
        }
    }

    fn pod(namespace: &str, name: &str, uid: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some(namespace.into());
        pod.metadata.name = Some(name.into());
        pod.metadata.uid = Some(uid.into());
        pod
    }

    #[test]
    fn the_layout_is_that_of_the_go_kubelet() {
        let (paths, pod) = (paths(), pod("ns", "web", "u1"));
        let seen = [
            paths.volume_dir("u1", "empty-dir", "data"),
            paths.ready_file("u1", "data"),
            paths.subpath("u1", "data", "app", 3),
            paths.etc_hosts("u1"),
            paths.log_file(&pod, "app", 2),
            paths.log_link(&pod, "app", "abc"),
        ];
        let expected = [
            "/r/pods/u1/volumes/kubernetes.io~empty-dir/data",
            "/r/pods/u1/plugins/kubernetes.io~empty-dir/data/ready",
            "/r/pods/u1/volume-subpaths/data/app/3",
            "/r/pods/u1/etc-hosts",
            "/l/ns_web_u1/app/2.log",
            "/c/web_ns_app-abc.log",
        ];
        assert_eq!(seen.map(|p| p.display().to_string()), expected);
    }

    #[test]
    fn every_attempt_has_its_own_termination_message_file() {
        let of = |uid, container, attempt| paths().termination_log(uid, container, attempt);
        let first = of("u", "app", 0);
        assert!(first.starts_with("/r/pods/u/containers/app"));
        assert_eq!(first.file_name().unwrap().len(), 8);
        assert_eq!(first, of("u", "app", 0));
        assert_ne!(first, of("u", "app", 1));
    }

    #[test]
    fn no_name_leaves_its_directory() {
        for bad in ["..", ".", "", "../../etc", "/etc", "a/../../b", "a\0b"] {
            let (paths, pod) = (paths(), pod(bad, bad, bad));
            for path in [
                paths.pod_dir(bad),
                paths.volume_dir(bad, "empty-dir", bad),
                paths.subpath(bad, bad, bad, 0),
                paths.termination_log(bad, bad, 0),
            ] {
                assert!(path.starts_with("/r/pods") && path != Path::new("/r/pods"), "{path:?}");
                assert!(!path.components().any(|c| c == std::path::Component::ParentDir), "{path:?}");
            }
            assert_eq!(paths.log_link(&pod, bad, bad).parent(), Some(Path::new("/c")));
            assert_eq!(paths.pod_logs(&pod).parent(), Some(Path::new("/l")));
            assert!(!is_plain_name(bad), "{bad:?}");
        }
        assert!(is_plain_name("0f8fad5b-d9cb-469f-a165-70867728950e"));
    }

    #[test]
    fn the_name_of_a_log_link_is_truncated() {
        let link = paths().log_link(&pod("ns", &"ü".repeat(200), "u"), "app", "id");
        assert!(link.file_name().unwrap().len() <= 255);
        assert!(link.to_str().unwrap().ends_with(".log"));
    }
}
