//! Those who keep pod objects: the API server, or this node's own store behind the local API.

use podwright_core::model::{ObjectRequest, ObjectResult};
use podwright_cri::BoxFuture;

/// Whoever has the objects of one source's pods.
pub trait PodObjectStore: Send + Sync + 'static {
    /// Do one thing to one object. The caller gives up after a time; what is under way then may still happen.
    fn request(&self, request: ObjectRequest) -> BoxFuture<'static, ObjectResult>;
}
