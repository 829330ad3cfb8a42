//! Compares the fields of a pod under both kubelets, and applies the rules for accepted differences.

use std::collections::BTreeSet;

use serde_json::Value;

use super::accepted::{self, Setting};
use super::fields::Fields;
use super::pair::{Observed, Pair};

/// A field with different values.
pub(crate) struct Difference<'a> {
    pub(crate) case: &'a str,
    pub(crate) path: &'a str,
    pub(crate) ours: Option<&'a Value>,
    pub(crate) theirs: Option<&'a Value>,
    /// The pod is in a terminal phase under both kubelets.
    pub(crate) terminated: bool,
}

/// A kind of difference that is intended.
pub(crate) struct AcceptedDifference {
    pub(crate) matches: fn(&Difference<'_>) -> bool,
    /// Does not occur in every run: the Go kubelet or the runtime itself varies.
    pub(crate) intermittent: bool,
    pub(crate) reason: &'static str,
}

impl Difference<'_> {
    /// The values are exactly these.
    pub(crate) fn is(&self, ours: &str, theirs: &str) -> bool {
        self.ours.is_some_and(|v| v == ours) && self.theirs.is_some_and(|v| v == theirs)
    }
}

/// Fails unless every pod has the same fields under both kubelets, apart from accepted differences; fails also for rules that
/// matched nothing.
pub(crate) fn assert_same(setting: Setting, pair: Pair, ours: &Observed, theirs: &Observed) {
    let rules = accepted::rules(setting, pair);
    let (mut wrong, mut used, mut fields) = (vec![], BTreeSet::new(), 0);
    for (case, fields_of_case) in ours {
        let (count, lines) = compare(case, fields_of_case, &theirs[case], &rules, &mut used);
        fields += count;
        wrong.extend(lines);
    }
    println!(
        "{pair}: {fields} fields of {} pods compared: {} rules used, {} unexpected differences",
        ours.len(),
        used.len(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{pair}: {} fields differ:\n{}", wrong.len(), wrong.join("\n"));
    let stale = stale(&rules, &used);
    assert!(stale.is_empty(), "{pair}: accepted differences that no longer occur: {stale:#?}");
}

/// Compares one pod. Returns the number of fields and the differences that no rule accepts; adds the rules that matched to `used`.
fn compare(
    case: &str,
    ours: &Fields,
    theirs: &Fields,
    rules: &[&AcceptedDifference],
    used: &mut BTreeSet<usize>,
) -> (usize, Vec<String>) {
    let is_terminal = |fields: &Fields| fields.get("status.phase").is_some_and(|p| p == "Succeeded" || p == "Failed");
    let terminated = is_terminal(ours) && is_terminal(theirs);
    let paths: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let mut wrong = vec![];
    for path in &paths {
        let difference = Difference { case, path, ours: ours.get(*path), theirs: theirs.get(*path), terminated };
        if difference.ours == difference.theirs {
            continue;
        }
        let text = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
        let (here, there) = (text(difference.ours), text(difference.theirs));
        let line = format!("{case} {path}: {here}, but {there} from the Go kubelet on containerd");
        match rules.iter().position(|rule| (rule.matches)(&difference)) {
            Some(rule) if used.insert(rule) => println!("accepted, for example: {line} ({})", rules[rule].reason),
            Some(_) => {}
            None => wrong.push(line),
        }
    }
    (paths.len(), wrong)
}

/// Rules that matched nothing, to be removed.
fn stale(rules: &[&AcceptedDifference], used: &BTreeSet<usize>) -> Vec<&'static str> {
    let unused = rules.iter().enumerate().filter(|(n, rule)| !rule.intermittent && !used.contains(n));
    unused.map(|(_, rule)| rule.reason).collect()
}
