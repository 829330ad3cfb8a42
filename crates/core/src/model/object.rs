//! Requests to the stores of pod objects: the API server, and the node's own store behind the local API.
//!
//! Both get the same requests: a status is patched, the object of a finished pod is deleted. Only the API server has mirror pods.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{FullName, Pod, PodStatus, PodUid};

/// The number of one request to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// One object: its name, and the UID without which a name may mean another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Namespace and name.
    pub full_name: FullName,
    /// The object's own UID: of a static pod, its mirror's.
    pub uid: PodUid,
}

/// One request to a store of pod objects.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectRequest {
    /// Patches the status: only the difference from `base` is sent, with the UID as precondition.
    PatchStatus {
        /// The object.
        object: ObjectRef,
        /// The newest status the store is known to have.
        base: Arc<PodStatus>,
        /// The new status. Conditions and fields of other writers are those of `base`.
        status: Arc<PodStatus>,
        /// The end of a pod, or a change of readiness: sent before all others.
        urgent: bool,
    },
    /// Deletes the object of a finished pod: grace period 0, the UID as precondition.
    Delete {
        /// The object.
        object: ObjectRef,
    },
    /// Creates the mirror pod of a static pod.
    CreateMirror {
        /// The complete mirror pod.
        pod: Arc<Pod>,
    },
    /// Deletes a mirror pod: grace period 0, the UID as precondition.
    DeleteMirror {
        /// The object.
        object: ObjectRef,
    },
}

/// The store's response: the object after the request, if it exists.
pub type ObjectResult = Result<Option<Arc<Pod>>, ObjectError>;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectError {
    /// The object does not exist.
    NotFound,
    /// The object of this name has another UID.
    OtherUid,
    /// The store refuses the request; a retry soon would be refused too.
    Refused(String),
    /// The store is unreachable or busy, or the result is unknown.
    Unavailable {
        /// The error.
        message: String,
        /// `Retry-After`, if the store sent one.
        after: Option<Duration>,
    },
}
