//! The expanded size of a container's fields, computed without expanding them.

use std::collections::BTreeMap;

use super::{EXPANDED_BYTES_MAX, Part, parts};
use crate::model::Container;

/// The first field of the container that expands to more than [`EXPANDED_BYTES_MAX`], such as `env[3].value`. Values that are not in
/// the spec count as empty, so that a field that is not reported may still be too large.
pub(crate) fn oversized_field(container: &Container) -> Option<String> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut total = 0usize;
    for (i, variable) in container.env.iter().flatten().enumerate() {
        let size = size(variable.value.as_deref().unwrap_or_default(), &sizes);
        total = total.saturating_add(variable.name.len()).saturating_add(size);
        let replaced = sizes.insert(&variable.name, size);
        total = total.saturating_sub(replaced.map_or(0, |old| old + variable.name.len()));
        if total > EXPANDED_BYTES_MAX {
            return Some(format!("env[{i}].value"));
        }
    }
    let command = [("command", &container.command), ("args", &container.args)];
    let command = command.into_iter().flat_map(|(field, list)| {
        list.iter().flatten().enumerate().map(move |(i, text)| (format!("{field}[{i}]"), text.as_str()))
    });
    first_over(command, &sizes).or_else(|| oversized_probe(container))
}

/// Commands of probes see the values as written in the spec (Go kubelet: `ExpandContainerCommandOnlyStatic`).
fn oversized_probe(container: &Container) -> Option<String> {
    let probes = [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ];
    let commands = || probes.iter().filter_map(|(kind, probe)| Some((kind, probe.as_ref()?.exec.as_ref()?)));
    commands().next()?;
    let written = container.env.iter().flatten();
    let sizes: BTreeMap<&str, usize> =
        written.map(|var| (var.name.as_str(), var.value.as_deref().unwrap_or_default().len())).collect();
    commands().find_map(|(kind, exec)| {
        let texts = exec.command.iter().flatten().enumerate();
        first_over(texts.map(|(i, text)| (format!("{kind}.exec.command[{i}]"), text.as_str())), &sizes)
    })
}

fn first_over<'t>(texts: impl Iterator<Item = (String, &'t str)>, sizes: &BTreeMap<&str, usize>) -> Option<String> {
    let mut total = 0usize;
    for (field, text) in texts {
        total = total.saturating_add(size(text, sizes));
        if total > EXPANDED_BYTES_MAX {
            return Some(field);
        }
    }
    None
}

fn size(text: &str, sizes: &BTreeMap<&str, usize>) -> usize {
    let one = |part| match part {
        Part::Text(text) => text.len(),
        Part::Reference(name) => sizes.get(name).copied().unwrap_or_default(),
    };
    parts(text).map(one).fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn oversized(container: Value) -> Option<String> {
        oversized_field(&serde_json::from_value(container).unwrap())
    }

    /// Eleven variables, each with ten times the previous one.
    fn bomb() -> Value {
        let mut env = vec![json!({"name": "V0", "value": "x".repeat(10)})];
        for n in 1..=10 {
            env.push(json!({"name": format!("V{n}"), "value": format!("$(V{})", n - 1).repeat(10)}));
        }
        env.into()
    }

    #[test]
    fn an_environment_that_grows_exponentially_is_found_without_expanding_it() {
        assert_eq!(oversized(json!({"name": "c", "env": bomb()})).as_deref(), Some("env[5].value"));
        let small: Vec<Value> = bomb().as_array().unwrap()[..5].to_vec();
        assert_eq!(oversized(json!({"name": "c", "env": small})), None);
    }

    #[test]
    fn commands_and_exec_probes_are_measured() {
        let env = json!([{"name": "A", "value": "x".repeat(1000)}]);
        let many: Vec<&str> = vec!["$(A)"; 1100];
        let table = [
            (json!({"name": "c", "env": env, "command": many}), Some("command[1048]")),
            (json!({"name": "c", "env": env, "command": ["x"], "args": many}), Some("args[1048]")),
            (json!({"name": "c", "args": many}), None),
            (
                json!({"name": "c", "env": env, "livenessProbe": {"exec": {"command": many}}}),
                Some("livenessProbe.exec.command[1048]"),
            ),
        ];
        for (container, expected) in table {
            assert_eq!(oversized(container).as_deref(), expected);
        }
    }

    #[test]
    fn a_variable_that_is_set_again_counts_once() {
        let env: Vec<Value> = (0..20).map(|_| json!({"name": "A", "value": "x".repeat(100_000)})).collect();
        assert_eq!(oversized(json!({"name": "c", "env": env})), None);
    }
}
