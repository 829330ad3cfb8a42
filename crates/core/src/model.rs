//! Types of core: ids, time, observations, records, events, effects.

mod call;
mod call_error;
mod containers;
mod effect;
mod event;
mod ids;
mod jitter;
mod life;
mod memory;
mod object;
mod pod_object;
mod seen;
mod snapshot;
mod time;

pub use call::{Answer, Call, CallId, CallKey, HookKind, HostCall, ImageFacts, ProbeKind, ProbeVerdict, RuntimeCall};
pub use call_error::{CallError, Retry};
pub use containers::{FoundContainer, all_containers, find_container, is_sidecar};
pub use effect::{Effect, KubeEvent, Out, Record, Transition};
pub use event::{Event, Manifest, RuntimeHandler, RuntimeReady, SourceChange};
pub use ids::{ContainerId, FullName, Name, PodUid, SandboxId, Source};
pub(crate) use jitter::jitter;
pub use life::{Life, State, Termination};
pub use memory::{Backoff, Cause, ContainerMemory, Cursor, Exit, HookState, PodRecord};
pub use object::{ObjectError, ObjectRef, ObjectRequest, ObjectResult, RequestId};
pub(crate) use pod_object::{clear_resource_version, is_older_version, spec_of};
pub use pod_object::{full_name, is_terminal};
pub use seen::{ContainerSeen, Listing, PodListed, PodSeen, RunState, SandboxSeen};
pub use snapshot::PodSnapshot;
pub use time::{Now, SavedTime, Seq, Time};

pub use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
