//! The words of core: ids, time, what was seen, what is remembered, what happened, what to do about it.

mod event;
mod ids;
mod memory;
mod object;
mod seen;
mod time;

pub use event::{
    Answer, Call, CallError, CallId, CallKey, Effect, Event, HookKind, ImageFacts, KubeEvent, Manifest, Out, ProbeKind,
    ProbeVerdict, Record, RuntimeReady, SourceChange, Transition,
};
pub use ids::{ContainerId, FullName, Name, PodUid, SandboxId, Source};
pub use memory::{Backoff, Cause, ContainerMemory, Cursor, Ending, Exit, HookState, PodRecord};
pub use object::{Ask, AskError, AskId, AskResult, ObjectRef};
pub use seen::{ContainerSeen, Listing, PodListed, PodSeen, RunState, SandboxSeen};
pub use time::{Now, SavedTime, Seq, Time};

pub use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
