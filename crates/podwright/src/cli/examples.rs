//! Examples for the help of every verb; a test takes each as a person would type it.

/// A verb, and lines of what to type and why.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "run",
        &[
            ("podwright run --pod-manifest-path /etc/kubernetes/manifests", "Run the pods of a directory"),
            (
                "podwright run --config /etc/podwright/config.yaml --record /var/tmp/flight",
                "With a KubeletConfiguration, recorded",
            ),
        ],
    ),
    ("get", &[("podwright get pods -A -o wide", "All pods"), ("podwright get pod/web -o yaml", "One pod as YAML")]),
    ("describe", &[("podwright describe pod web", "Everything about a pod")]),
    (
        "events",
        &[
            ("podwright events --for pod/web", "What happened to a pod"),
            ("podwright events -A -w", "All of them, and those to come"),
        ],
    ),
    ("explain", &[("podwright explain web", "Why a pod is where it is")]),
    ("apply", &[("podwright apply -f web.yaml", "Make the pods of a file so")]),
    ("delete", &[("podwright delete pod web", "End a pod that was applied")]),
    (
        "restart",
        &[
            ("podwright restart web -c server", "Restart one container now"),
            ("podwright restart web", "All of them; a pod that was stopped or has ended gets another life"),
        ],
    ),
    ("stop", &[("podwright stop --all --timeout 2m", "End every pod gracefully")]),
    (
        "logs",
        &[
            ("podwright logs -f web -c server", "Follow the log of a container"),
            ("podwright logs -p web", "Of the instance before"),
        ],
    ),
    ("exec", &[("podwright exec -it web -- sh", "A shell in a container")]),
    ("wait", &[("podwright wait pod/web --for=condition=Ready --timeout=30s", "Until a pod is ready")]),
    (
        "check",
        &[
            ("podwright check web.yaml", "What is wrong with a manifest, by line"),
            ("podwright check --for api web.yaml", "Would an API server take it?"),
            ("podwright check --strict -o json /etc/kubernetes/manifests", "A whole directory, for a program"),
        ],
    ),
    (
        "replay",
        &[
            ("podwright replay flight --pod web", "What was decided about a pod, step by step"),
            ("podwright replay -q flight", "Only whether every decision is the same"),
        ],
    ),
    ("version", &[("podwright version", "The version")]),
    (
        "completion",
        &[("podwright completion bash > /etc/bash_completion.d/podwright", "Completion for every user's bash")],
    ),
];

/// The definition with its examples.
pub(super) fn add_to(command: clap::Command) -> clap::Command {
    EXAMPLES.iter().fold(command, |command, (verb, examples)| {
        if command.find_subcommand(verb).is_none() {
            return command;
        }
        let lines: Vec<String> = examples.iter().map(|(line, why)| format!("  # {why}\n  {line}")).collect();
        command.mut_subcommand(verb, |verb| verb.after_help(format!("Examples:\n{}", lines.join("\n\n"))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_verb_has_an_example_that_is_understood() {
        let command = Cli::definition();
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            assert!(EXAMPLES.iter().any(|(name, _)| *name == verb.get_name()), "{} has no example", verb.get_name());
        }
        for (line, _) in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            let typed = line.split(" > ").next().unwrap_or_default();
            Cli::parse_from(typed.split_whitespace().map(Into::into)).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }
}
