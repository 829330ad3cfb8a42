//! Arguments that are rewritten before they are parsed, and the tips for unknown commands.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::pod_selection::is_other_kind;

/// Flags of most commands that users also write before the command, as for kubectl, and whether a value follows.
const LEADING: [(&str, bool); 5] =
    [("-n", true), ("--namespace", true), ("--run-dir", true), ("-A", false), ("--all-namespaces", false)];

/// What users of kubectl, docker and podman type, and the command that does it here.
const SIMILAR: &[(&str, &str)] = &[
    ("compose", "apply"),
    ("container", "get pods"),
    ("containers", "get pods"),
    ("create", "apply"),
    ("down", "delete"),
    ("images", "image ls"),
    ("import", "image load"),
    ("info", "status"),
    ("inspect", "describe"),
    ("kill", "stop"),
    ("kube", "apply"),
    ("list", "get"),
    ("load", "image load"),
    ("log", "logs"),
    ("ls", "get"),
    ("node", "status"),
    ("nodes", "status"),
    ("play", "apply"),
    ("po", "get pods"),
    ("pod", "get pods"),
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
    ("up", "apply"),
    ("validate", "check"),
];

/// Commands of other tools that nothing here does, and what to do instead.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "build",
        "images are built by other tools, such as buildah or docker; 'podwright image load' reads their archives",
    ),
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
    ("scale", "there are no workloads, only pods: write one manifest for each"),
    ("volume", "volumes are written in the manifest of a pod: hostPath for a directory of this host, or emptyDir"),
];

/// `help COMMAND` becomes `COMMAND --help`, and flags before the command are moved behind it.
pub(super) fn rewrite(mut args: Vec<OsString>) -> Vec<OsString> {
    let end = leading_flags(&args);
    if end > 1 && end < args.len() {
        let command = args.remove(end);
        args.insert(1, command);
    }
    if args.get(1).is_some_and(|command| command == "help") {
        args.remove(1);
        let at = args.len().min(2);
        args.insert(at, "--help".into());
    }
    args
}

/// The index of the first argument after the flags before the command.
fn leading_flags(args: &[OsString]) -> usize {
    let mut at = 1;
    while let Some(text) = args.get(at).and_then(|arg| arg.to_str()) {
        let (flag, joined) = text.split_once('=').map_or((text, false), |(flag, _)| (flag, true));
        let Some((_, has_value)) = LEADING.iter().find(|(known, _)| *known == flag) else { break };
        at += if *has_value && !joined { 2 } else { 1 };
    }
    at
}

/// Replaces the tips of the library, which compares letters only, by what the user probably meant. `args`: as they were parsed.
pub(super) fn with_curated_tips(mut error: clap::Error, args: &[OsString]) -> clap::Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => suggest_command(&mut error, args),
        ErrorKind::UnknownArgument | ErrorKind::InvalidValue => {
            let verb = args.get(1).and_then(|verb| verb.to_str()).unwrap_or_default();
            let (argument, value) = (text(&error, ContextKind::InvalidArg), text(&error, ContextKind::InvalidValue));
            // The library advises to pass unknown flags as values.
            if argument.starts_with('-') && error.kind() == ErrorKind::UnknownArgument {
                error.remove(ContextKind::Suggested);
            }
            if let Some(tip) = tip_for_argument(verb, &argument, &value) {
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
    let curated =
        SIMILAR.iter().find(|(other, _)| is_verb && *other == typed).map(|(_, command)| (*command).to_owned());
    // One letter is missing, added or wrong at the end of the same word.
    let typo =
        || near.into_iter().find(|near| near.chars().zip(typed.chars()).take_while(|(a, b)| a == b).count() >= 3);
    if let Some(command) = curated.or_else(typo) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![command]));
    }
}

/// What a user meant with an argument that the command does not have, or with a value that is not accepted.
fn tip_for_argument(verb: &str, argument: &str, value: &str) -> Option<String> {
    let is_flag = argument.starts_with('-');
    match verb {
        "apply" | "create" if !is_flag => Some(format!("to apply a file, use '-f {argument}'")),
        "exec" if !is_flag => Some(format!("write the command after '--': 'exec POD -- {argument}'")),
        "run" if !is_flag => Some(
            "'run' starts the agent; a container is started by the manifest of a pod: 'podwright apply -f FILE'"
                .to_owned(),
        ),
        "get" | "describe" if !value.is_empty() && is_name(value) && !is_other_kind(value) => {
            Some(format!("for the pod of this name, use '{verb} pod {value}'"))
        }
        _ => None,
    }
}

/// The argument may be the name of a pod.
fn is_name(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
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

    fn rewritten(line: &str) -> String {
        let args = rewrite(line.split_whitespace().map(OsString::from).collect());
        args.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn help_and_leading_flags_are_moved() {
        for (line, expected) in [
            ("p help", "p --help"),
            ("p help get", "p get --help"),
            ("p -n a get pods", "p get -n a pods"),
            ("p --namespace=a -A delete x", "p delete --namespace=a -A x"),
            ("p --run-dir /r exec web -- ls -n", "p exec --run-dir /r web -- ls -n"),
            ("p get -n a", "p get -n a"),
            ("p -n", "p -n"),
            ("p --version", "p --version"),
        ] {
            assert_eq!(rewritten(line), expected, "{line}");
        }
    }

    #[test]
    fn first_mistakes_of_users_of_other_tools_are_answered_with_the_command_to_use() {
        for (line, tip) in [
            ("podwright images", "'image ls'"),
            ("podwright pull nginx", "'image pull'"),
            ("podwright pods", "'get pods'"),
            ("podwright kube play web.yaml", "'apply'"),
            ("podwright compose up", "'apply'"),
            ("podwright info", "'status'"),
            ("podwright build .", "images are built by other tools"),
            ("podwright login registry", "docker's config.json"),
            ("podwright apply web.yaml", "to apply a file, use '-f web.yaml'"),
            ("podwright run nginx", "'run' starts the agent"),
            ("podwright get web", "for the pod of this name, use 'get pod web'"),
            ("podwright describe web", "for the pod of this name, use 'describe pod web'"),
            ("podwright exec web ls", "write the command after '--': 'exec POD -- ls'"),
        ] {
            let error = Cli::parse_from(line.split_whitespace().map(OsString::from)).unwrap_err().to_string();
            assert!(error.contains(tip), "{line}: {error}");
        }
        for line in ["podwright describe pod --all", "podwright get configmap", "podwright explain web -l app=web"] {
            let error = Cli::parse_from(line.split_whitespace().map(OsString::from)).unwrap_err().to_string();
            assert!(!error.contains("tip"), "{line}: {error}");
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
