//! The file source on real directories.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use podwright_core::model::{Manifest, Pod};
use podwright_core::validate::FieldError;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

mod edits;

/// A running source and the changes it sends.
struct TestSource {
    dir: TempDir,
    changes: mpsc::Receiver<(Source, SourceChange)>,
    decoded: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl TestSource {
    fn start(fill: impl FnOnce(&Path)) -> Self {
        Self::with(fill, |dir| FileSourceConfig {
            path: dir.into(),
            check_frequency: Duration::from_secs(3600),
            all_names: false,
        })
    }

    fn with(fill: impl FnOnce(&Path), config: impl FnOnce(&Path) -> FileSourceConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path());
        let (tx, changes) = mpsc::channel(4);
        let decoded = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(run(config(dir.path()), decode(decoded.clone()), tx, Pool::default()));
        Self { dir, changes, decoded, task }
    }

    /// The next SET: names of pods, and broken files without their directory, with errors.
    async fn next(&mut self) -> (Vec<String>, Vec<(String, String)>) {
        let (from, change) = timeout(Duration::from_secs(10), self.changes.recv()).await.expect("a change").unwrap();
        let SourceChange::Set { pods, broken } = change else { panic!("{change:?}") };
        assert_eq!(from, Source::File);
        let names = pods.iter().map(|m| m.pod.metadata.name.clone().unwrap()).collect();
        let prefix = format!("{}/", self.dir.path().display());
        (names, broken.into_iter().map(|(file, error)| (file.replace(&prefix, ""), error)).collect())
    }

    async fn pods(&mut self) -> Vec<String> {
        let (pods, broken) = self.next().await;
        assert_eq!(broken, []);
        pods
    }

    async fn broken(&mut self) -> (String, String) {
        let (_, mut broken) = self.next().await;
        assert_eq!(broken.len(), 1, "{broken:?}");
        broken.remove(0)
    }

    async fn until(&mut self, expected: &[&str]) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.next().await.0 != expected {
            assert!(Instant::now() < deadline);
        }
    }

    /// Asserts that nothing is sent for this long.
    async fn silent(&mut self, millis: u64) {
        if let Ok(change) = timeout(Duration::from_millis(millis), self.changes.recv()).await {
            panic!("{change:?}");
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, pod: &str) {
        fs::write(self.path(name), manifest(pod)).unwrap();
    }
}

fn manifest(pod: &str) -> String {
    format!("kind: Pod\nmetadata:\n  name: {pod}\n")
}

fn nameless() -> Vec<FieldError> {
    vec![FieldError { path: "metadata.name".into(), message: "Required value".into() }]
}

fn decode(count: Arc<AtomicUsize>) -> Decode {
    Arc::new(move |value: Value, origin: &str| {
        count.fetch_add(1, Ordering::Relaxed);
        let name = value["metadata"]["name"].as_str().ok_or_else(nameless)?;
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        Ok(vec![Manifest { pod: Arc::new(pod), origin: origin.into() }])
    })
}

#[tokio::test]
async fn a_file_created_during_the_first_scan_is_not_missed() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), manifest("a")).unwrap();
    let (tx, mut changes) = mpsc::channel(4);
    let (late, plain) = (dir.path().join("late.yaml"), decode(Arc::default()));
    // Files are decoded after the directory was listed.
    let adding_a_file: Decode = Arc::new(move |value: Value, origin: &str| {
        if !late.exists() {
            fs::write(&late, manifest("late")).expect("written");
        }
        plain(value, origin)
    });
    let config =
        FileSourceConfig { path: dir.path().into(), check_frequency: Duration::from_secs(3600), all_names: false };
    let task = tokio::spawn(run(config, adding_a_file, tx, Pool::default()));
    for expected in [1, 2] {
        let (_, change) = timeout(Duration::from_secs(10), changes.recv()).await.expect("a change").unwrap();
        let SourceChange::Set { pods, .. } = change else { panic!("{change:?}") };
        assert_eq!(pods.len(), expected);
    }
    task.abort();
}

#[tokio::test]
async fn a_file_that_is_written_during_the_first_scan_counts_as_broken_until_it_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        fs::write(dir.path().join(format!("{name}.yaml")), manifest(name)).unwrap();
    }
    let (tx, mut changes) = mpsc::channel(4);
    let (path, plain, writer) = (dir.path().join("b.yaml"), decode(Arc::default()), Arc::new(Mutex::new(None)));
    let held = Arc::clone(&writer);
    let writing: Decode = Arc::new(move |value: Value, origin: &str| {
        // The first file is decoded before the second is read.
        if origin.ends_with("a.yaml") {
            let mut file = OpenOptions::new().append(true).open(&path).expect("opened");
            file.write_all(b"\n").expect("written");
            *held.lock().unwrap() = Some(file);
        }
        plain(value, origin)
    });
    let config =
        FileSourceConfig { path: dir.path().into(), check_frequency: Duration::from_secs(3600), all_names: false };
    let task = tokio::spawn(run(config, writing, tx, Pool::default()));
    for (expected, broken_files) in [(1, 1), (2, 0)] {
        let (_, change) = timeout(Duration::from_secs(10), changes.recv()).await.expect("a change").unwrap();
        let SourceChange::Set { pods, broken } = change else { panic!("{change:?}") };
        assert_eq!((pods.len(), broken.len()), (expected, broken_files), "{broken:?}");
        assert!(broken.iter().all(|(origin, _)| origin.ends_with("b.yaml")), "{broken:?}");
        writer.lock().unwrap().take();
    }
    task.abort();
}

#[tokio::test]
async fn all_manifests_are_sent_at_once_in_the_order_of_file_names() {
    let mut source = TestSource::start(|dir| {
        fs::write(dir.join("b.yml"), manifest("b")).unwrap();
        fs::write(dir.join("a.yaml"), format!("{}---\n{}", manifest("a1"), manifest("a2"))).unwrap();
        fs::write(dir.join("c.json"), r#"{"metadata": {"name": "c"}}"#).unwrap();
        fs::write(dir.join("notes.txt"), "not a manifest").unwrap();
        fs::write(dir.join(".hidden.yaml"), manifest("hidden")).unwrap();
        fs::create_dir(dir.join("d.yaml")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, dir.join("fifo.yaml"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        std::os::unix::net::UnixListener::bind(dir.join("socket.yaml")).unwrap();
        symlink("/dev/zero", dir.join("zero.yaml")).unwrap();
    });
    assert_eq!(source.pods().await, ["a1", "a2", "b", "c"]);
    source.silent(400).await;
}

#[tokio::test]
async fn an_empty_directory_and_a_missing_path_are_an_empty_set() {
    let mut source = TestSource::start(|_| {});
    assert!(source.pods().await.is_empty());
    let mut source = TestSource::with(
        |_| {},
        |dir| FileSourceConfig {
            path: dir.join("later"),
            check_frequency: Duration::from_secs(3600),
            all_names: false,
        },
    );
    assert!(source.pods().await.is_empty());
    fs::create_dir(source.path("later")).unwrap();
    source.write("later/a.yaml", "a");
    source.until(&["a"]).await;
    source.write("later/b.yaml", "b");
    source.until(&["a", "b"]).await;
    fs::rename(source.path("later"), source.path("elsewhere")).unwrap();
    assert!(source.pods().await.is_empty());
    source.write("elsewhere/c.yaml", "c");
    source.silent(300).await;
    fs::rename(source.path("elsewhere"), source.path("later")).unwrap();
    assert_eq!(source.pods().await, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_path_whose_parent_comes_later_is_found_by_the_relist() {
    let frequency = Duration::from_millis(100);
    let mut source = TestSource::with(
        |_| {},
        |dir| FileSourceConfig { path: dir.join("x/y/z"), check_frequency: frequency, all_names: false },
    );
    assert!(source.pods().await.is_empty());
    fs::create_dir_all(source.path("x/y/z")).unwrap();
    source.write("x/y/z/a.yaml", "a");
    source.until(&["a"]).await;
}

#[tokio::test]
async fn one_file_may_have_any_name() {
    let mut source = TestSource::with(
        |dir| fs::write(dir.join("pod"), manifest("one")).unwrap(),
        |dir| FileSourceConfig { path: dir.join("pod"), check_frequency: Duration::from_secs(3600), all_names: false },
    );
    assert_eq!(source.pods().await, ["one"]);
    source.write("other.yaml", "other");
    source.silent(300).await;
    source.write("pod", "two");
    assert_eq!(source.pods().await, ["two"]);
    fs::remove_file(source.path("pod")).unwrap();
    assert!(source.pods().await.is_empty());
    source.write("pod", "three");
    assert_eq!(source.pods().await, ["three"]);
}

#[tokio::test]
async fn all_names_reads_every_file_except_hidden_ones() {
    let mut source = TestSource::with(
        |dir| {
            fs::write(dir.join("plain"), manifest("plain")).unwrap();
            fs::write(dir.join(".swp"), manifest("swp")).unwrap();
        },
        |dir| FileSourceConfig { path: dir.into(), check_frequency: Duration::from_secs(3600), all_names: true },
    );
    assert_eq!(source.pods().await, ["plain"]);
}

#[tokio::test]
async fn a_broken_file_is_reported_and_affects_no_other() {
    let mut source = TestSource::start(|dir| {
        fs::write(dir.join("a.yaml"), manifest("a")).unwrap();
        fs::write(dir.join("b.yaml"), manifest("b")).unwrap();
    });
    assert_eq!(source.pods().await, ["a", "b"]);
    fs::write(source.path("b.yaml"), "kind: Pod\nmetadata: {name: b").unwrap();
    let (pods, broken) = source.next().await;
    assert_eq!(pods, ["a"]);
    assert_eq!(broken[0].0, "b.yaml");
    assert!(broken[0].1.starts_with("line "), "{broken:?}");
    // All documents of a file or none.
    fs::write(source.path("b.yaml"), format!("{}---\nmetadata: {{}}\n", manifest("good"))).unwrap();
    let line = manifest("good").lines().count() + 2;
    assert_eq!(
        source.next().await,
        (vec!["a".into()], vec![("b.yaml".into(), format!("line {line}: metadata.name: Required value"))])
    );
    fs::write(source.path("b.yaml"), "").unwrap();
    assert_eq!(source.broken().await, ("b.yaml".into(), "it is empty".into()));
    fs::write(source.path("b.yaml"), b"\x7fELF\x00\x01\x02").unwrap();
    assert!(source.broken().await.1.starts_with("line 1, column 1: "));
    source.write("b.yaml", "b");
    assert_eq!(source.pods().await, ["a", "b"]);
}

#[tokio::test]
async fn links_are_followed_and_dangling_links_are_reported() {
    let mut source = TestSource::start(|dir| {
        fs::create_dir(dir.join("..1")).unwrap();
        fs::write(dir.join("..1/pod.yaml"), manifest("one")).unwrap();
        symlink("..1", dir.join("..data")).unwrap();
        symlink("..data/pod.yaml", dir.join("pod.yaml")).unwrap();
    });
    assert_eq!(source.pods().await, ["one"]);
    // The whole directory behind the link is swapped, as volumes of config maps are.
    fs::create_dir(source.path("..2")).unwrap();
    fs::write(source.path("..2/pod.yaml"), manifest("two")).unwrap();
    symlink("..2", source.path("..tmp")).unwrap();
    fs::rename(source.path("..tmp"), source.path("..data")).unwrap();
    assert_eq!(source.pods().await, ["two"]);
    symlink("loop.yaml", source.path("loop.yaml")).unwrap();
    let (name, error) = source.broken().await;
    assert!(name == "loop.yaml" && error.contains("can't be followed"), "{error}");
    fs::remove_file(source.path("loop.yaml")).unwrap();
    assert_eq!(source.pods().await, ["two"]);
    symlink("x.yaml", source.path("y.yaml")).unwrap();
    assert!(source.broken().await.1.contains("can't be followed"));
    symlink("y.yaml", source.path("x.yaml")).unwrap();
    assert_eq!(source.next().await.1.len(), 2);
}

#[tokio::test]
async fn hard_links_and_linked_tmpfiles_are_read_at_once() {
    let mut source = TestSource::start(|dir| fs::write(dir.join("elsewhere"), manifest("linked")).unwrap());
    assert!(source.pods().await.is_empty());
    fs::hard_link(source.path("elsewhere"), source.path("a.yaml")).unwrap();
    assert_eq!(source.pods().await, ["linked"]);
    use rustix::fs::{AtFlags, CWD, Mode, OFlags};
    let file = rustix::fs::open(source.dir.path(), OFlags::TMPFILE | OFlags::WRONLY, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::io::write(&file, manifest("nameless").as_bytes()).unwrap();
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::linkat(CWD, own, CWD, source.path("b.yaml"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(source.pods().await, ["linked", "nameless"]);
}

#[tokio::test]
async fn a_file_over_10_mib_is_broken_and_not_read() {
    let mut source = TestSource::start(|dir| fs::write(dir.join("a.yaml"), manifest("a")).unwrap());
    assert_eq!(source.pods().await, ["a"]);
    let file = fs::File::create(source.path("big.yaml")).unwrap();
    (&file).write_all(&vec![b'#'; 100 << 20]).unwrap();
    drop(file);
    let (name, error) = source.broken().await;
    assert_eq!((name.as_str(), error.as_str()), ("big.yaml", "104857600 bytes, a manifest may have 10485760"));
    let comment = format!("{}# {}\n", manifest("just"), "x".repeat(9 << 20));
    fs::write(source.path("big.yaml"), comment).unwrap();
    assert_eq!(source.pods().await, ["a", "just"]);
}

#[tokio::test]
async fn a_path_that_cannot_be_read_removes_no_pods() {
    let mut source = TestSource::with(
        |dir| {
            fs::create_dir(dir.join("m")).unwrap();
            fs::write(dir.join("m/a.yaml"), manifest("a")).unwrap();
        },
        |dir| FileSourceConfig { path: dir.join("m"), check_frequency: Duration::from_millis(50), all_names: false },
    );
    assert_eq!(source.pods().await, ["a"]);
    // A link to itself in the directory's place: an error, not an empty directory.
    fs::rename(source.path("m"), source.path("n")).unwrap();
    symlink("m", source.path("m")).unwrap();
    source.silent(600).await;
    fs::remove_file(source.path("m")).unwrap();
    fs::rename(source.path("n"), source.path("m")).unwrap();
    source.silent(300).await;
    source.write("m/b.yaml", "b");
    assert_eq!(source.pods().await, ["a", "b"]);
}

#[tokio::test]
async fn sixty_files_created_at_once_are_all_read() {
    let mut source = TestSource::start(|_| {});
    assert!(source.pods().await.is_empty());
    let mut expected: Vec<String> = (0..60).map(|i| format!("p{i:02}")).collect();
    for name in &expected {
        source.write(&format!("{name}.yaml"), name);
    }
    expected.sort();
    source.until(&expected.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(source.decoded.load(Ordering::Relaxed), 60);
    for name in &expected {
        fs::remove_file(source.path(&format!("{name}.yaml"))).unwrap();
    }
    source.until(&[]).await;
}

#[tokio::test]
async fn the_task_ends_when_the_receiver_is_dropped() {
    let mut source = TestSource::start(|_| {});
    source.pods().await;
    drop(source.changes);
    timeout(Duration::from_secs(5), source.task).await.expect("it ends").unwrap();
}
