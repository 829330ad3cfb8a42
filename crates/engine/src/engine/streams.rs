//! The engine as the target of the streaming server.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use podwright_cri::{CriFuture, v1};

use crate::context::EngineContext;
use crate::driver::DriverHandle;
use crate::streaming::{ExecProcess, ProcessStreams, StreamTarget};
use crate::verbs::{self, VerbContext};

/// The processes and ports that the streaming server connects its clients to.
#[derive(Debug)]
pub(super) struct EngineStreams {
    pub(super) context: Arc<EngineContext>,
    pub(super) driver: Arc<DriverHandle>,
}

impl EngineStreams {
    fn calls(&self) -> VerbContext<'_> {
        VerbContext { context: &self.context, driver: &self.driver }
    }
}

impl StreamTarget for EngineStreams {
    fn exec(&self, request: v1::ExecRequest) -> CriFuture<'_, ExecProcess> {
        Box::pin(verbs::exec_streams(self.calls(), request))
    }

    fn attach(&self, request: v1::AttachRequest) -> CriFuture<'_, ProcessStreams> {
        Box::pin(verbs::attach_streams(self.calls(), request))
    }

    fn port_forward(&self, sandbox_id: &str, port: u16) -> CriFuture<'_, OwnedFd> {
        let sandbox = sandbox_id.to_owned();
        Box::pin(async move { verbs::connect_port(self.calls(), &sandbox, port).await })
    }
}
