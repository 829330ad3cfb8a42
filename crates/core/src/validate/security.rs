//! Users, groups, profiles, kernel settings.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{AppArmorProfile, PodSpec, SeccompProfile, SecurityContext};

use super::{Findings, shown};

pub(super) fn check_pod(spec: &PodSpec, findings: &mut Findings) {
    namespaces(spec, findings);
    let Some(context) = &spec.security_context else { return };
    let at = "spec.securityContext";
    for (id, field) in
        [(context.run_as_user, "runAsUser"), (context.run_as_group, "runAsGroup"), (context.fs_group, "fsGroup")]
    {
        check_id(id, format!("{at}.{field}"), findings);
    }
    for (i, group) in context.supplemental_groups.iter().flatten().enumerate() {
        check_id(Some(*group), format!("{at}.supplementalGroups[{i}]"), findings);
    }
    let policies = ["Merge", "Strict"];
    findings.given_one_of(
        context.supplemental_groups_policy.as_deref(),
        &policies,
        format!("{at}.supplementalGroupsPolicy"),
    );
    let policies = ["OnRootMismatch", "Always"];
    findings.given_one_of(context.fs_group_change_policy.as_deref(), &policies, format!("{at}.fsGroupChangePolicy"));
    let policies = ["Recursive", "MountOption"];
    findings.given_one_of(context.se_linux_change_policy.as_deref(), &policies, format!("{at}.seLinuxChangePolicy"));
    profiles(context.seccomp_profile.as_ref(), context.app_armor_profile.as_ref(), at, findings);
    let mut seen = BTreeSet::new();
    for (i, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let at = format!("{at}.sysctls[{i}].name");
        if !is_sysctl(&sysctl.name) {
            findings.add(
                at,
                format!(
                    "{} must be the name of a kernel setting, such as net.ipv4.tcp_syncookies",
                    shown(&sysctl.name)
                ),
            );
        } else if !seen.insert(&sysctl.name) {
            findings.add(at, format!("{} is there twice", shown(&sysctl.name)));
        }
    }
}

fn namespaces(spec: &PodSpec, findings: &mut Findings) {
    if spec.host_pid == Some(true) && spec.share_process_namespace == Some(true) {
        findings.add("spec.shareProcessNamespace", "must not be true beside hostPID");
    }
    if spec.host_users == Some(false) {
        for (host, field) in
            [(spec.host_network, "hostNetwork"), (spec.host_pid, "hostPID"), (spec.host_ipc, "hostIPC")]
        {
            if host == Some(true) {
                findings.add(format!("spec.{field}"), "must not be true when hostUsers is false");
            }
        }
    }
}

pub(super) fn check_container(context: &SecurityContext, host_users: bool, at: &str, findings: &mut Findings) {
    check_id(context.run_as_user, format!("{at}.runAsUser"), findings);
    check_id(context.run_as_group, format!("{at}.runAsGroup"), findings);
    findings.given_one_of(context.proc_mount.as_deref(), &["Default", "Unmasked"], format!("{at}.procMount"));
    if host_users && context.proc_mount.as_deref() == Some("Unmasked") {
        findings.add(format!("{at}.procMount"), "Unmasked needs hostUsers: false");
    }
    profiles(context.seccomp_profile.as_ref(), context.app_armor_profile.as_ref(), at, findings);
    if context.allow_privilege_escalation == Some(false) {
        let here = format!("{at}.allowPrivilegeEscalation");
        if context.privileged == Some(true) {
            findings.add(&here, "must not be false for a privileged container");
        }
        let added = context.capabilities.as_ref().and_then(|c| c.add.as_deref()).unwrap_or_default();
        if added.iter().any(|capability| capability == "CAP_SYS_ADMIN") {
            findings.add(&here, "must not be false with the capability CAP_SYS_ADMIN");
        }
    }
}

fn check_id(id: Option<i64>, path: String, findings: &mut Findings) {
    if let Some(id) = id.filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
        findings.add(path, format!("{id} must be between 0 and {}", i32::MAX));
    }
}

fn profiles(seccomp: Option<&SeccompProfile>, app_armor: Option<&AppArmorProfile>, at: &str, findings: &mut Findings) {
    let seccomp = seccomp.map(|p| (p.type_.as_str(), p.localhost_profile.as_deref(), format!("{at}.seccompProfile")));
    let armor = app_armor.map(|p| (p.type_.as_str(), p.localhost_profile.as_deref(), format!("{at}.appArmorProfile")));
    if let Some((kind, file, at)) = &seccomp {
        check_profile(kind, *file, at, findings);
        // The name is a path below the profiles' directory.
        findings.descending(file.unwrap_or_default(), &format!("{at}.localhostProfile"));
    }
    if let Some((kind, name, at)) = &armor {
        check_profile(kind, *name, at, findings);
        if name.is_some_and(|name| name.trim() != name || name.is_empty() || name.len() > 4095) {
            findings.add(
                format!("{at}.localhostProfile"),
                "must be a name of at most 4095 characters without white space around it",
            );
        }
    }
}

fn check_profile(kind: &str, local: Option<&str>, at: &str, findings: &mut Findings) {
    match kind {
        "Localhost" if local.is_none() => {
            findings.add(format!("{at}.localhostProfile"), "must be given for type Localhost")
        }
        "Localhost" => {}
        "RuntimeDefault" | "Unconfined" if local.is_some() => {
            findings.add(format!("{at}.localhostProfile"), "is only for type Localhost");
        }
        "RuntimeDefault" | "Unconfined" => {}
        _ => findings
            .add(format!("{at}.type"), format!("{} must be one of Localhost, RuntimeDefault, Unconfined", shown(kind))),
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
