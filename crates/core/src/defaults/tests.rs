use serde_json::Value;

use super::*;

/// Pods, what `SetObjectDefaults_Pod` of Kubernetes 1.36.3 makes of them, and the class `ComputePodQOS` then gives them.
const FROM_GO: &str = include_str!("../../testdata/defaults.jsonl");

#[test]
fn defaults_are_the_api_servers() {
    for (number, line) in FROM_GO.lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        let mut pod: Pod = serde_json::from_value(line["pod"].clone()).unwrap();
        default_pod(&mut pod);
        let ours = serde_json::to_value(&pod).unwrap();
        compare(&ours, &line["defaulted"], &format!("line {}: ", number + 1));
        assert_eq!(crate::qos::qos_class(&pod), line["qos"], "line {}", number + 1);
    }
}

#[test]
fn defaulting_twice_changes_nothing() {
    for line in FROM_GO.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let mut once: Pod = serde_json::from_value(line["pod"].clone()).unwrap();
        default_pod(&mut once);
        let mut twice = once.clone();
        default_pod(&mut twice);
        assert_eq!(once, twice);
    }
}

#[test]
fn a_pod_without_a_spec_gets_one() {
    let mut pod = Pod::default();
    default_pod(&mut pod);
    assert_eq!(pod.spec.unwrap().termination_grace_period_seconds, Some(30));
}

#[test]
fn the_old_name_of_the_service_account_counts() {
    for given in [r#"{"serviceAccount":"sa","containers":[]}"#, r#"{"serviceAccountName":"sa","containers":[]}"#] {
        let mut pod = Pod { spec: serde_json::from_str(given).unwrap(), ..Pod::default() };
        default_pod(&mut pod);
        let spec = pod.spec.unwrap();
        assert_eq!((spec.service_account.as_deref(), spec.service_account_name.as_deref()), (Some("sa"), Some("sa")));
    }
}

/// Go leaves out what is false, 0 or empty; we keep what was written. Everything else must be equal.
fn compare(ours: &Value, go: &Value, path: &str) {
    match (ours, go) {
        (Value::Object(ours), Value::Object(go)) => {
            for key in ours.keys().chain(go.keys()) {
                let here = format!("{path}.{key}");
                match (ours.get(key), go.get(key)) {
                    (Some(a), Some(b)) => compare(a, b, &here),
                    (Some(Value::Bool(false)), None) => {}
                    (Some(Value::String(s)), None) if s.is_empty() => {}
                    (Some(Value::Number(n)), None) if n.as_i64() == Some(0) => {}
                    (a, b) => panic!("{here}: ours {a:?}, Go's {b:?}"),
                }
            }
        }
        (Value::Array(ours), Value::Array(go)) => {
            assert_eq!(ours.len(), go.len(), "{path}");
            for (i, (a, b)) in ours.iter().zip(go).enumerate() {
                compare(a, b, &format!("{path}[{i}]"));
            }
        }
        (a, b) => assert_eq!(a, b, "{path}"),
    }
}
