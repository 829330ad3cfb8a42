//! Where a pod's things lie on this machine, as the Go kubelet lays them out, so that a node can change hands.
//!
//! ```text
//! <root dir>/pods/<uid>/
//! ├─ volumes/kubernetes.io~<kind>/<volume>/
//! ├─ volume-subpaths/<volume>/<container>/<index>
//! ├─ plugins/kubernetes.io~empty-dir/<volume>/ready
//! ├─ containers/<container>/<8 hex digits>        the last words of one attempt
//! └─ etc-hosts
//! <pod logs dir>/<namespace>_<name>_<uid>/<container>/<attempt>.log
//! <container logs dir>/<name>_<namespace>_<container>-<id>.log → the log file
//! ```
//! Names come from manifests. Those that could leave their directory are spelled with `%XX`, so that no path made here can.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use podwright_core::model::Pod;

/// The directories everything lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPaths {
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `podLogsDir`.
    pub pod_logs_dir: PathBuf,
    /// Where links to the logs of all containers are: `/var/log/containers`.
    pub container_logs_dir: PathBuf,
    /// The cgroup above `kubepods`.
    pub cgroup_root: String,
}

impl HostPaths {
    /// The directory of all pods.
    pub fn pods_dir(&self) -> PathBuf {
        self.root_dir.join("pods")
    }

    /// Everything of one pod but its logs.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.pods_dir().join(&*part(uid))
    }

    /// Its volumes.
    pub fn volumes_dir(&self, uid: &str) -> PathBuf {
        self.pod_dir(uid).join("volumes")
    }

    /// One volume of a kind: `empty-dir`, `downward-api`, `projected`.
    pub fn volume_dir(&self, uid: &str, kind: &str, volume: &str) -> PathBuf {
        self.volumes_dir(uid).join(format!("kubernetes.io~{kind}")).join(&*part(volume))
    }

    /// What the volumes' makers note down.
    pub fn plugins_dir(&self, uid: &str) -> PathBuf {
        self.pod_dir(uid).join("plugins")
    }

    /// The file that says that an emptyDir is complete.
    pub fn ready_file(&self, uid: &str, volume: &str) -> PathBuf {
        self.plugins_dir(uid).join("kubernetes.io~empty-dir").join(&*part(volume)).join("ready")
    }

    /// The bind mounts that stand for subPaths.
    pub fn subpaths_dir(&self, uid: &str) -> PathBuf {
        self.pod_dir(uid).join("volume-subpaths")
    }

    /// The one for the `index`th volume mount of a container.
    pub fn subpath(&self, uid: &str, volume: &str, container: &str, index: usize) -> PathBuf {
        self.subpaths_dir(uid).join(&*part(volume)).join(&*part(container)).join(index.to_string())
    }

    /// What belongs to one container.
    pub fn container_dir(&self, uid: &str, container: &str) -> PathBuf {
        self.pod_dir(uid).join("containers").join(&*part(container))
    }

    /// The file for the last words of one attempt of a container. The Go kubelet draws the name; ours is a hash, so that who
    /// makes it and who mounts it agree without talking.
    pub fn termination_log(&self, uid: &str, container: &str, attempt: u32) -> PathBuf {
        let hash = fnv([uid.as_bytes(), b"/", container.as_bytes(), &attempt.to_be_bytes()]);
        self.container_dir(uid, container).join(format!("{hash:08x}"))
    }

    /// The pod's `/etc/hosts`.
    pub fn etc_hosts(&self, uid: &str) -> PathBuf {
        self.pod_dir(uid).join("etc-hosts")
    }

    /// The pod's logs.
    pub fn pod_logs(&self, pod: &Pod) -> PathBuf {
        let (namespace, name, uid) = (namespace(pod), name(pod), uid(pod));
        self.pod_logs_dir.join(&*part(&format!("{namespace}_{name}_{uid}")))
    }

    /// The logs of a container.
    pub fn container_logs(&self, pod: &Pod, container: &str) -> PathBuf {
        self.pod_logs(pod).join(&*part(container))
    }

    /// The log of one attempt of a container.
    pub fn log_file(&self, pod: &Pod, container: &str, attempt: u32) -> PathBuf {
        self.container_logs(pod, container).join(format!("{attempt}.log"))
    }

    /// The link to it, named by the runtime's id. Cut to what a file name may have, as the Go kubelet does.
    pub fn log_link(&self, pod: &Pod, container: &str, id: &str) -> PathBuf {
        let mut link = part(&format!("{}_{}_{container}-{id}", name(pod), namespace(pod))).into_owned();
        let mut end = link.len().min(NAME_LEN_MAX - ".log".len());
        while !link.is_char_boundary(end) {
            end -= 1;
        }
        link.truncate(end);
        self.container_logs_dir.join(link + ".log")
    }
}

/// The pod's name.
pub(super) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The pod's namespace.
pub(super) fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// The pod's UID.
pub(super) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// A name as one part of a path.
fn part(name: &str) -> Cow<'_, str> {
    let safe = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    if safe {
        return name.into();
    }
    let escape = |c: char| match c {
        '/' | '\0' | '.' | '%' => format!("%{:02X}", u32::from(c)),
        c => c.to_string(),
    };
    // The empty name needs some spelling too; none of the others can be this one.
    if name.is_empty() { "%".into() } else { name.chars().map(escape).collect::<String>().into() }
}

/// Whether a name stands for itself in a path, so that it can be read back from one.
pub(super) fn is_plain(name: &str) -> bool {
    matches!(part(name), Cow::Borrowed(_)) && Path::new(name).components().count() == 1
}

/// FNV-1a: short, and the same in every version of this program.
fn fnv<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    parts.into_iter().flatten().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// What ext4 and most others take.
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
    fn the_layout_is_the_kubelets() {
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
    fn last_words_have_a_place_per_attempt() {
        let of = |uid, container, attempt| paths().termination_log(uid, container, attempt);
        let first = of("u", "app", 0);
        assert!(first.starts_with("/r/pods/u/containers/app"));
        assert_eq!(first.file_name().unwrap().len(), 8);
        assert_eq!(first, of("u", "app", 0));
        assert_ne!(first, of("u", "app", 1));
    }

    #[test]
    fn no_name_leads_out() {
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
            assert!(!is_plain(bad), "{bad:?}");
        }
        assert!(is_plain("0f8fad5b-d9cb-469f-a165-70867728950e"));
    }

    #[test]
    fn a_link_is_never_too_long_a_name() {
        let link = paths().log_link(&pod("ns", &"ü".repeat(200), "u"), "app", "id");
        assert!(link.file_name().unwrap().len() <= 255);
        assert!(link.to_str().unwrap().ends_with(".log"));
    }
}
