//! Sysctls: safe ones are allowed, unsafe ones only if `allowedUnsafeSysctls` names them.

use super::Rejection;
use crate::model::Pod;

/// Namespaced sysctls that cannot affect other pods, as in the kubelet's `SafeSysctlAllowlist`.
const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// Prefixes of the sysctls of the IPC namespace.
const IPC: [&str; 4] = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];

/// Every sysctl of the pod is allowed and belongs to a namespace of the pod.
pub(super) fn check(pod: &Pod, allowed: &[String]) -> Result<(), Rejection> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let wanted = spec.security_context.as_ref().and_then(|c| c.sysctls.as_deref()).unwrap_or_default();
    for sysctl in wanted {
        let name = sysctl.name.replace('/', ".");
        let matches = |pattern: &str| match pattern.replace('/', ".").strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern.replace('/', "."),
        };
        if !SAFE.contains(&name.as_str()) && !allowed.iter().any(|pattern| matches(pattern)) {
            return Err(forbidden(&sysctl.name, "not allowlisted"));
        }
        if name.starts_with("net.") && spec.host_network == Some(true) {
            return Err(forbidden(&sysctl.name, "not allowed with host net enabled"));
        }
        if IPC.iter().any(|of| name.starts_with(of)) && spec.host_ipc == Some(true) {
            return Err(forbidden(&sysctl.name, "not allowed with host ipc enabled"));
        }
    }
    Ok(())
}

fn forbidden(name: &str, why: &str) -> Rejection {
    Rejection { reason: "SysctlForbidden", message: format!("forbidden sysctl: {name:?} {why}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(name: &str, host: bool, allowed: &[&str]) -> Option<String> {
        let pod = serde_json::from_value(json!({"spec": {"containers": [], "hostNetwork": host, "hostIPC": host,
            "securityContext": {"sysctls": [{"name": name, "value": "1"}]}}}));
        let allowed: Vec<String> = allowed.iter().map(|a| (*a).to_owned()).collect();
        check(&pod.unwrap(), &allowed).err().map(|rejection| {
            assert_eq!(rejection.reason, "SysctlForbidden");
            rejection.message
        })
    }

    #[test]
    fn safe_sysctls_pass_and_unsafe_ones_only_if_allowed() {
        assert_eq!(refusal("net.ipv4.tcp_syncookies", false, &[]), None);
        assert_eq!(refusal("net/ipv4/tcp_syncookies", false, &[]), None);
        let refused = refusal("kernel.msgmax", false, &["net.*"]).unwrap();
        assert_eq!(refused, "forbidden sysctl: \"kernel.msgmax\" not allowlisted");
        assert_eq!(refusal("kernel.msgmax", false, &["kernel.msg*"]), None);
        assert_eq!(refusal("net.core.somaxconn", false, &["net.core.somaxconn"]), None);
        assert!(refusal("net.core.somaxconn2", false, &["net.core.somaxconn"]).is_some());
    }

    #[test]
    fn sysctls_of_host_namespaces_are_rejected() {
        assert!(refusal("net.ipv4.tcp_syncookies", true, &[]).unwrap().ends_with("host net enabled"));
        assert!(refusal("kernel.shm_rmid_forced", true, &[]).unwrap().ends_with("host ipc enabled"));
    }
}
