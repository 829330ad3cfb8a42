//! Stores of pod objects: the API server, or the store of this node behind the local API.

use podwright_core::model::{ObjectRequest, ObjectResult};
use podwright_cri::BoxFuture;

/// Holds the pod objects of one source.
pub trait PodObjectStore: Send + Sync + 'static {
    /// Performs one request on one object. The caller stops waiting after its time limit; the request may still take effect later.
    fn request(&self, request: ObjectRequest) -> BoxFuture<'static, ObjectResult>;
}
