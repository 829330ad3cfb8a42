//! Claims: persistent volumes that lie on this machine, hostPath or local, bound into the pod's directory.

use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, PersistentVolume, Volume};
use podwright_core::model::Pod;
use podwright_linux::mount;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{empty_dir, failed, fs_group, host_path, ownership};
use crate::host::{HostError, dirs, paths};
use crate::objects::ClaimWithVolume;

/// What a volume claims, and how it may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) name: String,
    pub(super) read_only: bool,
    /// Made for this pod alone: it must be the claim's owner.
    of_pod: bool,
}

/// The claim of a volume, if it is one.
pub(super) fn of(pod: &Pod, volume: &Volume) -> Option<Claim> {
    if let Some(claim) = &volume.persistent_volume_claim {
        let read_only = claim.read_only.unwrap_or_default();
        return Some(Claim { name: claim.claim_name.clone(), read_only, of_pod: false });
    }
    volume.ephemeral.as_ref()?;
    Some(Claim { name: format!("{}-{}", paths::name(pod), volume.name), read_only: false, of_pod: true })
}

/// A place on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    /// What a hostPath says it is.
    kind: Option<String>,
    /// The pod's group gets it (hostPath is never given away).
    is_local: bool,
    read_only: bool,
}

/// What volumes call this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here<'a> {
    pub(super) node: &'a str,
    /// Its hostname label, where that is known.
    pub(super) hostname: Option<&'a str>,
}

/// Where a claim's volume lies on this node, or why it can't be used.
pub(super) fn place(pod: &Pod, claim: &Claim, claimed: &ClaimWithVolume, here: Here<'_>) -> Result<Place, HostError> {
    let told = |why: String| failed(format!("persistentvolumeclaim {:?}: {why}", claim.name));
    let found = &*claimed.claim;
    let owners = found.metadata.owner_references.iter().flatten();
    if claim.of_pod && !owners.into_iter().any(|owner| owner.uid == paths::uid(pod)) {
        return Err(told("it was not made for this pod".into()));
    }
    if found.metadata.deletion_timestamp.is_some() {
        return Err(told("it is being deleted".into()));
    }
    let Some(volume) = &claimed.volume else {
        let phase = found.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
        return Err(told(format!("it is not bound to a volume (phase {phase})")));
    };
    check_use(claim, claimed, volume).map_err(told)?;
    if !may_be(volume, here) {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        return Err(told(format!("volume {name:?} is on another node")));
    }
    on_machine(volume).map(|place| Place { read_only: claim.read_only, ..place }).map_err(told)
}

fn check_use(claim: &Claim, claimed: &ClaimWithVolume, volume: &PersistentVolume) -> Result<(), String> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let Some(spec) = &volume.spec else { return Err(format!("volume {name:?} has no spec")) };
    let bound_to = spec.claim_ref.as_ref().and_then(|claim| claim.uid.as_deref());
    if bound_to != claimed.claim.metadata.uid.as_deref() {
        return Err(format!("volume {name:?} is not bound to it"));
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(format!("volume {name:?} is a block device, which is not supported"));
    }
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    if !claim.read_only && !modes.is_empty() && modes.iter().all(|mode| mode == "ReadOnlyMany") {
        return Err(format!("volume {name:?} can only be read: the pod must claim it with readOnly"));
    }
    Ok(())
}

/// A volume that lies on one machine says on which. Other labels it may ask for are the scheduler's to look at.
fn may_be(volume: &PersistentVolume, here: Here<'_>) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
    let Some(required) = affinity else { return true };
    let allows = |rule: &NodeSelectorRequirement| {
        let ours = match rule.key.as_str() {
            HOSTNAME => here.hostname,
            NODE_NAME => Some(here.node),
            _ => None,
        };
        let Some(ours) = ours else { return true };
        let named = rule.values.iter().flatten().any(|value| value == ours);
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

fn on_machine(volume: &PersistentVolume) -> Result<Place, String> {
    let spec = volume.spec.clone().unwrap_or_default();
    if let Some(host_path) = spec.host_path {
        return Ok(Place { path: host_path.path.into(), kind: host_path.type_, is_local: false, read_only: false });
    }
    if let Some(local) = spec.local {
        return Ok(Place { path: local.path.into(), kind: None, is_local: true, read_only: false });
    }
    let fields = serde_json::to_value(&spec).unwrap_or_default();
    let names = fields.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let kind = names.into_iter().find(|name| !COMMON_FIELDS.contains(name)).unwrap_or("unknown");
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    Err(format!("volume {name:?} is of type {kind}, which is not supported"))
}

/// The volume is there already.
pub(super) fn is_set_up(target: &Path) -> Result<bool, HostError> {
    empty_dir::is_mounted(target)
}

/// Binds the place to the pod's directory, once.
pub(super) fn set_up(pod: &Pod, place: &Place, target: &Path) -> Result<(), HostError> {
    if is_set_up(target)? {
        return Ok(());
    }
    // A hostPath without a type may be anything; what is missing is made, as runtimes do.
    let is_open = !place.is_local && place.kind.as_deref().unwrap_or_default().is_empty();
    let kind = if is_open && !place.path.exists() { Some("DirectoryOrCreate") } else { place.kind.as_deref() };
    host_path::check(&place.path, kind)?;
    let told = |e: std::io::Error| failed(format!("{}: {e}", place.path.display()));
    let source = openat(CWD, &place.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(|e| told(e.into()))?;
    let is_dir = fs::metadata(&place.path).map_err(told)?.is_dir();
    // Before it is bound: what stands is not looked at again, and must be whole.
    if let Some(group) = fs_group(pod)?.filter(|_| place.is_local && is_dir && !place.read_only) {
        ownership::apply(&place.path, group, false)?;
    }
    if place.is_local && !is_dir {
        return Err(failed(format!("{}: a local volume must be a directory", place.path.display())));
    }
    let dir = if is_dir { target } else { target.parent().unwrap_or(target) };
    dirs::make_all(dir, 0o750).map_err(|(path, e)| failed(format!("make {path}: {e}")))?;
    if !is_dir {
        fs::OpenOptions::new().create(true).append(true).open(target).map_err(told)?;
    }
    let onto = openat(CWD, target, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let onto = onto.map_err(|e| told(e.into()))?;
    mount::bind(source, onto).map_err(|e| failed(format!("bind {}: {e}", place.path.display())))
}

/// The label and the field that name a node.
const HOSTNAME: &str = "kubernetes.io/hostname";
const NODE_NAME: &str = "metadata.name";
/// Fields of every volume, whatever its type.
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
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn place_of(spec: Option<Value>, read_only: bool) -> Result<Place, String> {
        let claim = json!({"metadata": {"name": "c", "uid": "c-1"}, "status": {"phase": "Pending"}});
        let volume = spec.map(|mut spec| {
            if spec.get("claimRef").is_none() {
                spec["claimRef"] = json!({"uid": "c-1"});
            }
            Arc::new(serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap())
        });
        let claimed = ClaimWithVolume { claim: Arc::new(serde_json::from_value(claim).unwrap()), volume };
        let claim = Claim { name: "c".into(), read_only, of_pod: false };
        place(&Pod::default(), &claim, &claimed, HERE).map_err(|e| e.message)
    }

    const HERE: Here<'_> = Here { node: "node", hostname: Some("here") };

    fn local_on(values: Value) -> Value {
        let rules = json!([{"key": "kubernetes.io/hostname", "operator": "In", "values": values},
            {"key": "zone", "operator": "In", "values": ["a"]}]);
        json!({"local": {"path": "/x"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": rules}]}}})
    }

    #[test]
    fn only_bound_claims_on_this_machine_can_be_used() {
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
            let error = place_of(spec, false).unwrap_err();
            assert!(error.starts_with("persistentvolumeclaim \"c\": ") && error.contains(why), "{error}");
        }
        let local = json!({"local": {"path": "/x"}, "accessModes": ["ReadOnlyMany"]});
        assert_eq!(place_of(Some(local), true).unwrap().path, Path::new("/x"));
        assert!(place_of(Some(local_on(json!(["there", "here"]))), false).is_ok());
        let typed = json!({"hostPath": {"path": "/x", "type": "Directory"}});
        assert_eq!(place_of(Some(typed), false).unwrap().kind.as_deref(), Some("Directory"));
    }

    #[test]
    fn a_hostname_that_somebody_else_gives_the_node_is_not_judged() {
        let volume: PersistentVolume = serde_json::from_value(json!({"spec": local_on(json!(["there"]))})).unwrap();
        assert!(!may_be(&volume, HERE));
        assert!(may_be(&volume, Here { hostname: None, ..HERE }));
    }

    #[test]
    fn a_claim_that_is_being_deleted_begins_nothing() {
        let going = json!({"metadata": {"name": "c", "uid": "c-1", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let claimed = ClaimWithVolume { claim: Arc::new(serde_json::from_value(going).unwrap()), volume: None };
        let claim = Claim { name: "c".into(), read_only: false, of_pod: false };
        let error = place(&Pod::default(), &claim, &claimed, HERE).unwrap_err();
        assert_eq!(error.message, "persistentvolumeclaim \"c\": it is being deleted");
    }

    #[test]
    fn a_local_volume_is_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let place = Place { path: file, kind: None, is_local: true, read_only: false };
        let error = set_up(&Pod::default(), &place, &dir.path().join("target")).unwrap_err();
        assert!(error.message.contains("must be a directory"), "{}", error.message);
    }

    #[test]
    fn an_ephemeral_claim_belongs_to_its_pod() {
        let volume = serde_json::from_value(json!({"name": "v", "ephemeral": {}})).unwrap();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}})).unwrap();
        let claim = of(&pod, &volume).unwrap();
        assert_eq!(claim.name, "p-v");
        let claimed = ClaimWithVolume { claim: Arc::default(), volume: None };
        assert!(place(&pod, &claim, &claimed, HERE).unwrap_err().message.contains("not made for this pod"));
    }
}
