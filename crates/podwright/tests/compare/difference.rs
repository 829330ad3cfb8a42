//! A field that two agents tell differently, and rules that allow it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::fields::Fields;

/// One field that is not the same.
pub(crate) struct Difference<'a> {
    pub(crate) case: &'a str,
    pub(crate) path: &'a str,
    pub(crate) ours: Option<&'a Value>,
    pub(crate) theirs: Option<&'a Value>,
    /// Both say that the pod has ended.
    pub(crate) ended: bool,
}

/// One kind of difference that is there on purpose.
pub(crate) struct Accepted {
    pub(crate) fits: fn(&Difference<'_>) -> bool,
    /// Not in every run: the Go kubelet itself, or the runtime, says now this, now that.
    pub(crate) sometimes: bool,
    pub(crate) why: &'static str,
}

impl Difference<'_> {
    /// Ours and theirs are just these.
    pub(crate) fn is(&self, ours: &str, theirs: &str) -> bool {
        self.ours.is_some_and(|v| v == ours) && self.theirs.is_some_and(|v| v == theirs)
    }
}

/// Compare a pod under both. Returns how many fields there were, the rules that were used, and what none of them allows.
pub(crate) fn compare(
    case: &str,
    ours: &Fields,
    theirs: &Fields,
    rules: &[Accepted],
    used: &mut BTreeSet<usize>,
) -> (usize, Vec<String>) {
    let has_ended = |fields: &Fields| fields.get("status.phase").is_some_and(|p| p == "Succeeded" || p == "Failed");
    let ended = has_ended(ours) && has_ended(theirs);
    let paths: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let mut wrong = vec![];
    for path in &paths {
        let difference = Difference { case, path, ours: ours.get(*path), theirs: theirs.get(*path), ended };
        if difference.ours == difference.theirs {
            continue;
        }
        let text = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
        let (here, there) = (text(difference.ours), text(difference.theirs));
        let line = format!("{case} {path}: ours {here}, the Go kubelet's {there}");
        match rules.iter().position(|rule| (rule.fits)(&difference)) {
            Some(rule) if used.insert(rule) => println!("accepted, for one: {line} ({})", rules[rule].why),
            Some(_) => {}
            None => wrong.push(line),
        }
    }
    (paths.len(), wrong)
}

/// Rules that allowed nothing: the list must not outlive its reasons.
pub(crate) fn stale(rules: &[Accepted], used: &BTreeSet<usize>) -> Vec<&'static str> {
    let unused = rules.iter().enumerate().filter(|(n, rule)| !rule.sometimes && !used.contains(n));
    unused.map(|(_, rule)| rule.why).collect()
}

/// The Go kubelet removes the dead sidecar of a job that is over before its exit is in the status.
pub(crate) fn lost_exit(d: &Difference<'_>) -> bool {
    let Some((_, field)) = d.path.split_once("initContainerStatuses[side].state.terminated.") else { return false };
    d.case == "sidecar-fails-job"
        && match field {
            "exitCode" => d.ours.is_some_and(|v| *v == 9) && d.theirs.is_some_and(|v| *v == 137),
            "reason" => d.is("Error", "ContainerStatusUnknown"),
            "message" => d.ours.is_none(),
            _ => d.theirs.is_none(),
        }
}

/// When a rule restarts all containers, the Go kubelet removes them before their ends are in the status.
pub(crate) fn lost_last_exit(d: &Difference<'_>) -> bool {
    let Some((_, field)) = d.path.split_once("].lastState.terminated.") else { return false };
    d.case == "restarts-all"
        && match field {
            "exitCode" => d.theirs.is_some_and(|v| *v == 137),
            "reason" => d.theirs.is_some_and(|v| v == "RestartingAllContainers"),
            "message" => d.ours.is_none(),
            _ => d.theirs.is_none(),
        }
}

/// Its last status of an ended pod may be older than the end of its sandbox.
pub(crate) fn older_than_the_sandbox(d: &Difference<'_>) -> bool {
    d.ended && d.path == "status.conditions[PodReadyToStartContainers].status" && d.is("False", "True")
}

/// containerd may hear of the end before it hears why, and then tells an error.
pub(crate) fn end_without_a_reason(d: &Difference<'_>) -> bool {
    d.case == "hungry"
        && d.path.ends_with("terminated.reason")
        && (d.is("OOMKilled", "Error") || d.is("Error", "OOMKilled"))
}
