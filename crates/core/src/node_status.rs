//! The Node object: its initial content and status, and the patches for an existing object.
//!
//! Only patches are sent, so that fields of other components stay: conditions of a network plugin, labels of a controller,
//! resources of device plugins.

mod events;
mod patch;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeFeatures,
    NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use crate::model::{NodePressure, RuntimeHandler};
use crate::shutdown::NOT_READY;

pub use events::{NodeEvent, changes, schedulable};
pub use patch::{registration_patch, status_patch};

/// Facts about the node from flags and the host; constant while the agent runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// Name of the Node object.
    pub name: String,
    /// All labels of the registration: those of Kubernetes and the user's.
    pub labels: BTreeMap<String, String>,
    /// Taints of the registration.
    pub taints: Vec<Taint>,
    /// Its addresses, the preferred one first.
    pub addresses: Vec<String>,
    /// The host's name.
    pub hostname: String,
    /// `status.nodeInfo`.
    pub info: NodeSystemInfo,
    /// `status.capacity`.
    pub capacity: Resources,
    /// `status.allocatable`.
    pub allocatable: Resources,
    /// Port of the kubelet's API (`status.daemonEndpoints`); `None`: it is not served.
    pub kubelet_port: Option<u16>,
    /// Maximum of images in the status (`nodeStatusMaxImages`); `None`: the kubelet's default.
    pub images_max: Option<usize>,
}

/// Resources of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resources {
    /// Millicores.
    pub cpu_millis: i64,
    /// In bytes.
    pub memory: i64,
    /// In bytes.
    pub ephemeral_storage: i64,
    /// Maximum number of pods.
    pub pods: i64,
    /// Bytes of huge pages by resource name.
    pub huge_pages: BTreeMap<String, i64>,
}

/// What the status shows besides constant facts: the last reported state of the container runtime, pressure conditions, and whether
/// the node shuts down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeFacts {
    /// `containerd://2.1.9`
    pub version: String,
    /// Why it is not ready; `None`: it is.
    pub ready: Option<String>,
    /// Why the pod network is not ready; `None`: it is.
    pub network: Option<String>,
    /// Other problems that it reports, which do not affect readiness.
    #[serde(default)]
    pub problems: Vec<String>,
    /// Handlers a RuntimeClass may name.
    pub handlers: Vec<RuntimeHandler>,
    /// It supports `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
    /// The node shuts down, which makes it not ready.
    #[serde(default)]
    pub shutting_down: bool,
    /// Present images: names and size in bytes.
    pub images: Vec<(Vec<String>, i64)>,
    /// Pressure conditions of the node that hold.
    #[serde(default)]
    pub pressures: BTreeSet<NodePressure>,
}

impl RuntimeFacts {
    /// Before the first check, with the kubelet's message.
    pub fn unknown() -> Self {
        let ready = Some("container runtime status check may not have completed yet".into());
        Self { ready, ..Self::default() }
    }

    /// It has reported, or counts as down.
    pub fn is_known(&self) -> bool {
        !self.version.is_empty() || self.ready != Self::unknown().ready
    }
}

/// The object for the first registration.
pub fn initial(facts: &NodeFacts, runtime: &RuntimeFacts, now: Timestamp) -> Node {
    Node {
        metadata: ObjectMeta {
            name: Some(facts.name.clone()),
            labels: Some(facts.labels.clone()),
            annotations: Some(BTreeMap::from([(ATTACH_ANNOTATION.to_owned(), "true".to_owned())])),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec { taints: Some(facts.taints.clone()).filter(|t| !t.is_empty()), ..NodeSpec::default() }),
        status: Some(status(facts, runtime, None, now)),
    }
}

/// The desired status; transition times are kept where the status did not change.
pub fn status(facts: &NodeFacts, runtime: &RuntimeFacts, had: Option<&NodeStatus>, now: Timestamp) -> NodeStatus {
    let info = NodeSystemInfo { container_runtime_version: runtime.version.clone(), ..facts.info.clone() };
    NodeStatus {
        addresses: Some(addresses(facts)),
        capacity: Some(quantities(&facts.capacity)),
        allocatable: Some(quantities(&facts.allocatable)),
        conditions: Some(conditions(runtime, had, now)),
        daemon_endpoints: facts
            .kubelet_port
            .map(|port| NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: port.into() }) }),
        features: Some(NodeFeatures { supplemental_groups_policy: Some(runtime.supplemental_groups_policy) }),
        images: Some(images(&runtime.images, facts.images_max.unwrap_or(IMAGES_MAX))),
        node_info: Some(info),
        runtime_handlers: Some(runtime.handlers.iter().map(handler).collect()),
        ..NodeStatus::default()
    }
}

/// Whether the node can run pods.
pub fn readiness(runtime: &RuntimeFacts) -> Result<(), NotReady> {
    let shutdown = runtime.shutting_down.then(|| NOT_READY.to_owned());
    let reasons = [runtime.ready.clone(), runtime.network.clone(), shutdown];
    let reasons: Vec<String> = reasons.into_iter().flatten().collect();
    if reasons.is_empty() { Ok(()) } else { Err(NotReady(reasons)) }
}

/// The object shows that the node shuts down.
pub fn announces_shutdown(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "False");
    ready.any(|condition| condition.message.as_deref().is_some_and(|message| message.contains(NOT_READY)))
}

/// Why the node is not ready: at least one reason. Displayed as the kubelet's aggregated error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady(Vec<String>);

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => f.write_str(one),
            more => write!(f, "[{}]", more.join(", ")),
        }
    }
}

impl std::error::Error for NotReady {}

fn conditions(runtime: &RuntimeFacts, had: Option<&NodeStatus>, now: Timestamp) -> Vec<NodeCondition> {
    let had = |kind: &str| had.and_then(|status| status.conditions.iter().flatten().find(|c| c.type_ == kind));
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let make = |kind: &str, status: &str, reason: &str, message: String| {
        let since = had(kind).filter(|had| had.status == status).and_then(|had| had.last_transition_time.clone());
        NodeCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message),
            last_transition_time: Some(since.unwrap_or_else(|| now.clone())),
            last_heartbeat_time: Some(now.clone()),
        }
    };
    let pressures = PRESSURES.map(|(pressure, fine, held)| {
        let (status, (reason, message)) =
            if runtime.pressures.contains(&pressure) { ("True", held) } else { ("False", fine) };
        make(pressure.condition(), status, reason, message.into())
    });
    let ready = match readiness(runtime) {
        Ok(()) => make("Ready", "True", "KubeletReady", "kubelet is posting ready status".into()),
        Err(not_ready) => make("Ready", "False", "KubeletNotReady", not_ready.to_string()),
    };
    pressures.into_iter().chain([ready]).collect()
}

fn addresses(facts: &NodeFacts) -> Vec<NodeAddress> {
    let address = |kind: &str, address: &str| NodeAddress { type_: kind.into(), address: address.into() };
    let ips = facts.addresses.iter().map(|ip| address("InternalIP", ip));
    ips.chain([address("Hostname", &facts.hostname)]).collect()
}

fn quantities(of: &Resources) -> BTreeMap<String, Quantity> {
    let cpu = match of.cpu_millis {
        whole if whole % 1000 == 0 => (whole / 1000).to_string(),
        millis => format!("{millis}m"),
    };
    let bytes =
        |bytes: i64| if bytes % 1024 == 0 && bytes != 0 { format!("{}Ki", bytes / 1024) } else { bytes.to_string() };
    let fixed = [
        ("cpu".to_owned(), cpu),
        ("memory".to_owned(), bytes(of.memory)),
        ("ephemeral-storage".to_owned(), bytes(of.ephemeral_storage)),
        ("pods".to_owned(), of.pods.to_string()),
    ];
    let huge = of.huge_pages.iter().map(|(name, size)| (name.clone(), bytes(*size)));
    fixed.into_iter().chain(huge).map(|(name, amount)| (name, Quantity(amount))).collect()
}

/// The largest first, with a bounded number of names each.
fn images(all: &[(Vec<String>, i64)], most: usize) -> Vec<ContainerImage> {
    let mut sorted: Vec<&(Vec<String>, i64)> = all.iter().filter(|(names, _)| !names.is_empty()).collect();
    sorted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let image = |(names, size): &(Vec<String>, i64)| ContainerImage {
        names: Some(names.iter().take(IMAGE_NAMES_MAX).cloned().collect()),
        size_bytes: Some(*size),
    };
    sorted.into_iter().take(most).map(image).collect()
}

fn handler(handler: &RuntimeHandler) -> NodeRuntimeHandler {
    NodeRuntimeHandler {
        name: Some(handler.name.clone()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(handler.recursive_read_only_mounts),
            user_namespaces: Some(handler.user_namespaces),
        }),
    }
}

/// Marks that the controller manager attaches volumes, as by default for the kubelet.
pub(crate) const ATTACH_ANNOTATION: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Reason and message of a condition.
type ReasonAndMessage = (&'static str, &'static str);
/// The pressure conditions, with the kubelet's reason and message while they do not hold, and while they do.
const PRESSURES: [(NodePressure, ReasonAndMessage, ReasonAndMessage); 3] = [
    (
        NodePressure::Memory,
        ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
    ),
    (
        NodePressure::Disk,
        ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("KubeletHasDiskPressure", "kubelet has disk pressure"),
    ),
    (
        NodePressure::Pid,
        ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
    ),
];
/// The kubelet's `nodeStatusMaxImages`.
const IMAGES_MAX: usize = 50;
/// The kubelet's bound on the names of one image.
const IMAGE_NAMES_MAX: usize = 5;

#[cfg(test)]
mod tests;
