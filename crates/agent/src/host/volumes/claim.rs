//! PersistentVolumeClaims: volumes of type hostPath or local on this node, bind-mounted into the pod's directory.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, PersistentVolume};
use podwright_core::model::Pod;
use podwright_linux::mount;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

use super::set_ups::Cancelled;
use super::{ClaimError, VolumeError, empty_dir, fs_group, host_path, ownership};
use crate::host::dirs;
use crate::objects::ClaimWithVolume;
use crate::pod_spec::{VolumeClaim, pod_uid};

/// A PersistentVolume whose files are on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LocalVolume {
    pub(super) path: PathBuf,
    /// `hostPath.type`.
    kind: Option<String>,
    /// Of type `local`: `fsGroup` applies to it, unlike to a hostPath.
    is_local: bool,
    read_only: bool,
}

/// The names of this node in node affinities.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeNames<'a> {
    pub(super) node: &'a str,
    /// The label `kubernetes.io/hostname`; `None`: unknown.
    pub(super) hostname: Option<&'a str>,
}

/// The volume of a claim on this node.
pub(super) fn local_volume(
    pod: &Pod,
    claim: &VolumeClaim,
    claimed: &ClaimWithVolume,
    names: NodeNames<'_>,
) -> Result<LocalVolume, VolumeError> {
    find_local(pod, claim, claimed, names).map_err(|source| VolumeError::Claim { name: claim.name.clone(), source })
}

fn find_local(
    pod: &Pod,
    claim: &VolumeClaim,
    claimed: &ClaimWithVolume,
    names: NodeNames<'_>,
) -> Result<LocalVolume, ClaimError> {
    let found = &*claimed.claim;
    let owners = found.metadata.owner_references.iter().flatten();
    if claim.is_ephemeral && !owners.into_iter().any(|owner| owner.uid == pod_uid(pod)) {
        return Err(ClaimError::NotOwned);
    }
    if found.metadata.deletion_timestamp.is_some() {
        return Err(ClaimError::Deleted);
    }
    let Some(volume) = &claimed.volume else {
        let phase = found.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
        return Err(ClaimError::Unbound(phase.into()));
    };
    check_use(claim, claimed, volume)?;
    if !allows_node(volume, names) {
        return Err(ClaimError::OtherNode(name_of(volume)));
    }
    local_source(volume).map(|local| LocalVolume { read_only: claim.read_only, ..local })
}

fn name_of(volume: &PersistentVolume) -> String {
    volume.metadata.name.clone().unwrap_or_default()
}

fn check_use(claim: &VolumeClaim, claimed: &ClaimWithVolume, volume: &PersistentVolume) -> Result<(), ClaimError> {
    let Some(spec) = &volume.spec else { return Err(ClaimError::NoSpec(name_of(volume))) };
    let bound_to = spec.claim_ref.as_ref().and_then(|claim| claim.uid.as_deref());
    if bound_to != claimed.claim.metadata.uid.as_deref() {
        return Err(ClaimError::BoundElsewhere(name_of(volume)));
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(ClaimError::Block(name_of(volume)));
    }
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    if !claim.read_only && !modes.is_empty() && modes.iter().all(|mode| mode == "ReadOnlyMany") {
        return Err(ClaimError::ReadOnly(name_of(volume)));
    }
    Ok(())
}

/// Whether the volume's node affinity allows this node, by its names alone: other labels were checked by the scheduler.
fn allows_node(volume: &PersistentVolume, names: NodeNames<'_>) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
    let Some(required) = affinity else { return true };
    let allows = |rule: &NodeSelectorRequirement| {
        let own = match rule.key.as_str() {
            HOSTNAME => names.hostname,
            NODE_NAME => Some(names.node),
            _ => None,
        };
        let Some(own) = own else { return true };
        let named = rule.values.iter().flatten().any(|value| value == own);
        match rule.operator.as_str() {
            "In" => named,
            "NotIn" => !named,
            _ => true,
        }
    };
    required
        .node_selector_terms
        .iter()
        .any(|term| term.match_expressions.iter().chain(&term.match_fields).flatten().all(allows))
}

fn local_source(volume: &PersistentVolume) -> Result<LocalVolume, ClaimError> {
    let spec = volume.spec.clone().unwrap_or_default();
    if let Some(host_path) = spec.host_path {
        return Ok(LocalVolume {
            path: host_path.path.into(),
            kind: host_path.type_,
            is_local: false,
            read_only: false,
        });
    }
    if let Some(local) = spec.local {
        return Ok(LocalVolume { path: local.path.into(), kind: None, is_local: true, read_only: false });
    }
    let fields = serde_json::to_value(&spec).unwrap_or_default();
    let names = fields.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let kind = names.into_iter().find(|name| !COMMON_FIELDS.contains(name)).unwrap_or("unknown");
    Err(ClaimError::Unsupported { volume: name_of(volume), kind: kind.into() })
}

/// Whether the volume is mounted already.
pub(super) fn is_set_up(target: &Path) -> Result<bool, VolumeError> {
    empty_dir::is_mounted(target)
}

/// Bind-mounts the volume into the pod's directory, once.
pub(super) fn set_up(pod: &Pod, volume: &LocalVolume, target: &Path, cancelled: &Cancelled) -> Result<(), VolumeError> {
    if is_set_up(target)? {
        return Ok(());
    }
    // A hostPath without a type may be anything; a missing one is created as a directory, as runtimes do.
    let is_untyped = !volume.is_local && volume.kind.as_deref().unwrap_or_default().is_empty();
    let kind = if is_untyped && !volume.path.exists() { Some("DirectoryOrCreate") } else { volume.kind.as_deref() };
    host_path::check(&volume.path, kind)?;
    let source = openat(CWD, &volume.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(VolumeError::io("open", &volume.path))?;
    mount_opened(pod, volume, kind, &source, target, cancelled)
}

/// Checks, changes and mounts the opened volume. Its path is not used again, because a pod that can write to its parent could replace
/// it meanwhile.
fn mount_opened(
    pod: &Pod,
    volume: &LocalVolume,
    kind: Option<&str>,
    source: &OwnedFd,
    target: &Path,
    cancelled: &Cancelled,
) -> Result<(), VolumeError> {
    host_path::check_opened(source, &volume.path, kind)?;
    let found = fstat(source).map_err(VolumeError::io("open", &volume.path))?;
    let is_dir = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    // Before the mount: a mounted volume is not checked again, so it must be complete.
    if let Some(group) = fs_group(pod)?.filter(|_| volume.is_local && is_dir && !volume.read_only) {
        ownership::apply_opened(source.as_fd(), &volume.path, group, false, cancelled)?;
    }
    if volume.is_local && !is_dir {
        return Err(VolumeError::NotADirectory(volume.path.clone()));
    }
    // The removal of the pod's volumes may be over.
    cancelled.check().map_err(VolumeError::io("create", target))?;
    let dir = if is_dir { target } else { target.parent().unwrap_or(target) };
    dirs::create_dir_all(dir, 0o750).map_err(VolumeError::io("create", dir))?;
    if !is_dir {
        fs::OpenOptions::new().create(true).append(true).open(target).map_err(VolumeError::io("create", target))?;
    }
    let onto = openat(CWD, target, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let onto = onto.map_err(VolumeError::io("open", target))?;
    mount::bind(source, onto).map_err(VolumeError::io("bind", &volume.path))
}

/// The label and the field that name a node in a node affinity.
const HOSTNAME: &str = "kubernetes.io/hostname";
const NODE_NAME: &str = "metadata.name";
/// Fields of a PersistentVolume that are not its source.
const COMMON_FIELDS: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_spec::volume_claim;
    use podwright_tasks::error_chain;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn volume_of(spec: Option<Value>, read_only: bool) -> Result<LocalVolume, String> {
        let claim = json!({"metadata": {"name": "c", "uid": "c-1"}, "status": {"phase": "Pending"}});
        let volume = spec.map(|mut spec| {
            if spec.get("claimRef").is_none() {
                spec["claimRef"] = json!({"uid": "c-1"});
            }
            Arc::new(serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap())
        });
        let claimed = ClaimWithVolume { claim: Arc::new(serde_json::from_value(claim).unwrap()), volume };
        let claim = VolumeClaim { name: "c".into(), read_only, is_ephemeral: false };
        local_volume(&Pod::default(), &claim, &claimed, NAMES).map_err(|e| error_chain(&e))
    }

    const NAMES: NodeNames<'_> = NodeNames { node: "node", hostname: Some("here") };

    fn local_on(values: Value) -> Value {
        let rules = json!([{"key": "kubernetes.io/hostname", "operator": "In", "values": values},
            {"key": "zone", "operator": "In", "values": ["a"]}]);
        json!({"local": {"path": "/x"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": rules}]}}})
    }

    #[test]
    fn only_bound_claims_with_a_volume_on_this_node_can_be_used() {
        let table = [
            (None, "not bound to a volume (phase Pending)"),
            (Some(json!({"local": {"path": "/x"}, "claimRef": {"uid": "other"}})), "is not bound to it"),
            (Some(json!({"local": {"path": "/x"}, "volumeMode": "Block"})), "block device"),
            (Some(json!({"local": {"path": "/x"}, "accessModes": ["ReadOnlyMany"]})), "can only be read"),
            (
                Some(json!({"csi": {"driver": "d", "volumeHandle": "h"}, "storageClassName": "fast"})),
                "is of type csi, which is not supported",
            ),
            (Some(local_on(json!(["there", "elsewhere"]))), "is on another node"),
            (Some(json!({"nfs": {"path": "/x", "server": "s"}})), "is of type nfs"),
        ];
        for (spec, why) in table {
            let error = volume_of(spec, false).unwrap_err();
            assert!(error.starts_with("persistentvolumeclaim \"c\": ") && error.contains(why), "{error}");
        }
        let local = json!({"local": {"path": "/x"}, "accessModes": ["ReadOnlyMany"]});
        assert_eq!(volume_of(Some(local), true).unwrap().path, Path::new("/x"));
        assert!(volume_of(Some(local_on(json!(["there", "here"]))), false).is_ok());
        let typed = json!({"hostPath": {"path": "/x", "type": "Directory"}});
        assert_eq!(volume_of(Some(typed), false).unwrap().kind.as_deref(), Some("Directory"));
    }

    #[test]
    fn an_unknown_hostname_label_is_not_compared() {
        let volume: PersistentVolume = serde_json::from_value(json!({"spec": local_on(json!(["there"]))})).unwrap();
        assert!(!allows_node(&volume, NAMES));
        assert!(allows_node(&volume, NodeNames { hostname: None, ..NAMES }));
    }

    #[test]
    fn a_claim_that_is_being_deleted_is_not_mounted() {
        let going = json!({"metadata": {"name": "c", "uid": "c-1", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let claimed = ClaimWithVolume { claim: Arc::new(serde_json::from_value(going).unwrap()), volume: None };
        let claim = VolumeClaim { name: "c".into(), read_only: false, is_ephemeral: false };
        let error = local_volume(&Pod::default(), &claim, &claimed, NAMES).unwrap_err();
        assert_eq!(error_chain(&error), "persistentvolumeclaim \"c\": it is being deleted");
    }

    #[test]
    fn a_local_volume_must_be_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let volume = LocalVolume { path: file, kind: None, is_local: true, read_only: false };
        let error = set_up(&Pod::default(), &volume, &dir.path().join("target"), &Cancelled::default()).unwrap_err();
        assert!(error.to_string().contains("must be a directory"), "{error}");
    }

    #[test]
    fn a_volume_whose_path_is_replaced_after_it_was_opened_is_not_followed() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let [path, moved, victim, target] = ["volume", "moved", "victim", "target"].map(|name| dir.path().join(name));
        fs::create_dir(&path).unwrap();
        fs::create_dir(&victim).unwrap();
        let volume = LocalVolume { path: path.clone(), kind: None, is_local: true, read_only: false };
        let source = openat(CWD, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        fs::rename(&path, &moved).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        let pod: Pod =
            serde_json::from_value(json!({"spec": {"containers": [], "securityContext": {"fsGroup": 4321}}})).unwrap();
        mount_opened(&pod, &volume, None, &source, &target, &Cancelled::default()).unwrap();
        let mounted = fs::metadata(&target).unwrap().ino();
        mount::unmount(&target).unwrap();
        assert_eq!(mounted, fs::metadata(&moved).unwrap().ino());
        assert_eq!((fs::metadata(&moved).unwrap().gid(), fs::metadata(&victim).unwrap().gid()), (4321, 0));
        let error = mount_opened(&pod, &volume, Some("File"), &source, &target, &Cancelled::default()).unwrap_err();
        assert!(error_chain(&error).contains("hostPath type check failed"), "{error}");
    }

    #[test]
    fn an_ephemeral_claim_must_be_owned_by_its_pod() {
        let volume = serde_json::from_value(json!({"name": "v", "ephemeral": {}})).unwrap();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}})).unwrap();
        let claim = volume_claim(&pod, &volume).unwrap();
        assert_eq!(claim.name, "p-v");
        let claimed = ClaimWithVolume { claim: Arc::default(), volume: None };
        let error = local_volume(&pod, &claim, &claimed, NAMES).unwrap_err();
        assert!(error_chain(&error).contains("not created for this pod"), "{error}");
    }
}
