//! Types of core: ids, time, observations, records, events, effects.

mod call;
mod call_error;
mod call_key;
mod containers;
mod effect;
mod event;
pub mod history_text;
mod ids;
mod jitter;
mod life;
mod memory;
mod node_reading;
mod object;
pub(crate) mod pairs;
mod pod_object;
mod resize;
mod seen;
mod signal;
mod snapshot;
mod suspect;
mod time;

pub use call::{Answer, Call, CallId, HookKind, HostCall, ImageFacts, MemoryUse, ProbeKind, ProbeVerdict, RuntimeCall};
pub use call_error::{CallError, Retry};
pub use call_key::CallKey;
pub use containers::{FoundContainer, all_containers, find_container, is_sidecar};
pub use effect::{Effect, KubeEvent, Out, Record, Transition};
pub use event::{Event, Manifest, RuntimeHandler, RuntimeReady, ShutdownRequest, SourceChange};
pub use ids::{ContainerId, FullName, Name, PodUid, SandboxId, Source};
pub(crate) use jitter::jitter;
pub use life::{Life, State, Termination};
pub use memory::{Backoff, Cause, ContainerMemory, Cursor, Exit, HookState, PodRecord};
pub use node_reading::{
    ContainerUsage, DiskAmount, DiskLayout, NodeReading, PodReading, PodUsage, SignalReading, SignalReadings,
};
pub use object::{ObjectError, ObjectRef, ObjectRequest, ObjectResult, RequestId};
pub(crate) use pod_object::{clear_resource_version, is_older_version, spec_of};
pub use pod_object::{full_name, is_terminal};
pub use resize::{ActuatedResources, PendingResize, PodResources, ResizeInProgress, ResizeRecord, ResizeRefusal};
pub use seen::{ContainerSeen, Listing, PodListed, PodSeen, RunState, SandboxSeen};
pub use signal::{NodePressure, Signal, StarvedResource};
pub use snapshot::PodSnapshot;
pub use suspect::{InterruptedWork, Suspect};
pub use time::{Now, SavedTime, Seq, Time};

pub use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
