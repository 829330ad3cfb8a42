//! Arguments that are rewritten before they are parsed, and the tips for unknown commands.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags of most commands that users also write before the command, as for kubectl, and whether a value follows.
const LEADING: [(&str, bool); 5] =
    [("-n", true), ("--namespace", true), ("--run-dir", true), ("-A", false), ("--all-namespaces", false)];

/// What users of kubectl, docker and podman type, and the command that does it here.
const SIMILAR: &[(&str, &str)] = &[
    ("create", "apply"),
    ("down", "delete"),
    ("inspect", "describe"),
    ("kill", "stop"),
    ("list", "get"),
    ("log", "logs"),
    ("ls", "get"),
    ("ps", "get"),
    ("remove", "delete"),
    ("rm", "delete"),
    ("stats", "top"),
    ("up", "apply"),
    ("validate", "check"),
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

/// Replaces the tip of the library, which compares letters only: a destructive command is never suggested for a harmless one.
pub(super) fn with_curated_tip(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let typed = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(typed)) => typed.clone(),
        _ => String::new(),
    };
    let near = match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(near)) => near,
        Some(ContextValue::String(near)) => vec![near],
        _ => vec![],
    };
    let curated = SIMILAR.iter().find(|(other, _)| *other == typed).map(|(_, command)| (*command).to_owned());
    // One letter is missing, added or wrong at the end of the same word.
    let typo =
        || near.into_iter().find(|near| near.chars().zip(typed.chars()).take_while(|(a, b)| a == b).count() >= 3);
    if let Some(command) = curated.or_else(typo) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![command]));
    }
    error
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
