//! Capabilities, seccomp and labels.

use std::collections::BTreeSet;

use oci_spec::runtime::{Capability, LinuxCapabilities, LinuxCapabilitiesBuilder, LinuxSeccomp};
use podwright_cri::v1;
pub(crate) use podwright_linux::caps::NAMES as CAPABILITIES;

use super::{Security, SpecError, SpecInputs, check_text, seccomp_default};

/// containerd's default (`oci.defaultUnixCaps`).
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// The capability sets. As in containerd's `WithCapabilities`, ALL is applied before single names, and additions before drops.
pub(super) fn capabilities(
    inputs: &SpecInputs<'_>,
    context: &v1::LinuxContainerSecurityContext,
) -> Result<LinuxCapabilities, SpecError> {
    let none = v1::Capability::default();
    let asked = context.capabilities.as_ref().unwrap_or(&none);
    let all = || CAPABILITIES.iter().take(usize::from(inputs.host.last_capability) + 1).copied();
    let has_all = |names: &[String]| names.iter().any(|name| name.eq_ignore_ascii_case("ALL"));
    let mut set: BTreeSet<&'static str> = DEFAULT.into_iter().collect();
    if context.privileged || has_all(&asked.add_capabilities) {
        set = all().collect();
    }
    if has_all(&asked.drop_capabilities) {
        set.clear();
    }
    let single = |names: &[String]| -> Result<Vec<&'static str>, SpecError> {
        names.iter().filter(|name| !name.eq_ignore_ascii_case("ALL")).map(|name| known(name)).collect()
    };
    set.extend(single(&asked.add_capabilities)?);
    for name in single(&asked.drop_capabilities)? {
        set.remove(name);
    }
    let ambient: BTreeSet<&str> = single(&asked.add_ambient_capabilities)?.into_iter().collect();
    set.extend(&ambient);
    let oci = |names: &BTreeSet<&str>| names.iter().filter_map(|name| name.parse::<Capability>().ok()).collect();
    let builder = LinuxCapabilitiesBuilder::default()
        .bounding::<oci_spec::runtime::Capabilities>(oci(&set))
        .effective::<oci_spec::runtime::Capabilities>(oci(&set))
        .permitted::<oci_spec::runtime::Capabilities>(oci(&set))
        // The kernel raises an ambient capability only if it is inheritable. Otherwise the set stays empty (CVE-2022-24769).
        .inheritable::<oci_spec::runtime::Capabilities>(oci(&ambient))
        .ambient::<oci_spec::runtime::Capabilities>(oci(&ambient));
    Ok(builder.build().expect("complete"))
}

/// CRI names have no `CAP_`; either spelling is taken.
fn known(name: &str) -> Result<&'static str, SpecError> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    CAPABILITIES.into_iter().find(|known| *known == bare).ok_or_else(|| SpecError::Capability(name.into()))
}

/// The seccomp profile. Without one in the request, and for privileged containers, there is none, as in containerd.
pub(super) fn seccomp(inputs: &SpecInputs<'_>, security: Security<'_>) -> Result<Option<LinuxSeccomp>, SpecError> {
    let Some(profile) = security.context.seccomp.as_ref().filter(|_| !security.context.privileged) else {
        return Ok(None);
    };
    match profile_type(profile)? {
        v1::security_profile::ProfileType::Unconfined => Ok(None),
        v1::security_profile::ProfileType::RuntimeDefault => {
            let sets = capabilities(inputs, security.context)?;
            Ok(Some(seccomp_default::profile(sets.bounding().as_ref())))
        }
        v1::security_profile::ProfileType::Localhost => {
            let loaded = inputs.localhost_seccomp.cloned();
            loaded.map(Some).ok_or_else(|| SpecError::SeccompProfile(profile.localhost_ref.clone()))
        }
    }
}

fn profile_type(profile: &v1::SecurityProfile) -> Result<v1::security_profile::ProfileType, SpecError> {
    let unknown = |_| SpecError::Number { field: "profile_type", value: i64::from(profile.profile_type) };
    v1::security_profile::ProfileType::try_from(profile.profile_type).map_err(unknown)
}

/// The AppArmor profile. `RuntimeDefault` leaves the process as it is: this engine loads no profile of its own.
pub(super) fn apparmor(context: &v1::LinuxContainerSecurityContext) -> Result<Option<String>, SpecError> {
    let Some(profile) = context.apparmor.as_ref().filter(|_| !context.privileged) else { return Ok(None) };
    if profile_type(profile)? != v1::security_profile::ProfileType::Localhost {
        return Ok(None);
    }
    check_text("apparmor profile", &profile.localhost_ref)?;
    Ok(Some(profile.localhost_ref.clone()))
}

/// The SELinux label, if the request has all four parts; an incomplete one would need the policy of the host.
pub(super) fn selinux(context: &v1::LinuxContainerSecurityContext) -> Result<Option<String>, SpecError> {
    let Some(v1::SeLinuxOption { user, role, r#type, level }) = &context.selinux_options else { return Ok(None) };
    let parts = [user, role, r#type, level];
    if parts.iter().all(|part| part.is_empty()) {
        return Ok(None);
    }
    if parts.iter().any(|part| part.is_empty()) {
        return Err(SpecError::Unsupported("an incomplete SELinux label".into()));
    }
    let label = format!("{user}:{role}:{}:{level}", r#type);
    check_text("SELinux label", &label)?;
    Ok(Some(label))
}
