//! Tables of plans: spec and state above the line, expected actions below it. The syntax is described in
//! `testdata/actions/README.txt`.

mod case;

use jiff::{SignedDuration, Timestamp};

use super::*;

pub(crate) use case::Case;

const TABLES: &[(&str, &str)] = &[
    ("restart_policies", include_str!("../../testdata/actions/restart_policies.txt")),
    ("init_and_sidecars", include_str!("../../testdata/actions/init_and_sidecars.txt")),
    ("sandboxes", include_str!("../../testdata/actions/sandboxes.txt")),
    ("leftovers", include_str!("../../testdata/actions/leftovers.txt")),
    ("kills", include_str!("../../testdata/actions/kills.txt")),
    ("rules_and_ephemeral", include_str!("../../testdata/actions/rules_and_ephemeral.txt")),
];

#[test]
fn every_case_gives_its_plan() {
    let (mut cases, mut wrong) = (0, vec![]);
    for (file, text) in TABLES {
        for block in text.split("\n\n").filter(|block| block.contains("----")) {
            cases += 1;
            let (given, expected) = block.split_once("----").expect("checked by the filter");
            let expected: Vec<&str> = expected.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
            let case = Case::parse(given);
            let plan = lines(&case.plan());
            if plan != expected {
                wrong.push(format!(
                    "{file}:\n{given}---- expected\n{}\n---- got\n{}\n",
                    expected.join("\n"),
                    plan.join("\n")
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {cases} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(cases >= 40, "only {cases} cases were read");
}

#[test]
fn the_waiting_message_names_delay_container_and_pod() {
    let case =
        Case::parse("pod restart=Always containers=web\nseen sandbox=ready web=exited(1)\nmemory web backoff=80s@-30");
    let plan = case.plan();
    let waiting = &plan.waiting[&Name::from("web")];
    assert_eq!(waiting.message, "back-off 1m20s restarting failed container=web pod=p_ns(u)");
}

/// The time of every case.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).expect("in range")
}

pub(crate) fn ago(secs: i64) -> Timestamp {
    now() - SignedDuration::from_secs(secs)
}

/// A plan in the syntax of the tables.
fn lines(plan: &Actions) -> Vec<String> {
    let mut out = vec![];
    if plan.kill_pod {
        out.push("kill-pod".into());
    }
    out.extend(plan.stop_sandboxes.iter().map(|id| format!("stop-sandbox {id}")));
    if let Some(attempt) = plan.create_sandbox {
        let replaces = plan.replaces.as_ref().map_or(String::new(), |id| format!(" replaces={id}"));
        out.push(format!("create-sandbox attempt={attempt}{replaces}"));
    }
    for kill in &plan.kill {
        let replace = if kill.replace { " replace" } else { "" };
        let grace = kill.grace.map_or(String::new(), |g| format!(" grace={}", g.as_secs()));
        out.push(format!("kill {} {:?}{replace}{grace}", kill.id, kill.reason));
    }
    out.extend(plan.restart_all.values().map(|id| format!("void {id}")));
    for start in &plan.start {
        let existing = start.existing.as_ref().map_or(String::new(), |id| format!(" existing={id}"));
        let backoff = start.backoff.as_ref().map_or(String::new(), |b| format!(" then={}s", b.delay.as_secs()));
        out.push(format!("start {} attempt={}{existing}{backoff}", start.name, start.attempt));
    }
    out.extend(plan.waiting.iter().map(|(name, waiting)| format!("wait {name} {}", waiting.reason)));
    out.extend(plan.wake_at.map(|at| format!("wake +{}s", at.duration_since(now()).as_secs())));
    out.extend(plan.cursor.iter().map(|c| format!("cursor {} {}", c.sandbox, c.done)));
    if out.is_empty() {
        out.push("nothing".into());
    }
    out
}
