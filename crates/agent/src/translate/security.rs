//! Users, groups, security profiles and namespaces of a pod's processes.
//!
//! A container's own setting takes precedence over the pod's, field by field (Go kubelet:
//! `DetermineEffectiveSecurityContext`).

use std::path::Path;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};
use podwright_core::model::{ImageFacts, Pod};
use podwright_cri::v1::{
    Capability, IdMapping, Int64Value, LinuxContainerSecurityContext, NamespaceMode, NamespaceOption, SeLinuxOption,
    SecurityProfile, SupplementalGroupsPolicy, UserNamespace, security_profile::ProfileType,
};

use super::{NodeSettings, NonRootViolation, ProfileError, RuntimeFeatures, Situation, TranslateError};
use crate::pod_spec::{display_name, effective_run_as_user, is_host_network};

/// The image's user: its id, else its name, else root.
fn image_user(image: &ImageFacts) -> (Option<i64>, &str) {
    match image.uid {
        Some(uid) => (Some(uid), ""),
        None if image.username.is_empty() => (Some(0), ""),
        None => (None, &image.username),
    }
}

/// The whole security context of a container.
pub(super) fn container_context(
    pod: &Pod,
    container: &Container,
    image: &ImageFacts,
    settings: &NodeSettings,
    situation: &Situation,
) -> Result<LinuxContainerSecurityContext, TranslateError> {
    verify_non_root(pod, container, image)?;
    let none = SecurityContext::default();
    let own = container.security_context.as_ref().unwrap_or(&none);
    let of_pod = pod_context(pod);
    let user = effective_run_as_user(pod, container);
    let (image_uid, image_name) = image_user(image);
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let (apparmor, apparmor_profile) =
        app_armor(own.app_armor_profile.as_ref().or(of_pod.and_then(|sc| sc.app_armor_profile.as_ref())))?;
    let selinux = own.se_linux_options.as_ref().or(of_pod.and_then(|sc| sc.se_linux_options.as_ref()));
    #[allow(deprecated)] // containerd 1.6 reads AppArmor only from the deprecated field.
    Ok(LinuxContainerSecurityContext {
        capabilities: own.capabilities.as_ref().map(|caps| Capability {
            add_capabilities: caps.add.clone().unwrap_or_default(),
            drop_capabilities: caps.drop.clone().unwrap_or_default(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged: own.privileged.unwrap_or_default(),
        namespace_options: Some(namespaces(pod, situation)?),
        selinux_options: selinux.map(se_linux),
        run_as_user: user.or(image_uid).map(|value| Int64Value { value }),
        run_as_group: own
            .run_as_group
            .or_else(|| of_pod.and_then(|sc| sc.run_as_group))
            .map(|value| Int64Value { value }),
        run_as_username: if user.is_none() { image_name.to_owned() } else { String::new() },
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or_default(),
        supplemental_groups: supplemental_groups(of_pod),
        supplemental_groups_policy: groups_policy(of_pod, situation.features)?,
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: if unmasked { Vec::new() } else { masked_paths(settings) },
        readonly_paths: if unmasked { Vec::new() } else { to_strings(&READONLY_PATHS) },
        seccomp: Some(seccomp(
            own.seccomp_profile.as_ref().or(of_pod.and_then(|sc| sc.seccomp_profile.as_ref())),
            &settings.paths.root_dir,
            settings.seccomp_default,
        )?),
        apparmor,
        apparmor_profile,
        ..Default::default()
    })
}

/// The namespaces: the pod's own or the node's.
pub(super) fn namespaces(pod: &Pod, situation: &Situation) -> Result<NamespaceOption, TranslateError> {
    let spec = pod.spec.as_ref();
    let mode = |on_host: bool, otherwise: NamespaceMode| if on_host { NamespaceMode::Node } else { otherwise };
    let shared = spec.and_then(|s| s.share_process_namespace).unwrap_or_default();
    let pid = if shared { NamespaceMode::Pod } else { NamespaceMode::Container };
    Ok(NamespaceOption {
        network: mode(is_host_network(pod), NamespaceMode::Pod).into(),
        pid: mode(spec.and_then(|s| s.host_pid).unwrap_or_default(), pid).into(),
        ipc: mode(spec.and_then(|s| s.host_ipc).unwrap_or_default(), NamespaceMode::Pod).into(),
        target_id: String::new(),
        userns_options: Some(user_namespace(pod, situation)?),
    })
}

/// fsGroup first, then the supplemental groups.
pub(super) fn supplemental_groups(context: Option<&PodSecurityContext>) -> Vec<i64> {
    let Some(context) = context else { return Vec::new() };
    context.fs_group.into_iter().chain(context.supplemental_groups.iter().flatten().copied()).collect()
}

/// A runtime that does not implement the policy merges groups silently, so `Strict` is rejected there.
pub(super) fn groups_policy(
    context: Option<&PodSecurityContext>,
    features: RuntimeFeatures,
) -> Result<i32, TranslateError> {
    match context.and_then(|sc| sc.supplemental_groups_policy.as_deref()) {
        None | Some("Merge") => Ok(SupplementalGroupsPolicy::Merge.into()),
        Some("Strict") if !features.supplemental_groups_policy => Err(TranslateError::StrictGroupsUnsupported),
        Some("Strict") => Ok(SupplementalGroupsPolicy::Strict.into()),
        Some(other) => Err(TranslateError::UnknownGroupsPolicy(other.into())),
    }
}

pub(super) fn se_linux(options: &SELinuxOptions) -> SeLinuxOption {
    SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

pub(super) fn pod_context(pod: &Pod) -> Option<&PodSecurityContext> {
    pod.spec.as_ref()?.security_context.as_ref()
}

pub(super) fn profile(kind: ProfileType, localhost: &str) -> SecurityProfile {
    SecurityProfile { profile_type: kind.into(), localhost_ref: localhost.to_owned() }
}

fn user_namespace(pod: &Pod, situation: &Situation) -> Result<UserNamespace, TranslateError> {
    if pod.spec.as_ref().and_then(|spec| spec.host_users) != Some(false) {
        return Ok(UserNamespace { mode: NamespaceMode::Node.into(), ..Default::default() });
    }
    if !situation.features.user_namespaces {
        return Err(TranslateError::UserNamespacesUnsupported);
    }
    let Some(range) = situation.userns else { return Err(TranslateError::NoUserIds) };
    let mapping = IdMapping { host_id: range.host_id, container_id: 0, length: range.length };
    Ok(UserNamespace { mode: NamespaceMode::Pod.into(), uids: vec![mapping], gids: vec![mapping] })
}

fn seccomp(
    requested: Option<&SeccompProfile>,
    root_dir: &Path,
    default_on: bool,
) -> Result<SecurityProfile, TranslateError> {
    let Some(requested) = requested else {
        let kind = if default_on { ProfileType::RuntimeDefault } else { ProfileType::Unconfined };
        return Ok(profile(kind, ""));
    };
    match requested.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault, "")),
        "Unconfined" => Ok(profile(ProfileType::Unconfined, "")),
        "Localhost" => {
            let file = requested.localhost_profile.as_deref().unwrap_or_default();
            if file.is_empty() {
                return Err(ProfileError::SeccompFileMissing.into());
            }
            let relative = Path::new(file);
            let inside = relative.components().all(|part| matches!(part, std::path::Component::Normal(_)));
            if !inside {
                return Err(ProfileError::SeccompFileOutside(file.into()).into());
            }
            let path = super::utf8_path(&root_dir.join("seccomp").join(relative))?;
            Ok(profile(ProfileType::Localhost, &path))
        }
        other => Err(ProfileError::UnknownSeccompType(other.into()).into()),
    }
}

/// The profile, and its form in the deprecated field `apparmor_profile`.
fn app_armor(requested: Option<&AppArmorProfile>) -> Result<(Option<SecurityProfile>, String), ProfileError> {
    let Some(requested) = requested else { return Ok((None, String::new())) };
    match requested.type_.as_str() {
        "RuntimeDefault" => Ok((Some(profile(ProfileType::RuntimeDefault, "")), "runtime/default".into())),
        "Unconfined" => Ok((Some(profile(ProfileType::Unconfined, "")), "unconfined".into())),
        "Localhost" => match requested.localhost_profile.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => Ok((Some(profile(ProfileType::Localhost, name)), format!("localhost/{name}"))),
            None => Err(ProfileError::AppArmorNameMissing),
        },
        other => Err(ProfileError::UnknownAppArmorType(other.into())),
    }
}

/// Checks `runAsNonRoot` against the user that the container will run as (Go kubelet: `verifyRunAsNonRoot`).
fn verify_non_root(pod: &Pod, container: &Container, image: &ImageFacts) -> Result<(), TranslateError> {
    let own = container.security_context.as_ref().and_then(|sc| sc.run_as_non_root);
    if own.or_else(|| pod_context(pod).and_then(|sc| sc.run_as_non_root)) != Some(true) {
        return Ok(());
    }
    let refuse = |violation| {
        let (pod, container) = (display_name(pod), container.name.clone());
        Err(TranslateError::NonRoot { violation, pod, container })
    };
    if let Some(user) = effective_run_as_user(pod, container) {
        return if user == 0 { refuse(NonRootViolation::RunAsUser) } else { Ok(()) };
    }
    match image_user(image) {
        (None, name) => refuse(NonRootViolation::ImageUserNotNumeric(name.into())),
        (Some(0), _) => refuse(NonRootViolation::ImageIsRoot),
        (Some(uid), _) if !(1..=i64::from(i32::MAX)).contains(&uid) => refuse(NonRootViolation::ImageUserInvalid(uid)),
        _ => Ok(()),
    }
}

fn masked_paths(settings: &NodeSettings) -> Vec<String> {
    let mut paths = to_strings(&MASKED_PATHS);
    paths.extend(settings.thermal_paths.iter().cloned());
    paths
}

fn to_strings(paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

/// Kubernetes: the masked paths of `procMount: Default`.
const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Kubernetes: the read-only paths of `procMount: Default`.
const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
