use std::sync::Arc;

use serde_json::json;

use super::*;

fn pod(name: &str, uid: &str, image: &str) -> Manifest {
    let value = json!({"metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "c", "image": image}]}});
    Manifest { pod: Arc::new(serde_json::from_value(value).unwrap()), origin: format!("{name}.yaml") }
}

fn set(pods: &[Manifest]) -> SourceChange {
    SourceChange::Set { pods: pods.to_vec(), broken: vec![] }
}

fn uids(manifests: &[Manifest]) -> Vec<String> {
    manifests.iter().map(|m| m.pod.metadata.uid.clone().unwrap()).collect()
}

#[test]
fn a_set_is_compared_with_the_previous_one() {
    let mut sources = Sources::default();
    let first = sources.merge(Source::Api, set(&[pod("a", "1", "x"), pod("b", "2", "x")]), &[]);
    assert_eq!(uids(&first.add), ["1", "2"]);
    let second = sources.merge(Source::Api, set(&[pod("a", "1", "y"), pod("c", "3", "x")]), &[]);
    assert_eq!((uids(&second.add), uids(&second.update)), (vec!["3".to_owned()], vec!["1".to_owned()]));
    assert_eq!(second.remove, [PodUid::from("2")]);
    assert_eq!(sources.merge(Source::Api, set(&[pod("a", "1", "y"), pod("c", "3", "x")]), &[]), PodChanges::default());
}

#[test]
fn sources_are_independent() {
    let mut sources = Sources::default();
    sources.merge(Source::File, set(&[pod("a", "1", "x")]), &[]);
    assert_eq!(sources.merge(Source::Url, set(&[]), &[]), PodChanges::default());
    assert!(sources.get(&PodUid::from("1")).is_some());
}

#[test]
fn a_broken_file_keeps_its_pods() {
    let mut sources = Sources::default();
    sources.merge(Source::File, set(&[pod("a", "1", "x")]), &[]);
    let broken = SourceChange::Set { pods: vec![], broken: vec![("a.yaml".into(), "line 3".into())] };
    assert_eq!(sources.merge(Source::File, broken, &[]), PodChanges::default());
    assert_eq!(sources.broken().collect::<Vec<_>>(), [("a.yaml", "line 3")]);
    assert_eq!(sources.merge(Source::File, set(&[]), &[]).remove, [PodUid::from("1")]);
}

#[test]
fn a_file_that_is_broken_at_start_keeps_its_journaled_pods() {
    let mut sources = Sources::default();
    let broken = SourceChange::Set { pods: vec![], broken: vec![("a.yaml".into(), "line 3".into())] };
    let batches = sources.merge(Source::File, broken, &[pod("a", "1", "x"), pod("b", "2", "x")]);
    assert_eq!(uids(&batches.add), ["1"]);
}

#[test]
fn of_two_pods_with_one_name_the_known_one_wins_and_the_other_is_reported() {
    let mut sources = Sources::default();
    sources.merge(Source::File, set(&[pod("a", "2", "x")]), &[]);
    let mut double = pod("a", "1", "x");
    double.origin = "0.yaml".into();
    let batches = sources.merge(Source::File, set(&[double, pod("a", "2", "x")]), &[]);
    assert_eq!((batches.add.len(), batches.remove.len(), batches.dropped.len()), (0, 0, 1));
    assert_eq!(batches.dropped[0].1, "default/a is already defined in a.yaml");
    assert_eq!(sources.broken().collect::<Vec<_>>(), [("0.yaml", "default/a is already defined in a.yaml")]);
    sources.merge(Source::File, set(&[pod("a", "2", "x")]), &[]);
    assert_eq!(sources.broken().count(), 0, "it is gone");
}

#[test]
fn of_two_pods_with_one_uid_the_known_one_wins() {
    let mut sources = Sources::default();
    sources.merge(Source::File, set(&[pod("b", "1", "x")]), &[]);
    for _ in 0..3 {
        let batches = sources.merge(Source::File, set(&[pod("a", "1", "y"), pod("b", "1", "x")]), &[]);
        let why = "default/a has the UID 1 of a pod in b.yaml".to_owned();
        assert_eq!(batches, PodChanges { dropped: vec![(pod("a", "1", "y"), why)], ..PodChanges::default() });
    }
    assert_eq!(sources.broken().map(|(file, _)| file).collect::<Vec<_>>(), ["a.yaml"]);
}

#[test]
fn a_change_that_an_api_server_would_reject_recreates_the_pod_under_its_uid() {
    let mut sources = Sources::default();
    sources.merge(Source::File, set(&[pod("a", "1", "x")]), &[]);
    let image = sources.merge(Source::File, set(&[pod("a", "1", "y")]), &[]);
    assert_eq!((image.update.len(), image.remove.len()), (1, 0), "an image may change in place");
    let mut other = pod("a", "1", "y");
    Arc::make_mut(&mut other.pod).spec.as_mut().unwrap().hostname = Some("h".into());
    let recreated = sources.merge(Source::File, set(&[other]), &[]);
    assert_eq!((recreated.remove.len(), recreated.add.len()), (1, 1));
}

#[test]
fn updates_in_place_are_those_an_api_server_accepts() {
    let change = |from: serde_json::Value, to: serde_json::Value| {
        let with = |extra: serde_json::Value| {
            let mut value = json!({"metadata": {"name": "a", "uid": "1"}, "spec": {"containers": []}});
            for (section, fields) in extra.as_object().unwrap() {
                value[section].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            }
            Manifest { pod: Arc::new(serde_json::from_value(value).unwrap()), origin: "a.yaml".into() }
        };
        let mut sources = Sources::default();
        sources.merge(Source::File, set(&[with(from)]), &[]);
        let batches = sources.merge(Source::File, set(&[with(to)]), &[]);
        (batches.update.len(), batches.remove.len().min(batches.add.len()))
    };
    let (in_place, recreated) = ((1, 0), (0, 1));
    let deadline = |seconds: i64| json!({"spec": {"activeDeadlineSeconds": seconds}});
    assert_eq!(change(deadline(60), deadline(30)), in_place);
    assert_eq!(change(json!({}), deadline(30)), in_place);
    assert_eq!(change(deadline(30), deadline(60)), recreated, "a deadline that may have passed");
    assert_eq!(change(deadline(30), json!({})), recreated);
    let tolerates = |keys: &[&str]| json!({"spec": {"tolerations": keys.iter().map(|key| json!({"key": key})).collect::<Vec<_>>()}});
    assert_eq!(change(tolerates(&["a"]), tolerates(&["a", "b"])), in_place);
    assert_eq!(change(tolerates(&["a"]), tolerates(&["b"])), recreated);
    assert_eq!(change(json!({}), json!({"metadata": {"labels": {"k": "v"}}})), in_place);
    assert_eq!(change(json!({}), json!({"metadata": {"name": "b"}})), recreated, "a pod cannot be renamed");
    assert_eq!(change(json!({}), json!({"metadata": {"namespace": "other"}})), recreated);
}

#[test]
fn annotations_of_the_agent_are_ignored() {
    let mut sources = Sources::default();
    let mut seen = pod("a", "1", "x");
    let annotate = |m: &mut Manifest, v: &str| {
        let a = BTreeMap::from([("kubernetes.io/config.seen".to_owned(), v.to_owned())]);
        Arc::make_mut(&mut m.pod).metadata.annotations = Some(a);
    };
    annotate(&mut seen, "1");
    sources.merge(Source::File, set(&[seen.clone()]), &[]);
    annotate(&mut seen, "2");
    assert_eq!(sources.merge(Source::File, set(&[seen]), &[]), PodChanges::default());
}

/// A pod with this image and resource version.
fn at_version(version: u64, image: &str) -> Manifest {
    let mut manifest = pod("a", "1", image);
    Arc::make_mut(&mut manifest.pod).metadata.resource_version = Some(version.to_string());
    manifest
}

#[test]
fn older_versions_are_ignored_until_a_history_reset() {
    let mut sources = Sources::default();
    sources.merge(Source::Api, set(&[at_version(100, "x"), pod("b", "2", "x")]), &[]);
    assert_eq!(sources.merge(Source::Api, set(&[at_version(50, "y"), pod("b", "2", "x")]), &[]), PodChanges::default());
    assert_eq!(sources.merge(Source::Api, SourceChange::HistoryReset, &[]), PodChanges::default());
    let after = sources.merge(Source::Api, set(&[at_version(50, "y")]), &[]);
    assert_eq!((uids(&after.update), after.remove), (vec!["1".to_owned()], vec![PodUid::from("2")]));
    let later = sources.merge(Source::Api, SourceChange::Put(at_version(51, "z")), &[]);
    assert_eq!(uids(&later.update), ["1"], "versions of the new history are compared");
    assert_eq!(sources.merge(Source::Api, SourceChange::Put(at_version(49, "y")), &[]), PodChanges::default());
}

#[test]
fn a_deleted_pod_without_a_spec_is_terminated_as_it_is_known() {
    let mut sources = Sources::default();
    sources.merge(Source::Api, set(&[pod("a", "1", "x")]), &[]);
    let deleted = |name: &str, uid: &str| {
        let metadata = json!({"name": name, "namespace": "default", "uid": uid,
            "deletionTimestamp": "2026-01-02T00:00:00Z", "deletionGracePeriodSeconds": 5});
        let pod = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        Manifest { pod: Arc::new(pod), origin: format!("{name}.yaml") }
    };
    let sent = set(&[deleted("a", "1"), deleted("b", "2"), deleted("c", "3")]);
    let change = sources.with_known_specs(Source::Api, sent, &[pod("b", "2", "y")], "node");
    let SourceChange::Set { pods, .. } = change else { panic!() };
    let images = |manifest: &Manifest| manifest.pod.spec.as_ref().map(|spec| spec.containers.len());
    assert_eq!(pods.iter().map(images).collect::<Vec<_>>(), [Some(1), Some(1), Some(0)]);
    assert!(pods.iter().all(|manifest| manifest.pod.metadata.deletion_grace_period_seconds == Some(5)));
    let put = sources.with_known_specs(Source::Api, SourceChange::Put(deleted("a", "1")), &[], "node");
    assert!(matches!(put, SourceChange::Put(manifest) if images(&manifest) == Some(1)));
}
