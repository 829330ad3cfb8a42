//! Strategic merge patches of pods, applied by the real library (`kubectl patch --local`) and by ours.

use std::io::Write;
use std::process::{Command, Stdio};

use podwright_core::strategic_merge::strategic_merge;
use podwright_testbed::Cache;
use serde_json::{Value, json};

/// Random patches next to the listed ones; each starts a kubectl.
const RANDOM: u64 = 40;

#[test]
fn patches_are_applied_as_by_kubectl() {
    let random = (1..=RANDOM).map(|seed| {
        let mut random = Random(seed);
        (random.pod(false), random.pod(true))
    });
    let cases: Vec<(Value, Value)> = listed().into_iter().map(|patch| (base(), patch)).chain(random).collect();
    let mut applied = 0;
    for (pod, patch) in cases {
        let theirs = kubectl(&pod, &patch);
        let mut ours = pod.clone();
        let ours = strategic_merge(&mut ours, &patch).map(|()| ours).map_err(|error| error.to_string());
        match (&theirs, &ours) {
            (Ok(theirs), Ok(ours)) => assert_eq!(ours, theirs, "{pod}\nwith the patch {patch}"),
            (Err(_), Err(_)) => {}
            _ => panic!("{pod}\nwith the patch {patch}\ntheirs: {theirs:?}\nours: {ours:?}"),
        }
        applied += usize::from(theirs.is_ok());
    }
    assert!(applied > 40, "{applied} patches were applied, the others refused by both");
}

fn base() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "a", "labels": {"a": "1", "b": "2"}, "finalizers": ["x", "y"]},
        "spec": {
            "containers": [
                {"name": "c", "image": "i:1", "args": ["a"], "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
                {"name": "d", "ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 80},
                    {"containerPort": 53, "protocol": "TCP"}]},
            ],
            "volumes": [{"name": "v", "emptyDir": {}}], "tolerations": [{"key": "t"}]}})
}

fn listed() -> Vec<Value> {
    let spec = |spec: Value| json!({ "spec": spec });
    vec![
        json!({}),
        json!({"metadata": {"labels": {"a": null, "c": "3"}}}),
        json!({"metadata": {"labels": {"$patch": "replace", "z": "1"}}}),
        json!({"metadata": {"labels": {"$patch": "delete"}}}),
        json!({"metadata": {"labels": {"$patch": "explode"}}}),
        json!({"metadata": {"finalizers": ["z", "y"]}}),
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}}),
        json!({"metadata": {"$setElementOrder/finalizers": ["z", "y"], "finalizers": ["z"]}}),
        spec(json!({"containers": [{"name": "c", "image": "i:2"}]})),
        spec(json!({"containers": [{"name": "d", "image": "i:2"}, {"name": "c"}]})),
        spec(json!({"containers": [{"name": "c", "$patch": "delete"}, {"name": "e"}]})),
        spec(json!({"containers": [{"name": "c", "image": "j"}, {"name": "c", "$patch": "delete"}]})),
        spec(json!({"containers": [{"$patch": "replace"}, {"name": "e"}]})),
        spec(json!({"containers": [{"image": "no-name"}]})),
        spec(json!({"containers": [{"$patch": "delete"}]})),
        spec(json!({"containers": [{"name": "c", "$patch": "merge"}]})),
        spec(
            json!({"$setElementOrder/containers": [{"name": "e"}, {"name": "d"}, {"name": "c"}], "containers": [{"name": "e"}]}),
        ),
        spec(json!({"$setElementOrder/containers": [{"name": "e"}, {"name": "d"}], "containers": [{"name": "e"}]})),
        spec(json!({"$setElementOrder/containers": [{"name": "d"}, {"name": "c"}]})),
        spec(json!({"containers": [{"name": "d", "ports": [{"containerPort": 53, "$patch": "delete"}]}]})),
        spec(json!({"containers": [{"name": "c", "env": [{"name": "B", "value": "3"}, {"name": "C"}]}]})),
        spec(json!({"containers": [{"name": "c", "env": null, "args": []}]})),
        spec(json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]})),
        spec(json!({"tolerations": [{"key": "u"}]})),
        spec(json!({"nodeSelector": {"a": "b"}, "initContainers": [{"name": "i", "env": [{"name": "A"}]}]})),
    ]
}

fn kubectl(pod: &Value, patch: &Value) -> Result<Value, String> {
    let mut command = Command::new(Cache::find().peer("kubectl").expect("make peers"));
    command.args(["patch", "--local", "--type", "strategic", "-o", "json", "-f", "-", "-p", &patch.to_string()]);
    command.env_remove("KUBECONFIG").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    child.stdin.take().expect("piped").write_all(pod.to_string().as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// A generator that gives the same pods on every host.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        // Knuth's MMIX; the upper bits are the better ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// Some of these, in any order.
    fn some(&mut self, of: &[&'static str]) -> Vec<&'static str> {
        let mut rest = of.to_vec();
        let count = self.below(of.len() as u64 + 1);
        let mut pick = |_| rest.remove(usize::try_from(self.below(rest.len() as u64)).expect("small"));
        (0..count).map(&mut pick).collect()
    }

    /// A pod, or a patch: with an order of its containers, and with elements that are deleted.
    fn pod(&mut self, is_patch: bool) -> Value {
        let names = self.some(&["c", "d", "e", "f"]);
        let containers: Vec<Value> = names.iter().map(|name| self.container(name, is_patch)).collect();
        let mut spec = json!({"containers": containers});
        // With deletions, Go's library compares with a list whose memory it has reused: new elements take the places of deleted ones.
        let has_deletions = containers.iter().any(|container| container.get("$patch").is_some());
        if is_patch && !has_deletions && self.below(2) == 0 {
            // It must name the elements of the patch in their order.
            let order = containers.iter().map(|container| json!({"name": container["name"]}));
            spec["$setElementOrder/containers"] = order.collect();
        }
        let finalizers = self.some(&["x", "y", "z"]);
        let mut pod = json!({"metadata": {"finalizers": finalizers}, "spec": spec});
        if !is_patch {
            (pod["apiVersion"], pod["kind"], pod["metadata"]["name"]) = ("v1".into(), "Pod".into(), "a".into());
        }
        pod
    }

    fn container(&mut self, name: &str, is_patch: bool) -> Value {
        if is_patch && self.below(4) == 0 {
            return json!({"name": name, "$patch": "delete"});
        }
        let mut variable = |name: &str| json!({"name": name, "value": self.below(2).to_string()});
        let env: Vec<Value> = ["A", "B"].map(&mut variable).to_vec();
        json!({"name": name, "image": format!("i:{}", self.below(2)), "env": env, "args": self.some(&["a", "b"])})
    }
}
