//! The words of core: ids, time, what was seen, what is remembered, what happened, what to do about it.

mod call;
mod effect;
mod event;
mod ids;
mod memory;
mod object;
mod seen;
mod time;

pub use call::{Answer, Call, CallError, CallId, CallKey, HookKind, ImageFacts, ProbeKind, ProbeVerdict};
pub use effect::{Effect, KubeEvent, Out, Record, Transition};
pub use event::{Event, Manifest, RuntimeReady, SourceChange};
pub use ids::{ContainerId, FullName, Name, PodUid, SandboxId, Source};
pub use memory::{Backoff, Cause, ContainerMemory, Cursor, Ending, Exit, HookState, PodRecord};
pub use object::{ObjectError, ObjectRef, ObjectRequest, ObjectResult, RequestId};
pub use seen::{ContainerSeen, Listing, PodListed, PodSeen, RunState, SandboxSeen};
pub use time::{Now, SavedTime, Seq, Time};

pub use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
