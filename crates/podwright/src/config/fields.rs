//! Every field of `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1, as of 1.36): its type, and whether it does anything here.

use Kind::{Any, Bool, BoolMap, Duration, Float, Int, List, Object, Text, TextMap, Texts, TextsMap};

/// One field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// It does what it says.
    pub(super) honoured: bool,
}

/// What a value must be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Bool,
    Int,
    Float,
    Text,
    Duration,
    Texts,
    TextMap,
    TextsMap,
    BoolMap,
    Object(&'static [Field]),
    List(&'static [Field]),
    /// Not looked into.
    Any,
}

/// It does what it says.
const fn yes(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, honoured: true }
}

/// It is known and does nothing yet.
const fn not_yet(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, honoured: false }
}

/// The document's own fields.
pub(super) const FIELDS: &[Field] = &[
    yes("apiVersion", Text),
    yes("kind", Text),
    yes("address", Text),
    yes("allowedUnsafeSysctls", Texts),
    not_yet("authentication", Object(AUTHENTICATION)),
    not_yet("authorization", Object(AUTHORIZATION)),
    yes("cgroupDriver", Text),
    yes("cgroupRoot", Text),
    yes("cgroupsPerQOS", Bool),
    yes("clusterDNS", Texts),
    yes("clusterDomain", Text),
    not_yet("configMapAndSecretChangeDetectionStrategy", Text),
    yes("containerLogMaxFiles", Int),
    yes("containerLogMaxSize", Text),
    not_yet("containerLogMaxWorkers", Int),
    yes("containerLogMonitorInterval", Duration),
    yes("containerRuntimeEndpoint", Text),
    not_yet("contentType", Text),
    yes("cpuCFSQuota", Bool),
    yes("cpuCFSQuotaPeriod", Duration),
    not_yet("cpuManagerPolicy", Text),
    not_yet("cpuManagerPolicyOptions", TextMap),
    not_yet("cpuManagerReconcilePeriod", Duration),
    yes("crashLoopBackOff", Object(&[yes("maxContainerRestartPeriod", Duration)])),
    not_yet("enableContentionProfiling", Bool),
    not_yet("enableControllerAttachDetach", Bool),
    not_yet("enableDebugFlagsHandler", Bool),
    not_yet("enableDebuggingHandlers", Bool),
    not_yet("enableProfilingHandler", Bool),
    not_yet("enableServer", Bool),
    not_yet("enableSystemLogHandler", Bool),
    not_yet("enableSystemLogQuery", Bool),
    yes("enforceNodeAllocatable", Texts),
    not_yet("eventBurst", Int),
    not_yet("eventRecordQPS", Int),
    not_yet("evictionHard", TextMap),
    not_yet("evictionMaxPodGracePeriod", Int),
    not_yet("evictionMinimumReclaim", TextMap),
    not_yet("evictionPressureTransitionPeriod", Duration),
    not_yet("evictionSoft", TextMap),
    not_yet("evictionSoftGracePeriod", TextMap),
    // cgroup v1 works here, so there is nothing to refuse.
    not_yet("failCgroupV1", Bool),
    yes("failSwapOn", Bool),
    not_yet("featureGates", BoolMap),
    yes("fileCheckFrequency", Duration),
    not_yet("hairpinMode", Text),
    not_yet("healthzBindAddress", Text),
    not_yet("healthzPort", Int),
    yes("httpCheckFrequency", Duration),
    yes("imageGCHighThresholdPercent", Int),
    yes("imageGCLowThresholdPercent", Int),
    yes("imageMaximumGCAge", Duration),
    yes("imageMinimumGCAge", Duration),
    not_yet("imagePullCredentialsVerificationPolicy", Text),
    yes("imageServiceEndpoint", Text),
    not_yet("iptablesDropBit", Int),
    not_yet("iptablesMasqueradeBit", Int),
    not_yet("kernelMemcgNotification", Bool),
    not_yet("kubeAPIBurst", Int),
    not_yet("kubeAPIQPS", Int),
    yes("kubeReserved", TextMap),
    not_yet("kubeReservedCgroup", Text),
    not_yet("kubeletCgroups", Text),
    not_yet("localStorageCapacityIsolation", Bool),
    yes("logging", Object(LOGGING)),
    not_yet("makeIPTablesUtilChains", Bool),
    not_yet("maxOpenFiles", Int),
    yes("maxParallelImagePulls", Int),
    yes("maxPods", Int),
    not_yet("memoryManagerPolicy", Text),
    not_yet("memoryReservationPolicy", Text),
    not_yet("memorySwap", Object(&[not_yet("swapBehavior", Text)])),
    not_yet("memoryThrottlingFactor", Float),
    not_yet("mergeDefaultEvictionSettings", Bool),
    yes("nodeLeaseDurationSeconds", Int),
    yes("nodeStatusMaxImages", Int),
    yes("nodeStatusReportFrequency", Duration),
    yes("nodeStatusUpdateFrequency", Duration),
    not_yet("oomScoreAdj", Int),
    not_yet("podCIDR", Text),
    yes("podLogsDir", Text),
    yes("podPidsLimit", Int),
    not_yet("podsPerCore", Int),
    not_yet("port", Int),
    not_yet("preloadedImagesVerificationAllowlist", Texts),
    not_yet("protectKernelDefaults", Bool),
    not_yet("providerID", Text),
    not_yet("qosReserved", TextMap),
    yes("readOnlyPort", Int),
    yes("registerNode", Bool),
    yes(
        "registerWithTaints",
        List(&[yes("key", Text), yes("value", Text), yes("effect", Text), not_yet("timeAdded", Text)]),
    ),
    yes("registryBurst", Int),
    yes("registryPullQPS", Int),
    not_yet("reservedMemory", List(&[not_yet("numaNode", Int), not_yet("limits", Any)])),
    yes("reservedSystemCPUs", Text),
    yes("resolvConf", Text),
    not_yet("rotateCertificates", Bool),
    not_yet("runOnce", Bool),
    yes("runtimeRequestTimeout", Duration),
    yes("seccompDefault", Bool),
    yes("serializeImagePulls", Bool),
    not_yet("serverTLSBootstrap", Bool),
    not_yet("showHiddenMetricsForVersion", Text),
    not_yet("shutdownGracePeriod", Duration),
    not_yet(
        "shutdownGracePeriodByPodPriority",
        List(&[not_yet("priority", Int), not_yet("shutdownGracePeriodSeconds", Int)]),
    ),
    not_yet("shutdownGracePeriodCriticalPods", Duration),
    yes("singleProcessOOMKill", Bool),
    yes("staticPodPath", Text),
    yes("staticPodURL", Text),
    yes("staticPodURLHeader", TextsMap),
    not_yet("streamingConnectionIdleTimeout", Duration),
    yes("syncFrequency", Duration),
    not_yet("systemCgroups", Text),
    yes("systemReserved", TextMap),
    not_yet("systemReservedCgroup", Text),
    not_yet("tlsCertFile", Text),
    not_yet("tlsCipherSuites", Texts),
    not_yet("tlsCurvePreferences", Any),
    not_yet("tlsMinVersion", Text),
    not_yet("tlsPrivateKeyFile", Text),
    not_yet("topologyManagerPolicy", Text),
    not_yet("topologyManagerPolicyOptions", TextMap),
    not_yet("topologyManagerScope", Text),
    not_yet("tracing", Any),
    not_yet("userNamespaces", Object(&[not_yet("idsPerPod", Int)])),
    not_yet("volumePluginDir", Text),
    not_yet("volumeStatsAggPeriod", Duration),
];

const LOGGING: &[Field] = &[
    yes("format", Text),
    yes("verbosity", Int),
    not_yet("flushFrequency", Any),
    not_yet("options", Any),
    not_yet("vmodule", Any),
];

const AUTHENTICATION: &[Field] = &[
    not_yet("anonymous", Object(&[not_yet("enabled", Bool)])),
    not_yet("webhook", Object(&[not_yet("cacheTTL", Duration), not_yet("enabled", Bool)])),
    not_yet("x509", Object(&[not_yet("clientCAFile", Text)])),
];

const AUTHORIZATION: &[Field] = &[
    not_yet("mode", Text),
    not_yet("webhook", Object(&[not_yet("cacheAuthorizedTTL", Duration), not_yet("cacheUnauthorizedTTL", Duration)])),
];
