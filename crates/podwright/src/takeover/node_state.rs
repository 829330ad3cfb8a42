//! Collects the facts for the check of a takeover: pods of the API server and of manifests, what the runtime has of them, their cgroups
//! and directories, the state files of the Go kubelet.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use http::Method;
use podwright_agent::event_loop::Clock;
use podwright_agent::host::{HostPaths, Pool, PoolLimits};
use podwright_agent::node_executor::SystemClock;
use podwright_agent::observe::{Observer, runtime_cgroup_driver};
use podwright_agent::perform::SharedFeatures;
use podwright_agent::sources::{MANIFEST_MAX, file, read_manifests, static_pods};
use podwright_api::ApiClient;
use podwright_api::client::request;
use podwright_core::model::{CallError, FullName, Listing, Pod, PodSeen, PodUid, Source, full_name, is_terminal};
use podwright_core::qos;
use podwright_core::static_pod::CONFIG_MIRROR;
use podwright_core::takeover::{
    Consequence, FoundPod, STATE_FILES, TakeoverFinding, check_names, check_orphans, check_pod, check_state_file,
    find_static,
};
use podwright_cri::{RemoteRuntime, RuntimeService};
use podwright_linux::cgroup::{CgroupPath, CgroupTree};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::config::AgentConfig;
use crate::decode::decode;

/// For one request to the runtime or the API server.
const LIMIT: Duration = Duration::from_secs(30);
/// The minor version of the Go kubelet that takeovers were tried with.
const TRIED_MINOR: u32 = 36;

/// The Go kubelet's default root directory.
const KUBELET_DIR: &str = "/var/lib/kubelet";

/// The result of the check.
pub(super) struct CheckedNode {
    pub(super) findings: Vec<TakeoverFinding>,
    /// Pods of which something runs.
    pub(super) running: usize,
    /// Name and version of the runtime.
    pub(super) runtime: String,
}

/// Checks the node with this configuration.
pub(super) async fn check(config: &AgentConfig) -> anyhow::Result<CheckedNode> {
    if config.runtime.is_embedded() {
        bail!("the pods of another agent are in its runtime: set --container-runtime-endpoint");
    }
    let endpoint = &config.runtime.endpoint;
    let runtime: Arc<dyn RuntimeService> = Arc::new(RemoteRuntime::connect(endpoint)?);
    let version = runtime.version(LIMIT).await.with_context(|| format!("connect to {endpoint}"))?;
    let observed = ObservedRuntime::open(config, Arc::clone(&runtime));
    let listing = observed.list().await?;
    let mut findings: Vec<TakeoverFinding> = Vec::new();
    let note = |text: &String| TakeoverFinding::of_node(Consequence::Note, text.as_str());
    findings.extend(config.warnings.iter().map(note));
    let mut wanted = match &config.cluster {
        Some(cluster) => api_pods(&ApiClient::open(&cluster.kubeconfig)?, config, &mut findings).await?,
        None => Vec::new(),
    };
    let names: BTreeSet<FullName> = static_pods_of(config, &listing, &mut wanted, &mut findings)?;
    let uids: BTreeSet<PodUid> = wanted.iter().map(|(pod, _)| uid_of(pod)).collect();
    findings.extend(check_orphans(&listing, &uids, &names));
    let by_uid: BTreeMap<PodUid, &Pod> = wanted.iter().map(|(pod, _)| (uid_of(pod), &**pod)).collect();
    findings.extend(state_files(&config.dirs.root, &by_uid)?);
    let cgroups = Cgroups::open(config, &*runtime).await?;
    for (pod, source) in wanted.iter().filter(|(pod, _)| listing.pods.contains_key(&uid_of(pod))) {
        let seen = observed.observe(&uid_of(pod)).await?;
        let has_dir = config.dirs.root.join("pods").join(uid_of(pod).as_str()).is_dir();
        let found = FoundPod { has_cgroup: cgroups.has(pod), has_dir, seen, pod: Arc::clone(pod), source: *source };
        findings.extend(check_pod(&found, SystemClock.now()));
    }
    let running = listing.pods.values().filter(|pod| pod.is_active()).count();
    let runtime = format!("{} {}", version.runtime_name, version.runtime_version);
    Ok(CheckedNode { findings, running, runtime })
}

fn uid_of(pod: &Pod) -> PodUid {
    PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default())
}

/// The runtime as the agent would see it.
struct ObservedRuntime {
    observer: Observer,
    /// Hints are not used.
    _hints: mpsc::Receiver<podwright_core::model::Event>,
}

impl ObservedRuntime {
    fn open(config: &AgentConfig, runtime: Arc<dyn RuntimeService>) -> Self {
        let paths = HostPaths {
            root_dir: config.dirs.root.clone(),
            pod_logs_dir: config.dirs.pod_logs.clone(),
            container_logs_dir: config.dirs.container_logs.clone(),
            cgroup_root: config.cgroups.root.clone(),
        };
        let (sender, hints) = mpsc::channel(1);
        let pool = Pool::new(PoolLimits::default());
        let observer = Observer::new(runtime, SharedFeatures::default(), pool, paths, LIMIT, sender);
        Self { observer, _hints: hints }
    }

    async fn list(&self) -> anyhow::Result<Listing> {
        self.observer.list().await.map_err(|error| failed(&error)).context("list the pods of the runtime")
    }

    async fn observe(&self, uid: &PodUid) -> anyhow::Result<PodSeen> {
        let seen = self.observer.observe(uid).await.map_err(|error| failed(&error));
        seen.map(|(seen, _)| seen).with_context(|| format!("inspect pod {uid}"))
    }
}

fn failed(error: &CallError) -> anyhow::Error {
    anyhow::anyhow!("{}", error.message())
}

/// The pods that the API server has bound to this node; a note about the kubelet's version if it is not one that was tried.
async fn api_pods(
    client: &ApiClient,
    config: &AgentConfig,
    findings: &mut Vec<TakeoverFinding>,
) -> anyhow::Result<Vec<(Arc<Pod>, Source)>> {
    let get = async |path: &str| -> anyhow::Result<Value> {
        let body = client.call(request(Method::GET, path, None), LIMIT).await;
        Ok(serde_json::from_slice(&body.with_context(|| format!("get {path} of {}", client.server()))?)?)
    };
    let name = &config.node.node_name;
    let node = get(&format!("/api/v1/nodes/{name}")).await?;
    let kubelet = node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap_or_default();
    let minor = kubelet.strip_prefix("v1.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    if minor != Some(TRIED_MINOR) {
        let message = format!("kubelet {kubelet:?}: takeovers were tried with 1.{TRIED_MINOR} only");
        findings.push(TakeoverFinding::of_node(Consequence::Note, message));
    }
    let mut list = get(&format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{name}")).await?;
    let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let mut pods = Vec::new();
    for item in items {
        let pod: Pod = decode(&item).context("read the pods of the API server")?;
        if pod.metadata.annotations.iter().flatten().any(|(key, _)| key == CONFIG_MIRROR) {
            continue;
        }
        // The volumes of a pod that has ended are not mounted again.
        if !is_terminal(pod.status.as_ref().and_then(|status| status.phase.as_deref())) {
            findings.extend(claims(&pod, &get).await);
        }
        pods.push((Arc::new(pod), Source::Api));
    }
    Ok(pods)
}

/// Claims whose volumes this agent can not mount, and those that cannot be read.
async fn claims(pod: &Pod, get: &impl AsyncFn(&str) -> anyhow::Result<Value>) -> Vec<TakeoverFinding> {
    let mut findings = Vec::new();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    for volume in volumes {
        let own = volume.ephemeral.as_ref().map(|_| format!("{}-{}", full_name(pod).name, volume.name));
        let Some(claim) = volume.persistent_volume_claim.as_ref().map(|c| c.claim_name.clone()).or(own) else {
            continue;
        };
        let bound = match bound_volume(namespace, &claim, get).await {
            Ok(Some(bound)) => bound,
            // The Go kubelet has not mounted it either.
            Ok(None) => continue,
            Err(error) => {
                let message = format!("volume {} (claim {claim}) cannot be checked: {error:#}", volume.name);
                findings.push(TakeoverFinding::of_pod(Consequence::Note, pod, message));
                continue;
            }
        };
        if !bound["spec"]["hostPath"].is_object() && !bound["spec"]["local"].is_object() {
            let kind = if bound["spec"]["csi"].is_object() { "a CSI driver" } else { "a volume plugin" };
            let message =
                format!("volume {} (claim {claim}) is mounted by {kind}, which this agent does not have", volume.name);
            findings.push(TakeoverFinding::of_pod(Consequence::Loss, pod, message));
        }
    }
    findings
}

/// The volume of a claim; `None`: it is not bound.
async fn bound_volume(
    namespace: &str,
    claim: &str,
    get: &impl AsyncFn(&str) -> anyhow::Result<Value>,
) -> anyhow::Result<Option<Value>> {
    let object = get(&format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")).await?;
    match object["spec"]["volumeName"].as_str().filter(|name| !name.is_empty()) {
        Some(name) => Ok(Some(get(&format!("/api/v1/persistentvolumes/{name}")).await?)),
        None => Ok(None),
    }
}

/// Adds the static pods with the UIDs under which they run. Returns the names of those whose manifest differs.
fn static_pods_of(
    config: &AgentConfig,
    listing: &Listing,
    wanted: &mut Vec<(Arc<Pod>, Source)>,
    findings: &mut Vec<TakeoverFinding>,
) -> anyhow::Result<BTreeSet<FullName>> {
    let Some(source) = &config.sources.file else { return Ok(BTreeSet::new()) };
    let decode = static_pods(Source::File, &config.node.node_name, config.strictness);
    let mut differ = BTreeSet::new();
    for path in manifests(&source.path, source.all_names)? {
        let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let manifests = match bytes.len() as u64 > MANIFEST_MAX {
            true => bail!("{} is larger than {MANIFEST_MAX} bytes", path.display()),
            false => read_manifests(&bytes, &path.display().to_string(), &decode),
        };
        for error in manifests.errors {
            let message = format!("{}: this agent refuses the manifest: {}", path.display(), error.message);
            findings.push(TakeoverFinding::of_node(Consequence::Loss, message));
        }
        for manifest in manifests.pods {
            let mut pod = manifest.pod;
            match find_static(&pod, Source::File, listing) {
                Ok(Some(uid)) => {
                    Arc::make_mut(&mut pod).metadata.uid = Some(uid.to_string());
                    wanted.push((pod, Source::File));
                }
                Ok(None) => {}
                Err(finding) => {
                    differ.extend(finding.pod.clone());
                    findings.push(finding);
                }
            }
        }
    }
    Ok(differ)
}

fn manifests(path: &Path, all_names: bool) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(if path.exists() { vec![path.to_owned()] } else { Vec::new() });
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).with_context(|| format!("read {}", path.display()))? {
        let entry = entry?;
        if file::is_manifest(&entry.file_name(), all_names) && entry.path().is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn state_files(root: &Path, pods: &BTreeMap<PodUid, &Pod>) -> anyhow::Result<Vec<TakeoverFinding>> {
    let mut findings = Vec::new();
    for name in STATE_FILES {
        // Device plugins are in one place, whatever the root directory is.
        let path = if name.contains('/') { Path::new(KUBELET_DIR).join(name) } else { root.join(name) };
        match std::fs::read_to_string(&path) {
            Ok(content) => findings.extend(check_state_file(name, &content, pods)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        }
    }
    let entries = std::fs::read_dir(root).with_context(|| format!("read {}", root.display()))?;
    let names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    findings.extend(check_names(names.iter().map(String::as_str)));
    Ok(findings)
}

/// Where this configuration puts the cgroups of pods.
struct Cgroups {
    /// `None`: pods have no cgroups (`cgroupsPerQOS: false`).
    tree: Option<CgroupTree>,
    root: String,
    driver: qos::CgroupDriver,
}

impl Cgroups {
    async fn open(config: &AgentConfig, runtime: &dyn RuntimeService) -> anyhow::Result<Self> {
        let reported = runtime_cgroup_driver(runtime, LIMIT).await?;
        let tree =
            config.cgroups.per_qos.then(CgroupTree::detect).transpose().context("find the cgroup hierarchies")?;
        Ok(Self { tree, root: config.cgroups.root.clone(), driver: reported.unwrap_or(config.cgroups.driver) })
    }

    fn has(&self, pod: &Pod) -> bool {
        let Some(tree) = &self.tree else { return true };
        let directories = self.driver.directories(&qos::pod_cgroup_name(&self.root, pod));
        let path = directories.iter().try_fold(CgroupPath::root(), |path, name| path.join(name));
        path.is_ok_and(|path| tree.exists_in_one(&path))
    }
}
