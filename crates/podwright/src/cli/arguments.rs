//! Arguments that are rewritten before they are parsed.

use std::ffi::OsString;

use super::pod_selection::is_pod_kind;

/// Flags of most commands that users also write before the command, as for kubectl, and whether a value follows.
const LEADING: [(&str, bool); 5] =
    [("-n", true), ("--namespace", true), ("--run-dir", true), ("-A", false), ("--all-namespaces", false)];

/// `help COMMAND` becomes `COMMAND --help`, flags before the command are moved behind it, and `explain pod web` becomes `explain web`,
/// as the other commands accept it.
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
    let is_text = |at: usize, test: fn(&str) -> bool| args.get(at).and_then(|arg| arg.to_str()).is_some_and(test);
    if is_text(1, |verb| verb == "explain") && is_text(2, is_pod_kind) && is_text(3, |name| !name.starts_with('-')) {
        args.remove(2);
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

#[cfg(test)]
mod tests {
    use super::*;

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
            ("p explain pod web", "p explain web"),
            ("p explain pod", "p explain pod"),
            ("p explain pod --utc", "p explain pod --utc"),
        ] {
            assert_eq!(rewritten(line), expected, "{line}");
        }
    }
}
