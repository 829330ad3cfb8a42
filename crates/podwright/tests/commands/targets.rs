//! Which pods a command acts on: every verb with unknown kinds and names, other namespaces, several names, selectors and `--all`.
//! Nothing happens to a pod that was not named.

use serde_json::json;

use crate::harness::Api;

/// One way to name pods, written after a verb.
struct Case {
    /// Appended to the command line of each verb.
    arguments: &'static str,
    code: i32,
    /// A part of stderr; empty if there must be no error.
    message: &'static str,
    /// The pods that the verb acts on, as `namespace/name`.
    acted_on: &'static [&'static str],
}

/// The verbs that change pods.
const CHANGING: [&str; 3] = ["delete", "stop", "restart"];

/// For each verb that changes pods.
const CASES: &[Case] = &[
    Case { arguments: "configmap db", code: 2, message: "configmap", acted_on: &[] },
    Case { arguments: "configmap/db", code: 2, message: "configmap", acted_on: &[] },
    Case { arguments: "ConfigMaps db", code: 2, message: "ConfigMaps", acted_on: &[] },
    Case { arguments: "deployments.apps db", code: 2, message: "deployments.apps", acted_on: &[] },
    Case { arguments: "web configmap/db", code: 2, message: "configmap", acted_on: &[] },
    Case { arguments: "pod web configmap/db", code: 2, message: "configmap", acted_on: &[] },
    Case { arguments: "certificate db", code: 1, message: "\"certificate\" not found", acted_on: &[] },
    Case { arguments: "configmap", code: 2, message: "configmap", acted_on: &[] },
    Case { arguments: "pod", code: 2, message: "pod/pod", acted_on: &[] },
    Case { arguments: "", code: 2, message: "", acted_on: &[] },
    Case { arguments: "nothing", code: 1, message: "\"nothing\" not found", acted_on: &[] },
    Case { arguments: "db nothing", code: 1, message: "\"nothing\" not found", acted_on: &[] },
    Case { arguments: "nothing db", code: 1, message: "\"nothing\" not found", acted_on: &[] },
    Case { arguments: "other", code: 1, message: "not found in namespace \"default\"", acted_on: &[] },
    Case { arguments: "db -n elsewhere", code: 1, message: "not found in namespace \"elsewhere\"", acted_on: &[] },
    Case { arguments: "db", code: 0, message: "", acted_on: &["default/db"] },
    Case { arguments: "pod/db", code: 0, message: "", acted_on: &["default/db"] },
    Case { arguments: "pods db web", code: 0, message: "", acted_on: &["default/db", "default/web"] },
    Case { arguments: "po/db po/web", code: 0, message: "", acted_on: &["default/db", "default/web"] },
    Case { arguments: "db db", code: 0, message: "", acted_on: &["default/db"] },
    Case { arguments: "other -n elsewhere", code: 0, message: "", acted_on: &["elsewhere/other"] },
    Case { arguments: "-l app=db", code: 0, message: "", acted_on: &["default/db"] },
    Case { arguments: "-l app=other", code: 0, message: "No pods", acted_on: &[] },
    Case { arguments: "-l app=other -n elsewhere", code: 0, message: "", acted_on: &["elsewhere/other"] },
    Case { arguments: "-l app=other -A", code: 0, message: "", acted_on: &["elsewhere/other"] },
    Case { arguments: "-l app=(", code: 1, message: "app=(", acted_on: &[] },
    Case { arguments: "--selector=", code: 2, message: "is empty", acted_on: &[] },
    Case { arguments: "--selector=, -A", code: 2, message: "is empty", acted_on: &[] },
    Case { arguments: "db -l app=web", code: 2, message: "cannot be used with", acted_on: &[] },
    Case { arguments: "db --all", code: 2, message: "cannot be used with", acted_on: &[] },
    Case { arguments: "--all -l app=db", code: 2, message: "cannot be used with", acted_on: &[] },
    Case { arguments: "--all", code: 0, message: "", acted_on: &["default/db", "default/web"] },
    Case { arguments: "--all -n elsewhere", code: 0, message: "", acted_on: &["elsewhere/other"] },
    Case { arguments: "--all -n nowhere", code: 0, message: "No pods", acted_on: &[] },
    Case { arguments: "--all -A", code: 0, message: "", acted_on: &["default/db", "default/web", "elsewhere/other"] },
];

fn start() -> Api {
    let api = Api::start();
    api.apply("default", "db");
    api.apply("default", "web");
    api.apply("elsewhere", "other");
    api
}

#[test]
fn a_kind_that_is_unknown_here_is_not_ignored() {
    let api = start();
    let before = api.living();
    let outcome = api.run("delete certificate db --ignore-not-found");
    assert_eq!((outcome.code, api.living()), (1, before), "{outcome:?}");
    assert!(outcome.stderr.contains("\"certificate\" not found"), "{outcome:?}");
    assert_eq!(api.run("delete pod certificate db --ignore-not-found").code, 0);
}

#[test]
fn commands_that_change_pods_act_on_the_named_pods_only() {
    for verb in CHANGING {
        let mut api = start();
        for Case { arguments, code, message, acted_on } in CASES {
            let before = api.living();
            let line = format!("{verb} {arguments}");
            let outcome = api.run(&line);
            assert_eq!(outcome.code, *code, "{line}: {outcome:?}");
            assert!(outcome.stderr.contains(message), "{line}: {outcome:?}");
            let gone: Vec<String> = before.iter().filter(|name| !api.living().contains(name)).cloned().collect();
            let requested: Vec<String> =
                api.requests().iter().filter_map(|request| request.split_once(' ')).map(|r| r.1.to_owned()).collect();
            let acted = if verb == "delete" || verb == "stop" { &gone } else { &requested };
            assert_eq!(acted, acted_on, "{line}: {outcome:?}");
            for name in *acted_on {
                let name = name.split_once('/').map_or(*name, |(_, name)| name);
                assert!(outcome.stdout.contains(name), "{line} does not name {name}: {outcome:?}");
            }
            if !gone.is_empty() {
                api = start();
            }
        }
        api.end();
        let outcome = api.run(&format!("{verb} db"));
        assert!(outcome.code == 1 && outcome.stderr.contains("is `podwright run` running"), "{verb}: {outcome:?}");
    }
}

/// Command lines that show pods or connect to them: exit code, and a part of stderr.
const SHOWING: &[(&str, i32, &str)] = &[
    ("get configmap db", 2, "configmap"),
    ("get pods configmap/db", 2, "configmap"),
    ("get pod/db configmap/web", 2, "configmap"),
    ("get pods nothing", 1, "\"nothing\" not found"),
    ("get pods db -n elsewhere", 1, "not found in namespace \"elsewhere\""),
    ("get pods db web", 0, ""),
    ("get pods -l app=db", 0, ""),
    ("describe configmap db", 2, "configmap"),
    ("describe pod configmap/db", 2, "configmap"),
    ("describe pod nothing", 1, "\"nothing\" not found"),
    ("describe pod db -n elsewhere", 1, "not found in namespace \"elsewhere\""),
    ("describe pods db web", 0, ""),
    ("describe pods -l app=db", 0, ""),
    ("wait configmap db --for=delete", 2, "configmap"),
    ("wait configmap/db --for=delete", 2, "configmap"),
    ("wait nothing --for=condition=Ready", 1, "\"nothing\" not found"),
    ("wait db -n elsewhere --for=condition=Ready", 1, "not found in namespace \"elsewhere\""),
    ("wait db web --for=create", 0, ""),
    ("wait pod db --for=create", 0, ""),
    ("wait -l app=db --for=create", 0, ""),
    ("wait --all -A --for=create", 0, ""),
    ("wait -l app=nothing --for=create", 1, "No pods"),
    ("logs configmap/db", 2, "configmap"),
    ("logs configmap db", 2, "configmap"),
    ("logs nothing", 1, "\"nothing\" not found"),
    ("logs db -n elsewhere", 1, "not found in namespace \"elsewhere\""),
    ("exec configmap/db -- true", 2, "configmap"),
    ("exec nothing -- true", 1, "\"nothing\" not found"),
    ("exec db -n elsewhere -- true", 1, "not found in namespace \"elsewhere\""),
    ("attach configmap/db", 2, "configmap"),
    ("attach nothing", 1, "\"nothing\" not found"),
    ("attach db -n elsewhere", 1, "not found in namespace \"elsewhere\""),
    ("cp configmap/db:/x .", 2, "configmap"),
    ("cp nothing:/x .", 1, "\"nothing\" not found"),
    ("cp elsewhere/db:/x .", 1, "not found in namespace \"elsewhere\""),
    ("cp db:/x . -n elsewhere", 1, "not found in namespace \"elsewhere\""),
    ("top configmap", 2, "configmap"),
    ("top pod configmap/db", 2, "configmap"),
    ("top pod nothing", 1, "\"nothing\" not found"),
    ("top pod db -n elsewhere", 1, "not found in namespace \"elsewhere\""),
    ("top node other", 1, "\"other\" not found"),
    ("port-forward service/db 80", 2, "service"),
    ("port-forward nothing 80", 1, "\"nothing\" not found"),
    ("port-forward db 80 -n elsewhere", 1, "not found in namespace \"elsewhere\""),
    ("explain configmap/db", 2, "configmap"),
    ("events --for configmap/db", 2, "configmap"),
];

#[test]
fn commands_that_show_pods_refuse_other_kinds_and_unknown_names() {
    let api = start();
    for (line, code, message) in SHOWING {
        let outcome = api.run(line);
        assert_eq!(outcome.code, *code, "{line}: {outcome:?}");
        assert!(outcome.stderr.contains(message), "{line}: {outcome:?}");
        assert!(*code == 0 || !outcome.stdout.contains("db"), "{line} shows a pod that was not named: {outcome:?}");
    }
    assert_eq!((api.living().len(), api.requests().len()), (3, 0));
    api.end();
    for line in [
        "get pods db",
        "describe pod db",
        "wait db --for=create",
        "logs db",
        "exec db -- true",
        "attach db",
        "port-forward db 80",
        "cp db:/x .",
        "top pod db",
        "top node",
        "proxy --port 0",
        "explain db",
        "events",
    ] {
        let outcome = api.run(line);
        assert!(outcome.code == 1 && outcome.stderr.contains("is `podwright run` running"), "{line}: {outcome:?}");
    }
}

#[test]
fn an_exact_name_is_preferred_to_a_static_pod_whose_node_name_was_omitted() {
    let api = start();
    let running = json!({"phase": "Running"});
    // Published later than the pod db, so that the newest of both is the wrong one.
    api.publish_static("default", "db", &running);
    api.publish_static("default", "cache", &running);
    api.apply("default", "queue-node");
    let outcome = api.run("stop db");
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert_eq!(api.requests(), ["stop default/db"]);
    // Only static pods have the name of the node at their end: this is another pod.
    let outcome = api.run("delete queue");
    assert!(outcome.code == 1 && outcome.stderr.contains("\"queue\" not found"), "{outcome:?}");
    assert!(api.living().contains(&"default/queue-node".to_owned()));
    let outcome = api.run("stop cache");
    assert_eq!((outcome.code, api.requests()), (0, vec!["stop default/cache-node".to_owned()]), "{outcome:?}");
}
