//! Rotation on real files, with a runtime that is a closure.

use std::io::{Read, Write};
use std::sync::Mutex;

use tempfile::TempDir;

use super::*;

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn the_newest_files_are_kept_and_all_but_one_compressed() {
    /// Description, files, maximum of files; the files to remove and those to compress.
    type Case = (&'static str, &'static [&'static str], usize, &'static [&'static str], &'static [&'static str]);
    let cases: [Case; 6] = [
        ("nothing rotated yet", &["0.log"], 5, &[], &[]),
        ("the newest stays uncompressed", &["0.log", "0.log.20260101-000000"], 5, &[], &[]),
        (
            "older ones are compressed",
            &["0.log.20260101-000003", "0.log.20260101-000001.gz", "0.log", "0.log.20260101-000002"],
            5,
            &[],
            &["0.log.20260101-000002"],
        ),
        (
            "the oldest are removed",
            &["0.log.20260101-000001.gz", "0.log.20260101-000002.gz", "0.log.20260101-000003", "0.log.20260101-000004"],
            3,
            &["0.log.20260101-000001.gz", "0.log.20260101-000002.gz"],
            &["0.log.20260101-000003"],
        ),
        (
            "leftovers of a crash are removed",
            &[
                "0.log.20260101-000001",
                "0.log.20260101-000001.gz",
                "0.log.20260101-000002.gz.tmp",
                "0.log.20260101-000002",
                "0.log.20260101-000003",
            ],
            5,
            &["0.log.20260101-000001", "0.log.20260101-000002.gz.tmp"],
            &["0.log.20260101-000002"],
        ),
        (
            "other logs and unrelated files are kept",
            &[
                "1.log.20260101-000001",
                "0.log.bak",
                "10.log",
                "0.logs",
                "0.log.20260101-00000x",
                "0.log.20260101-000001",
            ],
            2,
            &[],
            &[],
        ),
    ];
    for (what, siblings, max, remove, compress) in cases {
        let expected = CleanupPlan { remove: names(remove), compress: names(compress) };
        assert_eq!(plan("0.log", &names(siblings), max), expected, "{what}");
    }
}

#[test]
fn a_rotated_file_has_a_later_name_than_all_others() {
    let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    for (siblings, expected) in [
        (&["0.log"][..], "20260102-030405"),
        (&["0.log", "0.log.20260102-030404.gz"], "20260102-030405"),
        // Two in one second.
        (&["0.log", "0.log.20260102-030405"], "20260102-030406"),
        // The clock was set back.
        (&["0.log", "0.log.20301231-235959.gz", "0.log.20260101-000000"], "20310101-000000"),
        (&["0.log", "1.log.20301231-235959", "0.log.99999999-999999"], "20260102-030405"),
    ] {
        assert_eq!(part_time("0.log", &names(siblings), now), expected, "{siblings:?}");
    }
}

struct Bench {
    dir: TempDir,
    container: RunningContainer,
    /// The answer of the runtime, and the number of calls.
    answer: Arc<Mutex<(Result<bool, CriError>, usize)>>,
}

impl Bench {
    fn new(size: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        fs::write(&log, vec![b'x'; size]).unwrap();
        Self { container: RunningContainer { id: "c1".into(), log }, dir, answer: Arc::new(Mutex::new((Ok(true), 0))) }
    }

    /// The answer `Ok(true)` creates a new file, `Ok(false)` does not.
    fn reopen(&self) -> Reopen {
        let (answer, log) = (self.answer.clone(), self.container.log.clone());
        Arc::new(move |id| {
            assert_eq!(id.as_str(), "c1");
            let mut state = answer.lock().unwrap();
            state.1 += 1;
            let result = state.0.clone();
            if let Ok(true) = result {
                File::create(&log).unwrap();
            }
            Box::pin(async move { result.map(|_| ()) })
        })
    }

    async fn rotate(&self, second: i64) -> Result<bool, RotateError> {
        let config = RotationConfig { max_size: 100, max_files: 3, ..RotationConfig::default() };
        let now = Timestamp::from_second(1_767_225_600 + second).unwrap();
        rotate(config, &self.container, &self.reopen(), &Pool::default(), now).await
    }

    fn files(&self) -> Vec<String> {
        let mut files: Vec<_> =
            fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        files
    }
}

#[tokio::test]
async fn a_small_log_is_not_rotated() {
    let bench = Bench::new(100);
    assert!(!bench.rotate(0).await.unwrap());
    assert_eq!((bench.files(), bench.answer.lock().unwrap().1), (names(&["0.log"]), 0));
}

#[tokio::test]
async fn logs_are_renamed_compressed_and_removed() {
    let bench = Bench::new(101);
    for round in 0..4u8 {
        fs::write(&bench.container.log, vec![b'0' + round; 200]).unwrap();
        assert!(bench.rotate(round.into()).await.unwrap());
    }
    assert_eq!(bench.files(), ["0.log", "0.log.20260101-000002.gz", "0.log.20260101-000003"]);
    assert_eq!(fs::metadata(&bench.container.log).unwrap().len(), 0, "the runtime has its new file");
    assert_eq!(fs::read(bench.dir.path().join("0.log.20260101-000003")).unwrap(), vec![b'3'; 200]);
    let packed = File::open(bench.dir.path().join("0.log.20260101-000002.gz")).unwrap();
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut text).unwrap();
    assert_eq!(text, vec![b'2'; 200]);
}

#[tokio::test]
async fn the_rename_is_undone_if_the_reopen_fails() {
    let bench = Bench::new(200);
    let mut open = OpenOptions::new().append(true).open(&bench.container.log).unwrap();
    bench.answer.lock().unwrap().0 = Err(CriError::new(Code::NotFound, "ReopenContainerLog", "no such container"));
    let error = bench.rotate(0).await.unwrap_err();
    assert!(matches!(error, RotateError::Reopen { .. }), "{error}");
    assert_eq!(bench.files(), ["0.log"]);
    open.write_all(b"more").unwrap();
    assert_eq!(fs::metadata(&bench.container.log).unwrap().len(), 204);
}

#[tokio::test]
async fn a_new_file_of_a_failed_reopen_is_kept() {
    let bench = Bench::new(200);
    let (log, inner) = (bench.container.log.clone(), bench.reopen());
    let reopen: Reopen = Arc::new(move |id| {
        fs::write(&log, "new").unwrap();
        drop(inner(id));
        let log = log.clone();
        Box::pin(async move {
            fs::write(&log, "new").unwrap();
            Err(CriError::new(Code::DeadlineExceeded, "ReopenContainerLog", "late"))
        })
    });
    let config = RotationConfig { max_size: 100, max_files: 3, ..RotationConfig::default() };
    rotate(config, &bench.container, &reopen, &Pool::default(), Timestamp::UNIX_EPOCH).await.unwrap_err();
    assert_eq!(bench.files(), ["0.log", "0.log.19700101-000000"]);
    assert_eq!(fs::read(&bench.container.log).unwrap(), b"new");
}

#[tokio::test]
async fn a_log_that_a_crash_left_renamed_is_reopened() {
    let bench = Bench::new(200);
    fs::rename(&bench.container.log, bench.dir.path().join("0.log.20250101-000000")).unwrap();
    assert!(!bench.rotate(0).await.unwrap());
    assert_eq!(bench.files(), ["0.log", "0.log.20250101-000000"]);
    // Without the directory the pod is being removed, and the runtime is not called.
    fs::remove_dir_all(bench.dir.path()).unwrap();
    assert!(!bench.rotate(1).await.unwrap());
    assert_eq!(bench.answer.lock().unwrap().1, 1);
}

#[tokio::test]
async fn a_link_instead_of_a_log_is_not_followed() {
    let bench = Bench::new(200);
    let target = bench.dir.path().join("elsewhere");
    fs::rename(&bench.container.log, &target).unwrap();
    std::os::unix::fs::symlink(&target, &bench.container.log).unwrap();
    assert!(!bench.rotate(0).await.unwrap());
    assert_eq!(bench.files(), ["0.log", "elsewhere"]);
}

#[tokio::test(start_paused = true)]
async fn every_running_container_is_checked_periodically() {
    let bench = Bench::new(200);
    let running = vec![RunningContainer { id: "c1".into(), log: "/no/such/dir/0.log".into() }, bench.container.clone()];
    let list: ListRunning = Arc::new(move || {
        let running = running.clone();
        Box::pin(async move { running })
    });
    let config = RotationConfig { max_size: 100, ..RotationConfig::default() };
    let task = tokio::spawn(run(config, list, bench.reopen(), Pool::default()));
    while bench.files().len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    task.abort();
}
