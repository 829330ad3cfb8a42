//! Builds the components from the configuration, starts their tasks, supervises them, and drains them at the end.
//!
//! ```text
//!  open (what can fail at the start) ─▶ build ─▶ start (a list of tasks) ─▶ supervise ── stop or a failed task ──▶ drain
//! ```

mod monitor;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use podwright_agent::empty_dirs::EmptyDirs;
use podwright_agent::event_loop::{AgentState, Clock, EventLoop, Handle, LoopInputs};
use podwright_agent::host::{Host, Pool, PoolLimits};
use podwright_agent::images_gc::{self, ImageGc};
use podwright_agent::journal::{Journal, JournalWarning};
use podwright_agent::local::{LocalObjectStore, Store};
use podwright_agent::node_executor::{NodeExecutor, SystemClock};
use podwright_agent::object_store::PodObjectStore;
use podwright_agent::observe::{Observer, check_cgroup_driver, supports_supplemental_groups_policy};
use podwright_agent::perform::{CallExecutor, CallExecutorConfig, PullRecords, SharedFeatures};
use podwright_agent::recorder::{self, Recorder};
use podwright_agent::sources::{self, Changes};
use podwright_api::ApiClient;
use podwright_core::model::{FullName, KubeEvent, PodRecord, Source};
use podwright_core::{Node, NodeConfig};
use podwright_cri::RemoteRuntime;
use podwright_linux::cgroup::CgroupTree;
use podwright_server::health_server;
use podwright_server::local::{LocalApi, LocalSocket};
use podwright_tasks::Tasks;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::AgentConfig;
use crate::print::explain;
use crate::{cluster, heap, log_rotation, notify};
use monitor::Monitor;

/// Sources wait while this many of their changes are queued.
const CHANGES_MAX: usize = 16;
/// Kubernetes: the interval between two tries to enforce node allocatable.
const ENFORCE_INTERVAL: Duration = Duration::from_secs(60);
/// How long the runtime may take for questions at the start.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// Starts in flight, the journal and the recorder each have a shorter limit of their own.
const DRAIN_MAX: Duration = Duration::from_secs(15);

/// Runs the agent until `stop` is cancelled or one of its tasks fails. Containers keep running.
pub(crate) async fn run(config: AgentConfig, stop: CancellationToken) -> anyhow::Result<()> {
    let (tasks, mut supervisor) = Tasks::supervised(stop.clone());
    let mut opened = Opened::open(&config).await?;
    let agent = Agent::build(&config, &mut opened, &tasks).await?;
    agent.start(config, opened, &tasks, &stop)?;
    let failure = tokio::select! {
        () = stop.cancelled() => None,
        failure = supervisor.failed() => Some(failure),
    };
    stop.cancel();
    if !supervisor.drain(DRAIN_MAX).await {
        tracing::warn!(limit_s = DRAIN_MAX.as_secs(), "some tasks did not end in time");
    }
    match failure {
        Some(failure) => Err(failure.into()),
        None => {
            tracing::info!("stopped; containers keep running");
            Ok(())
        }
    }
}

/// What is opened before anything runs: an error here ends the start.
struct Opened {
    journal: Journal,
    /// Moved to core when it is built.
    records: Vec<PodRecord>,
    /// Events for records that the journal lost.
    journal_losses: Vec<KubeEvent>,
    socket: LocalSocket,
    listener: Option<TcpListener>,
    runtime: Arc<RemoteRuntime>,
    images: Arc<RemoteRuntime>,
    cgroups: Option<CgroupTree>,
    cluster: Option<ApiClient>,
}

impl Opened {
    async fn open(config: &AgentConfig) -> anyhow::Result<Self> {
        let (journal, records, warnings) = Journal::open(&config.dirs.root).context("open the journal")?;
        let journal_losses = report_journal_warnings(warnings, config);
        let socket = LocalSocket::open(&config.dirs.run)?;
        let listener = match config.listen {
            Some(address) => Some(health_server::bind(address).await.with_context(|| format!("listen on {address}"))?),
            None => None,
        };
        let runtime = Arc::new(RemoteRuntime::connect(&config.runtime.endpoint)?);
        let images = Arc::new(RemoteRuntime::connect(&config.runtime.image_endpoint)?);
        check_cgroup_driver(&*runtime, settings::DRIVER, PROBE_LIMIT).await?;
        let cgroups = match config.cgroups.per_qos {
            true => Some(CgroupTree::detect().context("find the cgroup hierarchies")?),
            false => None,
        };
        let cluster = config.cluster.as_ref().map(|cluster| ApiClient::open(&cluster.kubeconfig)).transpose()?;
        Ok(Self { journal, records, journal_losses, socket, listener, runtime, images, cgroups, cluster })
    }
}

/// The components, built and not yet running.
struct Agent {
    node: Node,
    inputs: LoopInputs,
    state: Arc<AgentState>,
    executor: Arc<NodeExecutor>,
    observer: Arc<Observer>,
    store: Arc<Store>,
    changes: Changes,
    pull_records: PullRecords,
    pool: Pool,
}

impl Agent {
    async fn build(config: &AgentConfig, opened: &mut Opened, tasks: &Tasks) -> anyhow::Result<Self> {
        let (runtime, limit) = (&opened.runtime, config.node.runtime_request_timeout);
        let (changes, changed) = mpsc::channel(CHANGES_MAX);
        let inputs = LoopInputs::new(changed);
        let pool = Pool::new(PoolLimits::default());
        let objects = cluster::objects(opened.cluster.as_ref(), inputs.sender(), tasks);
        let host_config = settings::host_config(config);
        let host = Host::new(host_config, opened.cgroups.clone(), pool.clone()).with_objects(objects.clone());
        enforce_node_allocatable(&host, limit, tasks).await;
        let features = SharedFeatures::default();
        let paths = settings::paths(config);
        let observer = Observer::new(runtime.clone(), features.clone(), pool.clone(), paths, limit, inputs.sender());
        let observer = Arc::new(observer);
        let state = Arc::<AgentState>::default();
        opened.journal_losses.iter().for_each(|event| state.record_event(event, SystemClock.now()));
        let recorded = Arc::clone(&state);
        let pull_records = PullRecords::new(&config.dirs.root, config.images.verification.clone(), pool.clone());
        let calls = CallExecutor::new(CallExecutorConfig {
            runtime: runtime.clone(),
            images: opened.images.clone(),
            settings: Arc::new(settings::node_facts(config, opened.cgroups.as_ref())),
            host: Arc::new(host.clone()),
            features,
            pool: pool.clone(),
            pulls: settings::pulls(config, pull_records.clone()),
            sandbox_parallel: config.node.sandbox_parallel,
            max_pods: config.node.max_pods,
        })
        .with_objects(objects)
        .with_event_sink(Arc::new(move |event: KubeEvent| recorded.record_event(&event, SystemClock.now())));
        let (root, node_name, feed) = (&config.dirs.root, &config.node.node_name, Arc::clone(state.feed()));
        let store = Store::open(root, node_name, &opened.records, feed, changes.clone(), pool.clone())?;
        let local: Arc<dyn PodObjectStore> = Arc::new(LocalObjectStore(store.clone()));
        let stores = opened.cluster.iter().map(|cluster| (Source::Api, cluster::object_store(cluster)));
        let stores = stores.chain([(Source::Local, local)]).collect();
        let executor = Arc::new(NodeExecutor::new(Arc::new(calls), observer.clone(), host, stores));
        let supplemental_groups_policy = supports_supplemental_groups_policy(&**runtime, PROBE_LIMIT).await;
        let node = NodeConfig { supplemental_groups_policy, ..config.node.clone() };
        let node = Node::new(node, std::mem::take(&mut opened.records));
        Ok(Self { node, inputs, state, executor, observer, store, changes, pull_records, pool })
    }

    /// Starts every task of the agent.
    fn start(self, config: AgentConfig, opened: Opened, tasks: &Tasks, stop: &CancellationToken) -> anyhow::Result<()> {
        let Self { node, inputs, state, executor, observer, store, changes, pull_records, pool } = self;
        let Opened { journal, journal_losses, socket, listener, runtime, images, cluster, .. } = opened;
        let (limit, node_name) = (config.node.runtime_request_timeout, config.node.node_name.clone());
        let (feed, pods) = (Arc::clone(state.feed()), node.workers().iter().count());
        // Lost records may have been newer than those that are left.
        let recorded_version = recorded_version(&node).filter(|_| journal_losses.is_empty());
        let (event_loop, handle) =
            EventLoop::with_state(inputs, state, node, Some(journal), executor, Arc::new(SystemClock));
        let event_loop = record_to_file(event_loop, config.record.clone())?;
        tracing::info!(node = node_name, path = %config.dirs.root.display(), pods, "started");

        tasks.drained_service("event-loop", event_loop.run(stop.clone()));
        let stopped = stop.clone();
        tasks.service("runtime-events", async move { observer.follow_events(stopped).await });
        if let Some(file) = config.sources.file.clone() {
            let decode = settings::decode(&config, Source::File);
            tasks.service("file-source", sources::file::run(file, decode, changes.clone(), pool.clone()));
        }
        if let Some(url) = config.sources.url.clone() {
            let decode = settings::decode(&config, Source::Url);
            tasks.service("url-source", sources::url::run(url, decode, changes.clone(), pool.clone()));
        }
        let submitted = store.clone();
        tasks.job("local-source", async move { submitted.begin().await });
        if let Some(cluster) = cluster {
            let (images, handle) = (images.clone(), handle.clone());
            let parts = cluster::ClusterDependencies { images, handle, changes, recorded_version };
            cluster::start(cluster, &config, parts, tasks);
        }
        let empty_dirs = EmptyDirs::new(feed.clone(), settings::paths(&config), pool.clone());
        tasks.service("empty-dir-limits", empty_dirs.watch(handle.clone()));
        tasks.service("image-pull-records", pull_records.watch(images.clone(), limit));
        let policy = settings::image_policy(&config);
        let gc = ImageGc::new(runtime.clone(), images, images_gc::measure(pool.clone()), policy, limit);
        if !gc.is_off() {
            tasks.service("image-gc", collect_images(gc, node_name.clone(), handle.clone()));
        }
        tasks.job("heap-trim", heap::trim_heap_periodically());
        tasks.service("log-rotation", log_rotation::run(config.logs, runtime.clone(), pool.clone(), limit));
        if let Some(listener) = listener {
            let monitor = Arc::new(Monitor::new(handle.clone(), config.node.sync_frequency, pool));
            tasks.drained_service("monitor-listener", health_server::serve(listener, monitor, stop.clone()));
        }
        tracing::debug!(path = %socket.path().display(), "local API listens");
        let local = LocalApi {
            node: node_name,
            paths: settings::paths(&config),
            feed,
            store,
            runtime,
            agent: Arc::new(handle.clone()),
            format_explanation: explain::render,
        };
        tasks.drained_service("local-api", socket.serve(local, stop.clone()));
        tasks.drained_service("notify", notify::run(handle, stop.clone()));
        Ok(())
    }
}

/// Logs what was lost when the journal was opened; records that had been synced are worth an event of the node, too.
fn report_journal_warnings(warnings: Vec<JournalWarning>, config: &AgentConfig) -> Vec<KubeEvent> {
    let mut events = Vec::new();
    for warning in warnings {
        let loss = warning.is_loss();
        let message = format!("{:#}", anyhow::Error::from(warning));
        tracing::warn!(path = %config.dirs.root.display(), error = message, loss, "journal opened with a warning");
        if loss {
            let pod = FullName { namespace: "".into(), name: config.node.node_name.as_str().into() };
            let reason = "JournalDamaged";
            events.push(KubeEvent { uid: None, pod, container: None, warning: true, reason, message });
        }
    }
    events
}

/// Pods that already use more than the node has for them are a reason to try again each minute, as the Go kubelet does.
async fn enforce_node_allocatable(host: &Host, limit: Duration, tasks: &Tasks) {
    let Err(error) = host.cgroups().enforce_node_allocatable(limit).await else { return };
    tracing::warn!(error = error.message(), "node allocatable is not enforced yet");
    let host = host.clone();
    tasks.job("node-allocatable", async move {
        loop {
            tokio::time::sleep(ENFORCE_INTERVAL).await;
            match host.cgroups().enforce_node_allocatable(limit).await {
                Ok(()) => return tracing::info!("node allocatable is enforced"),
                Err(error) => tracing::debug!(error = error.message(), "node allocatable is not enforced yet"),
            }
        }
    });
}

/// The newest resource version among the pods of the API server that the journal holds.
fn recorded_version(node: &Node) -> Option<u64> {
    let records = node.workers().iter().map(|(_, machine)| machine.record());
    let versions =
        records.filter(|record| record.source == Source::Api).map(|record| &record.pod.metadata.resource_version);
    versions.filter_map(|version| version.as_deref()?.parse().ok()).max()
}

fn record_to_file(event_loop: EventLoop, record: Option<recorder::RecorderConfig>) -> anyhow::Result<EventLoop> {
    let Some(record) = record else { return Ok(event_loop) };
    let path = record.path.display().to_string();
    let recorder = Recorder::start(record).with_context(|| format!("record to {path}"))?;
    tracing::info!(path, core = podwright_core::record::CORE, "recording every input of core");
    Ok(event_loop.recorded_by(recorder))
}

async fn collect_images(gc: ImageGc, node: String, handle: Handle) {
    let report = |event: KubeEvent| {
        tracing::warn!(reason = event.reason, "{}", event.message);
        handle.state().record_event(&event, SystemClock.now());
    };
    images_gc::run(gc, node, podwright_linux::clock::boot_time, report).await;
}
