//! Node selector and required node affinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};

use crate::model::Pod;

/// The node selector and the required node affinity both match.
pub(super) fn matches(pod: &Pod, labels: &BTreeMap<String, String>, node_name: &str) -> bool {
    let Some(spec) = &pod.spec else { return true };
    if spec.node_selector.iter().flatten().any(|(key, value)| labels.get(key) != Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    // One matching term is enough; an empty term matches nothing.
    required
        .is_none_or(|selector| selector.node_selector_terms.iter().any(|term| term_matches(term, labels, node_name)))
}

fn term_matches(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, node_name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions.iter().all(|e| holds(e, labels.get(&e.key).map(String::as_str)))
        && fields.iter().all(|f| f.key == "metadata.name" && holds_field(f, node_name))
}

fn holds(requirement: &NodeSelectorRequirement, label: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = |label: &str| values.iter().any(|value| value == label);
    match requirement.operator.as_str() {
        "In" => label.is_some_and(among),
        "NotIn" => !label.is_some_and(among),
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        "Gt" => compare(label, values).is_some_and(|(label, value)| label > value),
        "Lt" => compare(label, values).is_some_and(|(label, value)| label < value),
        _ => false,
    }
}

fn holds_field(requirement: &NodeSelectorRequirement, node_name: &str) -> bool {
    matches!(requirement.operator.as_str(), "In" | "NotIn")
        && requirement.values.as_ref().is_some_and(|values| values.len() == 1)
        && holds(requirement, Some(node_name))
}

fn compare(label: Option<&str>, values: &[String]) -> Option<(i64, i64)> {
    let [value] = values else { return None };
    Some((label?.parse().ok()?, value.parse().ok()?))
}
