//! Tips for commands and arguments that do not exist: what users of kubectl, docker and podman probably mean.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::pod_selection::is_other_kind;

/// What users of kubectl, docker and podman type, and the command that does it here.
const SIMILAR: &[(&str, &str)] = &[
    ("containers", "get pods"),
    ("create", "apply -f FILE"),
    ("down", "delete"),
    ("images", "image ls"),
    ("import", "image load"),
    ("info", "status"),
    ("inspect", "describe"),
    ("kill", "stop"),
    ("list", "get"),
    ("load", "image load"),
    ("log", "logs"),
    ("ls", "get"),
    ("node", "status"),
    ("nodes", "status"),
    ("po", "get pods"),
    ("pods", "get pods"),
    ("port", "get pods -o wide"),
    ("ps", "get"),
    ("pull", "image pull"),
    ("remove", "delete"),
    ("replace", "apply --force"),
    ("rm", "delete"),
    ("rmi", "image rm"),
    ("rollout", "restart"),
    ("save", "image save"),
    ("stats", "top"),
    ("up", "apply -f FILE"),
    ("validate", "check"),
];

/// The same for commands of two words; an empty second word stands for every other one.
const SIMILAR_PAIRS: &[(&str, &str, &str)] = &[
    ("compose", "down", "delete -f FILE"),
    ("compose", "exec", "exec"),
    ("compose", "logs", "logs"),
    ("compose", "ps", "get pods"),
    ("compose", "restart", "restart"),
    ("compose", "stop", "stop"),
    ("compose", "", "apply -f FILE"),
    ("container", "inspect", "describe pod"),
    ("container", "", "get pods"),
    ("kube", "down", "delete -f FILE"),
    ("kube", "", "apply -f FILE"),
    ("play", "", "apply -f FILE"),
    ("pod", "inspect", "describe pod"),
    ("pod", "logs", "logs"),
    ("pod", "rm", "delete"),
    ("pod", "stop", "stop"),
    ("pod", "", "get pods"),
    ("system", "prune", "image prune"),
    ("system", "", "status"),
];

/// Commands of other tools that nothing here does, and what to do instead.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "build",
        "images are built by other tools, such as buildah or docker; 'podwright image load' reads their archives",
    ),
    ("config", NO_SECRETS),
    ("configmap", NO_SECRETS),
    ("edit", "change the file of the pod, then use 'podwright apply -f FILE'"),
    ("login", "credentials of registries are read from docker's config.json in the agent's root directory"),
    (
        "network",
        "pods have one network, 'podwright status' shows its state; ports of the host are declared as hostPort",
    ),
    (
        "patch",
        "change the file of the pod, then use 'podwright apply -f FILE'; kubectl can patch through 'podwright proxy'",
    ),
    (
        "push",
        "images are pushed by other tools, such as skopeo or docker; 'podwright image save' writes their archives",
    ),
    ("pause", NO_PAUSE),
    ("scale", "there are no workloads, only pods: write one manifest for each"),
    ("secret", NO_SECRETS),
    ("unpause", NO_PAUSE),
    ("volume", "volumes are written in the manifest of a pod: hostPath for a directory of this host, or emptyDir"),
];

const NO_SECRETS: &str = "there are no Secrets or ConfigMaps without an API server: write values into the manifest of the pod, or mount a \
                          directory of this host (hostPath)";
const NO_PAUSE: &str =
    "pods are not paused: 'podwright stop' ends the containers of a pod, and 'podwright start' starts new ones";
const RUN: &str = "'run' starts the agent; a container is started by the manifest of a pod: 'podwright apply -f FILE'";

/// Flags of `docker run`.
const RUN_FLAGS: [&str; 13] =
    ["-d", "--detach", "-e", "--env", "--image", "-i", "--name", "-p", "--publish", "--rm", "-t", "-v", "--volume"];

/// Commands whose arguments are missing.
const MISSING: &[(&str, &str)] = &[
    ("apply", "for the pods of a file, use 'apply -f FILE'"),
    ("describe", "for a pod, use 'describe pod NAME'"),
    ("exec", "use 'exec POD -- COMMAND'"),
    ("get", "to list the pods, use 'get pods'"),
    ("top", "for all pods, use 'top pods'; for this node, 'top node'"),
    ("wait", "for example '--for=condition=Ready' or '--for=delete'"),
];

/// Replaces the tips of the library, which compares letters only, by what the user probably meant. `args`: as they were parsed.
pub(super) fn with_curated_tips(mut error: clap::Error, args: &[OsString]) -> clap::Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => suggest_command(&mut error, args),
        ErrorKind::MissingRequiredArgument => {
            if let Some((_, tip)) = MISSING.iter().find(|(verb, _)| *verb == word(args, 1)) {
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*tip).into()]));
            }
        }
        ErrorKind::UnknownArgument | ErrorKind::InvalidValue => {
            let verb = word(args, 1);
            let (argument, value) = (text(&error, ContextKind::InvalidArg), text(&error, ContextKind::InvalidValue));
            // The library advises to pass unknown flags as values.
            if argument.starts_with('-') && error.kind() == ErrorKind::UnknownArgument {
                error.remove(ContextKind::Suggested);
            }
            // Letters alone would make pods of nodes.
            if is_other_kind(&value) {
                error.remove(ContextKind::SuggestedValue);
            }
            if let Some(tip) = tip_for_argument(verb, &argument, &value) {
                error.remove(ContextKind::SuggestedArg);
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
            }
        }
        _ => {}
    }
    error
}

/// A destructive command is never suggested for a harmless one.
fn suggest_command(error: &mut clap::Error, args: &[OsString]) {
    let typed = text(error, ContextKind::InvalidSubcommand);
    // The library leaves an empty line for it.
    error.remove(ContextKind::Suggested);
    let near = match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(near)) => near,
        Some(ContextValue::String(near)) => vec![near],
        _ => vec![],
    };
    // `image` has commands of its own.
    let is_verb = args.get(1).is_some_and(|verb| *verb == *typed);
    if let Some((_, tip)) = ELSEWHERE.iter().find(|(other, _)| is_verb && *other == typed) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*tip).into()]));
        return;
    }
    let second = word(args, 2);
    let is_pair = |(first, next, _): &&(&str, &str, &str)| *first == typed && (next.is_empty() || *next == second);
    let single = SIMILAR.iter().find(|(other, _)| *other == typed).map(|(_, command)| *command);
    let curated = single.or_else(|| SIMILAR_PAIRS.iter().find(is_pair).map(|(.., command)| *command));
    let curated = curated.filter(|_| is_verb).map(str::to_owned);
    // One letter is missing, added or wrong at the end of the same word.
    let typo =
        || near.into_iter().find(|near| near.chars().zip(typed.chars()).take_while(|(a, b)| a == b).count() >= 3);
    if let Some(command) = curated.or_else(typo) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![command]));
    }
}

/// What a user meant with an argument that the command does not have, or with a value that is not accepted.
fn tip_for_argument(verb: &str, argument: &str, value: &str) -> Option<String> {
    if argument.starts_with('-') {
        return tip_for_flag(verb, argument).filter(|_| value.is_empty()).map(str::to_owned);
    }
    match verb {
        "apply" | "create" => Some(format!("to apply a file, use '-f {argument}'")),
        "exec" => Some(format!("write the command after '--': 'exec POD -- {argument}'")),
        "run" => Some(RUN.to_owned()),
        "events" => Some(format!("for the events of a pod, use '--for {argument}'")),
        "status" => Some("this is the status of the node; for that of a pod, use 'podwright explain NAME'".to_owned()),
        "get" | "describe" if ["node", "nodes", "no"].contains(&value) => {
            Some("this node is shown by 'podwright status' and 'podwright top node'".to_owned())
        }
        "get" if value == "all" => Some("to list the pods, use 'get pods'".to_owned()),
        "get" | "describe" if !value.is_empty() && is_name(value) && !is_other_kind(value) => {
            Some(format!("for the pod of this name, use '{verb} pod {value}'"))
        }
        _ => None,
    }
}

/// The flags of docker and podman that users try.
fn tip_for_flag(verb: &str, flag: &str) -> Option<&'static str> {
    match (verb, flag) {
        ("run", flag) if RUN_FLAGS.contains(&flag) => Some(RUN),
        ("stop" | "delete", "-t" | "--time") => Some("for the grace period, use '--grace-period SECONDS'"),
        ("restart", "-t" | "--time" | "--grace-period") => {
            Some("the grace period is that of the pod: terminationGracePeriodSeconds in its manifest")
        }
        ("exec", "-e" | "--env") => Some("for a variable, use 'exec POD -- env NAME=VALUE COMMAND'"),
        ("exec", "-w" | "--workdir") => Some("for a directory, use 'exec POD -- sh -c \"cd DIR && COMMAND\"'"),
        ("exec", "-u" | "--user") => {
            Some("a command runs as the user of its container: securityContext.runAsUser in the manifest")
        }
        _ => None,
    }
}

/// The argument may be the name of a pod.
fn is_name(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
}

/// The argument at this index.
fn word(args: &[OsString], at: usize) -> &str {
    args.get(at).and_then(|arg| arg.to_str()).unwrap_or_default()
}

fn text(error: &clap::Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    #[test]
    fn first_mistakes_of_users_of_other_tools_are_answered_with_the_command_to_use() {
        for (line, tip) in [
            ("podwright images", "'image ls'"),
            ("podwright pull nginx", "'image pull'"),
            ("podwright pods", "'get pods'"),
            ("podwright kube play web.yaml", "'apply -f FILE'"),
            ("podwright compose up -d", "'apply -f FILE'"),
            ("podwright info", "'status'"),
            ("podwright build .", "images are built by other tools"),
            ("podwright login registry", "docker's config.json"),
            ("podwright apply web.yaml", "to apply a file, use '-f web.yaml'"),
            ("podwright run nginx", "'run' starts the agent"),
            ("podwright get web", "for the pod of this name, use 'get pod web'"),
            ("podwright describe web", "for the pod of this name, use 'describe pod web'"),
            ("podwright play kube web.yaml", "'apply -f FILE'"),
            ("podwright kube down web.yaml", "'delete -f FILE'"),
            ("podwright compose ps", "'get pods'"),
            ("podwright create -f web.yaml", "'apply -f FILE'"),
            ("podwright pod ps", "'get pods'"),
            ("podwright system prune", "'image prune'"),
            ("podwright system df", "'status'"),
            ("podwright secret ls", "there are no Secrets"),
            ("podwright pause web", "'podwright stop'"),
            ("podwright get nodes", "'podwright status'"),
            ("podwright describe node", "'podwright status'"),
            ("podwright get all", "'get pods'"),
            ("podwright get", "'get pods'"),
            ("podwright top", "'top pods'"),
            ("podwright describe", "'describe pod NAME'"),
            ("podwright wait web", "'--for=condition=Ready'"),
            ("podwright run --image nginx", "'run' starts the agent"),
            ("podwright run -d -p 8080:80 nginx", "'run' starts the agent"),
            ("podwright stop -t 1 web", "'--grace-period SECONDS'"),
            ("podwright restart -t 1 web", "terminationGracePeriodSeconds"),
            ("podwright exec -u root web -- id", "runAsUser"),
            ("podwright exec -e A=b web -- env", "env NAME=VALUE"),
            ("podwright exec -w /tmp web -- pwd", "cd DIR"),
            ("podwright events web", "'--for web'"),
            ("podwright status web", "'podwright explain NAME'"),
            ("podwright exec web ls", "write the command after '--': 'exec POD -- ls'"),
        ] {
            let error = Cli::parse_from(line.split_whitespace().map(OsString::from)).unwrap_err().to_string();
            assert!(error.contains(tip), "{line}: {error}");
            assert_eq!(error.matches("tip:").count(), 1, "{line}: {error}");
        }
        for line in [
            "podwright describe pod --all",
            "podwright get configmap",
            "podwright tap",
            "podwright reboot",
            "podwright explain web -l app=web",
        ] {
            let error = Cli::parse_from(line.split_whitespace().map(OsString::from)).unwrap_err().to_string();
            assert!(!error.contains("tip") && !error.contains("\n\n\n"), "{line}: {error}");
        }
    }

    #[test]
    fn tips_never_suggest_what_was_not_meant() {
        let tip = |line: &str| {
            let error = Cli::parse_from(line.split_whitespace().map(OsString::from)).unwrap_err().to_string();
            error.lines().find(|line| line.contains("tip")).map(str::to_owned).unwrap_or_default()
        };
        assert_eq!(tip("podwright tap"), "");
        for (typed, command) in
            [("ps", "'get'"), ("rm", "'delete'"), ("descibe", "'describe'"), ("restrt", "'restart'")]
        {
            assert!(
                tip(&format!("podwright {typed}")).contains(command),
                "{typed}: {}",
                tip(&format!("podwright {typed}"))
            );
        }
    }
}
