//! Mounts of a plan: the options of a specification become attributes, propagation, and options of the file system.

use oci_spec::runtime::{Mount, Spec};
use podwright_shim::plan::{MountKind, MountPlan, Propagation};

use super::{PlanError, PlanInputs, text};
use crate::spec::IMAGE_MOUNT_TYPE;

pub(super) fn mounts(spec: &Spec, inputs: &PlanInputs<'_>) -> Result<Vec<MountPlan>, PlanError> {
    spec.mounts().iter().flatten().map(|mount| plan(mount, inputs)).collect()
}

fn plan(mount: &Mount, inputs: &PlanInputs<'_>) -> Result<MountPlan, PlanError> {
    let target = text(mount.destination());
    let is_mapped = |maps: &Option<Vec<_>>| maps.as_ref().is_some_and(|maps| !maps.is_empty());
    let options = mount.options().as_deref().unwrap_or_default();
    let kind = kind(mount, &target, options)?;
    let mut plan = MountPlan { kind: kind.into(), target: target.clone(), ..MountPlan::default() };
    if !target.starts_with('/') || target.split('/').any(|part| part == "..") {
        return Err(PlanError::Invalid { field: "mounts.destination", value: target });
    }
    match kind {
        MountKind::Bind => {
            let source = mount.source().as_deref().map(text).unwrap_or_default();
            if !source.starts_with('/') {
                return Err(PlanError::Invalid { field: "mounts.source", value: source });
            }
            plan.source = source;
            // containerd makes a missing directory.
            plan.make_source = true;
        }
        MountKind::Image => {
            let layers = inputs.image_layers.get(&target).cloned();
            plan.layers = Some(layers.ok_or_else(|| PlanError::ImageLayers(target.clone()))?);
        }
        _ => {}
    }
    plan.idmapped = is_mapped(mount.uid_mappings()) || is_mapped(mount.gid_mappings());
    for option in options {
        apply(&mut plan, kind, option)?;
    }
    if plan.idmapped && kind != MountKind::Bind {
        return Err(PlanError::Unsupported(format!("id mapping of the mount at {target:?}")));
    }
    if plan.recursive_attributes & READ_ONLY != 0 && plan.propagation > Propagation::Private.into() {
        return Err(PlanError::Unsupported(format!("a recursively read-only mount at {target:?} with propagation")));
    }
    Ok(plan)
}

fn kind(mount: &Mount, target: &str, options: &[String]) -> Result<MountKind, PlanError> {
    let kind = match mount.typ().as_deref() {
        _ if options.iter().any(|option| option == "bind" || option == "rbind") => MountKind::Bind,
        None | Some("bind" | "none" | "") => MountKind::Bind,
        Some("tmpfs") if target == "/dev" => MountKind::Dev,
        Some("tmpfs") => MountKind::Tmpfs,
        Some("proc") => MountKind::Proc,
        Some("sysfs") => MountKind::Sysfs,
        Some("cgroup" | "cgroup2") => MountKind::Cgroup,
        Some("mqueue") => MountKind::Mqueue,
        Some("devpts") => MountKind::Devpts,
        Some(IMAGE_MOUNT_TYPE) => MountKind::Image,
        Some(other) => return Err(PlanError::Unsupported(format!("mount type {other:?}"))),
    };
    Ok(kind)
}

fn apply(plan: &mut MountPlan, kind: MountKind, option: &str) -> Result<(), PlanError> {
    let attribute = |name: &str| ATTRIBUTES.iter().find(|(known, ..)| *known == name);
    if let Some((_, bits, set)) = attribute(option) {
        change(&mut plan.attributes, *bits, *set);
        return Ok(());
    }
    match option {
        "bind" | "defaults" | "async" | "newinstance" => {}
        "rbind" => plan.recursive = true,
        "private" | "rprivate" => plan.propagation = Propagation::Private.into(),
        "slave" | "rslave" => plan.propagation = Propagation::Slave.into(),
        "shared" | "rshared" => plan.propagation = Propagation::Shared.into(),
        "idmap" | "ridmap" if kind == MountKind::Bind => plan.idmapped = true,
        "remount" | "unbindable" | "runbindable" | "tmpcopyup" => {
            return Err(PlanError::Unsupported(format!("mount option {option:?} at {:?}", plan.target)));
        }
        _ => {
            let recursive = option.strip_prefix('r').and_then(attribute);
            if let Some((_, bits, set)) = recursive.filter(|_| kind == MountKind::Bind) {
                change(&mut plan.recursive_attributes, *bits, *set);
            } else if let Some(path) = option.strip_prefix("subPath=").filter(|_| kind == MountKind::Image) {
                path.clone_into(&mut plan.sub_path);
            } else if matches!(kind, MountKind::Bind | MountKind::Image) {
                return Err(PlanError::Unsupported(format!("mount option {option:?} at {:?}", plan.target)));
            } else {
                plan.options.push(option.to_owned());
            }
        }
    }
    Ok(())
}

fn change(attributes: &mut u64, bits: u64, set: bool) {
    if set {
        *attributes |= bits;
    } else {
        *attributes &= !bits;
    }
}

const READ_ONLY: u64 = 0x1;

/// Names of options with the kernel's `MOUNT_ATTR_*`, and whether they set or clear them.
const ATTRIBUTES: [(&str, u64, bool); 14] = [
    ("ro", READ_ONLY, true),
    ("rw", READ_ONLY, false),
    ("nosuid", 0x2, true),
    ("suid", 0x2, false),
    ("nodev", 0x4, true),
    ("dev", 0x4, false),
    ("noexec", 0x8, true),
    ("exec", 0x8, false),
    ("relatime", 0x30, false),
    ("noatime", 0x10, true),
    ("strictatime", 0x20, true),
    ("nodiratime", 0x80, true),
    ("diratime", 0x80, false),
    ("nosymfollow", 0x20_0000, true),
];
