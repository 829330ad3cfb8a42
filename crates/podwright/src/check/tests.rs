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
    insta::assert_snapshot!("text", shown(&as_text(&checked), dir.path()));
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
    insta::assert_snapshot!("reference", shown(&as_text(&checked), dir.path()));
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
