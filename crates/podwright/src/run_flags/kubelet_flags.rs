//! The kubelet flags that `podwright run` does not define itself. Flags that set a field of `KubeletConfiguration` override that
//! field; unsupported flags cause a warning, so that a unit file with them still starts. Unknown flags are an error.

use std::ffi::OsString;

/// A flag that sets a field of `KubeletConfiguration`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldFlag {
    /// With its leading dashes.
    pub(crate) flag: String,
    /// The path of a field of the document, such as `maxPods` or `authorization.mode`.
    pub(crate) field: &'static str,
    pub(crate) value: String,
}

/// The arguments of `podwright run`, sorted.
#[derive(Debug, Default)]
pub(crate) struct SplitFlags {
    /// The arguments for the command line parser, with dashes for underscores.
    pub(crate) own: Vec<OsString>,
    pub(crate) field_flags: Vec<FieldFlag>,
    /// Names of the unsupported flags.
    pub(crate) ignored: Vec<String>,
}

/// Separates the flags of this module from the other arguments.
pub(crate) fn split_kubelet_flags(args: Vec<OsString>) -> SplitFlags {
    let mut split = SplitFlags { own: Vec::with_capacity(args.len()), ..SplitFlags::default() };
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let Some(text) = arg.to_str().and_then(|text| text.strip_prefix("--")).filter(|text| !text.is_empty()) else {
            let rest = arg == "--";
            split.own.push(arg);
            if rest {
                split.own.extend(args.by_ref());
            }
            continue;
        };
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        // The kubelet accepts underscores in place of dashes.
        let name = name.replace('_', "-");
        let mut next = || args.next().map(|value| value.to_string_lossy().into_owned());
        if let Some((_, field)) = FIELD_FLAGS.iter().find(|(flag, _)| *flag == name) {
            let value = match SWITCHES.contains(&name.as_str()) {
                true => Some(value.unwrap_or_else(|| "true".into())),
                false => value.or_else(next),
            };
            match value {
                Some(value) => split.field_flags.push(FieldFlag { flag: format!("--{name}"), field, value }),
                // The command line parser reports the missing value.
                None => split.own.push(format!("--{name}").into()),
            }
        } else if WITHOUT_VALUE.contains(&name.as_str()) {
            split.ignored.push(format!("--{name}"));
        } else if WITH_VALUE.contains(&name.as_str()) {
            split.ignored.push(format!("--{name}"));
            if value.is_none() {
                next();
            }
        } else {
            split.own.push(value.map_or_else(|| format!("--{name}"), |value| format!("--{name}={value}")).into());
        }
    }
    split
}

/// What to say about an unsupported flag, which has its leading dashes.
pub(crate) fn unsupported(flag: &str) -> &'static str {
    let is_removed = flag.strip_prefix("--").is_some_and(|name| REMOVED.contains(&name));
    match is_removed {
        true => "this flag of older kubelets was removed from Kubernetes and has no effect: it can be deleted",
        false => "this kubelet flag is not supported yet and has no effect",
    }
}

/// Flags and the fields they set.
pub(crate) const FIELD_FLAGS: &[(&str, &str)] = &[
    ("address", "address"),
    ("allowed-unsafe-sysctls", "allowedUnsafeSysctls"),
    ("anonymous-auth", "authentication.anonymous.enabled"),
    ("authentication-token-webhook", "authentication.webhook.enabled"),
    ("authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL"),
    ("authorization-mode", "authorization.mode"),
    ("authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL"),
    ("authorization-webhook-cache-unauthorized-ttl", "authorization.webhook.cacheUnauthorizedTTL"),
    ("cgroup-driver", "cgroupDriver"),
    ("cgroup-root", "cgroupRoot"),
    ("cgroups-per-qos", "cgroupsPerQOS"),
    ("client-ca-file", "authentication.x509.clientCAFile"),
    ("cluster-dns", "clusterDNS"),
    ("cluster-domain", "clusterDomain"),
    ("container-log-max-files", "containerLogMaxFiles"),
    ("container-log-max-size", "containerLogMaxSize"),
    ("cpu-cfs-quota", "cpuCFSQuota"),
    ("cpu-cfs-quota-period", "cpuCFSQuotaPeriod"),
    ("enable-debugging-handlers", "enableDebuggingHandlers"),
    ("enable-server", "enableServer"),
    ("enforce-node-allocatable", "enforceNodeAllocatable"),
    ("eviction-hard", "evictionHard"),
    ("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod"),
    ("eviction-minimum-reclaim", "evictionMinimumReclaim"),
    ("eviction-pressure-transition-period", "evictionPressureTransitionPeriod"),
    ("eviction-soft", "evictionSoft"),
    ("eviction-soft-grace-period", "evictionSoftGracePeriod"),
    ("fail-swap-on", "failSwapOn"),
    ("file-check-frequency", "fileCheckFrequency"),
    ("healthz-bind-address", "healthzBindAddress"),
    ("healthz-port", "healthzPort"),
    ("http-check-frequency", "httpCheckFrequency"),
    ("image-gc-high-threshold", "imageGCHighThresholdPercent"),
    ("image-gc-low-threshold", "imageGCLowThresholdPercent"),
    ("kube-reserved", "kubeReserved"),
    ("local-storage-capacity-isolation", "localStorageCapacityIsolation"),
    ("max-pods", "maxPods"),
    ("minimum-image-ttl-duration", "imageMinimumGCAge"),
    ("node-status-max-images", "nodeStatusMaxImages"),
    ("node-status-update-frequency", "nodeStatusUpdateFrequency"),
    ("pod-cidr", "podCIDR"),
    ("pod-max-pids", "podPidsLimit"),
    ("port", "port"),
    ("read-only-port", "readOnlyPort"),
    ("registry-burst", "registryBurst"),
    ("registry-qps", "registryPullQPS"),
    ("reserved-cpus", "reservedSystemCPUs"),
    ("resolv-conf", "resolvConf"),
    ("rotate-certificates", "rotateCertificates"),
    ("rotate-server-certificates", "serverTLSBootstrap"),
    ("runtime-request-timeout", "runtimeRequestTimeout"),
    ("seccomp-default", "seccompDefault"),
    ("serialize-image-pulls", "serializeImagePulls"),
    ("streaming-connection-idle-timeout", "streamingConnectionIdleTimeout"),
    ("sync-frequency", "syncFrequency"),
    ("system-reserved", "systemReserved"),
    ("tls-cert-file", "tlsCertFile"),
    ("tls-cipher-suites", "tlsCipherSuites"),
    ("tls-min-version", "tlsMinVersion"),
    ("tls-private-key-file", "tlsPrivateKeyFile"),
    ("volume-stats-agg-period", "volumeStatsAggPeriod"),
];

/// The boolean flags of [`FIELD_FLAGS`]: without a value they mean `true`.
const SWITCHES: &[&str] = &[
    "anonymous-auth",
    "authentication-token-webhook",
    "cgroups-per-qos",
    "cpu-cfs-quota",
    "enable-debugging-handlers",
    "enable-server",
    "fail-swap-on",
    "local-storage-capacity-isolation",
    "rotate-certificates",
    "rotate-server-certificates",
    "seccomp-default",
    "serialize-image-pulls",
];

/// Flags of older kubelets that Kubernetes has removed, and that kubeadm and units still pass. Below, they are among the others.
const REMOVED: &[&str] = &[
    "cni-bin-dir",
    "cni-cache-dir",
    "cni-conf-dir",
    "container-runtime",
    "docker-endpoint",
    "dynamic-config-dir",
    "image-pull-progress-deadline",
    "network-plugin",
    "network-plugin-mtu",
    "non-masquerade-cidr",
    "pod-infra-container-image",
];

/// Unsupported boolean flags, from `kubelet --help` of 1.36.
const WITHOUT_VALUE: &[&str] = &[
    "contention-profiling",
    "enable-controller-attach-detach",
    "enable-load-reader",
    "exit-on-lock-contention",
    "experimental-allocatable-ignore-eviction",
    "fail-cgroupv1",
    "kernel-memcg-notification",
    "log-cadvisor-usage",
    "log-json-split-stream",
    "log-text-split-stream",
    "make-iptables-util-chains",
    "protect-kernel-defaults",
    "runonce",
    "storage-driver-secure",
];

/// Unsupported flags with a value, from `kubelet --help` of 1.36.
const WITH_VALUE: &[&str] = &[
    "application-metrics-count-limit",
    "boot-id-file",
    "cloud-provider",
    "cni-bin-dir",
    "cni-cache-dir",
    "cni-conf-dir",
    "config-dir",
    "container-hints",
    "container-runtime",
    "containerd",
    "containerd-namespace",
    "cpu-manager-policy",
    "cpu-manager-policy-options",
    "cpu-manager-reconcile-period",
    "docker-endpoint",
    "dynamic-config-dir",
    "event-burst",
    "event-qps",
    "event-storage-age-limit",
    "event-storage-event-limit",
    "experimental-mounter-path",
    "feature-gates",
    "global-housekeeping-interval",
    "hairpin-mode",
    "housekeeping-interval",
    "image-credential-provider-bin-dir",
    "image-credential-provider-config",
    "image-pull-progress-deadline",
    "kube-api-burst",
    "kube-api-content-type",
    "kube-api-qps",
    "kube-reserved-cgroup",
    "kubelet-cgroups",
    "lock-file",
    "log-flush-frequency",
    "log-json-info-buffer-size",
    "log-text-info-buffer-size",
    "machine-id-file",
    "max-open-files",
    "maximum-dead-containers",
    "maximum-dead-containers-per-container",
    "memory-manager-policy",
    "minimum-container-ttl-duration",
    "network-plugin",
    "network-plugin-mtu",
    "non-masquerade-cidr",
    "oom-score-adj",
    "pod-infra-container-image",
    "pods-per-core",
    "provider-id",
    "qos-reserved",
    "reserved-memory",
    "runtime-cgroups",
    "storage-driver-buffer-duration",
    "storage-driver-db",
    "storage-driver-host",
    "storage-driver-password",
    "storage-driver-table",
    "storage-driver-user",
    "system-cgroups",
    "system-reserved-cgroup",
    "topology-manager-policy",
    "topology-manager-policy-options",
    "topology-manager-scope",
    "vmodule",
    "volume-plugin-dir",
];
