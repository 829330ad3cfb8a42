//! Every verb of the command line with every way to name pods, and with an agent that is stopped or restarts: exit code, message, and
//! that nothing happens to a pod that was not named. A verb without a row fails the test.
//!
//! `snapshots/verb_table.snap` shows all messages.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Api, Outcome};
use crate::verb_rows::rows;

/// The columns of the table.
const COLUMNS: [&str; 8] = [
    "unknown kind",
    "unknown name",
    "wrong namespace",
    "several names",
    "-l",
    "--all",
    "agent stopped",
    "agent restarted meanwhile",
];
const STOPPED: usize = 6;
const RESTARTED: usize = 7;

/// Two pods in the default namespace and one elsewhere. They are those of manifests, except for `delete` and `apply`, and have
/// terminated for `start`. The directory has files for the verbs that read them.
fn world(verb: &str) -> (Api, String) {
    let api = Api::start();
    let pods = [("default", "db"), ("default", "web"), ("elsewhere", "other")];
    for (namespace, name) in pods {
        if ["delete", "apply"].contains(&verb) {
            api.apply(namespace, name);
            continue;
        }
        let running = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                             "state": {"running": {}}, "containerID": "containerd://abc"});
        let status = match verb {
            "start" => json!({"phase": "Failed"}),
            _ => json!({"phase": "Running", "containerStatuses": [running]}),
        };
        api.publish(namespace, name, &json!([{"name": "c", "image": "busybox:1"}]), &status);
        api.write_log(namespace, name, "c", 1, &["a line"]);
    }
    let pod = |name: &str| -> Value {
        json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
               "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}})
    };
    let other = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "db"}});
    let mut dir = String::new();
    for (file, object) in [("db", pod("db")), ("new", pod("new")), ("configmap", other)] {
        let path = api.write(&format!("files/{file}.yaml"), &object.to_string());
        dir = path.trim_end_matches(&format!("/{file}.yaml")).to_owned();
    }
    (api, dir)
}

/// The verbs that the help of a command shows.
fn verbs(api: &Api, command: &str) -> BTreeSet<String> {
    let help = api.run(&format!("{command} --help")).stdout;
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let verbs = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    verbs.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

#[test]
fn every_verb_does_what_was_named_and_nothing_else() {
    let rows = rows();
    let known: BTreeSet<String> = rows.iter().map(|row| row.verb.to_owned()).collect();
    assert_eq!(verbs(&world("get").0, ""), known, "the verbs of the help, and the rows of the table");
    let mut transcript = String::new();
    for row in &rows {
        for (column, cell) in row.cells.iter().enumerate() {
            let Some(cell) = cell else { continue };
            let (mut api, dir) = world(row.verb);
            let before = api.living();
            let line = format!("{} {}", row.verb, cell.arguments.replace('@', &dir));
            let outcome = match (column, cell.runs_until) {
                (STOPPED, _) => {
                    api.end();
                    api.run(&line)
                }
                (RESTARTED, until) => api.run_during_restart(&line, until),
                _ => api.run(&line),
            };
            let place = format!("{} × {}: {line}", row.verb, COLUMNS[column]);
            assert_eq!(outcome.code, cell.code, "{place}: {outcome:?}");
            assert!(outcome.stderr.contains(cell.message), "{place}: {outcome:?}");
            assert_eq!(acted_on(&api, &before), cell.acted_on, "{place}: {outcome:?}");
            let line = format!("{} {}", row.verb, cell.arguments);
            transcript.push_str(&shown(COLUMNS[column], line.trim_end(), &outcome, cell.acted_on, &api, &dir));
        }
    }
    insta::with_settings!({prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!("verb_table", transcript);
    });
}

/// The pods that are gone, have terminated, or that the agent was asked to change.
fn acted_on(api: &Api, before: &[String]) -> Vec<String> {
    let living = api.living();
    let gone = before.iter().filter(|name| !living.contains(name)).cloned();
    let requests = api.requests();
    let asked = requests.iter().filter_map(|request| request.split_once(' ')).map(|(_, name)| name.to_owned());
    gone.chain(asked).collect::<BTreeSet<String>>().into_iter().collect()
}

fn shown(column: &str, line: &str, outcome: &Outcome, acted_on: &[&str], api: &Api, dir: &str) -> String {
    let run_dir = api.run_dir().display().to_string();
    let message = without_ports(&outcome.stderr.replace(dir, "@").replace(&run_dir, "<run-dir>"));
    let message: String = message.lines().filter(|line| !line.is_empty()).map(|line| format!("  {line}\n")).collect();
    let acted_on = if acted_on.is_empty() { String::new() } else { format!(" [changes {}]", acted_on.join(", ")) };
    let code = if outcome.code < 0 { "runs until interrupted".into() } else { format!("exit code {}", outcome.code) };
    format!("{column}: podwright {line} [{code}]{acted_on}\n{message}")
}

/// The ports of listeners are free ones.
fn without_ports(text: &str) -> String {
    let mut parts = text.split("127.0.0.1:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        format!("{text}127.0.0.1:<port>{}", part.trim_start_matches(|c: char| c.is_ascii_digit()))
    })
}

#[test]
fn every_verb_is_compared_in_the_documentation() {
    let (api, _) = world("get");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
    let text = std::fs::read_to_string(path).expect("there");
    let mut rows = text.lines().filter(|line| line.starts_with('|'));
    assert_eq!(
        rows.next(),
        Some("| podwright | kubectl | podman kube play | nerdctl | docker compose | differences |")
    );
    let rows: Vec<Vec<&str>> = rows.skip(1).map(|row| row.trim_matches('|').split(" | ").collect()).collect();
    let documented: BTreeSet<String> = rows.iter().flat_map(|row| verbs_of(row[0])).collect();
    assert_eq!(documented, verbs(&api, ""), "the rows of docs/commands.md, and the verbs of the help");
    for row in &rows {
        assert_eq!(row.len(), 6, "{row:?}");
        assert!(row[..5].iter().all(|cell| !cell.trim().is_empty()), "write — for nothing: {row:?}");
    }
    let image = rows.iter().find(|row| row[0].contains("image")).expect("a row")[0];
    for name in verbs(&api, "image") {
        assert!(image.contains(&name), "image {name} is not in {image}");
    }
}

/// The first word of each code span.
fn verbs_of(cell: &str) -> Vec<String> {
    let spans = cell.split('`').skip(1).step_by(2);
    let first = spans.filter_map(|span| span.split_whitespace().next()).map(str::to_owned);
    let verbs: Vec<String> = first.collect();
    // The commands of `image` follow it alone.
    if verbs.first().is_some_and(|verb| verb == "image") { verbs[..1].to_vec() } else { verbs }
}
