//! Files that change while they are watched.

use super::*;

#[tokio::test]
async fn a_file_is_not_read_before_it_is_closed() {
    let mut source = TestSource::with(
        |_| {},
        // Relists in between must not read it either.
        |dir| FileSourceConfig { path: dir.into(), check_frequency: Duration::from_millis(30), all_names: false },
    );
    assert!(source.pods().await.is_empty());
    let mut file = fs::File::create(source.path("a.yaml")).unwrap();
    file.write_all(manifest("half").as_bytes()).unwrap();
    source.silent(600).await;
    file.write_all(b"  labels: {}\n---\nmetadata: {name: rest}\n").unwrap();
    source.silent(300).await;
    drop(file);
    assert_eq!(source.pods().await, ["half", "rest"]);
    // An existing file that is rewritten: the old content is used until the close.
    let mut file = OpenOptions::new().write(true).truncate(true).open(source.path("a.yaml")).unwrap();
    file.write_all(manifest("new").as_bytes()).unwrap();
    source.silent(600).await;
    drop(file);
    assert_eq!(source.pods().await, ["new"]);
}

#[tokio::test]
async fn a_file_that_is_replaced_within_200_ms_removes_no_pods() {
    let mut source = TestSource::start(|dir| {
        fs::write(dir.join("a.yaml"), manifest("a")).unwrap();
        fs::write(dir.join("b.yaml"), manifest("b")).unwrap();
    });
    assert_eq!(source.pods().await, ["a", "b"]);
    // vim: the old file becomes a backup, a new one is written.
    fs::rename(source.path("a.yaml"), source.path("a.yaml~")).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    source.write("a.yaml", "a2");
    fs::remove_file(source.path("a.yaml~")).unwrap();
    assert_eq!(source.pods().await, ["a2", "b"]);
    // Atomic writers: a new file renamed over the old one.
    source.write("a.tmp", "a3");
    fs::rename(source.path("a.tmp"), source.path("a.yaml")).unwrap();
    assert_eq!(source.pods().await, ["a3", "b"]);
    // Removed and created again with the same content: no change.
    fs::remove_file(source.path("b.yaml")).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    source.write("b.yaml", "b");
    source.silent(500).await;
    // Created again in time but written slowly: the old content is used until the close.
    fs::remove_file(source.path("b.yaml")).unwrap();
    let mut file = fs::File::create(source.path("b.yaml")).unwrap();
    source.silent(500).await;
    file.write_all(manifest("b2").as_bytes()).unwrap();
    source.silent(300).await;
    drop(file);
    assert_eq!(source.pods().await, ["a3", "b2"]);
}

#[tokio::test]
async fn the_pods_of_a_removed_file_are_removed_after_200_ms() {
    let mut source = TestSource::start(|dir| {
        fs::write(dir.join("a.yaml"), manifest("a")).unwrap();
        fs::write(dir.join("b.yaml"), manifest("b")).unwrap();
    });
    assert_eq!(source.pods().await, ["a", "b"]);
    let begin = Instant::now();
    fs::remove_file(source.path("a.yaml")).unwrap();
    fs::rename(source.path("b.yaml"), source.path("b.off")).unwrap();
    source.until(&[]).await;
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn an_unchanged_file_is_neither_parsed_nor_sent_again() {
    let mut source = TestSource::with(
        |dir| fs::write(dir.join("a.yaml"), manifest("a")).unwrap(),
        |dir| FileSourceConfig { path: dir.into(), check_frequency: Duration::from_millis(20), all_names: false },
    );
    assert_eq!(source.pods().await, ["a"]);
    source.silent(300).await;
    // Touched, and rewritten with the same content.
    source.write("a.yaml", "a");
    let touched = fs::File::open(source.path("a.yaml")).unwrap();
    touched.set_modified(std::time::SystemTime::now()).unwrap();
    source.silent(300).await;
    assert_eq!(source.decoded.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn changes_without_events_are_found_by_the_relist() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("target"), manifest("before")).unwrap();
    let target = outside.path().join("target");
    let mut source = TestSource::with(
        |dir| symlink(&target, dir.join("a.yaml")).unwrap(),
        |dir| FileSourceConfig { path: dir.into(), check_frequency: Duration::from_millis(100), all_names: false },
    );
    assert_eq!(source.pods().await, ["before"]);
    fs::write(&target, manifest("after")).unwrap();
    source.until(&["after"]).await;
}

#[tokio::test]
async fn lost_events_cause_a_scan() {
    let mut source = TestSource::start(|_| {});
    assert!(source.pods().await.is_empty());
    // More events than the kernel queues while the task can't run: the last ones are lost.
    let kept: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    for _ in 0..kept / 2 {
        fs::write(source.path("x"), "").unwrap();
        fs::remove_file(source.path("x")).unwrap();
    }
    source.write("late.yaml", "late");
    source.until(&["late"]).await;
}
