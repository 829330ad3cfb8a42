//! `podwright apply`: what is refused before anything is changed.

use crate::harness::Api;

const WEB: &str = "apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default}
spec:
  containers:
  - {name: c, image: \"busybox:1\"}
";

/// A volume with a typing error: without its unknown field it would be an emptyDir, and its data would be lost with the pod.
const TYPO: &str = "apiVersion: v1
kind: Pod
metadata: {name: db}
spec:
  containers:
  - {name: c, image: \"busybox:1\", volumeMounts: [{name: data, mountPath: /data}]}
  volumes:
  - name: data
    hostpath: {path: /srv/db}
";

#[test]
fn unknown_fields_are_refused_unless_validation_is_relaxed() {
    let api = Api::start();
    let file = api.write("db.yaml", TYPO);
    for arguments in ["apply -f", "apply --validate=strict -f", "apply --dry-run -f", "apply --strict -f"] {
        let outcome = api.run_with(arguments, &[&file]);
        assert_eq!(outcome.code, 1, "{arguments}: {outcome:?}");
        let expected = format!(
            "{file}:9: error: spec.volumes[0].hostpath: unknown field, it does nothing, did you mean hostPath?"
        );
        assert!(outcome.stderr.contains(&expected), "{arguments}: {outcome:?}");
        assert_eq!((outcome.stdout.as_str(), api.living().len()), ("", 0), "{arguments}: {outcome:?}");
    }
    let outcome = api.run_with("apply -f", &[&file]);
    assert!(outcome.stderr.contains("--validate=warn"), "{outcome:?}");
    let outcome = api.run_with("apply --validate=warn -f", &[&file]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "pod/db created\n"), "{outcome:?}");
    assert!(outcome.stderr.contains("warning: spec.volumes[0].hostpath: unknown field"), "{outcome:?}");
    let outcome = api.run_with("apply --validate=ignore -f", &[&file]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
}

#[test]
fn a_namespace_that_differs_from_the_file_is_refused() {
    let api = Api::start();
    let file = api.write("web.yaml", WEB);
    let outcome = api.run_with("apply -n other -f", &[&file]);
    assert_eq!(outcome.code, 2, "{outcome:?}");
    assert!(outcome.stderr.contains("\"default\"") && outcome.stderr.contains("\"other\""), "{outcome:?}");
    assert!(api.living().is_empty());
    assert_eq!(api.run_with("apply -n default -f", &[&file]).code, 0);
    let outcome = api.run_with("delete -n other -f", &[&file]);
    assert!(outcome.code == 2 && outcome.stderr.contains("\"other\""), "{outcome:?}");
    assert_eq!(api.living(), ["default/web"]);
}

#[test]
fn a_forced_dry_run_shows_what_would_be_replaced() {
    let api = Api::start();
    let file = api.write("web.yaml", WEB);
    assert_eq!(api.run_with("apply -f", &[&file]).code, 0);
    let changed = api.write("web.yaml", &WEB.replace("name: c,", "name: c, command: [sleep],"));
    let outcome = api.run_with("apply --dry-run -f", &[&changed]);
    assert!(outcome.code == 1 && outcome.stderr.contains("--force deletes and recreates the pod"), "{outcome:?}");
    let outcome = api.run_with("apply --force --dry-run -f", &[&changed]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stdout.starts_with("pod/web would be deleted and created again: "), "{outcome:?}");
    assert!(outcome.stdout.ends_with(" (dry run)\n"), "{outcome:?}");
    let uid = || api.run("get pod/web -o json").stdout.lines().find(|line| line.contains("\"uid\"")).map(str::to_owned);
    let before = uid();
    assert_eq!(api.living(), ["default/web"]);
    let outcome = api.run_with("apply --force -f", &[&changed]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "pod/web replaced\n"), "{outcome:?}");
    assert_ne!(uid(), before);
}

#[test]
fn a_directory_without_manifests_is_an_error() {
    let api = Api::start();
    let readme = api.write("empty/README.md", "no manifest");
    let dir = readme.trim_end_matches("/README.md");
    for verb in ["apply -f", "delete -f"] {
        let outcome = api.run_with(verb, &[dir]);
        assert!(outcome.code == 2 && outcome.stderr.contains("no *.yaml"), "{verb}: {outcome:?}");
    }
}
