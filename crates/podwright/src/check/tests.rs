//! Tests of `podwright check` and its output.

use super::*;

const GOOD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: c, image: i}\n";
const BAD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  hostNetwrk: true\n  restartPolicy: Often\n  containers:\n  - name: c\n---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: two\nspec:\n  containers:\n  - name: c\n    image: i\n    volumeDevices: [{name: x, devicePath: /d}]\n";

fn flags(dir: &Path, strict: bool) -> CheckFlags {
    CheckFlags { files: vec![dir.to_owned()], strict, rules: CheckRules::Node, all_names: false, output: None }
}

fn fill(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        fs::write(dir.path().join(name), text).expect("written");
    }
    dir
}

fn shown(text: &str, dir: &Path) -> String {
    text.replace(&format!("{}/", dir.display()), "")
}

#[test]
fn all_findings_in_a_directory_are_reported() {
    let dir =
        fill(&[("a.yaml", GOOD), ("b.yml", BAD), ("c.json", "{\n \"kind\": 1"), (".d.yaml", "x"), ("e.txt", "x")]);
    let checked = check(&flags(dir.path(), false)).expect("read");
    insta::assert_snapshot!("text", shown(&as_text(&checked, None), dir.path()));
    insta::assert_snapshot!("json", shown(&as_json(&checked), dir.path()));
}

#[test]
fn strict_turns_warnings_into_errors() {
    let text = GOOD.replace("spec:", "spec:\n  hostNetwrk: true");
    let dir = fill(&[("a.yaml", &text)]);
    let counts = |strict| {
        let checked = check(&flags(dir.path(), strict)).expect("read");
        (checked[0].errors.len(), checked[0].warnings.len())
    };
    assert_eq!((counts(false), counts(true)), ((0, 1), (1, 0)));
}

#[test]
fn references_to_api_objects_are_errors_for_static_pods_only() {
    let text = GOOD.replace("image: i}", "image: i, envFrom: [{configMapRef: {name: settings}}]}");
    let dir = fill(&[("a.yaml", &text)]);
    let checked = check(&flags(dir.path(), false)).expect("read");
    insta::assert_snapshot!("reference", shown(&as_text(&checked, None), dir.path()));
    let checked = check(&CheckFlags { rules: CheckRules::Api, ..flags(dir.path(), true) }).expect("read");
    assert_eq!((checked[0].errors.len(), checked[0].pods.as_slice()), (0, ["default/web".to_owned()].as_slice()));
    let dir = fill(&[("a.yaml", &GOOD.replace("image: i", "image: ''"))]);
    let checked = check(&CheckFlags { rules: CheckRules::Api, ..flags(dir.path(), false) }).expect("read");
    assert_eq!((checked[0].errors.len(), checked[0].errors[0].line), (1, Some(6)));
}

#[test]
fn two_pods_of_one_name_are_an_error() {
    let dir = fill(&[("a.yaml", GOOD), ("b.yaml", GOOD)]);
    let checked = check(&flags(dir.path(), false)).expect("read");
    assert!(checked[0].errors.is_empty());
    assert!(checked[1].errors[0].message.contains("pod default/web is already defined in"), "{:?}", checked[1].errors);
}

#[test]
fn a_missing_file_is_unreadable() {
    assert!(check(&flags(Path::new("/no/such/file"), false)).is_err());
}

/// What `check` reports about this text, without the name of the file.
fn report(text: &str) -> String {
    let dir = fill(&[("a.yaml", text)]);
    shown(&as_text(&check(&flags(dir.path(), false)).expect("read"), None), dir.path()).replace("a.yaml:", "")
}

#[test]
fn nothing_is_reported_that_the_manifest_does_not_contain() {
    let text = GOOD.replace("image: i", "image: i, resources: {limits: {cpu: -1}}").replace("name: web", "name: Web_1");
    let found = report(&text);
    assert!(found.contains("3: error: metadata.name: \"Web_1\" must be"), "{found}");
    assert!(found.contains("6: error: spec.containers[0].resources.limits[cpu]: -1 must not be negative"), "{found}");
    assert!(!found.contains("requests") && found.contains("2 errors"), "{found}");
    let both = text.replace("limits: {cpu: -1}", "limits: {cpu: -1}, requests: {cpu: -1}");
    assert!(report(&both).contains("requests[cpu]: -1 must not be negative"));
}

#[test]
fn messages_are_written_for_users() {
    for (text, expected) in [
        (GOOD.replace("{name: web}", "{name: web, name: db}"), "duplicate mapping key: name\n"),
        ("services:\n  web: {image: nginx}\n".into(), "error: this is a compose file"),
        (
            GOOD.replace("spec:", "spec:\n  terminationGracePeriod: 3"),
            "5: warning: spec.terminationGracePeriod: unknown field, it does nothing, did you mean terminationGracePeriodSeconds?\n",
        ),
        (
            GOOD.replace("image: i", "image: i, readinessProbe: {tcpSocket: {port: 80}, initialDelay: 3}"),
            "did you mean initialDelaySeconds?",
        ),
    ] {
        let found = report(&text);
        assert!(found.contains(expected), "{expected} is not in {found}");
        assert!(!found.contains("DuplicateKeyPolicy"), "{found}");
    }
}

#[test]
fn what_never_works_on_a_node_is_an_error() {
    for (text, expected) in [
        (
            GOOD.replace("image: i", "image: i, readinessProbe: {httpGet: {port: http}}"),
            "6: error: spec.containers[0].readinessProbe.httpGet.port: this never works: the container has no port",
        ),
        (GOOD.replace("image: i", "image: Busy Box"), "6: error: spec.containers[0].image: this never works"),
        (
            GOOD.replace("spec:", "spec:\n  volumes:\n  - {name: v, nfs: {server: s, path: /}}"),
            "6: error: spec.volumes[0].nfs: not supported: the pod waits for the volume",
        ),
        (
            GOOD.replace("image: i", "image: i, resources: {limits: {nvidia.com/gpu: 1}}"),
            "6: error: spec.containers[0].resources.limits.nvidia.com/gpu: not supported",
        ),
    ] {
        let found = report(&text);
        assert!(found.contains(expected), "{expected} is not in {found}");
    }
}

#[test]
fn on_a_terminal_the_line_is_shown_with_a_mark() {
    let dir = fill(&[("a.yaml", &GOOD.replace("spec:", "spec:\n  hostNetwrk: true"))]);
    let text = as_text(&check(&flags(dir.path(), false)).expect("read"), Some(Paint::off()));
    assert!(text.contains("\n  5 |   hostNetwrk: true\n    |   ^^^^^^^^^^\n"), "{text}");
    let dir = fill(&[("a.yaml", &GOOD.replace("image: i", "image: i, resources: {limits: {cpu: -1, a.b/gpu: 1}}"))]);
    let text = as_text(&check(&flags(dir.path(), false)).expect("read"), Some(Paint::off()));
    let line = "  6 |   - {name: c, image: i, resources: {limits: {cpu: -1, a.b/gpu: 1}}}\n    | ";
    for mark in [line.find("cpu"), line.find("a.b")].into_iter().flatten() {
        let width = if &line[mark..mark + 3] == "cpu" { 3 } else { "a.b/gpu".len() };
        let expected = format!("{line}{}{}\n", " ".repeat(mark - 6), "^".repeat(width));
        assert!(text.contains(&expected), "{expected}\n{text}");
    }
}

#[test]
fn sixty_bad_manifests_are_reported_by_line_and_field() {
    // Each case is a comment and the rest of a manifest, which begins in line 3.
    let cases: Vec<(&str, &str)> =
        include_str!("testdata/bad_manifests.txt").split("# ").filter_map(|case| case.split_once('\n')).collect();
    assert_eq!(cases.len(), 60);
    let mut all = String::new();
    for (case, rest) in cases {
        let found = report(&format!("apiVersion: v1\nkind: Pod\n{rest}"));
        let (findings, counts) = found.trim_end().rsplit_once('\n').unwrap_or(("", &found));
        assert!(!findings.is_empty(), "{case}: {counts}");
        all.push_str(&format!("# {case}\n{findings}\n"));
    }
    insta::assert_snapshot!("bad_manifests", all);
}
