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
    rules: &[&Accepted],
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
pub(crate) fn stale(rules: &[&Accepted], used: &BTreeSet<usize>) -> Vec<&'static str> {
    let unused = rules.iter().enumerate().filter(|(n, rule)| !rule.sometimes && !used.contains(n));
    unused.map(|(_, rule)| rule.why).collect()
}
