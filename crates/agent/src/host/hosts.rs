//! The pod's `/etc/hosts`.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::HostAlias;
use podwright_core::model::Pod;

use super::HostConfig;
use crate::pod_spec::{HostnameError, hostname_and_domain, is_host_network};

/// A hosts file that can't be written.
#[derive(Debug, thiserror::Error)]
pub enum HostsFileError {
    /// Reading the node's file or writing the pod's.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The pod's hostname can't be derived.
    #[error(transparent)]
    Hostname(#[from] HostnameError),
}

/// The content of the pod's hosts file (Go kubelet: `managedHostsFileContent`, `nodeHostsFileContent`). `node` is the content
/// of the node's own file, for pods on the host network.
fn hosts_content(pod: &Pod, ips: &[String], cluster_domain: &str, node: &str) -> Result<String, HostnameError> {
    let spec = pod.spec.as_ref();
    let mut text = if is_host_network(pod) {
        format!("{HEADER_HOST_NETWORK}{node}")
    } else {
        let (hostname, domain) = hostname_and_domain(pod, cluster_domain)?;
        let mut text = format!("{HEADER}{LOCALHOST}");
        for ip in ips {
            // Writing to a string cannot fail.
            let _ = if domain.is_empty() {
                writeln!(text, "{ip}\t{hostname}")
            } else {
                writeln!(text, "{ip}\t{hostname}.{domain}\t{hostname}")
            };
        }
        text
    };
    text.push_str(&aliases(spec.and_then(|s| s.host_aliases.as_deref()).unwrap_or_default()));
    Ok(text)
}

/// Writes the file in place, because the pod's running containers have it mounted and must see the change.
pub(super) fn write(config: &HostConfig, pod: &Pod, ips: &[String], path: &Path) -> Result<(), HostsFileError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| HostsFileError::Io { path: path.clone(), source }
    };
    let node = match is_host_network(pod) {
        true => node_hosts(&config.hosts_file).map_err(failed(&config.hosts_file))?,
        false => String::new(),
    };
    let text = hosts_content(pod, ips, &config.cluster_domain, &node)?;
    let failed = failed(path);
    if read_bounded(path, 2 * HOSTS_LEN_MAX).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).expect("the flags of open are an int");
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o644).custom_flags(nofollow).open(path);
    let mut file = file.map_err(&failed)?;
    file.write_all(text.as_bytes()).map_err(&failed)?;
    file.set_permissions(fs::Permissions::from_mode(0o644)).map_err(failed)
}

/// The node's hosts file. A file that is too long is cut after a complete line: a truncated name could be that of another
/// host.
fn node_hosts(path: &Path) -> io::Result<String> {
    let mut text = read_bounded(path, HOSTS_LEN_MAX + 1)?;
    if text.len() as u64 > HOSTS_LEN_MAX {
        let max = usize::try_from(HOSTS_LEN_MAX).expect("a mebibyte");
        let end = text.as_bytes()[..max].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        text.truncate(end);
        tracing::warn!(path = %path.display(), limit_bytes = HOSTS_LEN_MAX, "hosts file of the node is too long, truncated for pods");
    }
    Ok(text)
}

fn read_bounded(path: &Path, max: u64) -> io::Result<String> {
    let mut text = Vec::new();
    fs::File::open(path)?.take(max).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn aliases(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let line = |a: &HostAlias| format!("{}\t{}\n", a.ip, a.hostnames.as_deref().unwrap_or_default().join("\t"));
    format!("\n# Entries added by HostAliases.\n{}", aliases.iter().map(line).collect::<String>())
}

const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HEADER_HOST_NETWORK: &str = "# Kubernetes-managed hosts file (host network).\n";
const LOCALHOST: &str = "\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
";
/// In bytes; far more than a real hosts file has.
const HOSTS_LEN_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_node_file_that_is_too_long_is_cut_after_a_complete_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        let line = "127.0.0.1 localhost\n";
        fs::write(&path, line.repeat(3)).unwrap();
        assert_eq!(node_hosts(&path).unwrap(), line.repeat(3));
        fs::write(&path, line.repeat(60_000)).unwrap();
        let cut = node_hosts(&path).unwrap();
        assert_eq!(cut, line.repeat((1 << 20) / line.len()));
        fs::write(&path, "x".repeat(2 << 20)).unwrap();
        assert_eq!(node_hosts(&path).unwrap(), "");
    }

    #[test]
    fn a_pod_with_its_own_network_gets_its_addresses_and_name() {
        let ips = ["10.0.0.5".to_owned(), "fd00::5".to_owned()];
        let text = hosts_content(&pod(json!({})), &ips, "cluster.local", "unused").unwrap();
        assert_eq!(text, format!("{HEADER}{LOCALHOST}10.0.0.5\tweb\nfd00::5\tweb\n"));
    }

    #[test]
    fn a_subdomain_and_host_aliases_are_added() {
        let spec = json!({"hostname": "h", "subdomain": "sub", "hostAliases": [
            {"ip": "1.2.3.4", "hostnames": ["a", "b"]}, {"ip": "1.2.3.5"}]});
        let text = hosts_content(&pod(spec), &["10.0.0.5".into()], "cluster.local", "").unwrap();
        let own = "10.0.0.5\th.sub.shop.svc.cluster.local\th\n";
        let added = "\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n1.2.3.5\t\n";
        assert_eq!(text, format!("{HEADER}{LOCALHOST}{own}{added}"));
    }

    #[test]
    fn a_pod_on_the_host_network_gets_the_nodes_file() {
        let spec = json!({"hostNetwork": true, "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a"]}]});
        let text = hosts_content(&pod(spec), &[], "", "127.0.0.1 localhost\n").unwrap();
        let added = "\n# Entries added by HostAliases.\n1.2.3.4\ta\n";
        assert_eq!(text, format!("{HEADER_HOST_NETWORK}127.0.0.1 localhost\n{added}"));
    }
}
