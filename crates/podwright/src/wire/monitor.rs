//! What the monitoring listener (`--listen`) serves: pods, metrics, health.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use podwright_agent::event_loop::Handle;
use podwright_agent::host::Pool;
use podwright_cri::BoxFuture;
use podwright_server::health_server::{AgentStatus, PodListCache};

/// The event loop handles something at least this often, because of the periodic list; a longer silence is a hang.
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// What `--listen` serves.
pub(super) struct Monitor {
    handle: Handle,
    pods: PodListCache,
    /// Longer than the interval between two lists of the runtime.
    unobserved_max: Duration,
}

impl Monitor {
    pub(super) fn new(handle: Handle, sync_frequency: Duration, pool: Pool) -> Self {
        let pods = PodListCache::new(Arc::clone(handle.state().feed()), pool);
        Self { handle, pods, unobserved_max: SILENCE_MAX.max(sync_frequency * 3) }
    }
}

impl AgentStatus for Monitor {
    fn pods(&self) -> BoxFuture<'_, Bytes> {
        Box::pin(self.pods.body())
    }

    fn metrics(&self) -> BoxFuture<'_, Bytes> {
        Box::pin(async {
            let state = self.handle.state();
            Bytes::from(state.metrics().text(&state.feed().list().1))
        })
    }

    fn not_live(&self) -> Option<String> {
        let now = podwright_linux::clock::boot_time();
        let silent = self.handle.state().last_heartbeat().map(|beat| now.saturating_sub(beat.boot));
        let silent = silent.filter(|silent| *silent > SILENCE_MAX)?;
        Some(format!("the event loop has done nothing for {} s", silent.as_secs()))
    }

    fn not_ready(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async {
            let now = podwright_linux::clock::boot_time();
            let mut not_ready: Vec<String> = self.handle.state().journal_error().into_iter().collect();
            if !self.handle.state().runtime_up() {
                not_ready.push("the container runtime does not answer".into());
            }
            let unobserved = self.handle.state().last_observation().map(|at| now.saturating_sub(at.boot));
            if let Some(unobserved) = unobserved.filter(|unobserved| *unobserved > self.unobserved_max) {
                not_ready.push(format!("the container runtime has not listed its pods for {} s", unobserved.as_secs()));
            }
            not_ready
        })
    }
}
