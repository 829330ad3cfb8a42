//! Graceful node shutdown: delays the shutdown of the host by a lock of logind until the pods have ended.
//!
//! ```text
//!  connect ─▶ enough delay? else raise it ─▶ take the lock ─▶ wait ── PrepareForShutdown(true) ──▶ core ends the pods
//!     ▲                                          ▲              │                                        │ all ended
//!     └── 1 s later ◀── the bus is lost          └── cancelled ─┘                        the lock is released ◀┘
//! ```
//!
//! The lock is a file descriptor and does not depend on the bus: it is kept while the bus is not available. Which pods end when, and when
//! all have ended, is decided by core.

mod delay_override;
mod logind;
mod state_file;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::model::{Event, ShutdownRequest};
use podwright_tasks::{Pool, PoolKey, error_chain};
use tokio::sync::watch;

use crate::event_loop::Handle;
use logind::{Logind, LogindError};
use state_file::ShutdownTimes;

/// How the shutdown of the host is delayed.
#[derive(Clone, Debug)]
pub struct InhibitorConfig {
    /// The sum of the periods of all pods.
    pub needed: Duration,
    /// Directory of `graceful_node_shutdown_state`.
    pub root_dir: PathBuf,
    /// Directory of logind's drop-in files.
    pub logind_conf_dir: PathBuf,
    /// Another bus than the host's system bus, in tests.
    pub bus_address: Option<String>,
}

impl InhibitorConfig {
    /// On the logind of this host.
    pub fn new(needed: Duration, root_dir: PathBuf) -> Self {
        Self { needed, root_dir, logind_conf_dir: LOGIND_CONF_DIR.into(), bus_address: None }
    }
}

/// Holds the lock, and reports shutdowns to core.
#[derive(Debug)]
pub struct ShutdownInhibitor {
    config: InhibitorConfig,
    pool: Pool,
    held: Mutex<HeldLock>,
}

#[derive(Debug, Default)]
struct HeldLock {
    /// Closed to release it.
    lock: Option<OwnedFd>,
    /// The shutdown under way, with its begin.
    current: Option<(u64, Timestamp)>,
    last_id: u64,
}

impl ShutdownInhibitor {
    /// Takes the lock once it runs.
    pub fn new(config: InhibitorConfig, pool: Pool) -> Self {
        Self { config, pool, held: Mutex::default() }
    }

    /// Runs as long as the agent.
    pub async fn run(self, handle: Handle) {
        if let Some(times) = state_file::read(&self.config.root_dir, &self.pool).await {
            handle.state().metrics().set_shutdown_times(times.start_time, times.end_time);
        }
        let allowed = handle.state().follow_allowed_shutdowns();
        tokio::join!(self.follow_logind(&handle), self.release_when_allowed(allowed, &handle));
    }

    async fn follow_logind(&self, handle: &Handle) {
        let (mut is_reported, mut failures) = (false, 0u32);
        loop {
            let result = self.follow_connection(handle, &mut is_reported, &mut failures).await;
            let Err(error) = result;
            let error = error_chain(&error);
            failures = failures.saturating_add(1);
            if failures == 1 {
                tracing::warn!(error, "logind is not reachable: the shutdown of the host is not delayed until it is");
            } else {
                tracing::debug!(error, attempt = failures, "logind is not reachable");
            }
            if !std::mem::replace(&mut is_reported, true) {
                handle.send(Event::Shutdown { request: None }).await;
            }
            tokio::time::sleep(RECONNECT_PERIOD).await;
        }
    }

    /// Until the connection is lost.
    async fn follow_connection(
        &self,
        handle: &Handle,
        is_reported: &mut bool,
        failures: &mut u32,
    ) -> Result<std::convert::Infallible, LogindError> {
        let mut logind = Logind::connect(self.config.bus_address.as_deref()).await?;
        let allowed = self.raise_delay(&logind).await?;
        if logind.is_preparing().await? {
            // logind refuses new locks from now on; one from before the bus was lost still counts.
            *is_reported = true;
            self.begin(allowed, handle).await;
        } else {
            self.take_lock(&logind).await?;
            let is_cancelled = self.held().current.take().is_some();
            if is_cancelled || !std::mem::replace(is_reported, true) {
                handle.send(Event::Shutdown { request: None }).await;
            }
        }
        if std::mem::take(failures) > 0 {
            tracing::info!("logind is reachable again");
        }
        loop {
            if logind.next_signal().await? {
                self.begin(allowed, handle).await;
            } else {
                tracing::info!("the shutdown of the host was cancelled");
                self.held().current = None;
                handle.send(Event::Shutdown { request: None }).await;
                self.take_lock(&logind).await?;
            }
        }
    }

    /// How long logind waits for the lock. Too short a delay is raised by a drop-in file; where that has no effect, core shortens
    /// the periods of the pods.
    async fn raise_delay(&self, logind: &Logind) -> Result<Duration, LogindError> {
        let needed = self.config.needed;
        let mut delay = logind.inhibit_delay_max().await?;
        if delay >= needed {
            return Ok(delay);
        }
        if let Err(error) = delay_override::write(&self.config.logind_conf_dir, needed, &self.pool).await {
            tracing::warn!(error = error_chain(&error), "logind's InhibitDelayMaxSec could not be raised");
        } else if let Err(error) = logind.reload().await {
            tracing::warn!(error = error_chain(&error), "logind could not be reloaded");
        } else {
            let mut pause = RELOAD_PAUSE;
            for _ in 0..RELOAD_CHECKS {
                tokio::time::sleep(pause).await;
                delay = logind.inhibit_delay_max().await?;
                if delay >= needed {
                    return Ok(delay);
                }
                pause *= 2;
            }
        }
        let (limit_ms, needed_ms) = (delay.as_millis(), needed.as_millis());
        tracing::warn!(limit_ms, needed_ms, "logind allows less time than the pods need: their periods are shortened");
        Ok(delay)
    }

    /// An earlier lock is released once there is a new one.
    async fn take_lock(&self, logind: &Logind) -> Result<(), LogindError> {
        let lock = logind.inhibit().await?;
        let former = self.held().lock.replace(lock);
        drop(former);
        Ok(())
    }

    /// A shutdown that is already known continues.
    async fn begin(&self, allowed: Duration, handle: &Handle) {
        let Some((id, start_time)) = self.held().begin() else { return };
        tracing::info!(limit_ms = allowed.as_millis(), "the host shuts down: pods end by priority");
        handle.send(Event::Shutdown { request: Some(ShutdownRequest { id, allowed }) }).await;
        self.record(ShutdownTimes { start_time, end_time: None }, handle).await;
    }

    /// Statuses are sent and records are on disk by then.
    async fn release_when_allowed(&self, mut allowed: watch::Receiver<Option<u64>>, handle: &Handle) {
        while allowed.changed().await.is_ok() {
            let request = *allowed.borrow_and_update();
            let current = self.held().current.filter(|(id, _)| Some(*id) == request);
            let Some((_, start_time)) = current else { continue };
            self.record(ShutdownTimes { start_time, end_time: Some(Timestamp::now()) }, handle).await;
            let mut held = self.held();
            // After a cancellation meanwhile the lock stays.
            if held.current.is_some_and(|(id, _)| Some(id) == request) && held.lock.take().is_some() {
                tracing::info!("all pods have ended, or their time is up: the host may shut down");
            }
        }
    }

    async fn record(&self, times: ShutdownTimes, handle: &Handle) {
        handle.state().metrics().set_shutdown_times(times.start_time, times.end_time);
        if let Err(error) = state_file::write(&self.config.root_dir, times, &self.pool).await {
            tracing::warn!(error = error_chain(&error), "the times of the shutdown could not be saved");
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HeldLock> {
        self.held.lock().expect("no panic under this lock")
    }
}

impl HeldLock {
    /// `None`: a shutdown is under way already.
    fn begin(&mut self) -> Option<(u64, Timestamp)> {
        if self.current.is_some() {
            return None;
        }
        self.last_id += 1;
        self.current = Some((self.last_id, Timestamp::now()));
        self.current
    }
}

/// Files of the agent and of logind are on file systems that may hang.
fn pool_key(name: &str) -> PoolKey {
    PoolKey::new("shutdown", name)
}

/// Kubernetes: `dbusReconnectPeriod`.
const RECONNECT_PERIOD: Duration = Duration::from_secs(1);
/// The first pause before logind's delay is read again after a reload; doubled each time.
const RELOAD_PAUSE: Duration = Duration::from_millis(100);
const RELOAD_CHECKS: u32 = 5;
/// Small files; a file system that takes longer hangs.
const FILE_LIMIT: Duration = Duration::from_secs(2);
const LOGIND_CONF_DIR: &str = "/etc/systemd/logind.conf.d";

#[cfg(test)]
mod tests;
