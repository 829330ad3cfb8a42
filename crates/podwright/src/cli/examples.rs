//! Examples for the help of every command; a test parses each of them.

/// Command, and pairs of a command line and its description.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "run",
        &[
            ("podwright run --pod-manifest-path /etc/kubernetes/manifests", "Run the pods of a manifest directory"),
            (
                "podwright run --config /etc/podwright/config.yaml --record /var/tmp/flight",
                "Use a KubeletConfiguration file, and record all decisions",
            ),
        ],
    ),
    (
        "get",
        &[
            ("podwright get pods -A -o wide", "List all pods"),
            ("podwright get pod/web -o yaml", "Print one pod as YAML"),
        ],
    ),
    ("describe", &[("podwright describe pod web", "Show the details of a pod")]),
    (
        "events",
        &[
            ("podwright events --for pod/web", "List the events of a pod"),
            ("podwright events -A -w", "List all events, then watch for new ones"),
        ],
    ),
    ("explain", &[("podwright explain web", "Find out why a pod is not running")]),
    ("apply", &[("podwright apply -f web.yaml", "Create or update the pods of a file")]),
    ("delete", &[("podwright delete pod web", "Delete a pod that was created by apply")]),
    (
        "restart",
        &[
            ("podwright restart web -c server", "Restart one container now"),
            ("podwright restart web", "Restart all containers, or start a stopped or terminated pod again"),
        ],
    ),
    ("stop", &[("podwright stop --all --timeout 2m", "Stop all pods gracefully")]),
    (
        "logs",
        &[
            ("podwright logs -f web -c server", "Follow the log of a container"),
            ("podwright logs -p web", "Print the log of the previous instance"),
        ],
    ),
    ("exec", &[("podwright exec -it web -- sh", "Open a shell in a container")]),
    ("wait", &[("podwright wait pod/web --for=condition=Ready --timeout=30s", "Wait until a pod is ready")]),
    (
        "check",
        &[
            ("podwright check web.yaml", "Validate a manifest"),
            ("podwright check --for api web.yaml", "Validate it with the rules of an API server"),
            ("podwright check --strict -o json /etc/kubernetes/manifests", "Validate a directory, with JSON output"),
        ],
    ),
    (
        "replay",
        &[
            ("podwright replay flight --pod web", "Show all decisions about a pod"),
            ("podwright replay -q flight", "Only check that all decisions are the same"),
        ],
    ),
    ("version", &[("podwright version", "Print the version")]),
    (
        "completion",
        &[("podwright completion bash > /etc/bash_completion.d/podwright", "Install bash completion for all users")],
    ),
];

/// Adds the examples to the help of each command.
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
    fn every_command_has_an_example_that_parses() {
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
