//! From an OCI runtime specification to the flat plan of the launcher. What the launcher can not do is refused by name.

mod mounts;
mod seccomp;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use oci_spec::runtime::{
    Capabilities as OciCapabilities, Linux, LinuxDeviceType, LinuxIdMapping, LinuxNamespaceType,
    LinuxPersonalityDomain, PosixRlimitType, Process, Spec,
};
use podwright_cri::v1;
use podwright_shim::plan::{
    Capabilities, CgroupMembership, DeviceNode, GroupsPolicy, IdMapping, LaunchPlan, OverlayLayers, PidNamespace,
    ProcessPlan, Propagation, ResourceLimit, RootfsPlan, SetupPlan, Sysctl, UserPlan,
};

use crate::spec::security::CAPABILITIES;
use crate::spec::{HostDevice, RequestedUser};

/// For the fuzz targets: the program of a seccomp profile as it is in its file; `None`: it is refused.
#[cfg(feature = "fuzzing")]
pub fn seccomp_program(profile: &[u8]) -> Option<Vec<u8>> {
    seccomp::program(&serde_json::from_slice(profile).ok()?).ok().map(|(program, _)| program)
}

/// What a plan needs besides the specification.
#[derive(Clone, Debug)]
pub struct PlanInputs<'a> {
    /// For messages and the staging directory.
    pub container_id: &'a str,
    /// The root directory or its layers. Whether it is read-only is in the specification.
    pub rootfs: RootfsPlan,
    /// An existing directory of the run directory, mode 0700.
    pub staging_dir: &'a str,
    /// The cgroups of the container, one per hierarchy.
    pub cgroups: Vec<CgroupMembership>,
    /// The user by name; `None`: the numbers of the specification.
    pub user: Option<&'a RequestedUser>,
    /// The layers of image volumes, by their path in the container.
    pub image_layers: &'a BTreeMap<String, OverlayLayers>,
    /// Devices of the host, to find the host path of a node by its numbers.
    pub devices: &'a [HostDevice],
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Part of the specification that the launcher can not do.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// A part that every specification must have.
    #[error("the specification has no {0}")]
    Missing(&'static str),
    /// A value that makes no sense.
    #[error("{field} {value:?} is invalid")]
    Invalid {
        /// The field of the specification.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// The seccomp profile can not be compiled.
    #[error("seccomp profile: {0}")]
    Seccomp(String),
    /// The layers of an image volume were not passed.
    #[error("the layers of the image volume at {0:?} are not known")]
    ImageLayers(String),
}

/// The plan of a container's init.
pub fn launch_plan(spec: &Spec, inputs: &PlanInputs<'_>) -> Result<LaunchPlan, PlanError> {
    let process = spec.process().as_ref().ok_or(PlanError::Missing("process"))?;
    let linux = spec.linux().as_ref().ok_or(PlanError::Missing("linux section"))?;
    refuse_unsupported(spec, linux, process)?;
    let root = spec.root().as_ref().ok_or(PlanError::Missing("root"))?;
    let rootfs = RootfsPlan { readonly: root.readonly().unwrap_or(false), ..inputs.rootfs.clone() };
    let (pid_namespace, new_cgroup_namespace) = namespaces(linux)?;
    let has = |typ| linux.namespaces().iter().flatten().any(|namespace| namespace.typ() == typ);
    let user = inputs.user.map_or_else(|| numeric_user(process), requested_user);
    Ok(LaunchPlan {
        runtime: None,
        container_id: inputs.container_id.to_owned(),
        process: Some(process_plan(process, linux)?),
        user: Some(user),
        rootfs: Some(rootfs),
        mounts: mounts::mounts(spec, inputs)?,
        masked_paths: linux.masked_paths().clone().unwrap_or_default(),
        readonly_paths: linux.readonly_paths().clone().unwrap_or_default(),
        devices: devices(linux, inputs.devices)?,
        pid_namespace: pid_namespace.into(),
        new_cgroup_namespace,
        cgroups: inputs.cgroups.clone(),
        oom_score_adj: process.oom_score_adj(),
        staging_dir: inputs.staging_dir.to_owned(),
        uid_mappings: id_mappings(linux.uid_mappings().as_deref()),
        gid_mappings: id_mappings(linux.gid_mappings().as_deref()),
        rootfs_propagation: rootfs_propagation(linux)?.into(),
        personality: personality(linux)?,
        needs_network: has(LinuxNamespaceType::Network),
        needs_ipc: has(LinuxNamespaceType::Ipc),
        needs_uts: has(LinuxNamespaceType::Uts),
    })
}

fn refuse_unsupported(spec: &Spec, linux: &Linux, process: &Process) -> Result<(), PlanError> {
    let has_hooks = spec.hooks().as_ref().is_some_and(|hooks| *hooks != Default::default());
    let parts = [
        (has_hooks, "hooks"),
        (spec.domainname().as_ref().is_some_and(|name| !name.is_empty()), "domainname"),
        (spec.solaris().is_some(), "solaris"),
        (spec.windows().is_some(), "windows"),
        (spec.vm().is_some(), "vm"),
        (linux.intel_rdt().is_some(), "linux.intelRdt"),
        (linux.memory_policy().is_some(), "linux.memoryPolicy"),
        (linux.time_offsets().as_ref().is_some_and(|t| !t.is_empty()), "linux.timeOffsets"),
        (linux.net_devices().as_ref().is_some_and(|n| !n.is_empty()), "linux.netDevices"),
        (linux.mount_label().as_ref().is_some_and(|label| !label.is_empty()), "linux.mountLabel"),
        (process.scheduler().is_some(), "process.scheduler"),
        (process.io_priority().is_some(), "process.ioPriority"),
        (process.exec_cpu_affinity().is_some(), "process.execCPUAffinity"),
        (process.command_line().is_some(), "process.commandLine"),
    ];
    match parts.into_iter().find(|(present, _)| *present) {
        Some((_, name)) => Err(PlanError::Unsupported(name.into())),
        None => Ok(()),
    }
}

fn process_plan(process: &Process, linux: &Linux) -> Result<ProcessPlan, PlanError> {
    let bytes = |texts: &Option<Vec<String>>| -> Result<Vec<Vec<u8>>, PlanError> {
        let check = |text: &String| match text.contains('\0') {
            true => Err(PlanError::Invalid { field: "process.args or process.env", value: text.replace('\0', "\\0") }),
            false => Ok(text.clone().into_bytes()),
        };
        texts.iter().flatten().map(check).collect()
    };
    let argv = bytes(process.args())?;
    if argv.is_empty() {
        return Err(PlanError::Missing("process.args"));
    }
    let cwd = process.cwd();
    if !cwd.is_absolute() {
        return Err(PlanError::Invalid { field: "process.cwd", value: text(cwd) });
    }
    let (seccomp, seccomp_flags) = match linux.seccomp() {
        Some(profile) => seccomp::program(profile)?,
        None => (vec![], 0),
    };
    let size = |size: u64| u32::try_from(size).unwrap_or(0);
    let console = process.console_size();
    Ok(ProcessPlan {
        argv,
        env: bytes(process.env())?,
        cwd: text(cwd),
        capabilities: process.capabilities().as_ref().map(|sets| Capabilities {
            bounding: mask(sets.bounding().as_ref()),
            effective: mask(sets.effective().as_ref()),
            permitted: mask(sets.permitted().as_ref()),
            inheritable: mask(sets.inheritable().as_ref()),
            ambient: mask(sets.ambient().as_ref()),
        }),
        rlimits: rlimits(process),
        no_new_privileges: process.no_new_privileges().unwrap_or(false),
        seccomp,
        seccomp_flags,
        terminal: process.terminal().unwrap_or(false),
        apparmor_profile: process.apparmor_profile().clone().unwrap_or_default(),
        selinux_label: process.selinux_label().clone().unwrap_or_default(),
        terminal_rows: console.as_ref().map_or(0, |console| size(console.height())),
        terminal_columns: console.as_ref().map_or(0, |console| size(console.width())),
        umask: process.user().umask(),
    })
}

/// Bit n is capability number n.
fn mask(set: Option<&OciCapabilities>) -> u64 {
    let bit = |name: String| CAPABILITIES.iter().position(|known| *known == name).map_or(0, |number| 1 << number);
    set.into_iter().flatten().map(|capability| bit(capability.to_string())).fold(0, |all, bit: u64| all | bit)
}

fn rlimits(process: &Process) -> Vec<ResourceLimit> {
    let limits = process.rlimits().iter().flatten();
    let plan = |limit: &oci_spec::runtime::PosixRlimit| ResourceLimit {
        resource: rlimit_number(limit.typ()),
        soft: limit.soft(),
        hard: limit.hard(),
    };
    limits.map(plan).collect()
}

/// The kernel's numbers, the same on x86 and arm64.
fn rlimit_number(kind: PosixRlimitType) -> u32 {
    match kind {
        PosixRlimitType::RlimitCpu => 0,
        PosixRlimitType::RlimitFsize => 1,
        PosixRlimitType::RlimitData => 2,
        PosixRlimitType::RlimitStack => 3,
        PosixRlimitType::RlimitCore => 4,
        PosixRlimitType::RlimitRss => 5,
        PosixRlimitType::RlimitNproc => 6,
        PosixRlimitType::RlimitNofile => 7,
        PosixRlimitType::RlimitMemlock => 8,
        PosixRlimitType::RlimitAs => 9,
        PosixRlimitType::RlimitLocks => 10,
        PosixRlimitType::RlimitSigpending => 11,
        PosixRlimitType::RlimitMsgqueue => 12,
        PosixRlimitType::RlimitNice => 13,
        PosixRlimitType::RlimitRtprio => 14,
        PosixRlimitType::RlimitRttime => 15,
    }
}

fn numeric_user(process: &Process) -> UserPlan {
    let user = process.user();
    UserPlan {
        user: format!("{}:{}", user.uid(), user.gid()),
        supplemental_groups: user.additional_gids().clone().unwrap_or_default(),
        // A specification has all groups in numbers.
        groups_policy: GroupsPolicy::Strict.into(),
    }
}

fn requested_user(user: &RequestedUser) -> UserPlan {
    let policy = if user.strict_groups { GroupsPolicy::Strict } else { GroupsPolicy::Merge };
    UserPlan {
        user: user.user.clone(),
        supplemental_groups: user.supplemental_groups.clone(),
        groups_policy: policy.into(),
    }
}

/// The PID namespace, and whether there is a cgroup namespace of its own. The others belong to the pod and are passed to the shim.
fn namespaces(linux: &Linux) -> Result<(PidNamespace, bool), PlanError> {
    let (mut pid, mut cgroup, mut mount) = (PidNamespace::Host, false, false);
    for namespace in linux.namespaces().iter().flatten() {
        let joined = namespace.path().is_some();
        match namespace.typ() {
            LinuxNamespaceType::Pid => pid = if joined { PidNamespace::Joined } else { PidNamespace::Own },
            LinuxNamespaceType::Cgroup if joined => {
                return Err(PlanError::Unsupported("joining a cgroup namespace".into()));
            }
            LinuxNamespaceType::Cgroup => cgroup = true,
            LinuxNamespaceType::Mount if joined => {
                return Err(PlanError::Unsupported("joining a mount namespace".into()));
            }
            LinuxNamespaceType::Mount => mount = true,
            LinuxNamespaceType::Time => return Err(PlanError::Unsupported("a time namespace".into())),
            LinuxNamespaceType::Network
            | LinuxNamespaceType::Ipc
            | LinuxNamespaceType::Uts
            | LinuxNamespaceType::User => {}
        }
    }
    if !mount {
        return Err(PlanError::Unsupported("a container in the host's mount namespace".into()));
    }
    Ok((pid, cgroup))
}

fn devices(linux: &Linux, host: &[HostDevice]) -> Result<Vec<DeviceNode>, PlanError> {
    let mut nodes = vec![];
    for device in linux.devices().iter().flatten() {
        let path = text(device.path());
        let invalid = || PlanError::Invalid { field: "linux.devices", value: path.clone() };
        let block = match device.typ() {
            LinuxDeviceType::B => true,
            LinuxDeviceType::C | LinuxDeviceType::U => false,
            LinuxDeviceType::P | LinuxDeviceType::A => {
                return Err(PlanError::Unsupported(format!("the type of device {path:?}")));
            }
        };
        let number = |number: i64| u32::try_from(number).map_err(|_| invalid());
        let (major, minor) = (number(device.major())?, number(device.minor())?);
        if !path.starts_with("/dev/") || path.split('/').any(|part| part == "..") {
            return Err(invalid());
        }
        let same = |d: &&HostDevice| (d.block, d.major, d.minor) == (block, major, minor);
        let host_path = host.iter().find(same).map_or_else(|| path.clone(), |d| d.path.clone());
        nodes.push(DeviceNode {
            host_path,
            block,
            major,
            minor,
            mode: device.file_mode().unwrap_or(0o666),
            uid: device.uid().unwrap_or(0),
            gid: device.gid().unwrap_or(0),
            path,
        });
    }
    Ok(nodes)
}

fn id_mappings(maps: Option<&[LinuxIdMapping]>) -> Vec<IdMapping> {
    let map = |m: &LinuxIdMapping| IdMapping { container: m.container_id(), host: m.host_id(), size: m.size() };
    maps.unwrap_or_default().iter().map(map).collect()
}

fn rootfs_propagation(linux: &Linux) -> Result<Propagation, PlanError> {
    match linux.rootfs_propagation().as_deref() {
        None | Some("") => Ok(Propagation::Unset),
        Some("private" | "rprivate") => Ok(Propagation::Private),
        Some("slave" | "rslave") => Ok(Propagation::Slave),
        Some("shared" | "rshared") => Ok(Propagation::Shared),
        Some(other) => Err(PlanError::Unsupported(format!("rootfsPropagation {other:?}"))),
    }
}

fn personality(linux: &Linux) -> Result<Option<i32>, PlanError> {
    let Some(personality) = linux.personality() else { return Ok(None) };
    if personality.flags().as_ref().is_some_and(|flags| !flags.is_empty()) {
        return Err(PlanError::Unsupported("personality flags".into()));
    }
    Ok(Some(match personality.domain() {
        LinuxPersonalityDomain::PerLinux => 0,
        LinuxPersonalityDomain::PerLinux32 => 8,
    }))
}

/// The namespaces of a pod and their settings, from the request of RunPodSandbox. Sysctls of a namespace that the pod does not own
/// would change the host, and are refused.
pub(crate) fn setup_plan(
    config: &v1::PodSandboxConfig,
    pause_cgroups: Vec<CgroupMembership>,
) -> Result<SetupPlan, PlanError> {
    let linux = config.linux.as_ref();
    let options = linux.and_then(|l| l.security_context.as_ref()).and_then(|s| s.namespace_options.as_ref());
    let own = |mode: fn(&v1::NamespaceOption) -> i32| {
        options.is_none_or(|options| mode(options) != v1::NamespaceMode::Node as i32)
    };
    let (network, ipc) = (own(|o| o.network), own(|o| o.ipc));
    let user = options.and_then(|o| o.userns_options.as_ref());
    let user = user.filter(|u| u.mode == v1::NamespaceMode::Pod as i32 && !u.uids.is_empty());
    let maps = |maps: &[v1::IdMapping]| -> Vec<IdMapping> {
        let map = |m: &v1::IdMapping| IdMapping { container: m.container_id, host: m.host_id, size: m.length };
        maps.iter().map(map).collect()
    };
    let mut sysctls: BTreeMap<String, String> = BTreeMap::new();
    if network && user.is_none() {
        // As containerd: programs need no capability for low ports and for ping.
        sysctls.insert("net.ipv4.ip_unprivileged_port_start".into(), "0".into());
        sysctls.insert("net.ipv4.ping_group_range".into(), "0 2147483647".into());
    }
    for (name, value) in linux.iter().flat_map(|l| &l.sysctls) {
        let name = name.replace('/', ".");
        let allowed = match name.as_str() {
            n if n.starts_with("net.") => network,
            n if n.starts_with("kernel.shm") || n.starts_with("kernel.msg") || n == "kernel.sem" => ipc,
            n if n.starts_with("fs.mqueue.") => ipc,
            _ => false,
        };
        if !allowed || name.contains("..") {
            return Err(PlanError::Unsupported(format!("sysctl {name:?}, which belongs to no namespace of the pod,")));
        }
        sysctls.insert(name, value.clone());
    }
    // POD is the default of the API, also for absent options.
    let shared_pid = options.is_none_or(|o| o.pid == v1::NamespaceMode::Pod as i32);
    Ok(SetupPlan {
        new_network: network,
        new_ipc: ipc,
        // The host's name is the host network's.
        new_uts: network,
        hostname: if network { config.hostname.clone() } else { String::new() },
        sysctls: sysctls.into_iter().map(|(name, value)| Sysctl { name, value }).collect(),
        uid_mappings: user.map_or_else(Vec::new, |u| maps(&u.uids)),
        gid_mappings: user.map_or_else(Vec::new, |u| maps(&u.gids)),
        pause: shared_pid,
        pause_cgroups: if shared_pid { pause_cgroups } else { vec![] },
    })
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
