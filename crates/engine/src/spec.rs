//! From the configurations of the CRI and of the image to an OCI runtime specification.
//!
//! Pure: what has to be looked up on the host (devices, profiles, the host's name) is an argument. Facts about defaults are those of
//! containerd's CRI service, so that a pod behaves the same on both.

mod devices;
mod mounts;
mod process;
mod resources;
mod seccomp_default;
pub(crate) mod security;
#[cfg(test)]
pub(crate) mod tests;
mod user_namespace;

use std::path::PathBuf;

use oci_spec::runtime::{
    Linux, LinuxBuilder, LinuxIdMapping, LinuxIdMappingBuilder, LinuxNamespace, LinuxNamespaceBuilder,
    LinuxNamespaceType, LinuxSeccomp, RootBuilder, Spec, SpecBuilder,
};
use podwright_cri::v1;
use podwright_image::ContainerDefaults;

pub(crate) use devices::HostDevice;
pub(crate) use devices::unprivileged_device_rules;
pub(crate) use mounts::{IMAGE_MOUNT_TYPE, SandboxFiles};
pub(crate) use process::RequestedUser;
pub(crate) use resources::{default_pod_cgroup, own_pod_cgroup, pod_cgroup};
pub(crate) use user_namespace::check_user_namespace;

/// What a specification is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpecInputs<'a> {
    /// The id of the new container.
    pub container_id: &'a str,
    /// The container, from CreateContainer.
    pub config: &'a v1::ContainerConfig,
    /// The sandbox, from RunPodSandbox.
    pub sandbox: &'a v1::PodSandboxConfig,
    /// The defaults of the image.
    pub image: &'a ContainerDefaults,
    /// Files of the sandbox that are mounted into each container.
    pub files: &'a SandboxFiles,
    /// Where the namespaces of the pod can be joined.
    pub namespaces: &'a NamespacePaths,
    /// What the host can do.
    pub host: &'a SpecHost,
    /// The devices below the host paths of the request; for a privileged container all devices of the host.
    pub devices: &'a [HostDevice],
    /// The parsed file of a `Localhost` seccomp profile.
    pub localhost_seccomp: Option<&'a LinuxSeccomp>,
}

/// What the host can do, as probed when the engine starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpecHost {
    /// The name for pods on the host network.
    pub hostname: String,
    /// Controllers are in the v2 tree. A hybrid host is v1.
    pub cgroup_v2: bool,
    /// Swap can be limited.
    pub swap_limit: bool,
    /// Huge pages can be limited.
    pub hugetlb: bool,
    /// The highest capability number of the kernel (`/proc/sys/kernel/cap_last_cap`).
    pub last_capability: u8,
}

/// Where the namespaces of the pod can be joined. `None`: the host's is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamespacePaths {
    /// Network.
    pub network: Option<PathBuf>,
    /// IPC.
    pub ipc: Option<PathBuf>,
    /// Host name.
    pub uts: Option<PathBuf>,
    /// Ids.
    pub user: Option<PathBuf>,
    /// The shared PID namespace of the pod, or that of the target container.
    pub pid: Option<PathBuf>,
}

/// A specification, and what it can not express.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ContainerSpec {
    /// The OCI runtime specification.
    pub spec: Spec,
    /// The user by name or number: resolved by the launcher in the files of the image.
    pub user: RequestedUser,
}

/// Why no specification can be made. The text names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpecError {
    /// Neither the pod nor the image has a command.
    #[error("no command specified")]
    NoCommand,
    /// A text that the kernel would cut or misread.
    #[error("{field} {value:?} {problem}")]
    Text {
        /// The field of the request or image.
        field: &'static str,
        /// The value, as far as it is printable.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A field that this engine does not support.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// A privileged container in a sandbox that is not.
    #[error("no privileged container allowed in sandbox")]
    PrivilegedInSandbox,
    /// The capability does not exist.
    #[error("unknown capability {0:?}")]
    Capability(String),
    /// The user namespace of a container is that of its pod.
    #[error("the user namespace of the container differs from that of its sandbox")]
    UserNamespace,
    /// A mount that contradicts itself.
    #[error("mount at {path:?}: {problem}")]
    Mount {
        /// The path in the container.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The device does not exist on the host.
    #[error("device {0:?} does not exist on the host")]
    NoDevice(String),
    /// The cgroup of the pod.
    #[error("cgroup parent {0:?}: {1}")]
    CgroupParent(String, &'static str),
    /// A number out of range.
    #[error("{field} is {value}, which is out of range")]
    Number {
        /// The field of the request.
        field: &'static str,
        /// Its value.
        value: i64,
    },
    /// The file of a `Localhost` profile was not read.
    #[error("seccomp profile {0:?} was not loaded")]
    SeccompProfile(String),
}

/// Makes the specification of a container.
pub(crate) fn container_spec(inputs: &SpecInputs<'_>) -> Result<ContainerSpec, SpecError> {
    let security = Security::of(inputs)?;
    let (process, user) = process::process(inputs, security)?;
    let linux = linux(inputs, security)?;
    let root = RootBuilder::default().path("rootfs").readonly(security.context.readonly_rootfs).build();
    let mut spec = SpecBuilder::default()
        .version("1.2.1")
        .root(root.expect("complete"))
        .process(process)
        .mounts(mounts::mounts(inputs, security)?)
        .linux(linux)
        .build()
        .expect("complete");
    // The library's defaults for what the pod owns.
    spec.set_hostname(None);
    spec.set_annotations(None);
    Ok(ContainerSpec { spec, user })
}

/// The security contexts of container and sandbox, defaults included.
#[derive(Clone, Copy, Debug)]
struct Security<'a> {
    context: &'a v1::LinuxContainerSecurityContext,
    namespaces: &'a v1::NamespaceOption,
}

static NO_CONTEXT: std::sync::LazyLock<v1::LinuxContainerSecurityContext> = std::sync::LazyLock::new(Default::default);
static NO_NAMESPACES: std::sync::LazyLock<v1::NamespaceOption> = std::sync::LazyLock::new(Default::default);

impl<'a> Security<'a> {
    fn of(inputs: &SpecInputs<'a>) -> Result<Self, SpecError> {
        let context = inputs.config.linux.as_ref().and_then(|l| l.security_context.as_ref()).unwrap_or(&NO_CONTEXT);
        let namespaces = context.namespace_options.as_ref().unwrap_or(&NO_NAMESPACES);
        let sandbox = inputs.sandbox.linux.as_ref().and_then(|l| l.security_context.as_ref());
        if context.privileged && !sandbox.is_some_and(|s| s.privileged) {
            return Err(SpecError::PrivilegedInSandbox);
        }
        let pod = sandbox.and_then(|s| s.namespace_options.as_ref()).and_then(|n| n.userns_options.as_ref());
        if id_maps(pod) != id_maps(namespaces.userns_options.as_ref()) {
            return Err(SpecError::UserNamespace);
        }
        Ok(Self { context, namespaces })
    }

    fn mode(mode: i32) -> v1::NamespaceMode {
        v1::NamespaceMode::try_from(mode).unwrap_or(v1::NamespaceMode::Pod)
    }
}

/// The maps of a user namespace; `None` for the host's.
fn id_maps(options: Option<&v1::UserNamespace>) -> Option<(&[v1::IdMapping], &[v1::IdMapping])> {
    let pod = options.filter(|o| Security::mode(o.mode) == v1::NamespaceMode::Pod && !o.uids.is_empty());
    pod.map(|o| (o.uids.as_slice(), o.gids.as_slice()))
}

fn oci_id_maps(maps: &[v1::IdMapping]) -> Vec<LinuxIdMapping> {
    let map = |m: &v1::IdMapping| {
        let builder = LinuxIdMappingBuilder::default().host_id(m.host_id).container_id(m.container_id).size(m.length);
        builder.build().expect("complete")
    };
    maps.iter().map(map).collect()
}

fn linux(inputs: &SpecInputs<'_>, security: Security<'_>) -> Result<Linux, SpecError> {
    let context = security.context;
    let paths = |paths: &[String]| if context.privileged { vec![] } else { paths.to_vec() };
    let (devices, rules) = devices::devices(inputs, security)?;
    let mut linux = LinuxBuilder::default()
        .namespaces(namespaces(inputs, security)?)
        .cgroups_path(resources::cgroup_path(inputs)?)
        .resources(resources::resources(inputs, rules)?)
        .devices(devices)
        .masked_paths(paths(&context.masked_paths))
        .readonly_paths(paths(&context.readonly_paths))
        .build()
        .expect("complete");
    linux.set_seccomp(security::seccomp(inputs, security)?);
    if let Some((uids, gids)) = id_maps(security.namespaces.userns_options.as_ref()) {
        linux.set_uid_mappings(Some(oci_id_maps(uids)));
        linux.set_gid_mappings(Some(oci_id_maps(gids)));
    }
    Ok(linux)
}

fn namespaces(inputs: &SpecInputs<'_>, security: Security<'_>) -> Result<Vec<LinuxNamespace>, SpecError> {
    let options = security.namespaces;
    let new = |typ| LinuxNamespaceBuilder::default().typ(typ).build().expect("complete");
    let mut all = vec![new(LinuxNamespaceType::Mount)];
    let mut join = |typ, path: Option<&PathBuf>| {
        if let Some(path) = path {
            all.push(LinuxNamespaceBuilder::default().typ(typ).path(path.clone()).build().expect("complete"));
        }
    };
    join(LinuxNamespaceType::Network, inputs.namespaces.network.as_ref());
    join(LinuxNamespaceType::Ipc, inputs.namespaces.ipc.as_ref());
    join(LinuxNamespaceType::Uts, inputs.namespaces.uts.as_ref());
    join(LinuxNamespaceType::User, inputs.namespaces.user.as_ref());
    match Security::mode(options.pid) {
        v1::NamespaceMode::Container => all.push(new(LinuxNamespaceType::Pid)),
        v1::NamespaceMode::Pod | v1::NamespaceMode::Target => {
            let path = inputs.namespaces.pid.as_ref();
            join(
                LinuxNamespaceType::Pid,
                Some(path.ok_or(SpecError::Unsupported("a PID namespace without an owner".into()))?),
            );
        }
        v1::NamespaceMode::Node => {}
    }
    // As containerd: on v1 and for privileged containers the whole tree is visible.
    if inputs.host.cgroup_v2 && !security.context.privileged {
        all.push(new(LinuxNamespaceType::Cgroup));
    }
    Ok(all)
}

/// Refuses text that can not reach the kernel as it is.
fn check_text(field: &'static str, value: &str) -> Result<(), SpecError> {
    if value.contains('\0') {
        return Err(SpecError::Text { field, value: value.replace('\0', "\\0"), problem: "contains a NUL byte" });
    }
    Ok(())
}
