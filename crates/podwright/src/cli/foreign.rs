//! Flags that the Go kubelet has and this agent hasn't yet. A unit file with them still starts, with a warning for each; a flag
//! nobody knows fails.

use std::ffi::OsString;

/// Take the kubelet's other flags out of the arguments, and spell the rest with dashes. What was taken out, by name.
pub(super) fn sift(args: Vec<OsString>) -> (Vec<OsString>, Vec<String>) {
    let mut kept = Vec::with_capacity(args.len());
    let mut ignored = Vec::new();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let Some(text) = arg.to_str().and_then(|text| text.strip_prefix("--")).filter(|text| !text.is_empty()) else {
            let rest = arg == "--";
            kept.push(arg);
            if rest {
                kept.extend(args.by_ref());
            }
            continue;
        };
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        // The kubelet takes an underscore for a dash.
        let name = name.replace('_', "-");
        if WITHOUT_VALUE.contains(&name.as_str()) {
            ignored.push(format!("--{name}"));
        } else if WITH_VALUE.contains(&name.as_str()) {
            ignored.push(format!("--{name}"));
            if value.is_none() {
                args.next();
            }
        } else {
            kept.push(value.map_or_else(|| format!("--{name}"), |value| format!("--{name}={value}")).into());
        }
    }
    (kept, ignored)
}

/// Switches, by `kubelet --help` of 1.36.
const WITHOUT_VALUE: &[&str] = &[
    "anonymous-auth",
    "authentication-token-webhook",
    "cgroups-per-qos",
    "contention-profiling",
    "cpu-cfs-quota",
    "enable-controller-attach-detach",
    "enable-debugging-handlers",
    "enable-load-reader",
    "enable-server",
    "exit-on-lock-contention",
    "experimental-allocatable-ignore-eviction",
    "fail-cgroupv1",
    "fail-swap-on",
    "kernel-memcg-notification",
    "local-storage-capacity-isolation",
    "log-cadvisor-usage",
    "log-json-split-stream",
    "log-text-split-stream",
    "make-iptables-util-chains",
    "protect-kernel-defaults",
    "rotate-certificates",
    "rotate-server-certificates",
    "runonce",
    "seccomp-default",
    "serialize-image-pulls",
    "storage-driver-secure",
];

/// Flags with a value, by `kubelet --help` of 1.36.
const WITH_VALUE: &[&str] = &[
    "address",
    "allowed-unsafe-sysctls",
    "application-metrics-count-limit",
    "authentication-token-webhook-cache-ttl",
    "authorization-mode",
    "authorization-webhook-cache-authorized-ttl",
    "authorization-webhook-cache-unauthorized-ttl",
    "boot-id-file",
    "bootstrap-kubeconfig",
    "cert-dir",
    "cgroup-driver",
    "cgroup-root",
    "client-ca-file",
    "cloud-provider",
    "cluster-dns",
    "cluster-domain",
    "config-dir",
    "container-hints",
    "container-log-max-files",
    "container-log-max-size",
    "containerd",
    "containerd-namespace",
    "cpu-cfs-quota-period",
    "cpu-manager-policy",
    "cpu-manager-policy-options",
    "cpu-manager-reconcile-period",
    "enforce-node-allocatable",
    "event-burst",
    "event-qps",
    "event-storage-age-limit",
    "event-storage-event-limit",
    "eviction-hard",
    "eviction-max-pod-grace-period",
    "eviction-minimum-reclaim",
    "eviction-pressure-transition-period",
    "eviction-soft",
    "eviction-soft-grace-period",
    "experimental-mounter-path",
    "feature-gates",
    "file-check-frequency",
    "global-housekeeping-interval",
    "hairpin-mode",
    "healthz-bind-address",
    "healthz-port",
    "housekeeping-interval",
    "http-check-frequency",
    "image-credential-provider-bin-dir",
    "image-credential-provider-config",
    "image-gc-high-threshold",
    "image-gc-low-threshold",
    "kube-api-burst",
    "kube-api-content-type",
    "kube-api-qps",
    "kube-reserved",
    "kube-reserved-cgroup",
    "kubelet-cgroups",
    "lock-file",
    "log-flush-frequency",
    "log-json-info-buffer-size",
    "log-text-info-buffer-size",
    "machine-id-file",
    "max-open-files",
    "max-pods",
    "maximum-dead-containers",
    "maximum-dead-containers-per-container",
    "memory-manager-policy",
    "minimum-container-ttl-duration",
    "minimum-image-ttl-duration",
    "node-status-max-images",
    "node-status-update-frequency",
    "oom-score-adj",
    "pod-cidr",
    "pod-max-pids",
    "pods-per-core",
    "port",
    "provider-id",
    "qos-reserved",
    "read-only-port",
    "registry-burst",
    "registry-qps",
    "reserved-cpus",
    "reserved-memory",
    "resolv-conf",
    "runtime-cgroups",
    "runtime-request-timeout",
    "storage-driver-buffer-duration",
    "storage-driver-db",
    "storage-driver-host",
    "storage-driver-password",
    "storage-driver-table",
    "storage-driver-user",
    "streaming-connection-idle-timeout",
    "sync-frequency",
    "system-cgroups",
    "system-reserved",
    "system-reserved-cgroup",
    "tls-cert-file",
    "tls-cipher-suites",
    "tls-min-version",
    "tls-private-key-file",
    "topology-manager-policy",
    "topology-manager-policy-options",
    "topology-manager-scope",
    "vmodule",
    "volume-plugin-dir",
    "volume-stats-agg-period",
];
