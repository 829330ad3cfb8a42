//! The step that makes a container: image, specification, plan, writable layer, record.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oci_spec::runtime::LinuxSeccomp;
use podwright_cri::v1;
use podwright_image::{ContainerDefaults, ImageStoreError};
use podwright_shim::plan::{LaunchPlan, OverlayLayers, RootfsPlan};
use prost::Message;

use super::container::{PLAN_FILE, SPEC_FILE, cgroup};
use crate::context::EngineContext;
use crate::handlers::Handler;
use crate::images::{ResolvedImage, resolve_image};
use crate::machine::{ContainerId, Failure, SandboxId};
use crate::plan::{PlanError, PlanInputs, launch_plan};
use crate::shims::make_dir;
use crate::spec::{ContainerSpec, HostDevice, NamespacePaths, SandboxFiles, SpecError, SpecInputs, container_spec};
use crate::store::{ContainerRecord, EngineStoreError, SandboxRecord};
use crate::{pod_network, signals};

/// Why a container could not be made.
#[derive(Debug, thiserror::Error)]
enum CreateError {
    #[error("image {0:?} not found")]
    NoImage(String),
    #[error("image {0:?}")]
    Image(String, #[source] Box<ImageStoreError>),
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Store(#[from] EngineStoreError),
    #[error("{action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("seccomp profile {path:?}: {problem}")]
    Seccomp { path: String, problem: String },
    #[error("unknown stop signal {0:?}")]
    StopSignal(String),
    #[error("no runtime for {0:?} is configured")]
    NoHandler(String),
    #[error("image volumes are not supported with the runtime handler {0:?}")]
    ImageVolumes(String),
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Makes a container. After a failure nothing of it is left.
pub(super) async fn create(context: &Arc<EngineContext>, id: &ContainerId) -> Result<(), Failure> {
    let (sandbox, pod, record) = {
        let objects = context.objects();
        let entry = objects.containers.get(id).ok_or_else(|| Failure::new("the container is gone"))?;
        let sandbox = SandboxId(entry.record.sandbox_id.clone());
        let pod = objects.sandboxes.get(&sandbox).ok_or_else(|| Failure::new("the sandbox is gone"))?;
        (sandbox.clone(), pod.record.clone(), entry.record.clone())
    };
    let (of, key) = (id.clone(), sandbox.clone());
    let make = move |context: &EngineContext| {
        let made = make(context, &key, &pod, &of, record);
        if made.is_err() {
            // What can not be removed has no record, and is swept.
            let _ = context.store.remove_container(&of);
        }
        made
    };
    context.blocking(&sandbox, CREATE_LIMIT, make).await
}

fn make(
    context: &EngineContext,
    sandbox: &SandboxId,
    pod: &SandboxRecord,
    id: &ContainerId,
    record: ContainerRecord,
) -> Result<(), CreateError> {
    let config = &record.config;
    let name = config.image.as_ref().map_or("", |image| image.image.as_str());
    let image = resolve(context, name)?;
    let stop_signal = stop_signal(config, &image.defaults)?;
    let dir = context.store.container_dir(id)?;
    make_dir(&dir).map_err(file("make", &dir))?;
    let rootfs = make_rootfs(&dir, &image, &pod.config)?;
    let devices = host_devices(config);
    let seccomp = localhost_seccomp(config)?;
    let inputs = SpecInputs {
        container_id: &id.0,
        config,
        sandbox: &pod.config,
        image: &image.defaults,
        files: &sandbox_files(context, sandbox, &pod.config)?,
        namespaces: &namespace_paths(context, sandbox, &pod.config, config),
        host: &context.host,
        devices: &devices,
        localhost_seccomp: seccomp.as_ref(),
    };
    let volumes = image_volumes(context, config)?;
    let handler = handler(context, &pod.handler, !volumes.is_empty())?;
    let overlay = |image: &ResolvedImage| OverlayLayers { lower: lower(image), ..OverlayLayers::default() };
    let layers = volumes.iter().map(|(target, image)| (target.clone(), overlay(image))).collect();
    let ContainerSpec { spec, user } = container_spec(&inputs)?;
    let staging = context.staging_dir(sandbox, id).to_string_lossy().into_owned();
    let plan = launch_plan(
        &spec,
        &PlanInputs {
            container_id: &id.0,
            rootfs,
            staging_dir: &staging,
            cgroups: context.memberships(&cgroup(&pod.config, id)?),
            user: Some(&user),
            image_layers: &layers,
            devices: &devices,
        },
    )?;
    let plan = LaunchPlan { runtime: handler.plan(&dir.join(SPEC_FILE), &dir.join("bundle")), ..plan };
    let json = serde_json::to_vec(&spec).map_err(io::Error::other).map_err(file("encode", &dir))?;
    for (name, bytes) in [(SPEC_FILE, json), (PLAN_FILE, plan.encode_to_vec())] {
        let path = dir.join(name);
        fs::write(&path, bytes).map_err(file("write", &path))?;
    }
    let chain = std::iter::once(&image).chain(volumes.values()).flat_map(|image| &image.chain);
    let record = ContainerRecord {
        chain: chain.map(ToString::to_string).collect(),
        layers: lower(&image),
        image_name: image.tag.clone().unwrap_or_else(|| name.to_owned()),
        image_id: image.id.clone(),
        image_ref: image.image_ref.clone(),
        stop_signal,
        ..record.clone()
    };
    context.store.write_container(id, &record)?;
    // The leases of the images are held until the record in memory protects their layers.
    if let Some(entry) = context.objects().containers.get_mut(id) {
        entry.record = record;
    }
    Ok(())
}

fn resolve(context: &EngineContext, name: &str) -> Result<ResolvedImage, CreateError> {
    match resolve_image(&context.images, name) {
        Err(ImageStoreError::NoImage(name)) => Err(CreateError::NoImage(name)),
        other => other.map_err(|source| CreateError::Image(name.to_owned(), Box::new(source))),
    }
}

fn handler(context: &EngineContext, name: &str, has_image_volumes: bool) -> Result<Handler, CreateError> {
    match context.settings.handler(name) {
        None => Err(CreateError::NoHandler(name.to_owned())),
        Some(Handler::External { .. }) if has_image_volumes => Err(CreateError::ImageVolumes(name.to_owned())),
        Some(handler) => Ok(handler),
    }
}

fn lower(image: &ResolvedImage) -> Vec<String> {
    image.lower_dirs.iter().map(|dir| dir.to_string_lossy().into_owned()).collect()
}

/// The pod's, else the image's.
fn stop_signal(config: &v1::ContainerConfig, image: &ContainerDefaults) -> Result<i32, CreateError> {
    if let Some(number) = signals::of_api(config.stop_signal) {
        return Ok(number);
    }
    match image.stop_signal.as_str() {
        "" => Ok(signals::DEFAULT_STOP_SIGNAL),
        name => signals::parse(name).ok_or_else(|| CreateError::StopSignal(name.to_owned())),
    }
}

/// The directories of the overlay. In a user namespace its root owns what is written to.
fn make_rootfs(dir: &Path, image: &ResolvedImage, pod: &v1::PodSandboxConfig) -> Result<RootfsPlan, CreateError> {
    let (upper, work) = (dir.join("upper"), dir.join("work"));
    for path in [&upper, &work] {
        make_dir(path).map_err(file("make", path))?;
        // The mode of the container's root directory.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, mode).map_err(file("set the mode of", path))?;
        if let Some((uid, gid)) = mapped_root(pod) {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(file("chown", path))?;
        }
    }
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let layers = OverlayLayers { lower: lower(image), upper: text(upper), work: text(work), ..Default::default() };
    Ok(RootfsPlan { directory: String::new(), layers: Some(layers), readonly: false })
}

/// The host's ids of root in the user namespace of the pod; `None`: it has none.
fn mapped_root(pod: &v1::PodSandboxConfig) -> Option<(u32, u32)> {
    let options = pod.linux.as_ref()?.security_context.as_ref()?.namespace_options.as_ref()?;
    let user = options.userns_options.as_ref().filter(|user| user.mode == v1::NamespaceMode::Pod as i32)?;
    let root = |maps: &[v1::IdMapping]| maps.iter().find(|map| map.container_id == 0).map(|map| map.host_id);
    Some((root(&user.uids)?, root(&user.gids)?))
}

fn sandbox_files(
    context: &EngineContext,
    sandbox: &SandboxId,
    pod: &v1::PodSandboxConfig,
) -> Result<SandboxFiles, CreateError> {
    let dir = context.store.sandbox_dir(sandbox)?;
    let shm = if pod_network::has_own_ipc(pod) { context.shm_dir(sandbox) } else { PathBuf::from("/dev/shm") };
    Ok(SandboxFiles {
        hosts: Some(dir.join("hosts")),
        hostname: Some(dir.join("hostname")),
        resolv_conf: Some(dir.join("resolv.conf")),
        shm: Some(shm),
    })
}

/// Which namespaces the container shares. The shim has their descriptors; only the network's path exists on the host.
fn namespace_paths(
    context: &EngineContext,
    sandbox: &SandboxId,
    pod: &v1::PodSandboxConfig,
    config: &v1::ContainerConfig,
) -> NamespacePaths {
    let held = |name: &str| context.shims.pod_dir(sandbox).join("ns").join(name);
    let own_network = pod_network::has_own(pod);
    let options = config.linux.as_ref().and_then(|l| l.security_context.as_ref());
    let pid = options.and_then(|s| s.namespace_options.as_ref()).map_or(0, |options| options.pid);
    let shared_pid = pid == v1::NamespaceMode::Target as i32 || pod_network::has_shared_pid(pod);
    NamespacePaths {
        network: own_network.then(|| context.pins.path(&sandbox.0)),
        ipc: pod_network::has_own_ipc(pod).then(|| held("ipc")),
        uts: own_network.then(|| held("uts")),
        user: mapped_root(pod).map(|_| held("user")),
        pid: shared_pid.then(|| held("pid")),
    }
}

/// The images of image volumes, by their normal path in the container.
fn image_volumes(
    context: &EngineContext,
    config: &v1::ContainerConfig,
) -> Result<BTreeMap<String, ResolvedImage>, CreateError> {
    let mut volumes = BTreeMap::new();
    for mount in &config.mounts {
        let Some(image) = mount.image.as_ref().filter(|image| !image.image.is_empty()) else { continue };
        let parts = mount.container_path.split('/').filter(|part| !part.is_empty() && *part != ".");
        let target = parts.fold(String::new(), |path, part| format!("{path}/{part}"));
        volumes.insert(target, resolve(context, &image.image)?);
    }
    Ok(volumes)
}

/// The devices below the host paths of the request; for a privileged container all devices of the host.
fn host_devices(config: &v1::ContainerConfig) -> Vec<HostDevice> {
    let context = config.linux.as_ref().and_then(|l| l.security_context.as_ref());
    let mut found = vec![];
    if context.is_some_and(|context| context.privileged) {
        devices_below(Path::new("/dev"), DEVICE_DEPTH, &mut found);
        return found;
    }
    for device in &config.devices {
        devices_below(Path::new(device.host_path.trim_end_matches('/')), DEVICE_DEPTH, &mut found);
    }
    found
}

fn devices_below(path: &Path, depth: usize, found: &mut Vec<HostDevice>) {
    // What vanishes meanwhile is no device any more; symbolic links are not followed below a directory.
    let metadata = if depth == DEVICE_DEPTH { path.metadata() } else { path.symlink_metadata() };
    let Ok(metadata) = metadata else { return };
    let kind = metadata.file_type();
    if kind.is_dir() && depth > 0 {
        // As containerd (`getDevices`): terminals and queues are the container's own.
        let own = ["pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev"];
        let skipped = depth < DEVICE_DEPTH && path.file_name().is_some_and(|name| own.iter().any(|own| name == *own));
        let entries = fs::read_dir(path).into_iter().flatten().flatten().filter(|_| !skipped);
        entries.for_each(|entry| devices_below(&entry.path(), depth - 1, found));
        return;
    }
    let is_console = path == Path::new("/dev/console");
    if (kind.is_char_device() || kind.is_block_device()) && !is_console && found.len() < DEVICES_MAX {
        found.push(HostDevice {
            path: path.to_string_lossy().into_owned(),
            block: kind.is_block_device(),
            major: rustix::fs::major(metadata.rdev()),
            minor: rustix::fs::minor(metadata.rdev()),
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
        });
    }
}

/// The profile of a `Localhost` type; its path is the node's.
fn localhost_seccomp(config: &v1::ContainerConfig) -> Result<Option<LinuxSeccomp>, CreateError> {
    let context = config.linux.as_ref().and_then(|l| l.security_context.as_ref());
    let profile = context.and_then(|context| context.seccomp.as_ref());
    let localhost = v1::security_profile::ProfileType::Localhost as i32;
    let Some(profile) = profile.filter(|profile| profile.profile_type == localhost) else { return Ok(None) };
    let path = &profile.localhost_ref;
    let wrong = |problem: String| CreateError::Seccomp { path: path.clone(), problem };
    let size = fs::metadata(path).map_err(|e| wrong(e.to_string()))?.len();
    if size > SECCOMP_BYTES_MAX {
        return Err(wrong(format!("{size} bytes are too many")));
    }
    let bytes = fs::read(path).map_err(|e| wrong(e.to_string()))?;
    serde_json::from_slice(&bytes).map(Some).map_err(|e| wrong(e.to_string()))
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CreateError {
    let path = path.to_owned();
    move |source| CreateError::File { action, path, source }
}

/// Layers may have to be unpacked again after a power loss.
const CREATE_LIMIT: Duration = Duration::from_secs(600);
const DEVICE_DEPTH: usize = 8;
/// More than any host has.
const DEVICES_MAX: usize = 4096;
/// The largest profiles have some ten kilobytes.
const SECCOMP_BYTES_MAX: u64 = 1 << 20;
