//! Which names a shell should complete at the end of a command line: those of pods, or of the containers of a pod.
//!
//! The script of a shell passes the arguments up to the cursor to the hidden command `complete-names`. Flags and their values are
//! known from the definition of the command line.

use std::path::PathBuf;

use clap::{Arg, Args};

use super::query_flags::SocketFlags;

/// The hidden command that the completion scripts run.
#[derive(Args, Debug)]
pub(crate) struct CompleteNamesFlags {
    /// The arguments up to the cursor; the last one is being typed.
    #[arg(last = true, value_name = "ARGUMENT")]
    pub(crate) arguments: Vec<String>,
    #[command(flatten)]
    pub(crate) socket: SocketFlags,
}

/// The names that complete the last argument.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NameCompletion {
    pub(crate) what: CompletedNames,
    /// Of `-n`; `None`: the default.
    pub(crate) namespace: Option<String>,
    /// Of `--run-dir`.
    pub(crate) run_dir: Option<PathBuf>,
}

/// What is completed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CompletedNames {
    /// Pods; the text before the name is kept, as `pod/`.
    Pods { prefix: String },
    /// The containers of this pod.
    Containers { pod: String },
}

/// Commands whose arguments are names of pods, and whether a resource type comes first.
const POD_COMMANDS: [(&str, bool); 15] = [
    ("attach", false),
    ("delete", false),
    ("describe", true),
    ("exec", false),
    ("explain", false),
    ("get", true),
    ("logs", false),
    ("port-forward", false),
    ("restart", false),
    ("start", false),
    ("stop", false),
    ("top", true),
    ("wait", false),
    ("cp", false),
    ("events", false),
];

/// `None`: nothing that the agent knows is completed there.
pub(super) fn completion(definition: &clap::Command, arguments: &[String]) -> Option<NameCompletion> {
    let (current, before) = arguments.split_last()?;
    let (verb, rest) = before.split_first()?;
    let (_, typed) = POD_COMMANDS.iter().find(|(name, _)| name == verb)?;
    let command = definition.find_subcommand(verb)?;
    let line = ParsedLine::of(command, rest)?;
    let (namespace, run_dir) = (line.value("namespace"), line.value("run_dir").map(PathBuf::from));
    let name = |argument: &String| argument.rsplit_once('/').map_or(argument.as_str(), |(_, name)| name).to_owned();
    let what = match line.open_flag.as_deref() {
        Some("container") => CompletedNames::Containers { pod: name(line.positional.first()?) },
        Some("of") => CompletedNames::Pods { prefix: prefix(current)? },
        Some(_) => return None,
        None if current.starts_with('-') => return None,
        None => {
            let is_pods = |kind: &String| ["pod", "pods", "po"].contains(&kind.as_str());
            let prefix = prefix(current)?;
            let takes_name = match (*typed, verb.as_str()) {
                (_, "cp" | "events") => false,
                // After the pod follow ports, or `--`.
                (_, "port-forward" | "exec" | "attach" | "explain") => line.positional.is_empty(),
                (true, _) => !prefix.is_empty() || line.positional.first().is_some_and(is_pods),
                (false, _) => true,
            };
            if !takes_name {
                return None;
            }
            CompletedNames::Pods { prefix }
        }
    };
    Some(NameCompletion { what, namespace, run_dir })
}

/// `pod/` in `pod/we`. `None`: another resource type.
fn prefix(current: &str) -> Option<String> {
    match current.split_once('/') {
        None => Some(String::new()),
        Some((kind @ ("pod" | "pods" | "po"), _)) => Some(format!("{kind}/")),
        Some(_) => None,
    }
}

/// The arguments before the cursor.
#[derive(Default)]
struct ParsedLine {
    positional: Vec<String>,
    /// Ids of flags with their values.
    values: Vec<(String, String)>,
    /// The flag whose value is being typed.
    open_flag: Option<String>,
}

impl ParsedLine {
    /// `None`: after `--`, where a command for a container is typed.
    fn of(command: &clap::Command, arguments: &[String]) -> Option<Self> {
        let mut line = Self::default();
        for argument in arguments {
            if let Some(flag) = line.open_flag.take() {
                line.values.push((flag, argument.clone()));
            } else if argument == "--" {
                return None;
            } else if let Some(flag) = argument.strip_prefix("--") {
                let (flag, value) = flag.split_once('=').map_or((flag, None), |(flag, value)| (flag, Some(value)));
                let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag));
                line.flag(arg, value);
            } else if let Some(short) = argument.strip_prefix('-').and_then(|rest| rest.chars().last()) {
                let arg = command.get_arguments().find(|arg| arg.get_short() == Some(short));
                line.flag(arg, None);
            } else {
                line.positional.push(argument.clone());
            }
        }
        Some(line)
    }

    fn flag(&mut self, arg: Option<&Arg>, value: Option<&str>) {
        let Some(arg) = arg.filter(|arg| arg.get_action().takes_values()) else { return };
        let id = arg.get_id().to_string();
        match value {
            Some(value) => self.values.push((id, value.to_owned())),
            None => self.open_flag = Some(id),
        }
    }

    fn value(&self, id: &str) -> Option<String> {
        self.values.iter().find(|(known, _)| known == id).map(|(_, value)| value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    /// What is completed at the end of the line, as text.
    fn completed(line: &str) -> String {
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let Some(NameCompletion { what, namespace, run_dir }) = completion(&Cli::definition(), &arguments) else {
            return "nothing".into();
        };
        let what = match what {
            CompletedNames::Pods { prefix } => format!("{prefix}pods"),
            CompletedNames::Containers { pod } => format!("containers of {pod}"),
        };
        let namespace = namespace.map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        let run_dir = run_dir.map(|dir| format!(" at {}", dir.display())).unwrap_or_default();
        what + &namespace + &run_dir
    }

    #[test]
    fn names_are_completed_where_a_command_takes_them() {
        for (line, expected) in [
            ("logs ", "pods"),
            ("logs web ", "pods"),
            ("logs -f -n team w", "pods in team"),
            ("delete --namespace=team pod/w", "pod/pods in team"),
            ("get pods w", "pods"),
            ("get ", "nothing"),
            ("get pod/w", "pod/pods"),
            ("get events ", "nothing"),
            ("top pod ", "pods"),
            ("events --for ", "pods"),
            ("events ", "nothing"),
            ("exec web ", "nothing"),
            ("exec web -c ", "containers of web"),
            ("logs pod/web --container s", "containers of web"),
            ("exec -it web -- l", "nothing"),
            ("logs -n ", "nothing"),
            ("logs --tail ", "nothing"),
            ("logs --f", "nothing"),
            ("logs deploy/w", "nothing"),
            ("port-forward web 80", "nothing"),
            ("stop --run-dir /r ", "pods at /r"),
            ("check ", "nothing"),
            ("", "nothing"),
        ] {
            assert_eq!(completed(line), expected, "{line:?}");
        }
    }
}
