//! The same pods validated by a real API server and by our rules: the same result, and the same defaults.

#[path = "validation/known_differences.rs"]
mod known_differences;
#[path = "validation/patches.rs"]
mod patches;
#[path = "validation/pods.rs"]
mod pods;
#[path = "validation/tables.rs"]
mod tables;

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use podwright_core::defaults::default_pod;
use podwright_core::model::Pod;
use podwright_core::qos::qos_class;
use podwright_core::validate::validate_pod;
use podwright_testbed::{Agent, Cache, ControlPlane};
use serde_json::{Value, json};

use pods::Case;

const NAMESPACE: &str = "x";
/// Parallel requests.
const WORKERS: usize = 3;

/// The result for one pod: accepted, with its defaults, or rejected with a message.
type Verdict = Result<Value, String>;

#[test]
fn pods_are_validated_and_defaulted_as_by_the_api_server() {
    let plane = prepared();
    let cases = pods::all();
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (theirs, ours) = (api_server(plane, &case.pod), ours(&case.pod));
                    outcomes.lock().expect("no panic").push((case, theirs, ours));
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("no panic");
    let valid = outcomes.iter().filter(|(_, theirs, _)| theirs.is_ok()).count();
    let invalid = outcomes.len() - valid;
    let (mut wrong, mut used) = (vec![], BTreeSet::new());
    for (case, theirs, ours) in &outcomes {
        for difference in differences(case, theirs, ours) {
            match known_differences::why(&difference) {
                Some(rule) => _ = used.insert(rule),
                None => wrong.push(difference),
            }
        }
    }
    wrong.sort();
    println!("{valid} valid and {invalid} invalid pods: {} differences known, {} not", used.len(), wrong.len());
    assert!(valid >= 150 && invalid >= 150, "too few pods for a meaningful test");
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    let stale = known_differences::unused(&used);
    assert!(stale.is_empty(), "known differences that no longer occur: {stale:#?}");
}

#[test]
fn kubectl_dry_run_agrees_with_the_api_server() {
    let plane = prepared();
    let cases = pods::all();
    for case in cases.iter().step_by(cases.len() / 5).take(5) {
        let mut command = Command::new(Cache::find().peer("kubectl").expect("kubectl"));
        command.arg("--kubeconfig").arg(plane.admin_kubeconfig());
        command.args(["create", "--dry-run=server", "--validate=ignore", "-n", NAMESPACE, "-f", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("kubectl runs");
        child.stdin.take().expect("a pipe").write_all(case.pod.to_string().as_bytes()).expect("written");
        let accepted = child.wait().expect("it ends").success();
        assert_eq!(accepted, api_server(plane, &case.pod).is_ok(), "{}", case.name);
    }
}

#[test]
fn check_agrees_with_the_validation_rules() {
    let dir = tempfile::tempdir().expect("a directory");
    let cases = pods::all();
    for (n, case) in cases.iter().enumerate() {
        let mut pod = case.pod.clone();
        (pod["kind"], pod["apiVersion"]) = (json!("Pod"), json!("v1"));
        std::fs::write(dir.path().join(format!("{n:05}.json")), pod.to_string()).expect("written");
    }
    let mut command = Command::new(Agent::program().expect("built"));
    let output = command.args(["check", "--for", "api", "-o", "json"]).arg(dir.path()).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1), "some are wrong");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let files = report["files"].as_array().expect("a list");
    assert_eq!(files.len(), cases.len());
    for (case, file) in cases.iter().zip(files) {
        // All pods have the same name, which is an error only because they are checked together.
        let other = |error: &&Value| error["message"].as_str().is_some_and(|m| !m.contains("is already defined in"));
        let errors: Vec<&Value> = file["errors"].as_array().expect("a list").iter().filter(other).collect();
        assert_eq!(errors.is_empty(), ours(&case.pod).is_ok(), "{}: {errors:?}", case.name);
    }
}

/// The control plane with the objects that the pods of the tables refer to.
fn prepared() -> &'static ControlPlane {
    static ONCE: std::sync::Once = std::sync::Once::new();
    let plane = ControlPlane::shared();
    ONCE.call_once(|| {
        plane.namespace(NAMESPACE).expect("a namespace");
        let account = json!({"metadata": {"name": "builder"}});
        plane.api().create(&format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts"), &account).expect("an account");
        let class = json!({"metadata": {"name": "rc"}, "handler": "runc"});
        plane.api().create("/apis/node.k8s.io/v1/runtimeclasses", &class).expect("a class");
    });
    plane
}

fn api_server(plane: &ControlPlane, pod: &Value) -> Verdict {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All");
    let response = plane.api().request("POST", &path, Some(pod)).expect("it answers");
    let mut answer: Value = serde_json::from_str(&response.body).expect("JSON");
    if response.status != 201 {
        return Err(answer["message"].as_str().unwrap_or_default().to_owned());
    }
    known_differences::without_admission(&mut answer, pod);
    Ok(json!({"spec": answer["spec"], "qosClass": answer["status"]["qosClass"]}))
}

/// The same steps as `podwright check`.
fn ours(pod: &Value) -> Verdict {
    let mut decoded: Pod = serde_json::from_value(pod.clone()).map_err(|e| e.to_string())?;
    default_pod(&mut decoded);
    let errors: Vec<String> = validate_pod(&decoded).iter().map(ToString::to_string).collect();
    if !errors.is_empty() {
        return Err(errors.join("; "));
    }
    Ok(json!({"spec": decoded.spec, "qosClass": qos_class(&decoded)}))
}

fn differences(case: &Case, theirs: &Verdict, ours: &Verdict) -> Vec<String> {
    let mut found = vec![];
    match (theirs, ours) {
        (Ok(theirs), Ok(ours)) => compare(ours, theirs, &format!("{}: default", case.name), &mut found),
        (Err(why), Ok(_)) => found.push(format!("{}: only the API server rejects: {why}", case.name)),
        (Ok(_), Err(why)) => found.push(format!("{}: only our rules reject: {why}", case.name)),
        (Err(_), Err(_)) => {}
    }
    found
}

/// Go omits false, 0 and empty values, so they are equal to absent ones.
fn compare(ours: &Value, theirs: &Value, path: &str, found: &mut Vec<String>) {
    let nothing = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) => false,
    };
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                compare(&ours[key], &theirs[key], &format!("{path}.{key}"), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().for_each(|(i, (a, b))| compare(a, b, &format!("{path}[{i}]"), found));
        }
        (a, b) if a == b || nothing(a) && nothing(b) => {}
        (a, b) => found.push(format!("{path}: ours {a}, the API server's {b}")),
    }
}
