//! Executes probes and hooks: commands in containers, requests and connections to pods.

use std::sync::Arc;

use podwright_core::model::Pod;
use podwright_cri::RuntimeService;

use super::{EventSink, http};
use crate::name_lookup::NameResolver;
use crate::pod_spec::pod_uid;
use crate::translate::NodeSettings;

/// Runs the handlers of probes (`probe`) and lifecycle hooks (`hook`).
pub(super) struct Handlers {
    pub(super) runtime: Arc<dyn RuntimeService>,
    pub(super) settings: Arc<NodeSettings>,
    pub(super) names: NameResolver,
    pub(super) events: EventSink,
}

impl Handlers {
    /// Connects for this pod's probes and hooks.
    pub(super) fn dialer<'a>(&'a self, pod: &'a Pod) -> http::Dialer<'a> {
        http::Dialer { names: &self.names, uid: pod_uid(pod) }
    }
}
