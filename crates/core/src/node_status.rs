//! The Node object: what this node says of itself, and how an object that is there already is brought to that.
//!
//! Only PATCHes leave the node: what others have put into the object, conditions of a network plugin, labels of a controller,
//! resources of device plugins, stays as it is.

mod events;
mod patch;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, Node, NodeAddress, NodeCondition, NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures,
    NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use crate::model::RuntimeHandler;

pub use events::{NodeEvent, changes, schedulable};
pub use patch::{registration_patch, status_patch};

/// What the node is, from flags and the machine; does not change while the agent runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// The object's name.
    pub name: String,
    /// All labels it is registered with: those Kubernetes defines, and the user's.
    pub labels: BTreeMap<String, String>,
    /// Taints it is registered with.
    pub taints: Vec<Taint>,
    /// Its addresses, the preferred one first.
    pub addresses: Vec<String>,
    /// The host's name.
    pub hostname: String,
    /// What the machine says of itself.
    pub info: NodeSystemInfo,
    /// All there is.
    pub capacity: Resources,
    /// What pods may have of it.
    pub allocatable: Resources,
    /// The status names so many images (`nodeStatusMaxImages`); `None`: as many as the kubelet's usually does.
    pub images_max: Option<usize>,
}

/// Amounts of what a node has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resources {
    /// In thousandths of a processor.
    pub cpu_millis: i64,
    /// In bytes.
    pub memory: i64,
    /// In bytes.
    pub ephemeral_storage: i64,
    /// Pods.
    pub pods: i64,
    /// Bytes in huge pages, by the resource's name.
    pub huge_pages: BTreeMap<String, i64>,
}

/// What the container runtime says now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeFacts {
    /// `containerd://2.1.9`
    pub version: String,
    /// It is ready, or why not.
    pub ready: Option<String>,
    /// Pods with a network of their own can be made, or why not.
    pub network: Option<String>,
    /// Handlers a RuntimeClass may name.
    pub handlers: Vec<RuntimeHandler>,
    /// It applies `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
    /// Images that are here: names and bytes.
    pub images: Vec<(Vec<String>, i64)>,
}

impl RuntimeFacts {
    /// Nothing is known of it yet, in the kubelet's words.
    pub fn unknown() -> Self {
        let ready = Some("container runtime status check may not have completed yet".into());
        Self { ready, ..Self::default() }
    }

    /// It has answered, or was away for so long that this is known.
    pub fn is_known(&self) -> bool {
        !self.version.is_empty() || self.ready != Self::unknown().ready
    }
}

/// The object as it is first created.
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

/// The status it is to have; moments of transitions are kept where nothing changed.
pub fn status(facts: &NodeFacts, runtime: &RuntimeFacts, had: Option<&NodeStatus>, now: Timestamp) -> NodeStatus {
    let info = NodeSystemInfo { container_runtime_version: runtime.version.clone(), ..facts.info.clone() };
    NodeStatus {
        addresses: Some(addresses(facts)),
        capacity: Some(quantities(&facts.capacity)),
        allocatable: Some(quantities(&facts.allocatable)),
        conditions: Some(conditions(runtime, had, now)),
        features: Some(NodeFeatures { supplemental_groups_policy: Some(runtime.supplemental_groups_policy) }),
        images: Some(images(&runtime.images, facts.images_max.unwrap_or(IMAGES_MAX))),
        node_info: Some(info),
        runtime_handlers: Some(runtime.handlers.iter().map(handler).collect()),
        ..NodeStatus::default()
    }
}

/// The node can run pods, or all that is wrong.
pub fn readiness(runtime: &RuntimeFacts) -> Result<(), String> {
    let wrong: Vec<&str> = [&runtime.ready, &runtime.network].into_iter().flatten().map(String::as_str).collect();
    match wrong.as_slice() {
        [] => Ok(()),
        [one] => Err((*one).into()),
        more => Err(format!("[{}]", more.join(", "))),
    }
}

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
    let fine = PRESSURES.map(|(kind, reason, message)| make(kind, "False", reason, message.into()));
    let ready = match readiness(runtime) {
        Ok(()) => make("Ready", "True", "KubeletReady", "kubelet is posting ready status".into()),
        Err(wrong) => make("Ready", "False", "KubeletNotReady", wrong),
    };
    fine.into_iter().chain([ready]).collect()
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

/// The largest first, as schedulers want them; few names each.
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

/// Says that the controller manager attaches volumes, as it does for every kubelet by default.
pub(crate) const ATTACH_ANNOTATION: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Pressures that are not watched yet are never there; kind, reason and message as the kubelet words them.
const PRESSURES: [(&str, &str, &str); 3] = [
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
];
/// The kubelet's `nodeStatusMaxImages`.
const IMAGES_MAX: usize = 50;
/// The kubelet's bound on the names of one image.
const IMAGE_NAMES_MAX: usize = 5;

#[cfg(test)]
mod tests;
