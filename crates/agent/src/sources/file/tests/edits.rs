//! Files that change while they are watched.

use super::*;

#[tokio::test]
async fn a_file_is_not_read_before_it_is_closed() {
    let mut bench = Bench::with(
        |_| {},
        // Relists in between must not read it either.
        |dir| Config { path: dir.into(), check_frequency: Duration::from_millis(30), all_names: false },
    );
    assert!(bench.pods().await.is_empty());
    let mut file = fs::File::create(bench.path("a.yaml")).unwrap();
    file.write_all(manifest("half").as_bytes()).unwrap();
    bench.silent(600).await;
    file.write_all(b"  labels: {}\n---\nmetadata: {name: rest}\n").unwrap();
    bench.silent(300).await;
    drop(file);
    assert_eq!(bench.pods().await, ["half", "rest"]);
    // An existing file that is written anew: the old content stands until the close.
    let mut file = OpenOptions::new().write(true).truncate(true).open(bench.path("a.yaml")).unwrap();
    file.write_all(manifest("new").as_bytes()).unwrap();
    bench.silent(600).await;
    drop(file);
    assert_eq!(bench.pods().await, ["new"]);
}

#[tokio::test]
async fn editors_that_put_a_file_back_within_200_ms_delete_nothing() {
    let mut bench = Bench::start(|dir| {
        fs::write(dir.join("a.yaml"), manifest("a")).unwrap();
        fs::write(dir.join("b.yaml"), manifest("b")).unwrap();
    });
    assert_eq!(bench.pods().await, ["a", "b"]);
    // vim: the old file becomes a backup, a new one is written.
    fs::rename(bench.path("a.yaml"), bench.path("a.yaml~")).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    bench.write("a.yaml", "a2");
    fs::remove_file(bench.path("a.yaml~")).unwrap();
    assert_eq!(bench.pods().await, ["a2", "b"]);
    // Atomic writers: a new file renamed over the old one.
    bench.write("a.tmp", "a3");
    fs::rename(bench.path("a.tmp"), bench.path("a.yaml")).unwrap();
    assert_eq!(bench.pods().await, ["a3", "b"]);
    // Removed and back with the same content: nothing at all.
    fs::remove_file(bench.path("b.yaml")).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    bench.write("b.yaml", "b");
    bench.silent(500).await;
    // Back in time but slow to write: what was stays until it is closed.
    fs::remove_file(bench.path("b.yaml")).unwrap();
    let mut file = fs::File::create(bench.path("b.yaml")).unwrap();
    bench.silent(500).await;
    file.write_all(manifest("b2").as_bytes()).unwrap();
    bench.silent(300).await;
    drop(file);
    assert_eq!(bench.pods().await, ["a3", "b2"]);
}

#[tokio::test]
async fn a_removed_file_takes_its_pods_after_200_ms() {
    let mut bench = Bench::start(|dir| {
        fs::write(dir.join("a.yaml"), manifest("a")).unwrap();
        fs::write(dir.join("b.yaml"), manifest("b")).unwrap();
    });
    assert_eq!(bench.pods().await, ["a", "b"]);
    let begin = Instant::now();
    fs::remove_file(bench.path("a.yaml")).unwrap();
    fs::rename(bench.path("b.yaml"), bench.path("b.off")).unwrap();
    bench.until(&[]).await;
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn what_did_not_change_is_neither_parsed_nor_told_again() {
    let mut bench = Bench::with(
        |dir| fs::write(dir.join("a.yaml"), manifest("a")).unwrap(),
        |dir| Config { path: dir.into(), check_frequency: Duration::from_millis(20), all_names: false },
    );
    assert_eq!(bench.pods().await, ["a"]);
    bench.silent(300).await;
    // Touched, and written anew with the same bytes.
    bench.write("a.yaml", "a");
    let touched = fs::File::open(bench.path("a.yaml")).unwrap();
    touched.set_modified(std::time::SystemTime::now()).unwrap();
    bench.silent(300).await;
    assert_eq!(bench.decoded.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn changes_without_events_are_found_by_the_relist() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("target"), manifest("before")).unwrap();
    let target = outside.path().join("target");
    let mut bench = Bench::with(
        |dir| symlink(&target, dir.join("a.yaml")).unwrap(),
        |dir| Config { path: dir.into(), check_frequency: Duration::from_millis(100), all_names: false },
    );
    assert_eq!(bench.pods().await, ["before"]);
    fs::write(&target, manifest("after")).unwrap();
    bench.until(&["after"]).await;
}

#[tokio::test]
async fn lost_events_cost_a_look_and_nothing_else() {
    let mut bench = Bench::start(|_| {});
    assert!(bench.pods().await.is_empty());
    // More events than the kernel keeps, without a moment for the task to take them: the last ones are lost.
    let kept: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    for _ in 0..kept / 2 {
        fs::write(bench.path("x"), "").unwrap();
        fs::remove_file(bench.path("x")).unwrap();
    }
    bench.write("late.yaml", "late");
    bench.until(&["late"]).await;
}
