//! `podwright get` with kubectl's output options, and `status`.

use serde_json::json;

use crate::harness::Api;

fn started() -> Api {
    let api = Api::start();
    let ports =
        json!([{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}]}]);
    api.publish("default", "web", &ports, &json!({"phase": "Running", "podIP": "10.0.0.2"}));
    api.publish_static("default", "db", &json!({"phase": "Pending"}));
    api
}

#[test]
fn output_options_are_those_of_kubectl() {
    let api = started();
    for (line, expected) in [
        ("get pods -o jsonpath={.items[*].status.phase} --sort-by .metadata.name", "Pending Running"),
        ("get pod/web -o jsonpath={.status.podIP}", "10.0.0.2"),
        (
            "get pods -o custom-columns=NAME:.metadata.name,IP:.status.podIP --sort-by .metadata.name",
            "NAME       IP\ndb-node    <none>\nweb-node   10.0.0.2\n",
        ),
        ("get pod web -o custom-columns=IP:.status.podIP --no-headers", "10.0.0.2\n"),
        ("-n default get pod web -o name", "pod/web-node\n"),
    ] {
        let outcome = api.run(line);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (0, expected), "{line}: {outcome:?}");
    }
    let wide = api.run("get pods web -o wide --show-labels");
    assert!(wide.stdout.contains("PORTS") && wide.stdout.contains("8080->80/TCP"), "{wide:?}");
    assert!(wide.stdout.contains("LABELS") && wide.stdout.contains("app=web"), "{wide:?}");
    let plain = api.run("get pods web --no-headers");
    assert!(plain.stdout.starts_with("web-node ") && plain.stdout.lines().count() == 1, "{plain:?}");
    for line in
        ["get pods -o xml", "get pods -o jsonpath={.a", "get pods -o custom-columns=NAME", "get pods --sort-by name"]
    {
        assert_eq!(api.run(line).code, 2, "{line}");
    }
}

#[test]
fn help_is_a_command_and_flags_may_come_before_the_verb() {
    let api = started();
    let help = api.run("help");
    assert!(help.code == 0 && help.stdout.contains("\nCommands:\n"), "{help:?}");
    let help = api.run("help get");
    assert!(help.code == 0 && help.stdout.contains("List pods or events"), "{help:?}");
    let outcome = api.run("-n nowhere get pods");
    assert!(outcome.code == 0 && outcome.stderr.contains("No resources found in nowhere namespace"), "{outcome:?}");
    let outcome = api.run("tpo pod");
    assert!(outcome.code == 2 && !outcome.stderr.contains("stop"), "{outcome:?}");
}

#[test]
fn right_after_its_start_an_agent_does_not_report_a_silent_runtime() {
    let api = started();
    api.set_runtime_pending();
    let outcome = api.run("get pods");
    assert!(outcome.code == 0 && outcome.stderr.contains("The agent was just started"), "{outcome:?}");
    assert!(!outcome.stderr.contains("does not respond"), "{outcome:?}");
    let outcome = api.run("status");
    assert!(outcome.stdout.contains("has not been queried yet: the agent was just started"), "{outcome:?}");
}

#[test]
fn a_runtime_that_does_not_respond_is_shown() {
    let api = started();
    let outcome = api.run("get pods");
    assert!(outcome.code == 0 && outcome.stderr.contains("The container runtime does not respond"), "{outcome:?}");
    let outcome = api.run("status");
    assert_eq!(outcome.code, 0, "{outcome:?}");
    for part in ["Agent\n  running on node node", "does not respond", "2: 1 Pending, 1 Running"] {
        assert!(outcome.stdout.contains(part), "{part} is not in {outcome:?}");
    }
    api.end();
    let outcome = api.run("status");
    assert!(outcome.code == 1 && outcome.stderr.contains("is `podwright run` running"), "{outcome:?}");
}
