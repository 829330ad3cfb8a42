//! Security contexts: users, groups, profiles, sysctls.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{AppArmorProfile, PodSpec, SeccompProfile, SecurityContext};

use super::{FieldErrors, quoted};

pub(super) fn check_pod(spec: &PodSpec, errors: &mut FieldErrors) {
    namespaces(spec, errors);
    let Some(context) = &spec.security_context else { return };
    let at = "spec.securityContext";
    for (id, field) in
        [(context.run_as_user, "runAsUser"), (context.run_as_group, "runAsGroup"), (context.fs_group, "fsGroup")]
    {
        check_id(id, format!("{at}.{field}"), errors);
    }
    for (i, group) in context.supplemental_groups.iter().flatten().enumerate() {
        check_id(Some(*group), format!("{at}.supplementalGroups[{i}]"), errors);
    }
    let policies = ["Merge", "Strict"];
    errors.set_one_of(
        context.supplemental_groups_policy.as_deref(),
        &policies,
        format!("{at}.supplementalGroupsPolicy"),
    );
    let policies = ["OnRootMismatch", "Always"];
    errors.set_one_of(context.fs_group_change_policy.as_deref(), &policies, format!("{at}.fsGroupChangePolicy"));
    let policies = ["Recursive", "MountOption"];
    errors.set_one_of(context.se_linux_change_policy.as_deref(), &policies, format!("{at}.seLinuxChangePolicy"));
    profiles(context.seccomp_profile.as_ref(), context.app_armor_profile.as_ref(), at, errors);
    let mut seen = BTreeSet::new();
    for (i, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let at = format!("{at}.sysctls[{i}].name");
        if !is_sysctl(&sysctl.name) {
            errors.add(
                at,
                format!(
                    "{} must be the name of a kernel setting, such as net.ipv4.tcp_syncookies",
                    quoted(&sysctl.name)
                ),
            );
        } else if !seen.insert(&sysctl.name) {
            errors.add(at, format!("{} is there twice", quoted(&sysctl.name)));
        }
    }
}

fn namespaces(spec: &PodSpec, errors: &mut FieldErrors) {
    if spec.host_pid == Some(true) && spec.share_process_namespace == Some(true) {
        errors.add("spec.shareProcessNamespace", "must not be true together with hostPID");
    }
    if spec.host_users == Some(false) {
        for (host, field) in
            [(spec.host_network, "hostNetwork"), (spec.host_pid, "hostPID"), (spec.host_ipc, "hostIPC")]
        {
            if host == Some(true) {
                errors.add(format!("spec.{field}"), "must not be true when hostUsers is false");
            }
        }
    }
}

pub(super) fn check_container(context: &SecurityContext, host_users: bool, at: &str, errors: &mut FieldErrors) {
    check_id(context.run_as_user, format!("{at}.runAsUser"), errors);
    check_id(context.run_as_group, format!("{at}.runAsGroup"), errors);
    errors.set_one_of(context.proc_mount.as_deref(), &["Default", "Unmasked"], format!("{at}.procMount"));
    if host_users && context.proc_mount.as_deref() == Some("Unmasked") {
        errors.add(format!("{at}.procMount"), "Unmasked needs hostUsers: false");
    }
    profiles(context.seccomp_profile.as_ref(), context.app_armor_profile.as_ref(), at, errors);
    if context.allow_privilege_escalation == Some(false) {
        let here = format!("{at}.allowPrivilegeEscalation");
        if context.privileged == Some(true) {
            errors.add(&here, "must not be false for a privileged container");
        }
        let added = context.capabilities.as_ref().and_then(|c| c.add.as_deref()).unwrap_or_default();
        if added.iter().any(|capability| capability == "CAP_SYS_ADMIN") {
            errors.add(&here, "must not be false with the capability CAP_SYS_ADMIN");
        }
    }
}

fn check_id(id: Option<i64>, path: String, errors: &mut FieldErrors) {
    if let Some(id) = id.filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
        errors.add(path, format!("{id} must be between 0 and {}", i32::MAX));
    }
}

fn profiles(seccomp: Option<&SeccompProfile>, app_armor: Option<&AppArmorProfile>, at: &str, errors: &mut FieldErrors) {
    let seccomp = seccomp.map(|p| (p.type_.as_str(), p.localhost_profile.as_deref(), format!("{at}.seccompProfile")));
    let armor = app_armor.map(|p| (p.type_.as_str(), p.localhost_profile.as_deref(), format!("{at}.appArmorProfile")));
    if let Some((kind, file, at)) = &seccomp {
        check_profile(kind, *file, at, errors);
        // The name is a path relative to the profile directory.
        errors.relative_path(file.unwrap_or_default(), &format!("{at}.localhostProfile"));
    }
    if let Some((kind, name, at)) = &armor {
        check_profile(kind, *name, at, errors);
        if name.is_some_and(|name| name.trim() != name || name.is_empty() || name.len() > 4095) {
            errors.add(
                format!("{at}.localhostProfile"),
                "must be a name of at most 4095 characters without white space around it",
            );
        }
    }
}

fn check_profile(kind: &str, local: Option<&str>, at: &str, errors: &mut FieldErrors) {
    match kind {
        "Localhost" if local.is_none() => {
            errors.add(format!("{at}.localhostProfile"), "must be given for type Localhost")
        }
        "Localhost" => {}
        "RuntimeDefault" | "Unconfined" if local.is_some() => {
            errors.add(format!("{at}.localhostProfile"), "is only for type Localhost");
        }
        "RuntimeDefault" | "Unconfined" => {}
        _ => errors.add(
            format!("{at}.type"),
            format!("{} must be one of Localhost, RuntimeDefault, Unconfined", quoted(kind)),
        ),
    }
}

/// Parts of lower case letters, digits, '-' and '_', joined by dots or slashes.
fn is_sysctl(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    name.len() <= 253
        && name
            .split(['.', '/'])
            .all(|part| edge(part.as_bytes().first()) && edge(part.as_bytes().last()) && part.bytes().all(inner))
}
