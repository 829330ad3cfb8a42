//! Opens an engine: takes its lock, reads its records, connects to the shims of pods that run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use podwright_image::{ImageLimits, ImageStore, ImageStoreError, Platform};
use podwright_linux::cgroup::{CgroupError, CgroupPath, CgroupResources, CgroupTree, CgroupVersion};
use podwright_net::{BridgeNetwork, BridgeSettings, CniNetwork, CniSettings, NetnsPins, Network, NetworkError};
use podwright_shim::zygote::ZygoteOptions;
use podwright_tasks::{Pool, Tasks, ThreadEnd};
use tokio::sync::mpsc;

use super::overlay_probe::{self, OverlayProbeError};
use super::runtime::EngineRuntime;
use super::streams::EngineStreams;
use super::{Engine, lost_files, requirements};
use crate::context::{EngineContext, now};
use crate::driver::Driver;
use crate::events::EventHub;
use crate::exec_output::ExecOutputBudget;
use crate::machine::SandboxId;
use crate::objects::{ContainerEntry, SandboxEntry};
use crate::settings::{EngineSettings, NetworkSettings};
use crate::shims::{FromShim, Shims};
use crate::spec::SpecHost;
use crate::stats::EngineStats;
use crate::store::{EngineStore, EngineStoreError, StoredRecords};
use crate::streaming::StreamingServer;
use crate::sweep;
use crate::unreadable::UnreadableObjects;
use crate::unwritten::UnwrittenRecords;

/// Why the engine can not be opened.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// This process may not do what containers need.
    #[error("this process lacks the capabilities {}", .0.join(", "))]
    Privileges(Vec<&'static str>),
    /// The kernel lacks what containers need.
    #[error("this kernel lacks {}", .0.join(", "))]
    Kernel(Vec<&'static str>),
    /// Containers could not leave the root of the host.
    #[error("the root file system of this host is the initramfs, which pivot_root cannot leave")]
    Initramfs,
    /// The root of a container can not be made here.
    #[error(transparent)]
    Overlay(#[from] OverlayProbeError),
    /// A fact about the host can not be read.
    #[error("read {0}")]
    Host(&'static str, #[source] std::io::Error),
    /// The directories can not be used.
    #[error(transparent)]
    Store(#[from] EngineStoreError),
    /// This engine would end containers that it can not find.
    #[error(
        "{} lacks the files of running containers: {running}. They were deleted, and without them these containers can not be managed; they \
         are left as they are. Drain and reboot the host, or end their processes and start again",
        pods.display()
    )]
    RunFilesLost {
        /// The directory of the files.
        pods: PathBuf,
        /// Some of the containers, with their processes.
        running: String,
    },
    /// The images can not be used.
    #[error(transparent)]
    Images(#[from] ImageStoreError),
    /// The cgroups can not be used.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The settings of the network are wrong.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The thread that opened the engine has ended.
    #[error("open the engine: {0}")]
    Thread(String),
}

impl Engine {
    /// Opens the engine and takes up what an earlier agent left. The calling process becomes the reaper of containers whose shim is
    /// lost, and must ask [`podwright_shim::is_zygote`] at its start.
    pub async fn open(settings: EngineSettings, tasks: &Tasks) -> Result<Arc<Self>, EngineError> {
        let (reports, from_shims) = mpsc::channel(REPORTS_MAX);
        let pool = Pool::default();
        let shared = pool.clone();
        let opened = pool.run_to_end("engine", move || open_blocking(settings, shared, reports)).await;
        let (context, records, collector) = opened.map_err(|error| EngineError::Thread(error.to_string()))??;
        if let Some(end) = collector {
            // It ends with the network, which may be before the stop.
            tasks.job("net-collector", end.wait());
        }
        let context = Arc::new(context);
        let (mut driver, handle) = Driver::new(Arc::clone(&context), from_shims);
        let StoredRecords { sandboxes, containers, .. } = records;
        driver.restore(
            sandboxes.into_iter().map(|(id, record)| (id, SandboxEntry::new(record))).collect(),
            containers.into_iter().map(|(id, record)| (id, ContainerEntry::new(record))).collect(),
        );
        tasks.service("engine-driver", driver.run());
        // The network is there before the first pod is run.
        sweep::reconcile_network(&context).await;
        adopted(&context).await;
        tasks.service("engine-sweep", sweep::run(Arc::clone(&context)));
        let measured = Arc::clone(&context);
        let containers = move || {
            let objects = measured.objects();
            objects.containers.keys().filter_map(|id| measured.measured(&objects, id)).collect()
        };
        tasks.service("engine-stats", Arc::clone(&context.stats).collect(containers));
        let driver = Arc::new(handle);
        let streams = EngineStreams { context: Arc::clone(&context), driver: Arc::clone(&driver) };
        let streaming = StreamingServer::start(Arc::new(streams), tasks).await;
        let streaming = streaming.map_err(|e| EngineError::Host("the address of the streaming server", e))?;
        let runtime = Arc::new(EngineRuntime { context: Arc::clone(&context), driver, streaming });
        Ok(Arc::new(Self { context, runtime }))
    }
}

/// Waits for the pods of an earlier agent: who asks for their containers gets their states. A shim that hangs holds up no one for long.
async fn adopted(context: &EngineContext) {
    let is_adopting = || {
        let objects = context.objects();
        let mut machines = objects.sandboxes.keys().filter_map(|id| objects.machines.sandbox(id));
        machines.any(|sandbox| sandbox.is_adopting())
    };
    let until = tokio::time::Instant::now() + ADOPT_WAIT;
    while is_adopting() {
        if tokio::time::Instant::now() >= until {
            tracing::warn!("shims of pods are still not connected");
            return;
        }
        tokio::time::sleep(ADOPT_PAUSE).await;
    }
}

fn open_blocking(
    settings: EngineSettings,
    pool: Pool,
    reports: mpsc::Sender<FromShim>,
) -> Result<(EngineContext, StoredRecords, Option<ThreadEnd>), EngineError> {
    let features = requirements::check()?;
    let boot_id = podwright_linux::clock::boot_id().map_err(|e| EngineError::Host("the boot id", e))?;
    let store = EngineStore::open(&settings.root_dir)?;
    overlay_probe::probe(&settings.root_dir.join("engine"))?;
    let opened_at = std::time::SystemTime::now();
    let run_dir = store.open_run_dir(&settings.run_dir, boot_id.trim())?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|e| EngineError::Host("children of lost shims", e.into()))?;
    let engine_dir = settings.root_dir.join("engine");
    let images = ImageStore::open(&engine_dir.join("images"), ImageLimits::default(), Platform::host())?;
    let cgroups = CgroupTree::detect()?;
    let pins = Arc::new(NetnsPins::new(settings.run_dir.join("netns")));
    let (network, collector) = network(&settings, &engine_dir.join("network"), &pins)?;
    let shims = Shims::new(settings.run_dir.join("pods"), zygote_options(&cgroups, &settings)?);
    let pods = settings.run_dir.join("pods");
    let (records, unreadable) = read_records(&store, run_dir.rebooted, &pods)?;
    if !run_dir.rebooted {
        lost_files::check(&records, &pods, &cgroups)?;
    }
    let host = host_facts(&cgroups)?;
    let objects = std::sync::Mutex::default();
    let events = EventHub::default();
    let stats = EngineStats::new(cgroups.clone(), pool.clone(), engine_dir);
    let context = EngineContext {
        settings,
        store,
        run_dir,
        images,
        shims,
        pins,
        network,
        cgroups,
        host,
        boot_id,
        opened_at,
        pool,
        events,
        stats,
        reports,
        objects,
        unreadable,
        unwritten: UnwrittenRecords::default(),
        exec_output: ExecOutputBudget::default(),
        features,
    };
    Ok((context, records, collector))
}

/// After a reboot nothing runs: what may have run has ended without a known status.
fn read_records(
    store: &EngineStore,
    rebooted: bool,
    pods: &Path,
) -> Result<(StoredRecords, UnreadableObjects), EngineStoreError> {
    let mut records = store.read_all()?;
    if rebooted {
        let wall_ns = now().wall_ns;
        for (_, record) in &mut records.sandboxes {
            record.state = record.state.after_reboot();
        }
        for (_, record) in &mut records.containers {
            record.state = record.state.clone().after_reboot(wall_ns);
        }
    }
    // A container without its sandbox can not be shown; its directory is swept, unless the record of the sandbox may come back.
    let known: BTreeSet<SandboxId> = records.sandboxes.iter().map(|(id, _)| id.clone()).collect();
    let (shown, others) = std::mem::take(&mut records.containers)
        .into_iter()
        .partition(|(_, record)| known.contains(&SandboxId(record.sandbox_id.clone())));
    records.containers = shown;
    let unreadable = UnreadableObjects::new(std::mem::take(&mut records.unreadable), others, pods);
    Ok((records, unreadable))
}

/// The network, and the end of its thread if it has one.
fn network(
    settings: &EngineSettings,
    dir: &Path,
    pins: &Arc<NetnsPins>,
) -> Result<(Arc<dyn Network>, Option<ThreadEnd>), EngineError> {
    Ok(match settings.network.clone() {
        NetworkSettings::Bridge { bridge, table, ranges, replaceable } => {
            let ranges_file = replaceable.then(|| dir.join("pod-cidr"));
            let settings = BridgeSettings { bridge, table, ranges, ranges_file, mtu: None, leases: dir.join("leases") };
            let mut network = BridgeNetwork::new(settings, Arc::clone(pins))?;
            let collector = network.take_collector_end();
            (Arc::new(network), collector)
        }
        NetworkSettings::Cni { conf_dir, bin_dirs } => {
            let (cache_dir, ip_ranges) = (dir.join("cni"), vec![]);
            let settings = CniSettings { conf_dir, bin_dirs, cache_dir, ip_ranges, timeout: CNI_LIMIT };
            (Arc::new(CniNetwork::new(settings, Arc::clone(pins))), None)
        }
    })
}

fn zygote_options(cgroups: &CgroupTree, settings: &EngineSettings) -> Result<ZygoteOptions, EngineError> {
    let path = CgroupPath::parse(&settings.shim_cgroup)?;
    cgroups.create(&path, &CgroupResources::default())?;
    requirements::check_cgroup(cgroups, &path)?;
    let dirs = cgroups.directories(&path).into_iter();
    let cgroup_procs: Vec<PathBuf> = dirs.map(|(_, dir)| dir.join("cgroup.procs")).collect();
    Ok(ZygoteOptions { cgroup_procs, open_files: settings.open_files })
}

fn host_facts(cgroups: &CgroupTree) -> Result<SpecHost, EngineError> {
    let read = |path: &'static str| std::fs::read_to_string(path).map_err(|e| EngineError::Host(path, e));
    let last_capability = read("/proc/sys/kernel/cap_last_cap")?;
    Ok(SpecHost {
        hostname: read("/proc/sys/kernel/hostname")?.trim().to_owned(),
        cgroup_v2: cgroups.version() == CgroupVersion::V2,
        swap_limit: cgroups.limits_swap(),
        hugetlb: cgroups.directory_of("hugetlb", &CgroupPath::root()).is_some(),
        last_capability: last_capability.trim().parse().unwrap_or(CAPABILITY_MIN),
    })
}

const ADOPT_WAIT: std::time::Duration = std::time::Duration::from_secs(10);
const ADOPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);
/// Reports of shims that wait for the driver.
const REPORTS_MAX: usize = 1024;
/// All plugins of one operation.
const CNI_LIMIT: std::time::Duration = std::time::Duration::from_secs(120);
/// `CAP_AUDIT_READ`: every kernel that runs containers has it.
const CAPABILITY_MIN: u8 = 37;
