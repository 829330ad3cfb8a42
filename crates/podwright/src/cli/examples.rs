//! Examples for the help of every command; a test parses each of them.

/// Command, and pairs of a command line and its description.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "run",
        &[
            ("podwright run --pod-manifest-path /etc/kubernetes/manifests", "Run the pods of a manifest directory"),
            (
                "podwright run --config /etc/podwright/config.yaml --record /var/tmp/recording",
                "Use a KubeletConfiguration file, and record all decisions",
            ),
        ],
    ),
    (
        "get",
        &[
            ("podwright get pods -A -o wide", "List all pods"),
            ("podwright get pod/web -o yaml", "Print one pod as YAML"),
            ("podwright get pods -o jsonpath={.items[*].metadata.name}", "Print the names of all pods"),
            ("podwright get pods --sort-by .metadata.creationTimestamp", "List the oldest pods first"),
        ],
    ),
    (
        "takeover",
        &[(
            "podwright takeover --check --config /var/lib/kubelet/config.yaml --kubeconfig /etc/kubernetes/kubelet.conf",
            "Find out what would restart if podwright replaced the kubelet of this node",
        )],
    ),
    (
        "engine",
        &[(
            "podwright engine --root-dir /tmp/e --run-dir /run/e --listen unix:///run/e.sock --bridge pw1 --table pw1",
            "Serve a second engine next to an agent, for crictl -r unix:///run/e.sock",
        )],
    ),
    ("describe", &[("podwright describe pod web", "Show the details of a pod")]),
    (
        "events",
        &[
            ("podwright events --for pod/web", "List the events of a pod"),
            ("podwright events -A -w", "List all events, then watch for new ones"),
        ],
    ),
    ("status", &[("podwright status", "Check the agent after a change")]),
    (
        "top",
        &[
            ("podwright top pod -A --sort-by memory", "Show which pods use most memory"),
            ("podwright top pod web --containers", "Show what the containers of a pod use"),
            ("podwright top node", "Show what this host uses"),
        ],
    ),
    ("explain", &[("podwright explain web", "Find out why a pod is not running")]),
    (
        "apply",
        &[
            ("podwright apply -f web.yaml", "Create or update the pods of a file"),
            ("podwright apply -f web.yaml --force --dry-run", "Show which pods would be replaced"),
        ],
    ),
    ("delete", &[("podwright delete pod web", "Delete a pod that was created by apply")]),
    (
        "restart",
        &[
            ("podwright restart web -c server", "Restart one container now"),
            ("podwright restart web", "Restart all containers, or start a stopped or terminated pod again"),
            ("podwright restart -l app=web", "Restart all pods with a label"),
        ],
    ),
    ("stop", &[("podwright stop --all -A --timeout 2m", "Stop all pods of all namespaces gracefully")]),
    (
        "start",
        &[
            ("podwright start web db", "Start two pods that were stopped"),
            ("podwright start --all -A", "Start all pods that were stopped or have terminated"),
        ],
    ),
    (
        "logs",
        &[
            ("podwright logs -f web -c server", "Follow the log of a container"),
            ("podwright logs -p web", "Print the log of the previous instance"),
            ("podwright logs -f -l app=web --all-containers", "Follow all containers of all pods with a label"),
        ],
    ),
    ("exec", &[("podwright exec -it web -- sh", "Open a shell in a container")]),
    ("attach", &[("podwright attach -it web -c server", "Use the terminal of a container's process")]),
    (
        "cp",
        &[
            ("podwright cp web:/var/log/app ./logs", "Copy a directory from a container"),
            ("podwright cp site.conf web:/etc/app/ -c server", "Copy a file into a directory of a container"),
        ],
    ),
    (
        "port-forward",
        &[
            ("podwright port-forward web 8080:80", "Forward port 8080 of this host to port 80 of a pod"),
            ("podwright port-forward web :http", "Forward a free port to the container port named http"),
        ],
    ),
    ("wait", &[("podwright wait pod/web --for=condition=Ready --timeout=30s", "Wait until a pod is ready")]),
    (
        "proxy",
        &[("podwright proxy --port 8001 --kubeconfig podwright.kubeconfig", "Use kubectl with the pods of this host")],
    ),
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
            ("podwright replay recording --pod web", "Show all decisions about a pod"),
            ("podwright replay -q recording", "Only check that all decisions are the same"),
        ],
    ),
    (
        "image",
        &[
            ("podwright image load busybox.tar", "Load the images of an archive"),
            ("podwright image pull docker.io/library/busybox:1", "Pull an image before the agent needs it"),
            ("podwright image ls", "List the images"),
            ("podwright image save busybox:1 -o busybox.tar", "Write an image to an archive"),
            ("podwright image ls --root-dir /srv/node", "List the images in a root directory whose agent does not run"),
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
