//! Builds the parts from the configuration, ties them together, and takes them apart again at the end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use podwright_agent::empty_dirs::EmptyDirs;
use podwright_agent::event_loop::{self, Clock, EventLoop, Handle};
use podwright_agent::host::{Allocatable, Host, HostConfig, HostPaths};
use podwright_agent::host::{Pool, PoolLimits};
use podwright_agent::images_gc::{self, ImageGc};
use podwright_agent::journal::Journal;
use podwright_agent::local::{LocalObjectStore, Store};
use podwright_agent::node_executor::{NodeExecutor, SystemClock};
use podwright_agent::object_store::PodObjectStore;
use podwright_agent::observe::{Observer, check_cgroup_driver, supports_supplemental_groups_policy};
use podwright_agent::perform::{CallExecutor, CallExecutorConfig, PullConfig, SharedFeatures};
use podwright_agent::recorder::{self, Recorder};
use podwright_agent::sources::{self, Changes, Decode};
use podwright_agent::translate::{CgroupDriver, NodeSettings};
use podwright_api::Cluster;
use podwright_core::gc::ImagePolicy;
use podwright_core::model::{Event, KubeEvent, Source, SourceChange};
use podwright_core::{Node, NodeConfig};
use podwright_cri::{BoxFuture, RemoteRuntime};
use podwright_linux::cgroup::CgroupTree;
use podwright_server::health_server;
use podwright_server::local::{LocalApi, LocalSocket};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::AgentConfig;
use crate::print::explain;
use crate::{cluster, logs, memory, notify};

/// What one source says.
type Changed = (Source, SourceChange);

/// Sources wait for the loop when it has this many of their changes before it.
const CHANGES_MAX: usize = 16;
/// Kubernetes: the pause between two tries to hold all pods to what the node has.
const HOLD_AGAIN: Duration = Duration::from_secs(60);
/// The loop turns at least this often, because of the safety list; a longer silence is a hang.
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// The one there is yet; the configuration refuses the other.
const DRIVER: CgroupDriver = CgroupDriver::Cgroupfs;

/// Run the agent until told to stop. Containers go on running.
pub(crate) async fn run(config: AgentConfig, stop: CancellationToken) -> anyhow::Result<()> {
    let (journal, records, warnings) = Journal::open(&config.dirs.root).context("open the journal")?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let socket = LocalSocket::open(&config.dirs.run)?;
    let listener = match config.listen {
        Some(address) => Some(health_server::bind(address).await.with_context(|| format!("listen on {address}"))?),
        None => None,
    };
    let runtime = Arc::new(RemoteRuntime::connect(&config.runtime.endpoint)?);
    let images = Arc::new(RemoteRuntime::connect(&config.runtime.image_endpoint)?);
    let limit = config.node.runtime_request_timeout;
    check_cgroup_driver(&*runtime, DRIVER, Duration::from_secs(5)).await?;

    let cgroups = match config.cgroups.per_qos {
        true => Some(CgroupTree::detect().context("find the cgroup hierarchies")?),
        false => None,
    };
    let pool = Pool::new(PoolLimits::default());
    let cluster = config.cluster.as_ref().map(|cluster| Cluster::open(&cluster.kubeconfig)).transpose()?;
    let (objects, mut object_news) = cluster::objects(cluster.as_ref());
    let host = Host::new(host_config(&config), cgroups.clone(), pool.clone()).with_objects(objects.clone());
    enforce_node_allocatable(&host, limit).await;
    let facts = Arc::new(node_facts(&config, cgroups.as_ref()));
    let features = SharedFeatures::default();
    let (observer, mut hints) = Observer::new(runtime.clone(), features.clone(), pool.clone(), limit);
    let observer = Arc::new(observer);
    let perform = CallExecutor::new(CallExecutorConfig {
        runtime: runtime.clone(),
        images: images.clone(),
        facts,
        host: Arc::new(host.clone()),
        features,
        pool: pool.clone(),
        pulls: pulls(&config),
        sandbox_parallel: config.node.sandbox_parallel,
        max_pods: config.node.max_pods,
    });
    let (views, (changes, taken)) = (Arc::<event_loop::AgentState>::default(), mpsc::channel(CHANGES_MAX));
    let told = Arc::clone(&views);
    let tell = Arc::new(move |event: KubeEvent| told.record_event(&event, SystemClock.now()));
    let perform = perform.with_objects(objects).with_event_sink(tell);
    let feed = Arc::clone(views.feed());
    let store = Store::open(&config.dirs.root, &config.node.node_name, &records, feed.clone(), changes.clone())?;
    let submitted: Arc<dyn PodObjectStore> = Arc::new(LocalObjectStore(store.clone()));
    let stores = cluster.iter().map(|cluster| (Source::Api, cluster::object_store(cluster)));
    let stores = stores.chain([(Source::Local, submitted)]).collect();
    let executor = Arc::new(NodeExecutor::new(Arc::new(perform), observer.clone(), host, stores));
    let known = records.len();
    let supplemental_groups_policy = supports_supplemental_groups_policy(&*runtime, Duration::from_secs(5)).await;
    let node = Node::new(NodeConfig { supplemental_groups_policy, ..config.node.clone() }, records);
    let (event_loop, handle) = EventLoop::with_state(views, node, Some(journal), executor, Arc::new(SystemClock));
    let event_loop = recorded(event_loop, config.record.clone())?;
    tracing::info!(node = config.node.node_name, root = %config.dirs.root.display(), known, "started");

    let follow = { (observer.clone(), stop.clone()) };
    tokio::spawn(async move { follow.0.follow_events(follow.1).await });
    let hinted = handle.clone();
    tokio::spawn(async move {
        while let Some(hint) = hints.recv().await {
            hinted.send(hint).await;
        }
    });
    let changed = handle.clone();
    tokio::spawn(async move {
        while let Some(news) = object_news.recv().await {
            changed.send(news).await;
        }
    });
    start_sources(&config, &handle, &changes, taken);
    let first = store.clone();
    tokio::spawn(async move { first.begin().await });
    if let Some(cluster) = cluster {
        let (images, handle) = (images.clone(), handle.clone());
        cluster::start(cluster, &config, cluster::Parts { images, handle, changes });
    }
    let empty_dirs = EmptyDirs::new(feed.clone(), paths(&config), pool.clone());
    tokio::spawn(empty_dirs.watch(handle.clone()));
    let gc = ImageGc::new(runtime.clone(), images.clone(), images_gc::measure(pool), image_policy(&config), limit);
    tokio::spawn(collect_images(gc, config.node.node_name.clone(), handle.clone()));
    tokio::spawn(memory::trim_heap_periodically());
    tokio::spawn(logs::rotate(config.logs, runtime.clone(), limit));
    let shown = Arc::new(Shown { handle: handle.clone(), unseen_max: SILENCE_MAX.max(config.node.sync_frequency * 3) });
    if let Some(listener) = listener {
        tokio::spawn(health_server::serve(listener, shown.clone(), stop.clone()));
    }
    tracing::debug!(socket = %socket.path().display(), "the local API listens");
    let local = LocalApi {
        node: config.node.node_name.clone(),
        paths: paths(&config),
        feed,
        store,
        runtime,
        agent: Arc::new(handle.clone()),
        format_explanation: explain::render,
    };
    let api = tokio::spawn(socket.serve(local, stop.clone()));
    let notified = tokio::spawn(notify::tell(handle, stop.clone()));
    event_loop.run(stop).await;
    // The socket goes with its task; a call under way may hold that up for a moment.
    let _ = tokio::time::timeout(Duration::from_secs(1), async { (api.await, notified.await) }).await;
    tracing::info!("ended; containers go on running");
    Ok(())
}

/// Pods that already use more than they may together are a reason to try again, not to let them alone; as the Go kubelet does,
/// each minute.
async fn enforce_node_allocatable(host: &Host, limit: Duration) {
    let Err(error) = host.cgroups().enforce_node_allocatable(limit).await else { return };
    tracing::warn!(error = error.message(), "setting the node allocatable limits failed, retrying");
    let host = host.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(HOLD_AGAIN).await;
            match host.cgroups().enforce_node_allocatable(limit).await {
                Ok(()) => return tracing::info!("node allocatable limits set"),
                Err(error) => tracing::debug!(error = error.message(), "setting the node allocatable limits failed"),
            }
        }
    });
}

fn recorded(event_loop: EventLoop, record: Option<recorder::Config>) -> anyhow::Result<EventLoop> {
    let Some(record) = record else { return Ok(event_loop) };
    let path = record.path.display().to_string();
    let recorder = Recorder::start(record).with_context(|| format!("record to {path}"))?;
    tracing::info!(path, core = podwright_core::record::CORE, "everything core is told is recorded");
    Ok(event_loop.recorded_by(recorder))
}

/// Start the sources of static pods, and take the changes of all sources to the loop.
fn start_sources(config: &AgentConfig, handle: &Handle, changes: &Changes, mut taken: mpsc::Receiver<Changed>) {
    if let Some(file) = config.sources.file.clone() {
        tokio::spawn(sources::file::run(file, decode(config, Source::File), changes.clone()));
    }
    if let Some(url) = config.sources.url.clone() {
        tokio::spawn(sources::url::run(url, decode(config, Source::Url), changes.clone()));
    }
    let handle = handle.clone();
    tokio::spawn(async move {
        while let Some((source, change)) = taken.recv().await {
            handle.send(Event::Source { source, change }).await;
        }
    });
}

async fn collect_images(gc: ImageGc, node: String, handle: Handle) {
    let tell = |event: KubeEvent| {
        tracing::warn!(reason = event.reason, "{}", event.message);
        handle.state().record_event(&event, SystemClock.now());
    };
    images_gc::run(gc, node, podwright_linux::clock::boot_time, tell).await;
}

fn image_policy(config: &AgentConfig) -> ImagePolicy {
    let images = &config.images;
    let (high_percent, low_percent) = (images.gc_high, images.gc_low);
    ImagePolicy { high_percent, low_percent, min_age: images.gc_min_age, max_age: images.gc_max_age }
}

fn decode(config: &AgentConfig, source: Source) -> Decode {
    sources::static_pods(source, &config.node.node_name, config.strictness)
}

fn node_facts(config: &AgentConfig, cgroups: Option<&CgroupTree>) -> NodeSettings {
    NodeSettings {
        node_name: config.node.node_name.clone(),
        host_ips: config.node.host_ips.clone(),
        paths: paths(config),
        cluster_dns: config.dns.servers.clone(),
        cluster_domain: config.dns.domain.clone(),
        resolv_conf: config.dns.resolv_conf.clone(),
        cgroup_driver: DRIVER,
        cgroup_v2: cgroups.is_some_and(|tree| tree.version() == podwright_linux::cgroup::Version::V2),
        swap_limits: cgroups.is_some_and(CgroupTree::limits_swap),
        cpu_cfs_quota: config.cgroups.cpu_quota,
        cpu_cfs_period_us: i64::try_from(config.cgroups.cpu_period.as_micros()).unwrap_or(100_000),
        single_process_oom_kill: config.cgroups.single_process_oom_kill,
        memory_capacity: config.capacity.memory,
        seccomp_default: config.seccomp_default,
        hugepage_sizes: config.machine.huge_page_sizes.clone(),
        selinux: config.machine.selinux,
        thermal_paths: config.machine.thermal_paths.clone(),
    }
}

fn host_config(config: &AgentConfig) -> HostConfig {
    let registers = config.cluster.as_ref().is_some_and(|cluster| cluster.register);
    HostConfig {
        paths: paths(config),
        node_name: config.node.node_name.clone(),
        hostname_label: config.node.labels.get("kubernetes.io/hostname").filter(|_| registers).cloned(),
        host_ips: config.node.host_ips.clone(),
        cluster_domain: config.dns.domain.clone(),
        allocatable: Allocatable {
            cpu_millis: config.node.allocatable_cpu_millis,
            memory: config.node.allocatable_memory,
            ephemeral_storage: config.node.allocatable_ephemeral,
        },
        node_allocatable: config.cgroups.node_allocatable,
        pod_pids_limit: config.cgroups.pids_limit,
        cpu_cfs_quota: config.cgroups.cpu_quota,
        cpu_cfs_period: config.cgroups.cpu_period,
        huge_page_sizes: config.machine.huge_page_sizes.clone(),
        hosts_file: "/etc/hosts".into(),
    }
}

fn paths(config: &AgentConfig) -> HostPaths {
    HostPaths {
        root_dir: config.dirs.root.clone(),
        pod_logs_dir: config.dirs.pod_logs.clone(),
        container_logs_dir: config.dirs.container_logs.clone(),
        cgroup_root: config.cgroups.root.clone(),
    }
}

fn pulls(config: &AgentConfig) -> PullConfig {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let usual = PullConfig::with_defaults(config.dirs.root.clone(), home);
    PullConfig { parallel: config.images.parallel, rate: config.images.rate, ..usual }
}

/// What `--listen` shows.
struct Shown {
    handle: Handle,
    /// Longer than two lists are apart.
    unseen_max: Duration,
}

impl health_server::AgentStatus for Shown {
    fn pods(&self) -> BoxFuture<'_, Bytes> {
        Box::pin(async {
            let (version, pods) = self.handle.state().feed().list();
            let metadata = serde_json::json!({"resourceVersion": version.to_string()});
            let list = serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": pods});
            Bytes::from(list.to_string())
        })
    }

    fn metrics(&self) -> BoxFuture<'_, Bytes> {
        Box::pin(async {
            let views = self.handle.state();
            Bytes::from(views.metrics().text(&views.feed().list().1))
        })
    }

    fn health(&self) -> BoxFuture<'_, health_server::Health> {
        Box::pin(async {
            let now = podwright_linux::clock::boot_time();
            let silent = self.handle.state().last_heartbeat().map(|beat| now.saturating_sub(beat.boot));
            let dead = silent
                .filter(|silent| *silent > SILENCE_MAX)
                .map(|s| format!("the loop is silent for {} s", s.as_secs()));
            let mut lacks: Vec<String> = self.handle.state().journal_error().into_iter().collect();
            if !self.handle.pods().await.is_some_and(|shown| shown.runtime_up) {
                lacks.push("the container runtime does not answer".into());
            }
            let unseen = self.handle.state().last_observation().map(|sight| now.saturating_sub(sight.boot));
            if let Some(unseen) = unseen.filter(|unseen| *unseen > self.unseen_max) {
                lacks.push(format!("the container runtime does not show what it has for {} s", unseen.as_secs()));
            }
            health_server::Health { not_live: dead, not_ready: lacks }
        })
    }
}
