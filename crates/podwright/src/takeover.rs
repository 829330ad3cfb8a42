//! `podwright takeover --check`: what would restart if this agent took over the node of a running Go kubelet.
//!
//! Exit codes: 0 nothing restarts; 1 pods would restart or lose something; 2 wrong usage, or something could not be read.

mod node_state;

use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;

use podwright_core::model::FullName;
use podwright_core::takeover::{Consequence, TakeoverFinding};

use crate::cli::{EXIT_USAGE, TakeoverFlags};
use crate::config::AgentConfig;
use node_state::CheckedNode;

/// Runs the command.
pub(crate) fn run(flags: &TakeoverFlags) -> ExitCode {
    match check(flags) {
        Ok(checked) => {
            // A closed pipe is no error; the exit code is the result of the check.
            let _ = std::io::stdout().lock().write_all(as_text(&checked).as_bytes());
            if checked.findings.iter().all(|finding| finding.consequence == Consequence::Note) {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("podwright: {error:#}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn check(flags: &TakeoverFlags) -> anyhow::Result<CheckedNode> {
    let config = AgentConfig::load(&flags.run)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(node_state::check(&config))
}

/// The findings, the worst first, and a summary.
fn as_text(checked: &CheckedNode) -> String {
    let mut findings: Vec<&TakeoverFinding> = checked.findings.iter().collect();
    findings.sort();
    findings.dedup();
    let mut text = String::new();
    for TakeoverFinding { consequence, pod, message } in &findings {
        let of = pod.as_ref().map_or_else(|| "node".to_owned(), FullName::to_string);
        text.push_str(&format!("{:<8} {of}: {message}\n", consequence.as_str()));
    }
    let count = |of: Consequence| {
        let pods: BTreeSet<_> =
            findings.iter().filter(|f| f.consequence == of).filter_map(|f| f.pod.as_ref()).collect();
        pods.len()
    };
    let (restarts, losses) = (count(Consequence::Restart), count(Consequence::Loss));
    let pods = |n: usize| format!("{n} pod{}", if n == 1 { "" } else { "s" });
    let summary = [
        format!("{} on {}", pods(checked.running), checked.runtime),
        format!("{} would restart", pods(restarts)),
        format!("{} would lose something", pods(losses)),
    ];
    text.push_str(&summary.join(", "));
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(consequence: Consequence, pod: Option<&str>, message: &str) -> TakeoverFinding {
        let pod = pod.map(|name| FullName { namespace: "ns".into(), name: name.into() });
        TakeoverFinding { consequence, pod, message: message.to_owned() }
    }

    #[test]
    fn the_worst_comes_first_and_pods_are_counted_once() {
        let findings = vec![
            finding(Consequence::Note, None, "about the node"),
            finding(Consequence::Loss, Some("b"), "no CSI"),
            finding(Consequence::Restart, Some("a"), "container x"),
            finding(Consequence::Restart, Some("a"), "container y"),
            finding(Consequence::Restart, Some("a"), "container y"),
        ];
        let checked = CheckedNode { findings, running: 3, runtime: "containerd 2".into() };
        assert_eq!(
            as_text(&checked),
            "restart  ns/a: container x\nrestart  ns/a: container y\nloss     ns/b: no CSI\nnote     node: about the node\n\
             3 pods on containerd 2, 1 pod would restart, 1 pod would lose something\n"
        );
    }
}
