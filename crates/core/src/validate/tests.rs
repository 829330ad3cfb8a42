use serde_json::{Value, json};

use super::*;
use crate::defaults::default_pod;

/// Pods and the result of `ValidatePodCreate` of Kubernetes 1.36.3, one per line.
const FROM_GO: &str = include_str!("../../testdata/validate.jsonl");

/// Intended differences: a part of the pod, and the reason.
const DIFFERENT: [(&str, &str); 4] = [
    (r#""fieldPath":"spec.host""#, "an alias of spec.nodeName that was dropped long ago"),
    (r#""image":{"reference":""}"#, "the API server refuses it too, but not in this function"),
    (r#"}],"terminationGracePeriodSeconds":-1"#, "no way to end a pod before now"),
    (r#""ephemeralContainers":"#, "refused in manifests; a living pod may have them"),
];

fn check(value: &Value) -> Vec<FieldError> {
    let mut pod: Pod = serde_json::from_value(value.clone()).unwrap();
    default_pod(&mut pod);
    validate_pod(&pod)
}

fn pod() -> Value {
    json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "a", "image": "nginx" }] } })
}

fn with(path: &str, value: Value) -> Value {
    let mut pod = pod();
    let (parent, field) = path.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[field] = value;
    pod
}

#[test]
fn results_equal_the_api_servers() {
    let (mut different, mut good) = (Vec::new(), 0);
    for (number, line) in FROM_GO.lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        let (ours, theirs) = (check(&line["pod"]), line["errors"].as_array().unwrap());
        let pod = line["pod"].to_string();
        let listed = DIFFERENT.iter().any(|(part, _)| pod.contains(part));
        good += usize::from(theirs.is_empty());
        if (ours.is_empty() == theirs.is_empty()) == listed {
            different.push(format!("line {}: ours {ours:?}, theirs {theirs:?}: {pod}", number + 1));
        }
    }
    assert!(different.is_empty(), "{} differ:\n{}", different.len(), different.join("\n"));
    assert!(good > 150 && FROM_GO.lines().count() - good > 150, "both kinds are there");
}

#[test]
fn errors_name_the_field_and_what_to_write() {
    for (path, value, expected) in [
        (
            "/spec/containers/0/image",
            json!(""),
            "spec.containers[0].image: must be given, such as docker.io/library/nginx:1",
        ),
        (
            "/spec/restartPolicy",
            json!("always"),
            "spec.restartPolicy: \"always\" must be one of Always, OnFailure, Never",
        ),
        (
            "/spec/containers/0/volumeMounts",
            json!([{ "name": "data", "mountPath": "/x" }]),
            "spec.containers[0].volumeMounts[0].name: \"data\" is not a volume of the pod: add it to spec.volumes",
        ),
        (
            "/spec/containers/0/resources",
            json!({ "limits": { "cpu": "1 core" } }),
            "spec.containers[0].resources.limits[cpu]: \"1 core\" is not a quantity: unknown suffix \" core\", use one of \
             n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent such as e3",
        ),
        (
            "/spec/containers/0/resources",
            json!({ "limits": { "memory": "1Gi" }, "requests": { "memory": "2Gi" } }),
            "spec.containers[0].resources.requests[memory]: 2Gi must not be more than the limit, 1Gi",
        ),
        (
            "/spec/volumes",
            json!([{ "name": "h", "hostPath": { "path": "/var/../etc" } }]),
            "spec.volumes[0].hostPath.path: \"/var/../etc\" must not contain '..'",
        ),
        (
            "/spec/containers/0/env",
            json!([{ "name": "A", "value": "x".repeat(1 << 19) }, { "name": "B", "value": "$(A)$(A)" }]),
            "spec.containers[0].env[1].value: the expanded values up to this one have more than 1048576 bytes",
        ),
        (
            "/spec/terminationGracePeriodSeconds",
            json!(-30),
            "spec.terminationGracePeriodSeconds: -30 must be at least 0",
        ),
    ] {
        let errors: Vec<String> = check(&with(path, value)).iter().map(ToString::to_string).collect();
        assert!(errors.iter().any(|error| error == expected), "{errors:#?}");
    }
}

#[test]
fn paths_cannot_escape_their_directory() {
    let mount = |field: &str, path: &str| {
        let mut pod = with("/spec/volumes", json!([{ "name": "v" }]));
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "v", "mountPath": "/x", field: path }]);
        pod
    };
    for bad in ["/etc", "..", "../x", "a/../../b", "a/..", "a\0b"] {
        for field in ["subPath", "subPathExpr"] {
            assert!(!check(&mount(field, bad)).is_empty(), "{field} {bad:?}");
        }
        let file = json!([{ "path": bad, "fieldRef": { "fieldPath": "metadata.name" } }]);
        assert!(!check(&with("/spec/volumes", json!([{ "name": "v", "downwardAPI": { "items": file } }]))).is_empty());
        let profile = json!({ "type": "Localhost", "localhostProfile": bad });
        assert!(!check(&with("/spec/securityContext", json!({ "seccompProfile": profile }))).is_empty());
    }
    for name in ["..", "a/b", "a\0", "."] {
        assert!(!check(&with("/spec/volumes", json!([{ "name": name }]))).is_empty(), "volume {name:?}");
        assert!(!check(&with("/spec/containers/0/name", json!(name))).is_empty(), "container {name:?}");
        assert!(!check(&with("/metadata/name", json!(name))).is_empty(), "pod {name:?}");
        assert!(!check(&with("/metadata/namespace", json!(name))).is_empty(), "namespace {name:?}");
    }
    assert!(check(&mount("subPath", "a/b..c")).is_empty());
}

#[test]
fn a_signal_must_be_a_known_one() {
    let signal = |name: &str| {
        let mut pod = with("/spec/os", json!({ "name": "linux" }));
        pod["spec"]["containers"][0]["lifecycle"] = json!({ "stopSignal": name });
        check(&pod).is_empty()
    };
    for bad in ["TERM", "SIGRTMIN€", "SIGRTMIN++1", "SIGRTMAX+1", "SIGRTMIN+256", "SIG", "€"] {
        assert!(!signal(bad), "{bad}");
    }
    assert!(signal("SIGTERM") && signal("SIGRTMIN+3") && signal("SIGRTMAX-1"));
}

#[test]
fn the_number_of_errors_is_bounded() {
    let many: Vec<Value> = (0..500).map(|_| json!({ "name": "X".repeat(500), "image": "" })).collect();
    let errors = check(&with("/spec/containers", json!(many)));
    assert_eq!(errors.len(), 100);
    assert!(errors.iter().all(|error| error.to_string().len() < 400));
    let many: Vec<Value> = (0..501).map(|n| json!({ "name": format!("c{n}"), "image": "i" })).collect();
    assert_eq!(
        check(&with("/spec/containers", json!(many)))[0].to_string(),
        "spec.containers: 501 must be at most 500"
    );
    let many: Vec<Value> = (0..1001).map(|n| json!({ "name": format!("v{n}"), "emptyDir": {} })).collect();
    assert_eq!(check(&with("/spec/volumes", json!(many)))[0].to_string(), "spec.volumes: 1001 must be at most 1000");
    let mut large = pod();
    large["metadata"]["annotations"] = json!({ "a": "x".repeat(262_144) });
    assert_eq!(check(&large).len(), 1);
}

#[test]
fn invalid_quantities_are_rejected_everywhere() {
    for (path, value) in [
        ("/spec/overhead", json!({ "cpu": "x" })),
        ("/spec/resources", json!({ "limits": { "cpu": "1x" } })),
        ("/spec/containers/0/resources", json!({ "requests": { "memory": "1 Gi" } })),
        ("/spec/volumes", json!([{ "name": "v", "emptyDir": { "sizeLimit": "big" } }])),
        (
            "/spec/containers/0/env",
            json!([{ "name": "A", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu", "divisor": "y" } } }]),
        ),
    ] {
        assert!(!check(&with(path, value)).is_empty(), "{path}");
    }
    assert!(check(&pod()).is_empty());
    assert!(!validate_pod(&Pod::default()).is_empty());
}
