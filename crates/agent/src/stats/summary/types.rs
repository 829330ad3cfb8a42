//! The types of the summary API; names and order as in Kubernetes.

use jiff::Timestamp;
use podwright_linux::cgroup::{Pressure, Stall};
use serde::{Serialize, Serializer};

use crate::stats::sample::InterfaceSample;

/// Seconds, as `metav1.Time`.
#[derive(Clone, Copy, Debug)]
pub(in crate::stats) struct MetaTime(pub(super) Timestamp);

impl Serialize for MetaTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let whole = Timestamp::from_second(self.0.as_second()).unwrap_or(self.0);
        serializer.collect_str(&whole)
    }
}

macro_rules! stats {
    ($($(#[$meta:meta])* struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Debug, Serialize)]
            #[serde(rename_all = "camelCase")]
            pub(in crate::stats) struct $name { $($(#[$field_meta])* pub(super) $field: $type,)* }
        )*
    };
}

stats! {
    struct Summary {
        node: NodeStats,
        pods: Vec<PodStats>,
    }
    struct NodeStats {
        node_name: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        system_containers: Vec<ContainerStats>,
        start_time: MetaTime,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        network: Option<NetworkStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        fs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        runtime: Option<RuntimeStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rlimit: Option<RlimitStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
    struct PodStats {
        pod_ref: PodReference,
        start_time: MetaTime,
        containers: Vec<ContainerStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        network: Option<NetworkStats>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        volume: Vec<VolumeStats>,
        #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
        ephemeral_storage: Option<FsStats>,
        #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
        process_stats: Option<ProcessStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
    struct ContainerStats {
        name: String,
        start_time: MetaTime,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rootfs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        logs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
    struct PodReference {
        name: String,
        namespace: String,
        uid: String,
    }
    struct CpuStats {
        time: MetaTime,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_nano_cores: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_core_nano_seconds: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<Psi>,
    }
    struct MemoryStats {
        time: MetaTime,
        #[serde(skip_serializing_if = "Option::is_none")]
        available_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        working_set_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rss_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        page_faults: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        major_page_faults: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<Psi>,
    }
    struct IoStats {
        time: MetaTime,
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<Psi>,
    }
    struct SwapStats {
        time: MetaTime,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap_available_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap_usage_bytes: Option<u64>,
    }
    struct FsStats {
        time: MetaTime,
        #[serde(skip_serializing_if = "Option::is_none")]
        available_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        capacity_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        used_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes_free: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes_used: Option<u64>,
    }
    struct NetworkStats {
        time: MetaTime,
        #[serde(flatten)]
        default: InterfaceStats,
        interfaces: Vec<InterfaceStats>,
    }
    #[derive(Default)]
    struct InterfaceStats {
        /// Always present, as in Kubernetes.
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        rx_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rx_errors: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tx_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tx_errors: Option<u64>,
    }
    struct RuntimeStats {
        #[serde(skip_serializing_if = "Option::is_none")]
        image_fs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        container_fs: Option<FsStats>,
    }
    struct RlimitStats {
        time: MetaTime,
        #[serde(skip_serializing_if = "Option::is_none")]
        maxpid: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        curproc: Option<u64>,
    }
    struct VolumeStats {
        #[serde(flatten)]
        fs: FsStats,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pvc_ref: Option<PvcReference>,
    }
    struct PvcReference {
        name: String,
        namespace: String,
    }
    struct ProcessStats {
        #[serde(rename = "process_count")]
        process_count: u64,
    }
    struct Psi {
        full: PsiData,
        some: PsiData,
    }
    struct PsiData {
        total: u64,
        avg10: f64,
        avg60: f64,
        avg300: f64,
    }
}

impl From<Pressure> for Psi {
    fn from(pressure: Pressure) -> Self {
        // `total` is documented in nanoseconds; the Go kubelet passes on the kernel's microseconds.
        let data = |stall: Stall| PsiData {
            total: stall.total_us,
            avg10: stall.avg10,
            avg60: stall.avg60,
            avg300: stall.avg300,
        };
        Self { full: data(pressure.full), some: data(pressure.some) }
    }
}

impl From<&InterfaceSample> for InterfaceStats {
    fn from(sample: &InterfaceSample) -> Self {
        Self {
            name: sample.name.clone(),
            rx_bytes: Some(sample.rx_bytes),
            rx_errors: Some(sample.rx_errors),
            tx_bytes: Some(sample.tx_bytes),
            tx_errors: Some(sample.tx_errors),
        }
    }
}
