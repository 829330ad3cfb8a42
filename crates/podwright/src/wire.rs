//! Builds the components from the configuration, starts their tasks, supervises them, and drains them at the end.
//!
//! ```text
//!  open (what can fail at the start) ─▶ build ─▶ start (a list of tasks) ─▶ supervise ── stop or a failed task ──▶ drain
//! ```

mod certificates;
mod cgroups;
mod kubelet_server;
mod monitor;
mod runtime;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use podwright_agent::empty_dirs::EmptyDirs;
use podwright_agent::event_loop::{AgentState, Clock, EventLoop, Handle, LoopInputs};
use podwright_agent::feed::PodFeed;
use podwright_agent::host::{Host, Pool, PoolLimits};
use podwright_agent::images_gc::{self, ImageGc, SharedImageGc};
use podwright_agent::journal::{Journal, JournalWarning};
use podwright_agent::local::{LocalObjectStore, Store};
use podwright_agent::memory_watch::MemoryWatch;
use podwright_agent::node_executor::{NodeExecutor, SystemClock};
use podwright_agent::object_store::PodObjectStore;
use podwright_agent::observe::{Observer, supports_supplemental_groups_policy};
use podwright_agent::perform::{CallExecutor, CallExecutorConfig, PullRecords, SharedFeatures};
use podwright_agent::recorder::{self, Recorder};
use podwright_agent::resource_state::ResourceStateFiles;
use podwright_agent::shutdown::{InhibitorConfig, ShutdownInhibitor};
use podwright_agent::sources::{self, Changes};
use podwright_agent::stats::Sampler;
use podwright_agent::suspects;
use podwright_api::ApiClient;
use podwright_core::model::{FullName, KubeEvent, PodRecord, Source, Suspect};
use podwright_core::{Node, NodeConfig};
use podwright_cri::{ImageService, RuntimeService};
use podwright_engine::Engine;
use podwright_linux::cgroup::CgroupTree;
use podwright_server::health_server;
use podwright_server::local::{ImageRequestError, LocalApi, LocalSocket, NodeCapacity, NodeImages, TableCells};
use podwright_tasks::{Tasks, WorkLog};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::AgentConfig;
use crate::print::{age_at, explain, pods};
use crate::{cluster, heap, log_rotation, notify};
use certificates::NodeCertificates;
use cgroups::OpenedCgroups;
use kubelet_server::OpenedServer;
use monitor::Monitor;
use runtime::OpenedRuntime;

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
    let mut opened = tokio::select! {
        opened = Opened::open(&config, &tasks) => opened?,
        () = stop.cancelled() => return Ok(()),
    };
    let (work_log, engine) = (opened.work_log.clone(), opened.engine.take());
    let agent = Agent::build(&config, &mut opened, &tasks).await?;
    agent.start(config, opened, &tasks, &stop)?;
    let failure = tokio::select! {
        () = stop.cancelled() => None,
        failure = supervisor.failed() => Some(failure),
    };
    stop.cancel();
    match supervisor.drain(DRAIN_MAX).await {
        true => work_log.iter().for_each(|log| log.close()),
        // Work that hangs counts as work in which the agent died.
        false => tracing::warn!(limit_ms = DRAIN_MAX.as_millis(), "some tasks did not end in time"),
    }
    runtime::close(engine).await;
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
    /// `None` if its file cannot be used.
    work_log: Option<Arc<WorkLog>>,
    /// Pods in which former agents died. Moved to core when it starts.
    suspects: Vec<Suspect>,
    listener: Option<TcpListener>,
    kubelet_server: Option<OpenedServer>,
    runtime: Arc<dyn RuntimeService>,
    images: Arc<dyn ImageService>,
    /// Of the runtime, if it is the embedded one. Closed at the end.
    engine: Option<Arc<Engine>>,
    node_images: Result<Arc<dyn NodeImages>, ImageRequestError>,
    cgroups: OpenedCgroups,
    cluster: Option<ApiClient>,
    certificates: NodeCertificates,
}

impl Opened {
    async fn open(config: &AgentConfig, tasks: &Tasks) -> anyhow::Result<Self> {
        let (journal, records, warnings) = Journal::open(&config.dirs.root).context("open the journal")?;
        let journal_losses = report_journal_warnings(warnings, config);
        let socket = LocalSocket::open(&config.dirs.run)?;
        let (work_log, suspects) =
            suspects::open(&config.dirs.run, &config.node.boot_id, &records, SystemClock.now().boot);
        let listener = match config.listen {
            Some(address) => Some(health_server::bind(address).with_context(|| format!("listen on {address}"))?),
            None => None,
        };
        let kubelet_server = kubelet_server::open(config).await?;
        let OpenedRuntime { runtime, images, node_images, engine } = runtime::open(config, tasks).await?;
        let cgroups = OpenedCgroups::open(config, &*runtime, !records.is_empty()).await?;
        let (cluster, certificates) = certificates::open(config).await?;
        Ok(Self {
            journal,
            records,
            journal_losses,
            socket,
            work_log,
            suspects,
            listener,
            kubelet_server,
            runtime,
            images,
            engine,
            node_images,
            cgroups,
            cluster,
            certificates,
        })
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
    sampler: Arc<Sampler>,
    image_gc: SharedImageGc,
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
        let host = Host::new(host_config, opened.cgroups.tree.clone(), pool.clone()).with_objects(objects.clone());
        let host = opened.cgroups.systemd.iter().cloned().fold(host, Host::with_systemd);
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
            settings: Arc::new(settings::node_facts(config, opened.cgroups.tree.as_ref(), opened.cgroups.driver)),
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
        let runtimes = (runtime.clone(), opened.images.clone());
        let sampler = settings::sampler(config, runtimes, &host, state.feed(), &pool);
        let sampler = Arc::new(Sampler::new(sampler));
        let image_gc = image_gc(config, opened, state.feed(), &pool);
        let executor = NodeExecutor::new(Arc::new(calls), observer.clone(), host, stores);
        let executor = Arc::new(executor.with_eviction(Arc::clone(&sampler), Arc::clone(&image_gc)));
        let supplemental_groups_policy = supports_supplemental_groups_policy(&**runtime, PROBE_LIMIT).await;
        let node = NodeConfig { supplemental_groups_policy, ..config.node.clone() };
        let node = Node::new(node, std::mem::take(&mut opened.records));
        Ok(Self { node, inputs, state, executor, observer, store, changes, pull_records, sampler, image_gc, pool })
    }

    /// Starts every task of the agent.
    fn start(self, config: AgentConfig, opened: Opened, tasks: &Tasks, stop: &CancellationToken) -> anyhow::Result<()> {
        let Self { node, inputs, state, executor, observer, store, changes, pull_records, sampler, image_gc, pool } =
            self;
        let Opened { journal, journal_losses, socket, work_log, suspects, listener, .. } = opened;
        let Opened { kubelet_server, runtime, images, node_images, cgroups, cluster, certificates, .. } = opened;
        let (limit, node_name) = (config.node.runtime_request_timeout, config.node.node_name.clone());
        let (feed, pods) = (Arc::clone(state.feed()), node.workers().iter().count());
        // Lost records may have been newer than those that are left.
        let recorded_version = cluster::recorded_version(&node).filter(|_| journal_losses.is_empty());
        let (event_loop, handle) =
            EventLoop::with_state(inputs, state, node, Some(journal), executor, Arc::new(SystemClock));
        let event_loop = event_loop.supervised_by(tasks);
        let event_loop = record_to_file(event_loop, config.record.clone())?.with_suspects(suspects);
        let event_loop = work_log.iter().fold(event_loop, EventLoop::with_work_log);
        tracing::info!(node = node_name, path = %config.dirs.root.display(), count = pods, "started");

        // Before the first observation.
        cgroups.start_confirmation(&config, &runtime, &observer, tasks);
        tasks.drained_service("event-loop", event_loop.run(stop.clone()));
        let cgroup_tree = cgroups.tree.clone();
        let stopped = stop.clone();
        tasks.service("runtime-events", async move { observer.follow_events(stopped).await });
        start_static_sources(&config, &changes, &pool, tasks);
        let submitted = store.clone();
        tasks.job("local-source", async move { submitted.begin().await });
        tasks.service("disk-usage", Arc::clone(&sampler).measure_disks());
        let monitor =
            Arc::new(Monitor::new(handle.clone(), Arc::clone(&sampler), &config, pool.clone(), certificates.metrics()));
        let shared = (&monitor, &handle, &pool);
        let streams = Arc::new(runtime.clone());
        let tls = kubelet_server::start(kubelet_server, &config, cluster.as_ref(), streams, shared, (tasks, stop));
        if let Some(cluster) = cluster {
            let (runtime, images, handle) = (runtime.clone(), images.clone(), handle.clone());
            let parts = cluster::ClusterDependencies { runtime, images, handle, changes, recorded_version };
            let events = cluster::start(cluster.clone(), &config, parts, tasks);
            certificates.start(&cluster, &config, tls, &events, tasks);
        }
        start_limits(&config, &feed, cgroup_tree, &pool, &handle, tasks);
        tasks.service("image-pull-records", pull_records.watch(images.clone(), limit));
        start_image_gc(image_gc, &config, &handle, tasks);
        start_shutdown_inhibitor(&config, &pool, &handle, tasks);
        tasks.job("heap-trim", heap::trim_heap_periodically());
        tasks.service("log-rotation", log_rotation::run(config.logs, runtime.clone(), pool.clone(), limit));
        if let Some(listener) = listener {
            tasks.drained_service("monitor-listener", health_server::serve(listener, monitor, stop.clone()));
        }
        tracing::debug!(path = %socket.path().display(), "local API listens");
        let local = LocalApi {
            node: node_name,
            paths: settings::paths(&config),
            pool: pool.clone(),
            feed,
            store,
            runtime: Arc::new(runtime),
            images: node_images,
            usage: sampler,
            capacity: NodeCapacity { cpu_millis: config.capacity.cpu_millis, memory: config.capacity.memory },
            allocatable: NodeCapacity {
                cpu_millis: config.node.allocatable_cpu_millis,
                memory: config.node.allocatable_memory,
            },
            agent: Arc::new(handle.clone()),
            cells: TableCells { pod: pods::cells, age: age_at },
            format_explanation: explain::render,
        };
        tasks.drained_service("local-api", socket.serve(local, stop.clone()));
        tasks.drained_service("notify", notify::run(handle, stop.clone()));
        Ok(())
    }
}

/// Starts what watches the limits of emptyDirs and the memory of the node, and what writes the resources of pods for the Go kubelet.
fn start_limits(
    config: &AgentConfig,
    feed: &Arc<PodFeed>,
    cgroups: Option<CgroupTree>,
    pool: &Pool,
    handle: &Handle,
    tasks: &Tasks,
) {
    let empty_dirs = EmptyDirs::new(Arc::clone(feed), settings::paths(config), pool.clone());
    tasks.service("empty-dir-limits", empty_dirs.watch(handle.clone(), config.node.eviction.storage_limits));
    let memory = MemoryWatch::new(cgroups, config.node.eviction.clone(), config.capacity.memory, pool.clone());
    tasks.service("memory-watch", memory.run(handle.clone()));
    if config.cluster.is_some() {
        let files = ResourceStateFiles::new(Arc::clone(feed), config.dirs.root.clone(), pool.clone());
        tasks.service("resource-state", files.run());
    }
}

/// Starts the garbage collection of images, unless it is off.
fn start_image_gc(gc: SharedImageGc, config: &AgentConfig, handle: &Handle, tasks: &Tasks) {
    if !settings::image_policy(config).is_off() {
        tasks.service("image-gc", collect_images(gc, config.node.node_name.clone(), handle.clone()));
    }
}

/// Delays shutdowns of the host until pods have ended, if that is configured.
fn start_shutdown_inhibitor(config: &AgentConfig, pool: &Pool, handle: &Handle, tasks: &Tasks) {
    if let Some(periods) = &config.node.shutdown {
        let inhibitor = InhibitorConfig::new(periods.total(), config.dirs.root.clone());
        tasks.service("shutdown-inhibitor", ShutdownInhibitor::new(inhibitor, pool.clone()).run(handle.clone()));
    }
}

/// The garbage collector of images.
fn image_gc(config: &AgentConfig, opened: &Opened, feed: &Arc<PodFeed>, pool: &Pool) -> SharedImageGc {
    let (policy, limit) = (settings::image_policy(config), config.node.runtime_request_timeout);
    let (runtime, images) = (opened.runtime.clone(), opened.images.clone());
    let gc = ImageGc::new(runtime, images, images_gc::measure(pool.clone()), policy, limit);
    Arc::new(tokio::sync::Mutex::new(gc.with_pods(Arc::clone(feed))))
}

/// Starts the sources of static pods.
fn start_static_sources(config: &AgentConfig, changes: &Changes, pool: &Pool, tasks: &Tasks) {
    if let Some(file) = config.sources.file.clone() {
        let decode = settings::decode(config, Source::File);
        tasks.service("file-source", sources::file::run(file, decode, changes.clone(), pool.clone()));
    }
    if let Some(url) = config.sources.url.clone() {
        let decode = settings::decode(config, Source::Url);
        tasks.service("url-source", sources::url::run(url, decode, changes.clone(), pool.clone()));
    }
}

/// Logs what was lost when the journal was opened; records that had been synced are worth an event of the node, too.
fn report_journal_warnings(warnings: Vec<JournalWarning>, config: &AgentConfig) -> Vec<KubeEvent> {
    let mut events = Vec::new();
    for warning in warnings {
        let loss = warning.is_loss();
        let message = format!("{:#}", anyhow::Error::from(warning));
        tracing::warn!(path = %config.dirs.root.display(), error = message, "journal opened with a warning");
        if loss {
            let pod = FullName { namespace: "".into(), name: config.node.node_name.as_str().into() };
            let reason = "JournalDamaged";
            events.push(KubeEvent {
                uid: None,
                pod,
                container: None,
                warning: true,
                reason,
                message,
                annotations: vec![],
            });
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

fn record_to_file(event_loop: EventLoop, record: Option<recorder::RecorderConfig>) -> anyhow::Result<EventLoop> {
    let Some(record) = record else { return Ok(event_loop) };
    let path = record.path.display().to_string();
    let recorder = Recorder::start(record).with_context(|| format!("record to {path}"))?;
    tracing::info!(path, version = podwright_core::record::CORE, "recording every input of core");
    Ok(event_loop.recorded_by(recorder))
}

async fn collect_images(gc: SharedImageGc, node: String, handle: Handle) {
    let report = |event: KubeEvent| {
        tracing::warn!(reason = event.reason, note = event.message, "image garbage collection reported an event");
        handle.state().record_event(&event, SystemClock.now());
    };
    images_gc::run(gc, node, podwright_linux::clock::boot_time, report).await;
}
