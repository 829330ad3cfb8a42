//! The pod's `/etc/hosts`.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use k8s_openapi::api::core::v1::HostAlias;
use podwright_core::model::Pod;

use super::HostConfig;
use crate::translate::{TranslateError, hostname_and_domain};

/// What the pod's hosts file says (Go kubelet: managedHostsFileContent, nodeHostsFileContent). `node`: the node's own file,
/// for pods on its network.
pub fn hosts_content(pod: &Pod, ips: &[String], cluster_domain: &str, node: &str) -> Result<String, TranslateError> {
    let spec = pod.spec.as_ref();
    let mut text = if spec.and_then(|s| s.host_network).unwrap_or_default() {
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

/// Writes the file. In place, because the pod's running containers have it mounted and should see the change.
pub(super) fn write(config: &HostConfig, pod: &Pod, ips: &[String], path: &Path) -> Result<(), String> {
    let node = match pod.spec.as_ref().and_then(|s| s.host_network) {
        Some(true) => nodes_own(&config.hosts_file).map_err(|e| format!("{}: {e}", config.hosts_file.display()))?,
        _ => String::new(),
    };
    let text = hosts_content(pod, ips, &config.cluster_domain, &node).map_err(|e| e.message)?;
    let failed = |e: io::Error| format!("{}: {e}", path.display());
    if read_bounded(path, 2 * HOSTS_LEN_MAX).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).expect("the flags of open are an int");
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o644).custom_flags(nofollow).open(path);
    let mut file = file.map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.set_permissions(fs::Permissions::from_mode(0o644)).map_err(failed)
}

/// The node's hosts file. One that is too long ends with a whole line: half a name could be another's.
fn nodes_own(path: &Path) -> io::Result<String> {
    let mut text = read_bounded(path, HOSTS_LEN_MAX + 1)?;
    if text.len() as u64 > HOSTS_LEN_MAX {
        let max = usize::try_from(HOSTS_LEN_MAX).expect("a mebibyte");
        let end = text.as_bytes()[..max].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        text.truncate(end);
        tracing::warn!(path = %path.display(), "the node's hosts file is too long: pods get its first mebibyte");
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
/// Far more than any hosts file has.
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
    fn a_nodes_file_that_is_too_long_ends_with_a_whole_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        let line = "127.0.0.1 localhost\n";
        fs::write(&path, line.repeat(3)).unwrap();
        assert_eq!(nodes_own(&path).unwrap(), line.repeat(3));
        fs::write(&path, line.repeat(60_000)).unwrap();
        let cut = nodes_own(&path).unwrap();
        assert_eq!(cut, line.repeat((1 << 20) / line.len()));
        fs::write(&path, "x".repeat(2 << 20)).unwrap();
        assert_eq!(nodes_own(&path).unwrap(), "");
    }

    #[test]
    fn a_pods_own_network() {
        let ips = ["10.0.0.5".to_owned(), "fd00::5".to_owned()];
        let text = hosts_content(&pod(json!({})), &ips, "cluster.local", "unused").unwrap();
        assert_eq!(text, format!("{HEADER}{LOCALHOST}10.0.0.5\tweb\nfd00::5\tweb\n"));
    }

    #[test]
    fn a_subdomain_and_aliases() {
        let spec = json!({"hostname": "h", "subdomain": "sub", "hostAliases": [
            {"ip": "1.2.3.4", "hostnames": ["a", "b"]}, {"ip": "1.2.3.5"}]});
        let text = hosts_content(&pod(spec), &["10.0.0.5".into()], "cluster.local", "").unwrap();
        let own = "10.0.0.5\th.sub.shop.svc.cluster.local\th\n";
        let added = "\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n1.2.3.5\t\n";
        assert_eq!(text, format!("{HEADER}{LOCALHOST}{own}{added}"));
    }

    #[test]
    fn the_nodes_network() {
        let spec = json!({"hostNetwork": true, "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a"]}]});
        let text = hosts_content(&pod(spec), &[], "", "127.0.0.1 localhost\n").unwrap();
        let added = "\n# Entries added by HostAliases.\n1.2.3.4\ta\n";
        assert_eq!(text, format!("{HEADER_HOST_NETWORK}127.0.0.1 localhost\n{added}"));
    }
}
