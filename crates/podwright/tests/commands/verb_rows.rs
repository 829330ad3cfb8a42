//! The rows of the table of verbs: for each column the command line, its exit code, a part of its message, and the pods it changes.

/// A command line, and what it must do.
pub(crate) struct Cell {
    /// After the verb. `@` is a directory of files, see `verb_table`.
    pub(crate) arguments: &'static str,
    pub(crate) code: i32,
    /// A part of stderr.
    pub(crate) message: &'static str,
    /// The pods that it changes.
    pub(crate) acted_on: &'static [&'static str],
    /// The command runs until it is interrupted, when its output has this text.
    pub(crate) runs_until: Option<&'static str>,
}

pub(crate) struct Row {
    pub(crate) verb: &'static str,
    /// `None`: the column makes no sense for the verb.
    pub(crate) cells: [Option<Cell>; 8],
}

const fn cell(arguments: &'static str, code: i32, message: &'static str) -> Option<Cell> {
    Some(Cell { arguments, code, message, acted_on: &[], runs_until: None })
}

const fn acts(arguments: &'static str, acted_on: &'static [&'static str]) -> Option<Cell> {
    Some(Cell { arguments, code: 0, message: "", acted_on, runs_until: None })
}

const fn runs(arguments: &'static str, until: &'static str) -> Option<Cell> {
    Some(Cell { arguments, code: -1, message: "", acted_on: &[], runs_until: Some(until) })
}

const NOT_FOUND: &str = "\"nothing\" not found";
const NOT_IN: &str = "not found in namespace \"elsewhere\"";
const NO_AGENT: &str = "is `podwright run` running";
const UNEXPECTED: &str = "unexpected argument";

/// A verb that changes the pods it names.
const fn changing(verb: &'static str, one: &'static [&'static str], both: &'static [&'static str]) -> Row {
    let cells = [
        cell("configmap db", 2, "configmap"),
        cell("nothing", 1, NOT_FOUND),
        cell("db -n elsewhere", 1, NOT_IN),
        acts("db web", both),
        acts("-l app=db", one),
        acts("--all", both),
        cell("db", 1, NO_AGENT),
        acts("db", one),
    ];
    Row { verb, cells }
}

/// A verb without pods: whatever is written after it is refused.
const fn without_pods(verb: &'static str, stopped: Option<Cell>, restarted: Option<Cell>) -> Row {
    let cells = [
        cell("configmap db", 2, UNEXPECTED),
        cell("nothing", 2, UNEXPECTED),
        cell("-n elsewhere", 2, UNEXPECTED),
        cell("db web", 2, UNEXPECTED),
        cell("-l app=db", 2, UNEXPECTED),
        cell("--all", 2, UNEXPECTED),
        stopped,
        restarted,
    ];
    Row { verb, cells }
}

const DB: &[&str] = &["default/db-node"];
const BOTH: &[&str] = &["default/db-node", "default/web-node"];

pub(crate) fn rows() -> Vec<Row> {
    let row = |verb, cells| Row { verb, cells };
    let mut rows = vec![
        changing("delete", &["default/db"], &["default/db", "default/web"]),
        changing("stop", DB, BOTH),
        changing("start", DB, BOTH),
        changing("restart", DB, BOTH),
    ];
    rows.extend(showing_rows());
    rows.extend(stream_rows());
    rows.push(row(
        "apply",
        [
            cell("-f @/configmap.yaml", 2, "ConfigMap"),
            cell("-f @/nothing.yaml", 2, "nothing.yaml"),
            cell("-f @/db.yaml -n elsewhere", 2, "elsewhere"),
            acts("-f @/db.yaml -f @/new.yaml", &[]),
            cell("-f @/db.yaml -l app=db", 2, UNEXPECTED),
            cell("-f @/db.yaml --all", 2, UNEXPECTED),
            cell("-f @/db.yaml", 1, NO_AGENT),
            acts("-f @/db.yaml", &[]),
        ],
    ));
    rows.extend(rows_without_agent());
    rows.extend(node_rows());
    rows
}

/// Verbs that show pods.
fn showing_rows() -> Vec<Row> {
    let row = |verb, cells| Row { verb, cells };
    let listing = |verb| {
        let cells = [
            cell("configmap db", 2, "configmap"),
            cell("pod nothing", 1, NOT_FOUND),
            cell("pod db -n elsewhere", 1, NOT_IN),
            cell("pod db web", 0, ""),
            cell("pod -l app=db", 0, ""),
            cell("pod --all", 2, UNEXPECTED),
            cell("pod db", 1, NO_AGENT),
            cell("pod db", 0, ""),
        ];
        row(verb, cells)
    };
    vec![
        listing("get"),
        listing("describe"),
        listing("top"),
        row(
            "explain",
            [
                cell("configmap/db", 2, "configmap"),
                cell("nothing", 1, NOT_FOUND),
                cell("db -n elsewhere", 1, "not found"),
                cell("db web", 2, UNEXPECTED),
                cell("-l app=db", 2, UNEXPECTED),
                cell("--all", 2, UNEXPECTED),
                cell("db", 1, NO_AGENT),
                cell("db", 0, ""),
            ],
        ),
        row(
            "events",
            [
                cell("--for configmap/db", 2, "configmap"),
                cell("--for nothing", 0, "No resources found"),
                cell("--for db -n elsewhere", 0, "No resources found"),
                cell("--for db web", 2, UNEXPECTED),
                cell("-l app=db", 2, UNEXPECTED),
                cell("--all", 2, UNEXPECTED),
                cell("--for db", 1, NO_AGENT),
                cell("--for db", 0, "No resources found"),
            ],
        ),
        row(
            "wait",
            [
                cell("configmap db --for=create", 2, "configmap"),
                cell("nothing --for=condition=Ready", 1, NOT_FOUND),
                cell("db -n elsewhere --for=condition=Ready", 1, NOT_IN),
                cell("db web --for=create", 0, ""),
                cell("-l app=db --for=create", 0, ""),
                cell("--all --for=create", 0, ""),
                cell("db --for=create", 1, NO_AGENT),
                cell("db --for=create", 0, ""),
            ],
        ),
    ]
}

/// Verbs that connect to containers.
fn stream_rows() -> Vec<Row> {
    let row = |verb, cells| Row { verb, cells };
    vec![
        row(
            "logs",
            [
                cell("configmap db", 2, "configmap"),
                cell("nothing", 1, NOT_FOUND),
                cell("db -n elsewhere", 1, NOT_IN),
                cell("db web", 0, ""),
                cell("-l app=db", 0, ""),
                cell("--all", 0, ""),
                cell("db", 1, NO_AGENT),
                cell("db", 0, ""),
            ],
        ),
        row(
            "exec",
            [
                cell("configmap/db -- true", 2, "configmap"),
                cell("nothing -- true", 1, NOT_FOUND),
                cell("db -n elsewhere -- true", 1, NOT_IN),
                cell("db web -- true", 2, UNEXPECTED),
                cell("-l app=db -- true", 2, UNEXPECTED),
                cell("--all -- true", 2, UNEXPECTED),
                cell("db -- true", 1, NO_AGENT),
                cell("db -- true", 0, ""),
            ],
        ),
        row(
            "attach",
            [
                cell("configmap/db", 2, "configmap"),
                cell("nothing", 1, NOT_FOUND),
                cell("db -n elsewhere", 1, NOT_IN),
                cell("db web", 2, UNEXPECTED),
                cell("-l app=db", 2, UNEXPECTED),
                cell("--all", 2, UNEXPECTED),
                cell("db", 1, NO_AGENT),
                cell("db", 0, ""),
            ],
        ),
        row(
            "cp",
            [
                cell("configmap/db:@/db.yaml @/copy", 2, "configmap"),
                cell("nothing:@/db.yaml @/copy", 1, NOT_FOUND),
                cell("db:@/db.yaml @/copy -n elsewhere", 1, NOT_IN),
                cell("db:@/db.yaml web:@/copy", 2, ""),
                cell("-l app=db @/copy", 2, UNEXPECTED),
                cell("--all @/copy", 2, UNEXPECTED),
                cell("db:@/db.yaml @/copy", 1, NO_AGENT),
                cell("db:@/db.yaml @/copy", 0, ""),
            ],
        ),
        row(
            "port-forward",
            [
                cell("configmap/db :80", 2, "configmap"),
                cell("nothing :80", 1, NOT_FOUND),
                cell("db :80 -n elsewhere", 1, NOT_IN),
                cell("db pod/web :80", 2, "pod/web"),
                cell("-l app=db :80", 2, UNEXPECTED),
                cell("--all :80", 2, UNEXPECTED),
                cell("db :80", 1, NO_AGENT),
                runs("db :80", "Forwarding from 127.0.0.1:"),
            ],
        ),
    ]
}

/// Verbs that need no agent.
fn rows_without_agent() -> Vec<Row> {
    let row = |verb, cells| Row { verb, cells };
    vec![
        row(
            "check",
            [
                cell("@/configmap.yaml", 1, ""),
                cell("@/nothing.yaml", 2, "nothing.yaml"),
                cell("@/db.yaml -n elsewhere", 2, UNEXPECTED),
                cell("@/db.yaml @/new.yaml", 0, ""),
                cell("@/db.yaml -l app=db", 2, UNEXPECTED),
                cell("@/db.yaml --all", 2, UNEXPECTED),
                cell("@/db.yaml", 0, ""),
                None,
            ],
        ),
        row(
            "replay",
            [
                cell("@/db.yaml", 1, ""),
                cell("@/nothing", 1, "nothing"),
                cell("@/db.yaml -n elsewhere", 2, UNEXPECTED),
                cell("@/db.yaml @/new.yaml", 2, UNEXPECTED),
                cell("@/db.yaml -l app=db", 2, UNEXPECTED),
                cell("@/db.yaml --all", 2, UNEXPECTED),
                cell("@/nothing", 1, "nothing"),
                None,
            ],
        ),
        row(
            "completion",
            [
                cell("configmap", 2, "configmap"),
                cell("nothing", 2, "nothing"),
                cell("bash -n elsewhere", 2, UNEXPECTED),
                cell("bash zsh", 2, UNEXPECTED),
                cell("bash -l app=db", 2, UNEXPECTED),
                cell("bash --all", 2, UNEXPECTED),
                cell("bash", 0, ""),
                None,
            ],
        ),
        without_pods("version", cell("", 0, ""), None),
        // The agent and the engine themselves: other ones are not a part of this table.
        without_pods("run", None, None),
        without_pods("engine", None, None),
        // It does not ask an agent.
        without_pods(
            "takeover",
            cell("--check --root-dir @/root --container-runtime-endpoint unix://@/no.sock", 2, "no.sock"),
            None,
        ),
    ]
}

/// Verbs that are about the node.
fn node_rows() -> Vec<Row> {
    let row = |verb, cells| Row { verb, cells };
    vec![
        without_pods("status", cell("", 1, NO_AGENT), cell("", 0, "")),
        without_pods(
            "proxy",
            cell("--port 0", 1, NO_AGENT),
            runs("--port 0 --kubeconfig @/kubeconfig", "export KUBECONFIG="),
        ),
        row(
            "image",
            [
                cell("configmap", 2, "unrecognized subcommand"),
                cell("inspect nothing", 1, "the images are kept elsewhere"),
                cell("ls -n elsewhere", 2, UNEXPECTED),
                cell("rm db web", 1, "the images are kept elsewhere"),
                cell("ls -l app=db", 2, UNEXPECTED),
                cell("rm --all", 2, UNEXPECTED),
                cell("ls --root-dir @/no-store", 0, ""),
                cell("ls", 1, "the images are kept elsewhere"),
            ],
        ),
    ]
}
