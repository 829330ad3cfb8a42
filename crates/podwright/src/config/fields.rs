//! Every field of `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1, as of 1.36): its type, and whether it is supported.

use Kind::{Any, Bool, BoolMap, Duration, Float, Int, List, Object, String, StringList, StringListMap, StringMap};

/// A field of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// It has an effect.
    pub(super) supported: bool,
}

/// The type of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Bool,
    Int,
    Float,
    String,
    Duration,
    StringList,
    StringMap,
    StringListMap,
    BoolMap,
    Object(&'static [Field]),
    List(&'static [Field]),
    /// Not checked.
    Any,
}

const fn yes(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, supported: true }
}

/// A known field that has no effect yet.
const fn not_yet(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, supported: false }
}

/// The field with this path, such as `authentication.anonymous.enabled`.
pub(super) fn find(path: &str) -> Option<Field> {
    let mut fields = FIELDS;
    let mut found = None;
    for name in path.split('.') {
        let field = fields.iter().find(|field| field.name == name)?;
        fields = if let Object(below) = field.kind { below } else { &[] };
        found = Some(*field);
    }
    found
}

/// The top-level fields.
pub(super) const FIELDS: &[Field] = &[
    yes("apiVersion", String),
    yes("kind", String),
    yes("address", String),
    yes("allowedUnsafeSysctls", StringList),
    yes("authentication", Object(AUTHENTICATION)),
    yes("authorization", Object(AUTHORIZATION)),
    yes("cgroupDriver", String),
    yes("cgroupRoot", String),
    yes("cgroupsPerQOS", Bool),
    yes("clusterDNS", StringList),
    yes("clusterDomain", String),
    not_yet("configMapAndSecretChangeDetectionStrategy", String),
    yes("containerLogMaxFiles", Int),
    yes("containerLogMaxSize", String),
    not_yet("containerLogMaxWorkers", Int),
    yes("containerLogMonitorInterval", Duration),
    yes("containerRuntimeEndpoint", String),
    not_yet("contentType", String),
    yes("cpuCFSQuota", Bool),
    yes("cpuCFSQuotaPeriod", Duration),
    not_yet("cpuManagerPolicy", String),
    not_yet("cpuManagerPolicyOptions", StringMap),
    not_yet("cpuManagerReconcilePeriod", Duration),
    yes("crashLoopBackOff", Object(&[yes("maxContainerRestartPeriod", Duration)])),
    not_yet("enableContentionProfiling", Bool),
    not_yet("enableControllerAttachDetach", Bool),
    yes("enableDebugFlagsHandler", Bool),
    yes("enableDebuggingHandlers", Bool),
    yes("enableProfilingHandler", Bool),
    yes("enableServer", Bool),
    yes("enableSystemLogHandler", Bool),
    not_yet("enableSystemLogQuery", Bool),
    yes("enforceNodeAllocatable", StringList),
    not_yet("eventBurst", Int),
    not_yet("eventRecordQPS", Int),
    yes("evictionHard", StringMap),
    yes("evictionMaxPodGracePeriod", Int),
    yes("evictionMinimumReclaim", StringMap),
    yes("evictionPressureTransitionPeriod", Duration),
    yes("evictionSoft", StringMap),
    yes("evictionSoftGracePeriod", StringMap),
    // cgroup v1 works here, so there is nothing to refuse.
    not_yet("failCgroupV1", Bool),
    yes("failSwapOn", Bool),
    not_yet("featureGates", BoolMap),
    yes("fileCheckFrequency", Duration),
    not_yet("hairpinMode", String),
    yes("healthzBindAddress", String),
    yes("healthzPort", Int),
    yes("httpCheckFrequency", Duration),
    yes("imageGCHighThresholdPercent", Int),
    yes("imageGCLowThresholdPercent", Int),
    yes("imageMaximumGCAge", Duration),
    yes("imageMinimumGCAge", Duration),
    yes("imagePullCredentialsVerificationPolicy", String),
    yes("imageServiceEndpoint", String),
    not_yet("iptablesDropBit", Int),
    not_yet("iptablesMasqueradeBit", Int),
    not_yet("kernelMemcgNotification", Bool),
    not_yet("kubeAPIBurst", Int),
    not_yet("kubeAPIQPS", Int),
    yes("kubeReserved", StringMap),
    not_yet("kubeReservedCgroup", String),
    not_yet("kubeletCgroups", String),
    yes("localStorageCapacityIsolation", Bool),
    yes("logging", Object(LOGGING)),
    not_yet("makeIPTablesUtilChains", Bool),
    not_yet("maxOpenFiles", Int),
    yes("maxParallelImagePulls", Int),
    yes("maxPods", Int),
    not_yet("memoryManagerPolicy", String),
    not_yet("memoryReservationPolicy", String),
    not_yet("memorySwap", Object(&[not_yet("swapBehavior", String)])),
    not_yet("memoryThrottlingFactor", Float),
    yes("mergeDefaultEvictionSettings", Bool),
    yes("nodeLeaseDurationSeconds", Int),
    yes("nodeStatusMaxImages", Int),
    yes("nodeStatusReportFrequency", Duration),
    yes("nodeStatusUpdateFrequency", Duration),
    not_yet("oomScoreAdj", Int),
    yes("podCIDR", String),
    yes("podLogsDir", String),
    yes("podPidsLimit", Int),
    not_yet("podsPerCore", Int),
    yes("port", Int),
    yes("preloadedImagesVerificationAllowlist", StringList),
    not_yet("protectKernelDefaults", Bool),
    not_yet("providerID", String),
    not_yet("qosReserved", StringMap),
    yes("readOnlyPort", Int),
    yes("registerNode", Bool),
    yes(
        "registerWithTaints",
        List(&[yes("key", String), yes("value", String), yes("effect", String), not_yet("timeAdded", String)]),
    ),
    yes("registryBurst", Int),
    yes("registryPullQPS", Int),
    not_yet("reservedMemory", List(&[not_yet("numaNode", Int), not_yet("limits", Any)])),
    yes("reservedSystemCPUs", String),
    yes("resolvConf", String),
    yes("rotateCertificates", Bool),
    not_yet("runOnce", Bool),
    yes("runtimeRequestTimeout", Duration),
    yes("seccompDefault", Bool),
    yes("serializeImagePulls", Bool),
    yes("serverTLSBootstrap", Bool),
    not_yet("showHiddenMetricsForVersion", String),
    yes("shutdownGracePeriod", Duration),
    yes("shutdownGracePeriodByPodPriority", List(&[yes("priority", Int), yes("shutdownGracePeriodSeconds", Int)])),
    yes("shutdownGracePeriodCriticalPods", Duration),
    yes("singleProcessOOMKill", Bool),
    yes("staticPodPath", String),
    yes("staticPodURL", String),
    yes("staticPodURLHeader", StringListMap),
    yes("streamingConnectionIdleTimeout", Duration),
    yes("syncFrequency", Duration),
    not_yet("systemCgroups", String),
    yes("systemReserved", StringMap),
    not_yet("systemReservedCgroup", String),
    yes("tlsCertFile", String),
    yes("tlsCipherSuites", StringList),
    not_yet("tlsCurvePreferences", Any),
    yes("tlsMinVersion", String),
    yes("tlsPrivateKeyFile", String),
    not_yet("topologyManagerPolicy", String),
    not_yet("topologyManagerPolicyOptions", StringMap),
    not_yet("topologyManagerScope", String),
    not_yet("tracing", Any),
    not_yet("userNamespaces", Object(&[not_yet("idsPerPod", Int)])),
    not_yet("volumePluginDir", String),
    yes("volumeStatsAggPeriod", Duration),
];

const LOGGING: &[Field] = &[
    yes("format", String),
    yes("verbosity", Int),
    not_yet("flushFrequency", Any),
    not_yet("options", Any),
    not_yet("vmodule", Any),
];

const AUTHENTICATION: &[Field] = &[
    yes("anonymous", Object(&[yes("enabled", Bool)])),
    yes("webhook", Object(&[yes("cacheTTL", Duration), yes("enabled", Bool)])),
    yes("x509", Object(&[yes("clientCAFile", String)])),
];

const AUTHORIZATION: &[Field] = &[
    yes("mode", String),
    yes("webhook", Object(&[yes("cacheAuthorizedTTL", Duration), yes("cacheUnauthorizedTTL", Duration)])),
];
