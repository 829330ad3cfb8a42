//! The store on a real directory; the test receives the changes for core.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;

struct StoreFixture {
    dir: TempDir,
    store: Arc<Store>,
    feed: Arc<PodFeed>,
    changes: mpsc::Receiver<(Source, SourceChange)>,
}

fn open(dir: TempDir, records: &[PodRecord]) -> StoreFixture {
    let (sender, changes) = mpsc::channel(64);
    let feed = Arc::new(PodFeed::default());
    let store =
        Store::open(dir.path(), "node", records, Arc::clone(&feed), sender, crate::host::Pool::default()).unwrap();
    StoreFixture { dir, store, feed, changes }
}

fn fixture() -> StoreFixture {
    open(tempfile::tempdir().unwrap(), &[])
}

impl StoreFixture {
    async fn create(&self, pod: Value) -> Result<Arc<PodView>, PodRequestError> {
        self.store.create("default".into(), serde_json::from_value(pod).unwrap(), false).await
    }

    async fn update(&self, name: &str, pod: Value) -> Result<Arc<PodView>, PodRequestError> {
        self.store.update(of(name), serde_json::from_value(pod).unwrap(), false).await
    }

    async fn delete(&self, name: &str, grace: Option<i64>) -> Result<Arc<PodView>, PodRequestError> {
        self.store.delete(of(name), DeleteOptions { grace, ..DeleteOptions::default() }).await
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("manifests")).unwrap().count()
    }

    /// Summaries of the changes sent to core since the last call.
    fn summaries(&mut self) -> Vec<String> {
        let mut summaries = Vec::new();
        while let Ok((source, change)) = self.changes.try_recv() {
            assert_eq!(source, Source::Local);
            summaries.push(match change {
                SourceChange::Set { pods, broken } => format!("set {} {}", pods.len(), broken.len()),
                SourceChange::Put(manifest) => {
                    let meta = &manifest.pod.metadata;
                    assert_eq!(meta.resource_version, None, "core gets no resource versions");
                    format!("put {} {:?}", meta.name.as_deref().unwrap(), meta.deletion_grace_period_seconds)
                }
                SourceChange::Remove(uid) => format!("remove {uid}"),
                SourceChange::Reconnected => "reconnected".into(),
                SourceChange::HistoryReset => "history reset".into(),
            });
        }
        summaries
    }

    /// Opens the same directory again, as a restarted agent does.
    fn reopen(self, records: &[PodRecord]) -> StoreFixture {
        let Self { dir, .. } = self;
        open(dir, records)
    }
}

fn of(name: &str) -> FullName {
    FullName { namespace: "default".into(), name: name.into() }
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}})
}

fn object(view: &PodView) -> ObjectRef {
    ObjectRef { full_name: of(view.name()), uid: view.uid() }
}

async fn request(fixture: &StoreFixture, request: ObjectRequest) -> ObjectResult {
    LocalObjectStore(Arc::clone(&fixture.store)).request(request).await
}

fn patch(view: &PodView, phase: &str) -> ObjectRequest {
    let status = Arc::new(PodStatus { phase: Some(phase.into()), ..PodStatus::default() });
    ObjectRequest::PatchStatus { object: object(view), base: Arc::default(), status, urgent: false }
}

#[tokio::test]
async fn a_created_pod_has_the_server_fields_and_is_on_disk_before_the_response() {
    let mut fixture = fixture();
    fixture.store.begin().await;
    let shown = fixture.create(pod("web")).await.unwrap();
    assert_eq!(fixture.files(), 1);
    let value = serde_json::to_value(&*shown).unwrap();
    let meta = &value["metadata"];
    assert_eq!((&meta["namespace"], &meta["generation"]), (&json!("default"), &json!(1)));
    assert_eq!(meta["uid"].as_str().unwrap().len(), 36);
    assert!(meta["creationTimestamp"].is_string());
    assert_eq!(meta["resourceVersion"], shown.version.to_string());
    assert_eq!((&value["spec"]["nodeName"], &value["spec"]["restartPolicy"]), (&json!("node"), &json!("Always")));
    assert_eq!(value["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    assert_eq!(meta["annotations"]["kubernetes.io/config.source"], "local");
    let mut generated = pod("");
    generated["metadata"] = json!({"generateName": "job-"});
    let named = fixture.create(generated).await.unwrap();
    assert!(named.name().len() == 9 && named.name().starts_with("job-"), "{}", named.name());
    assert_eq!(fixture.summaries(), ["set 0 0", "put web None", &format!("put {} None", named.name())]);
}

#[tokio::test]
async fn an_invalid_request_is_rejected_and_changes_nothing() {
    let mut fixture = fixture();
    let shown = fixture.create(pod("web")).await.unwrap();
    fixture.summaries();
    assert_eq!(fixture.create(pod("web")).await.unwrap_err(), PodRequestError::AlreadyExists { name: "web".into() });
    let with = |path: &str, value: Value| {
        let mut pod = pod("other");
        *pod.pointer_mut(path.rsplit_once('/').unwrap().0)
            .unwrap()
            .get_mut(path.rsplit_once('/').unwrap().1)
            .unwrap() = value;
        pod
    };
    assert!(matches!(fixture.create(with("/spec/containers", json!([]))).await, Err(PodRequestError::Invalid { .. })));
    let refused = |pod: Value| {
        let fixture = &fixture;
        async move {
            match fixture.create(pod).await.unwrap_err() {
                PodRequestError::Invalid { errors, .. } => errors.into_iter().map(|e| e.path).collect::<Vec<_>>(),
                other => vec![other.to_string()],
            }
        }
    };
    let mut elsewhere = pod("other");
    elsewhere["spec"]["nodeName"] = json!("elsewhere");
    elsewhere["metadata"]["finalizers"] = json!(["a/b"]);
    elsewhere["spec"]["serviceAccountName"] = json!("robot");
    assert_eq!(refused(elsewhere).await, ["spec.nodeName", "metadata.finalizers", "spec.serviceAccountName"]);
    let mut foreign = pod("other");
    foreign["metadata"]["namespace"] = json!("kube-system");
    assert!(refused(foreign).await[0].contains("does not match the namespace"));
    let mut versioned = pod("other");
    versioned["metadata"]["resourceVersion"] = json!("5");
    assert!(refused(versioned).await[0].contains("should not be set"));
    let mut large = pod("other");
    let big = "x".repeat(100_000);
    // Below the limit of one environment.
    let env: Vec<_> = (0..8).map(|n| json!({"name": format!("V{n}"), "value": big})).collect();
    large["spec"]["containers"] =
        (0..3).map(|n| json!({"name": format!("c{n}"), "image": "i", "env": env})).collect::<Vec<_>>().into();
    assert!(refused(large).await[0].contains("too large"));
    let dry = fixture.store.create("default".into(), serde_json::from_value(pod("dry")).unwrap(), true).await.unwrap();
    assert_eq!(dry.name(), "dry");
    assert_eq!((fixture.files(), fixture.summaries().len(), fixture.feed.version()), (1, 0, shown.version));
}

#[tokio::test]
async fn a_pod_of_another_source_can_not_be_changed() {
    let fixture = fixture();
    let static_pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "default", "uid": "s"}})).unwrap();
    fixture.feed.put_object(Arc::new(static_pod), Source::File, Some("/m/web.yaml".into()));
    let refused = fixture.create(pod("web")).await.unwrap_err();
    assert_eq!(refused.to_string(), "pods \"web\" already exists: it comes from the manifest /m/web.yaml");
    for refused in
        [fixture.delete("web", None).await.unwrap_err(), fixture.update("web", pod("web")).await.unwrap_err()]
    {
        assert!(matches!(refused, PodRequestError::Foreign { .. }), "{refused}");
        assert!(refused.to_string().ends_with("edit or remove /m/web.yaml"), "{refused}");
    }
    assert_eq!(fixture.delete("none", None).await.unwrap_err(), PodRequestError::NotFound { name: "none".into() });
}

#[tokio::test]
async fn an_update_of_an_old_version_is_a_conflict_and_immutable_fields_are_rejected() {
    let mut fixture = fixture();
    let first = fixture.create(pod("web")).await.unwrap();
    let as_read = |view: &PodView, image: &str| {
        let mut value = serde_json::to_value(view).unwrap();
        value["spec"]["containers"][0]["image"] = json!(image);
        value
    };
    let second = fixture.update("web", as_read(&first, "busybox:2")).await.unwrap();
    assert_eq!(second.object.metadata.generation, Some(2));
    assert!(matches!(fixture.update("web", as_read(&first, "busybox:3")).await, Err(PodRequestError::Conflict { .. })));
    // The status counts as a change, as it does with an API server.
    request(&fixture, patch(&first, "Running")).await.unwrap();
    assert!(matches!(
        fixture.update("web", as_read(&second, "busybox:3")).await,
        Err(PodRequestError::Conflict { .. })
    ));
    let mut unversioned = pod("web");
    unversioned["metadata"]["labels"] = json!({"a": "b"});
    unversioned["status"] = json!({"phase": "Failed"});
    unversioned["spec"]["containers"][0]["image"] = json!("busybox:2");
    let third = fixture.update("web", unversioned.clone()).await.unwrap();
    assert_eq!(
        (third.object.metadata.generation, third.uid()),
        (Some(2), first.uid()),
        "a change of labels is not a new generation"
    );
    assert_eq!(
        third.status.as_ref().unwrap().phase.as_deref(),
        Some("Running"),
        "an update does not change the status"
    );
    assert_eq!(fixture.summaries().len(), 3);
    let again = fixture.update("web", unversioned.clone()).await.unwrap();
    assert_eq!((again.version, fixture.summaries().len()), (third.version, 0), "an equal object is no change");
    unversioned["spec"]["hostNetwork"] = json!(true);
    let Err(PodRequestError::Invalid { errors, .. }) = fixture.update("web", unversioned).await else {
        panic!("taken")
    };
    assert_eq!(errors[0].path, "spec.hostNetwork");
    let mut renamed = pod("other");
    renamed["metadata"]["uid"] = json!("x");
    assert!(matches!(fixture.update("web", renamed).await, Err(PodRequestError::BadRequest { .. })));
}

#[tokio::test]
async fn a_repeated_delete_can_only_shorten_the_grace_period() {
    let mut fixture = fixture();
    let shown = fixture.create(pod("web")).await.unwrap();
    let wrong = DeleteOptions { uid: Some("other".into()), ..DeleteOptions::default() };
    assert!(matches!(fixture.store.delete(of("web"), wrong).await, Err(PodRequestError::Conflict { .. })));
    let old = DeleteOptions { resource_version: Some("1".into()), ..DeleteOptions::default() };
    assert!(matches!(fixture.store.delete(of("web"), old).await, Err(PodRequestError::Conflict { .. })));
    assert!(matches!(fixture.delete("web", Some(-1)).await, Err(PodRequestError::BadRequest { .. })));
    let dry = DeleteOptions { dry_run: true, ..DeleteOptions::default() };
    assert!(fixture.store.delete(of("web"), dry).await.unwrap().object.metadata.deletion_timestamp.is_some());
    let at = |view: &PodView| view.object.metadata.deletion_timestamp.clone().unwrap().0;
    let first = fixture.delete("web", None).await.unwrap();
    let longer = fixture.delete("web", Some(60)).await.unwrap();
    assert_eq!(longer.version, first.version, "a longer grace period changes nothing");
    let shorter = fixture.delete("web", Some(5)).await.unwrap();
    assert_eq!(at(&first).duration_since(at(&shorter)).as_secs(), 25);
    assert_eq!(fixture.summaries(), ["put web None", "put web Some(30)", "put web Some(5)"]);
    // The deletion continues after a restart.
    let mut fixture = fixture.reopen(&[]);
    fixture.store.begin().await;
    let Some((_, SourceChange::Set { pods, .. })) = fixture.changes.recv().await else { panic!("no set") };
    assert_eq!(pods[0].pod.metadata.deletion_grace_period_seconds, Some(5));
    let other = ObjectRef { uid: "other".into(), ..object(&shown) };
    assert_eq!(request(&fixture, ObjectRequest::Delete { object: other }).await, Err(ObjectError::OtherUid));
    assert_eq!(request(&fixture, ObjectRequest::Delete { object: object(&shown) }).await, Ok(None));
    assert_eq!(request(&fixture, ObjectRequest::Delete { object: object(&shown) }).await, Err(ObjectError::NotFound));
    assert_eq!((fixture.files(), fixture.summaries()), (0, vec![format!("remove {}", shown.uid())]));
    assert!(fixture.feed.list().1.is_empty());
}

#[tokio::test]
async fn only_a_terminal_status_is_written_to_disk() {
    let fixture = fixture();
    let shown = fixture.create(pod("web")).await.unwrap();
    let file = fixture.dir.path().join(format!("manifests/{}.json", shown.uid()));
    let before = std::fs::read(&file).unwrap();
    let answer = request(&fixture, patch(&shown, "Running")).await.unwrap().unwrap();
    assert_eq!(answer.status.as_ref().unwrap().phase.as_deref(), Some("Running"));
    assert_eq!(std::fs::read(&file).unwrap(), before);
    request(&fixture, patch(&shown, "Succeeded")).await.unwrap();
    let fixture = fixture.reopen(&[]);
    let shown = fixture.feed.by_name("default", "web").unwrap();
    assert_eq!(shown.status.as_ref().unwrap().phase.as_deref(), Some("Succeeded"));
}

fn record(view: &PodView) -> PodRecord {
    serde_json::from_value(json!({
        "uid": view.uid().as_str(), "source": "local", "pod": view.pod(), "first_seen": "2024-01-01T00:00:00Z",
        "life": "Syncing", "containers": {}, "sandbox_attempts": 0,
    }))
    .unwrap()
}

#[tokio::test]
async fn a_pod_whose_file_can_neither_be_read_nor_written_is_taken_from_the_journal() {
    let fixture = fixture();
    let (broken, unread) = (fixture.create(pod("broken")).await.unwrap(), fixture.create(pod("unread")).await.unwrap());
    let lost = fixture.create(pod("lost")).await.unwrap();
    let file = |name: String| fixture.dir.path().join("manifests").join(name);
    std::fs::write(file(format!("{}.json", broken.uid())), "{").unwrap();
    // A directory in place of the temporary file: as on a full disk, nothing can be written.
    std::fs::create_dir(file(format!(".{}", broken.uid()))).unwrap();
    let mut sockets = vec![];
    for view in [&unread, &lost] {
        // The open of a socket fails, as that of a file on a damaged disk.
        let path = file(format!("{}.json", view.uid()));
        std::fs::remove_file(&path).unwrap();
        sockets.push(std::os::unix::net::UnixListener::bind(path).unwrap());
    }
    let mut fixture = fixture.reopen(&[record(&broken), record(&unread)]);
    fixture.store.begin().await;
    let Some((_, SourceChange::Set { pods, broken })) = fixture.changes.recv().await else { panic!("no set") };
    assert_eq!((pods.len(), broken.len()), (2, 1));
    assert!(broken[0].0.ends_with(&format!("{}.json", lost.uid())), "the file stays as it is: {broken:?}");
}

#[tokio::test]
async fn a_broken_file_is_restored_from_the_journal_or_renamed_and_reported() {
    let fixture = fixture();
    let (kept, lost) = (fixture.create(pod("kept")).await.unwrap(), fixture.create(pod("lost")).await.unwrap());
    for view in [&kept, &lost] {
        std::fs::write(fixture.dir.path().join(format!("manifests/{}.json", view.uid())), "{").unwrap();
    }
    let mut fixture = fixture.reopen(&[record(&kept)]);
    fixture.store.begin().await;
    let Some((_, SourceChange::Set { pods, broken })) = fixture.changes.recv().await else { panic!("no set") };
    assert_eq!((pods.len(), broken.len()), (1, 1));
    assert!(broken[0].0.contains(lost.uid().as_str()) && broken[0].0.ends_with(".broken"), "{broken:?}");
    let fixture = fixture.reopen(&[]);
    assert_eq!(fixture.feed.list().1.len(), 1, "it was written again");
}

#[tokio::test]
async fn concurrent_writes_conflict_and_a_cancelled_request_is_completed() {
    let fixture = fixture();
    let shown = fixture.create(pod("web")).await.unwrap();
    let read = serde_json::to_value(&*shown).unwrap();
    let (mut one, mut two) = (read.clone(), read);
    one["metadata"]["labels"] = json!({"by": "one"});
    two["metadata"]["labels"] = json!({"by": "two"});
    let (one, two) = tokio::join!(fixture.update("web", one), fixture.update("web", two));
    assert_eq!([&one, &two].iter().filter(|result| result.is_ok()).count(), 1, "{one:?} {two:?}");
    // The request is cancelled at once, unless the disk was faster; it is completed in both cases.
    let _cut = tokio::time::timeout(Duration::ZERO, fixture.create(pod("cut"))).await;
    for _ in 0..200 {
        if fixture.feed.by_name("default", "cut").is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((fixture.files(), fixture.feed.list().1.len()), (2, 2));
}

#[tokio::test]
async fn a_terminated_pod_can_be_recreated_once() {
    let mut fixture = fixture();
    let first = fixture.create(pod("web")).await.unwrap();
    let refused = fixture.store.recreate(of("web")).await.unwrap_err();
    assert!(matches!(refused, PodRequestError::Conflict { .. }), "it has not ended: {refused}");
    request(&fixture, patch(&first, "Succeeded")).await.unwrap();
    let old_file = fixture.dir.path().join(format!("manifests/{}.json", first.uid()));
    let left_behind = std::fs::read(&old_file).unwrap();
    fixture.summaries();
    let second = fixture.store.recreate(of("web")).await.unwrap();
    assert_ne!(second.uid(), first.uid());
    assert_eq!(second.object.spec, first.object.spec);
    assert_eq!(second.status.as_ref().unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!(fixture.summaries(), [format!("remove {}", first.uid()), "put web None".into()]);
    assert_eq!((fixture.files(), fixture.feed.list().1.len()), (1, 1));

    // An agent that died in between leaves both files; the clock had been set back.
    let mut left_behind: Value = serde_json::from_slice(&left_behind).unwrap();
    left_behind["metadata"]["creationTimestamp"] = json!("2100-01-01T00:00:00Z");
    std::fs::write(&old_file, left_behind.to_string()).unwrap();
    let mut fixture = fixture.reopen(&[]);
    fixture.store.begin().await;
    assert_eq!(fixture.summaries(), ["set 1 0"]);
    assert_eq!((fixture.files(), fixture.feed.by_name("default", "web").unwrap().uid()), (1, second.uid()));

    fixture.delete("web", None).await.unwrap();
    assert!(fixture.store.recreate(of("web")).await.is_err(), "it is being deleted");
    assert!(matches!(fixture.store.recreate(of("other")).await, Err(PodRequestError::NotFound { .. })));
}
