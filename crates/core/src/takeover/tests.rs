use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::hash::container_hash;
use crate::model::{ContainerSeen, RunState, SandboxSeen};

fn pod(spec: Value) -> Arc<Pod> {
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn plain() -> Value {
    json!({"restartPolicy": "Always", "containers": [{"name": "c", "image": "img"}]})
}

/// All app containers run, with these hashes or their own.
fn running(pod: &Pod, hash: Option<&str>) -> PodSeen {
    let seen = |c: &crate::model::Container| ContainerSeen {
        id: c.name.as_str().into(),
        sandbox: "sb".into(),
        name: c.name.as_str().into(),
        attempt: 0,
        hash: Some(hash.map_or_else(|| container_hash(c), str::to_owned)),
        state: RunState::Running,
        created_at: Timestamp::UNIX_EPOCH,
        started_at: Some(Timestamp::UNIX_EPOCH),
        finished_at: None,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: "img".into(),
        image_id: "sha".into(),
        grace: None,
        pre_stop: None,
        user: None,
    };
    let sandbox = SandboxSeen {
        id: "sb".into(),
        attempt: 0,
        ready: true,
        created_at: Timestamp::UNIX_EPOCH,
        ips: vec!["10.0.0.2".into()],
    };
    PodSeen { sandboxes: vec![sandbox], containers: spec_of(pod).containers.iter().map(seen).collect() }
}

fn found(pod: Arc<Pod>) -> FoundPod {
    let seen = running(&pod, None);
    FoundPod { pod, source: Source::Api, seen, has_cgroup: true, has_dir: true }
}

fn check(found: &FoundPod) -> Vec<(Consequence, String)> {
    let now = Now { boot: Duration::from_secs(100), wall: Timestamp::UNIX_EPOCH };
    check_pod(found, now).into_iter().map(|finding| (finding.consequence, finding.message)).collect()
}

#[test]
fn a_pod_that_both_agents_see_alike_goes_on() {
    assert_eq!(check(&found(pod(plain()))), []);
    let mut hooked = plain();
    hooked["initContainers"] = json!([{"name": "i", "image": "img"}]);
    hooked["containers"][0]["lifecycle"] = json!({"postStart": {"exec": {"command": ["x"]}}});
    assert_eq!(check(&found(pod(hooked))), [], "init containers and hooks are done");
}

#[test]
fn another_hash_restarts_the_container_and_only_that() {
    let pod = pod(json!({"restartPolicy": "Always",
        "containers": [{"name": "a", "image": "img"}, {"name": "b", "image": "img"}]}));
    let mut found = found(Arc::clone(&pod));
    found.seen.containers[1].hash = Some("other".into());
    let message = "Container b definition changed, will be restarted";
    assert_eq!(check(&found), [(Consequence::Restart, message.to_owned())]);
    found.seen.containers[1].hash = None;
    assert_eq!(check(&found), [], "without a hash it is not known to be another one");
}

#[test]
fn a_cgroup_or_directory_elsewhere_is_found() {
    let mut elsewhere = found(pod(plain()));
    elsewhere.has_cgroup = false;
    assert!(matches!(&check(&elsewhere)[..], [(Consequence::Restart, why)] if why.contains("cgroupDriver")));
    let mut elsewhere = found(pod(plain()));
    elsewhere.has_dir = false;
    assert!(matches!(&check(&elsewhere)[..], [(Consequence::Loss, why)] if why.contains("--root-dir")));
}

#[test]
fn features_that_this_agent_lacks_are_named() {
    let mut spec = plain();
    spec["volumes"] = json!([{"name": "v", "csi": {"driver": "d"}}]);
    spec["containers"][0]["resources"] = json!({"limits": {"example.com/gpu": "1", "cpu": "1"}});
    let all = check(&found(pod(spec)));
    assert!(all.iter().all(|(consequence, _)| *consequence == Consequence::Loss), "{all:?}");
    assert!(all.iter().any(|(_, why)| why.contains("spec.volumes[0].csi")), "{all:?}");
    assert!(all.iter().any(|(_, why)| why.contains("example.com/gpu")), "{all:?}");
    assert!(!all.iter().any(|(_, why)| why.contains("cpu")), "{all:?}");
}

#[test]
fn a_pod_that_was_debugged_loses_nothing() {
    let mut spec = plain();
    spec["ephemeralContainers"] = json!([{"name": "eye", "image": "img", "targetContainerName": "c", "stdin": true}]);
    assert_eq!(check(&found(pod(spec.clone()))), []);
    // What containers may not have is named of ephemeral ones too.
    spec["ephemeralContainers"][0]["volumeDevices"] = json!([{"name": "v", "devicePath": "/dev/x"}]);
    let all = check(&found(pod(spec)));
    let is_named = |why: &str| why.contains("spec.ephemeralContainers[0].volumeDevices");
    assert!(matches!(&all[..], [(Consequence::Loss, why)] if is_named(why)), "{all:?}");
}

#[test]
fn a_pod_that_has_ended_is_not_judged() {
    let mut ended = found(pod(plain()));
    Arc::make_mut(&mut ended.pod).status = Some(serde_json::from_value(json!({"phase": "Succeeded"})).unwrap());
    ended.has_cgroup = false;
    assert_eq!(check(&ended), []);
}

fn listed(manifest: &Pod, source: Source) -> PodListed {
    PodListed {
        full_name: full_name(manifest),
        source: Some(source),
        sandboxes: BTreeMap::from([("sb".into(), true)]),
        containers: BTreeMap::new(),
        container_hashes: spec_of(manifest).containers.iter().map(container_hash).collect(),
        manifest_hash: None,
    }
}

#[test]
fn a_static_pod_is_found_by_its_containers() {
    let manifest = pod(plain());
    let listing = |listed| Listing { pods: BTreeMap::from([("of-go".into(), listed)]) };
    let same = listing(listed(&manifest, Source::File));
    assert_eq!(find_static(&manifest, Source::File, &same), Ok(Some(&"of-go".into())));
    assert_eq!(find_static(&manifest, Source::File, &Listing::default()), Ok(None), "it does not run");
    let mut changed = listed(&manifest, Source::File);
    changed.container_hashes = BTreeSet::from(["other".to_owned()]);
    let differs = find_static(&manifest, Source::File, &listing(changed)).unwrap_err();
    assert_eq!(differs.consequence, Consequence::Restart);
}

#[test]
fn a_pod_that_nobody_wants_would_be_stopped() {
    let stray = pod(plain());
    let listing = Listing { pods: BTreeMap::from([("stray".into(), listed(&stray, Source::Api))]) };
    let none = BTreeSet::new();
    assert_eq!(check_orphans(&listing, &none, &BTreeSet::new()).len(), 1);
    assert_eq!(check_orphans(&listing, &BTreeSet::from(["stray".into()]), &BTreeSet::new()), []);
    assert_eq!(check_orphans(&listing, &none, &BTreeSet::from([full_name(&stray)])), []);
}

#[test]
fn state_files_are_read_for_pods_that_run() {
    let pod = pod(json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}));
    let pods = BTreeMap::from([(PodUid::from("u"), &*pod)]);
    let resources = |cpu: &str| {
        let one = serde_json::from_value(json!({"requests": {"cpu": cpu}})).unwrap();
        crate::resource_state::encode(&BTreeMap::from([("u".into(), BTreeMap::from([("c".into(), one)]))])).unwrap()
    };
    let claims = json!({"ClaimInfoStateList": [{"ClaimName": "gpu", "PodUIDs": {"u": {}, "gone": {}}}]}).to_string();
    let devices = json!([{"PodUID": "u", "ContainerName": "c", "ResourceName": "x/y"}, {"PodUID": "gone"}]);
    let (loss, note) = (Consequence::Loss, Consequence::Note);
    for (name, content, wanted) in [
        ("allocated_pods_state", resources("2"), vec![]),
        ("allocated_pods_state", resources("1"), vec![loss]),
        ("actuated_pods_state", "{".into(), vec![note]),
        ("cpu_manager_state", json!({"policyName": "none"}).to_string(), vec![]),
        (
            "cpu_manager_state",
            json!({"policyName": "static", "entries": {"u": {"c": "1"}}}).to_string(),
            vec![loss, note],
        ),
        ("memory_manager_state", json!({"policyName": "None"}).to_string(), vec![]),
        (
            "memory_manager_state",
            json!({"policyName": "Static", "entries": {"u": {"c": []}}}).to_string(),
            vec![loss, note],
        ),
        (
            "device-plugins/kubelet_internal_checkpoint",
            json!({"Data": {"PodDeviceEntries": devices}}).to_string(),
            vec![loss],
        ),
        ("dra_manager_state", json!({"Data": claims}).to_string(), vec![loss]),
        ("dra_manager_state", "x".into(), vec![note]),
    ] {
        let found = check_state_file(name, &content, &pods);
        assert_eq!(found.iter().map(|f| f.consequence).collect::<Vec<_>>(), wanted, "{name} {content}: {found:?}");
    }
}

#[test]
fn unknown_names_are_reported() {
    assert_eq!(check_names(KNOWN_NAMES), []);
    assert_eq!(check_names(["pods", "journal.corrupt-1"]), []);
    assert_eq!(check_names(["something_state"]).len(), 1);
}
