//! The lock on a fake logind, on a real bus.

mod fake_logind;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::*;
use crate::event_loop::AgentState;
use fake_logind::FakeLogind;

const LIMIT: Duration = Duration::from_secs(20);

/// A running inhibitor; the test plays core.
struct Inhibited {
    logind: FakeLogind,
    dir: tempfile::TempDir,
    state: Arc<AgentState>,
    events: mpsc::Receiver<Event>,
    task: AbortHandle,
}

impl Inhibited {
    /// With logind's delay, and the time that pods need.
    fn start(delay: u64, needed: u64, prepare: impl FnOnce(&FakeLogind)) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let logind = FakeLogind::start(dir.path(), Duration::from_secs(delay))?;
        prepare(&logind);
        let (sender, events) = mpsc::channel(16);
        let state = Arc::<AgentState>::default();
        let handle = Handle::detached(sender, Arc::clone(&state));
        let config = InhibitorConfig {
            needed: Duration::from_secs(needed),
            root_dir: dir.path().into(),
            logind_conf_dir: logind.conf_dir(),
            bus_address: Some(logind.address()),
        };
        let inhibitor = ShutdownInhibitor::new(config, Pool::default());
        let task = podwright_tasks::spawn("inhibitor", inhibitor.run(handle)).abort_handle();
        Some(Self { logind, dir, state, events, task })
    }

    /// The next report to core.
    async fn report(&mut self) -> Option<ShutdownRequest> {
        match tokio::time::timeout(LIMIT, self.events.recv()).await.expect("a report").expect("it runs") {
            Event::Shutdown { request } => request,
            other => panic!("{other:?}"),
        }
    }

    async fn wait_for(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + LIMIT;
        while !holds(self) {
            assert!(tokio::time::Instant::now() < deadline, "{what}; locks: {}", self.logind.locks());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn saved(&self) -> Option<serde_json::Value> {
        let text = std::fs::read(self.dir.path().join("graceful_node_shutdown_state")).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

impl Drop for Inhibited {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn request(id: u64, allowed: u64) -> Option<ShutdownRequest> {
    Some(ShutdownRequest { id, allowed: Duration::from_secs(allowed) })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_is_held_until_core_allows_the_shutdown() {
    let Some(mut node) = Inhibited::start(60, 30, |_| {}) else { return };
    assert_eq!(node.report().await, None, "the host does not shut down");
    let arguments = ["shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay"];
    assert_eq!((node.logind.taken(), node.logind.locks()), (vec![arguments.map(str::to_owned)], 1));
    assert_eq!((node.logind.reloads(), node.logind.conf_dir().exists()), (0, false), "the delay is long enough");
    assert_eq!(node.saved(), None);
    node.logind.prepare(true);
    assert_eq!(node.report().await, request(1, 60));
    node.wait_for("the begin is saved", |node| node.saved().is_some()).await;
    assert_eq!(node.saved().unwrap()["endTime"], "0001-01-01T00:00:00Z");
    node.state.allow_shutdown(7);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(node.logind.locks(), 1, "another request was answered");
    node.state.allow_shutdown(1);
    node.wait_for("the lock is released", |node| node.logind.locks() == 0).await;
    let saved = node.saved().unwrap();
    assert!(saved["startTime"].as_str() < saved["endTime"].as_str(), "{saved}");
    assert_eq!(node.logind.taken().len(), 1, "it is not taken again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_shutdown_is_reported_and_the_next_one_is_delayed_too() {
    let Some(mut node) = Inhibited::start(60, 30, |_| {}) else { return };
    assert_eq!(node.report().await, None);
    node.logind.prepare(true);
    assert_eq!(node.report().await, request(1, 60));
    node.state.allow_shutdown(1);
    node.wait_for("the lock is released", |node| node.logind.locks() == 0).await;
    node.logind.prepare(false);
    assert_eq!(node.report().await, None);
    node.wait_for("the lock is taken again", |node| node.logind.locks() == 1).await;
    node.logind.prepare(true);
    assert_eq!(node.report().await, request(2, 60));
    node.state.allow_shutdown(1);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(node.logind.locks(), 1, "the answer to the first one came late");
    node.state.allow_shutdown(2);
    node.wait_for("the lock is released", |node| node.logind.locks() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_bus_keeps_the_lock_and_what_happened_meanwhile_is_noticed() {
    let Some(mut node) = Inhibited::start(60, 30, |_| {}) else { return };
    assert_eq!(node.report().await, None);
    node.logind.stop_bus();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(node.logind.locks(), 1);
    node.logind.start_bus_again();
    node.wait_for("a new lock replaces the old one", |node| node.logind.taken().len() == 2 && node.logind.locks() == 1)
        .await;
    // The signal is lost with the bus.
    node.logind.stop_bus();
    node.logind.set_preparing(true);
    node.logind.start_bus_again();
    assert_eq!(node.report().await, request(1, 60));
    assert_eq!(node.logind.locks(), 1, "logind gives no new lock; the old one counts");
    node.logind.stop_bus();
    node.state.allow_shutdown(1);
    node.wait_for("it is released without the bus", |node| node.logind.locks() == 0).await;
    node.logind.set_preparing(false);
    node.logind.start_bus_again();
    assert_eq!(node.report().await, None, "the shutdown was cancelled meanwhile");
    node.wait_for("the lock is taken again", |node| node.logind.locks() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_delay_is_raised_by_a_drop_in_file() {
    let Some(mut node) = Inhibited::start(5, 30, |_| {}) else { return };
    assert_eq!(node.report().await, None);
    let text = std::fs::read_to_string(node.logind.conf_dir().join("zz-podwright.conf")).unwrap();
    assert!(text.ends_with("[Login]\nInhibitDelayMaxSec=30\n"), "{text}");
    assert_eq!(node.logind.reloads(), 1);
    node.logind.prepare(true);
    assert_eq!(node.report().await, request(1, 30));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_that_can_not_be_raised_is_passed_on() {
    let other = |logind: &FakeLogind| {
        std::fs::create_dir_all(logind.conf_dir()).unwrap();
        std::fs::write(logind.conf_dir().join("zzz.conf"), "[Login]\nInhibitDelayMaxSec=12\n").unwrap();
    };
    let Some(mut node) = Inhibited::start(5, 30, other) else { return };
    assert_eq!((node.report().await, node.logind.locks()), (None, 1), "there is a lock nevertheless");
    node.logind.prepare(true);
    assert_eq!(node.report().await, request(1, 12));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_that_began_before_the_agent_is_noticed_at_the_start() {
    let Some(mut node) = Inhibited::start(60, 30, |logind| logind.set_preparing(true)) else { return };
    assert_eq!((node.report().await, node.logind.locks()), (request(1, 60), 0));
    node.logind.prepare(false);
    assert_eq!(node.report().await, None);
    node.wait_for("the lock is taken", |node| node.logind.locks() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_bus_the_node_is_reported_as_running_and_the_bus_is_awaited() {
    let Some(mut node) = Inhibited::start(60, 30, |_| {}) else { return };
    assert_eq!(node.report().await, None);
    node.logind.stop_bus();
    let (sender, events) = mpsc::channel(16);
    let handle = Handle::detached(sender, Arc::default());
    let mut config = InhibitorConfig::new(Duration::from_secs(30), node.dir.path().into());
    config.bus_address = Some(node.logind.address());
    node.task.abort();
    node.task =
        podwright_tasks::spawn("inhibitor", ShutdownInhibitor::new(config, Pool::default()).run(handle)).abort_handle();
    node.events = events;
    assert_eq!(node.report().await, None);
    node.logind.start_bus_again();
    node.wait_for("the lock is taken", |node| node.logind.locks() == 1).await;
}
