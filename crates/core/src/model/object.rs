//! Words about pod objects that somebody else keeps: the API server, or this node's own store behind the local API.
//!
//! Both are asked alike: a status is patched, a finished pod's object is deleted. Only the API server has mirrors.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{FullName, Pod, PodStatus, PodUid};

/// The number of one question to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// One object: its name, and the UID without which a name may mean another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Its name.
    pub full_name: FullName,
    /// The object's own UID: of a static pod, its mirror's.
    pub uid: PodUid,
}

/// One question to the store of pod objects.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectRequest {
    /// Make the object's status this: only what differs from `base` is sent, and the UID with it.
    PatchStatus {
        /// Which object.
        object: ObjectRef,
        /// The newest status the store is known to have.
        base: Arc<PodStatus>,
        /// The status it is to have. Conditions and fields that are not ours are in it as they are in `base`.
        status: Arc<PodStatus>,
        /// The end of a pod, or a change of readiness: before all others.
        urgent: bool,
    },
    /// The pod is finished: delete with grace 0 and its UID as precondition.
    Delete {
        /// Which object.
        object: ObjectRef,
    },
    /// Show a static pod in the API.
    CreateMirror {
        /// The mirror, ready to be sent.
        pod: Arc<Pod>,
    },
    /// Remove a mirror: grace 0, its UID as precondition.
    DeleteMirror {
        /// Which object.
        object: ObjectRef,
    },
}

/// The store's answer: the object as it has it now, if it has one.
pub type ObjectResult = Result<Option<Arc<Pod>>, ObjectError>;

/// Why a store did not do it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectError {
    /// There is no such object.
    NotFound,
    /// An object of this name is there, and it is another one.
    OtherUid,
    /// The store won't, and would say the same again soon.
    Refused(String),
    /// It could not be asked, or is busy, or nobody knows whether it was done.
    Unavailable {
        /// What was seen.
        message: String,
        /// How long it wants to be left alone.
        after: Option<Duration>,
    },
}
