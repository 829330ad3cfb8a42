//! Whether this agent can take a running node over from the Go kubelet: what would restart, what this agent can not keep up, and
//! what to know. Facts in, findings out; `podwright takeover --check` collects the facts.

mod state_files;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use crate::fields;
use crate::model::{FullName, Listing, Now, Pod, PodListed, PodSeen, PodUid, Source, full_name, is_terminal, spec_of};
use crate::pod::forecast;
use crate::static_pod::runs_manifest;

pub use state_files::{KNOWN_NAMES, STATE_FILES, check_names, check_state_file};

/// What a takeover would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Consequence {
    /// Containers would be stopped.
    Restart,
    /// Containers go on, and something of theirs is not kept up.
    Loss,
    /// Nothing changes; an administrator should know it.
    Note,
}

impl Consequence {
    /// The word in the output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Loss => "loss",
            Self::Note => "note",
        }
    }
}

/// One result of the check.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TakeoverFinding {
    /// What would happen.
    pub consequence: Consequence,
    /// `None`: it is about the node.
    pub pod: Option<FullName>,
    /// The reason.
    pub message: String,
}

impl TakeoverFinding {
    /// About the node.
    pub fn of_node(consequence: Consequence, message: impl Into<String>) -> Self {
        Self { consequence, pod: None, message: message.into() }
    }

    /// About one pod.
    pub fn of_pod(consequence: Consequence, pod: &Pod, message: impl Into<String>) -> Self {
        Self { consequence, pod: Some(full_name(pod)), message: message.into() }
    }
}

/// A pod that is wanted on the node, and what was found of it.
#[derive(Clone, Debug)]
pub struct FoundPod {
    /// With the UID under which it runs.
    pub pod: Arc<Pod>,
    /// Where it comes from.
    pub source: Source,
    /// What the runtime has of it.
    pub seen: PodSeen,
    /// Its cgroup is where this configuration puts it.
    pub has_cgroup: bool,
    /// Its directory is below the root directory.
    pub has_dir: bool,
}

/// What a takeover would do to a pod.
pub fn check_pod(found: &FoundPod, now: Now) -> Vec<TakeoverFinding> {
    let pod = &found.pod;
    let ended = pod.status.as_ref().is_some_and(|status| is_terminal(status.phase.as_deref()));
    if (ended && !found.source.is_static()) || found.seen.is_stopped() {
        return vec![];
    }
    let finding = |consequence, message: String| TakeoverFinding::of_pod(consequence, pod, message);
    let mut findings = vec![];
    let plan = forecast(pod, found.source, found.seen.clone(), now);
    findings.extend(plan.stops.into_iter().map(|(_, message)| finding(Consequence::Restart, message)));
    if plan.ends {
        findings.push(finding(Consequence::Restart, "all its containers have done their part: it would end".into()));
    }
    if !found.has_cgroup {
        let message = "its cgroup is not where this configuration puts it: compare cgroupDriver and cgroupRoot";
        findings.push(finding(Consequence::Restart, message.into()));
    }
    if !found.has_dir {
        let message =
            "it has no directory below the root directory: volumes are not updated. Is --root-dir the kubelet's?";
        findings.push(finding(Consequence::Loss, message.into()));
    }
    findings.extend(missing_features(pod).into_iter().map(|message| finding(Consequence::Loss, message)));
    findings
}

/// What the pod uses and this agent does not have. Its containers run on, and can not be started again as they are.
fn missing_features(pod: &Pod) -> Vec<String> {
    let document = json!({"spec": spec_of(pod)});
    let unsupported = fields::unsupported(&document, FINDINGS_MAX).into_iter();
    // Fields of which only a change is not supported in manifests do no harm to a pod that runs.
    let lacking = unsupported.filter(|(_, why)| !why.starts_with("in manifests"));
    lacking.map(|(path, why)| format!("{path}: {why}")).collect()
}

/// The pod of the runtime that runs this manifest; an error if one of its name runs and is another one.
pub fn find_static<'a>(
    manifest: &Pod,
    source: Source,
    listing: &'a Listing,
) -> Result<Option<&'a PodUid>, TakeoverFinding> {
    let uid = manifest.metadata.uid.as_deref().unwrap_or_default();
    if let Some((uid, _)) = listing.pods.get_key_value(uid) {
        return Ok(Some(uid));
    }
    let name = full_name(manifest);
    let is_namesake = |listed: &PodListed| listed.full_name == name && listed.is_active();
    let mut namesakes = listing.pods.iter().filter(|(_, listed)| is_namesake(listed)).peekable();
    if namesakes.peek().is_none() {
        return Ok(None);
    }
    let same = namesakes.find(|(_, listed)| listed.source == Some(source) && runs_manifest(listed, manifest));
    let differs = "its manifest has other containers or images than the pod that runs";
    same.map(|(uid, _)| Some(uid)).ok_or_else(|| TakeoverFinding::of_pod(Consequence::Restart, manifest, differs))
}

/// Pods that only the runtime has would be stopped, as the Go kubelet would stop them.
pub fn check_orphans(listing: &Listing, wanted: &BTreeSet<PodUid>, names: &BTreeSet<FullName>) -> Vec<TakeoverFinding> {
    let orphans = listing.pods.iter().filter(|(uid, listed)| listed.is_active() && !wanted.contains(*uid));
    // Of a static pod whose manifest differs, the finding about the manifest says enough.
    let unknown = orphans.filter(|(_, listed)| !names.contains(&listed.full_name));
    let finding = |listed: &PodListed| TakeoverFinding {
        consequence: Consequence::Restart,
        pod: Some(listed.full_name.clone()),
        message: "neither the API server nor a manifest has it: it would be stopped for good".into(),
    };
    unknown.map(|(_, listed)| finding(listed)).collect()
}

/// Findings about one pod's fields.
const FINDINGS_MAX: usize = 20;

#[cfg(test)]
mod tests;
