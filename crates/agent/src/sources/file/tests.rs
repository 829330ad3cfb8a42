//! The file source on real directories.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use podwright_core::model::{Manifest, Pod};
use podwright_core::validate::FieldError;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

mod edits;

/// A running source and what it said.
struct Bench {
    dir: TempDir,
    changes: mpsc::Receiver<(Source, SourceChange)>,
    decoded: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Bench {
    fn start(fill: impl FnOnce(&Path)) -> Self {
        Self::with(fill, |dir| Config {
            path: dir.into(),
            check_frequency: Duration::from_secs(3600),
            all_names: false,
        })
    }

    fn with(fill: impl FnOnce(&Path), config: impl FnOnce(&Path) -> Config) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path());
        let (tx, changes) = mpsc::channel(4);
        let decoded = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(run(config(dir.path()), decode(decoded.clone()), tx));
        Self { dir, changes, decoded, task }
    }

    /// The next SET: names of pods, and broken files without their directory, with errors.
    async fn next(&mut self) -> (Vec<String>, Vec<(String, String)>) {
        let (source, change) = timeout(Duration::from_secs(10), self.changes.recv()).await.expect("a change").unwrap();
        let SourceChange::Set { pods, broken } = change else { panic!("{change:?}") };
        assert_eq!(source, Source::File);
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

    /// Nothing is said for this long.
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
async fn what_comes_during_the_very_first_look_is_not_missed() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), manifest("a")).unwrap();
    let (tx, mut changes) = mpsc::channel(4);
    let (late, plain) = (dir.path().join("late.yaml"), decode(Arc::default()));
    // Files are decoded after the directory was listed.
    let meddling: Decode = Arc::new(move |value: Value, origin: &str| {
        if !late.exists() {
            fs::write(&late, manifest("late")).expect("written");
        }
        plain(value, origin)
    });
    let config = Config { path: dir.path().into(), check_frequency: Duration::from_secs(3600), all_names: false };
    let task = tokio::spawn(run(config, meddling, tx));
    for expected in [1, 2] {
        let (_, change) = timeout(Duration::from_secs(10), changes.recv()).await.expect("a change").unwrap();
        let SourceChange::Set { pods, .. } = change else { panic!("{change:?}") };
        assert_eq!(pods.len(), expected);
    }
    task.abort();
}

#[tokio::test]
async fn everything_there_is_told_at_once_in_the_order_of_the_files() {
    let mut bench = Bench::start(|dir| {
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
    assert_eq!(bench.pods().await, ["a1", "a2", "b", "c"]);
    bench.silent(400).await;
}

#[tokio::test]
async fn an_empty_directory_and_a_missing_path_are_an_empty_set() {
    let mut bench = Bench::start(|_| {});
    assert!(bench.pods().await.is_empty());
    let mut bench = Bench::with(
        |_| {},
        |dir| Config { path: dir.join("later"), check_frequency: Duration::from_secs(3600), all_names: false },
    );
    assert!(bench.pods().await.is_empty());
    fs::create_dir(bench.path("later")).unwrap();
    bench.write("later/a.yaml", "a");
    bench.until(&["a"]).await;
    bench.write("later/b.yaml", "b");
    bench.until(&["a", "b"]).await;
    fs::rename(bench.path("later"), bench.path("elsewhere")).unwrap();
    assert!(bench.pods().await.is_empty());
    bench.write("elsewhere/c.yaml", "c");
    bench.silent(300).await;
    fs::rename(bench.path("elsewhere"), bench.path("later")).unwrap();
    assert_eq!(bench.pods().await, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_path_whose_parent_comes_later_is_found_by_the_relist() {
    let frequency = Duration::from_millis(100);
    let mut bench =
        Bench::with(|_| {}, |dir| Config { path: dir.join("x/y/z"), check_frequency: frequency, all_names: false });
    assert!(bench.pods().await.is_empty());
    fs::create_dir_all(bench.path("x/y/z")).unwrap();
    bench.write("x/y/z/a.yaml", "a");
    bench.until(&["a"]).await;
}

#[tokio::test]
async fn one_file_may_have_any_name() {
    let mut bench = Bench::with(
        |dir| fs::write(dir.join("pod"), manifest("one")).unwrap(),
        |dir| Config { path: dir.join("pod"), check_frequency: Duration::from_secs(3600), all_names: false },
    );
    assert_eq!(bench.pods().await, ["one"]);
    bench.write("other.yaml", "other");
    bench.silent(300).await;
    bench.write("pod", "two");
    assert_eq!(bench.pods().await, ["two"]);
    fs::remove_file(bench.path("pod")).unwrap();
    assert!(bench.pods().await.is_empty());
    bench.write("pod", "three");
    assert_eq!(bench.pods().await, ["three"]);
}

#[tokio::test]
async fn the_switch_takes_every_name_but_hidden_ones() {
    let mut bench = Bench::with(
        |dir| {
            fs::write(dir.join("plain"), manifest("plain")).unwrap();
            fs::write(dir.join(".swp"), manifest("swp")).unwrap();
        },
        |dir| Config { path: dir.into(), check_frequency: Duration::from_secs(3600), all_names: true },
    );
    assert_eq!(bench.pods().await, ["plain"]);
}

#[tokio::test]
async fn a_broken_file_is_named_and_touches_no_other() {
    let mut bench = Bench::start(|dir| {
        fs::write(dir.join("a.yaml"), manifest("a")).unwrap();
        fs::write(dir.join("b.yaml"), manifest("b")).unwrap();
    });
    assert_eq!(bench.pods().await, ["a", "b"]);
    fs::write(bench.path("b.yaml"), "kind: Pod\nmetadata: {name: b").unwrap();
    let (pods, broken) = bench.next().await;
    assert_eq!(pods, ["a"]);
    assert_eq!(broken[0].0, "b.yaml");
    assert!(broken[0].1.starts_with("line "), "{broken:?}");
    // All documents of a file or none.
    fs::write(bench.path("b.yaml"), format!("{}---\nmetadata: {{}}\n", manifest("good"))).unwrap();
    let line = manifest("good").lines().count() + 2;
    assert_eq!(
        bench.next().await,
        (vec!["a".into()], vec![("b.yaml".into(), format!("line {line}: metadata.name: Required value"))])
    );
    fs::write(bench.path("b.yaml"), "").unwrap();
    assert_eq!(bench.broken().await, ("b.yaml".into(), "it is empty".into()));
    fs::write(bench.path("b.yaml"), b"\x7fELF\x00\x01\x02").unwrap();
    assert!(bench.broken().await.1.starts_with("line 1, column 1: "));
    bench.write("b.yaml", "b");
    assert_eq!(bench.pods().await, ["a", "b"]);
}

#[tokio::test]
async fn links_are_followed_and_those_that_lead_nowhere_are_broken() {
    let mut bench = Bench::start(|dir| {
        fs::create_dir(dir.join("..1")).unwrap();
        fs::write(dir.join("..1/pod.yaml"), manifest("one")).unwrap();
        symlink("..1", dir.join("..data")).unwrap();
        symlink("..data/pod.yaml", dir.join("pod.yaml")).unwrap();
    });
    assert_eq!(bench.pods().await, ["one"]);
    // The whole directory behind the link is swapped, as volumes of config maps are.
    fs::create_dir(bench.path("..2")).unwrap();
    fs::write(bench.path("..2/pod.yaml"), manifest("two")).unwrap();
    symlink("..2", bench.path("..tmp")).unwrap();
    fs::rename(bench.path("..tmp"), bench.path("..data")).unwrap();
    assert_eq!(bench.pods().await, ["two"]);
    symlink("loop.yaml", bench.path("loop.yaml")).unwrap();
    let (name, error) = bench.broken().await;
    assert!(name == "loop.yaml" && error.contains("can't be followed"), "{error}");
    fs::remove_file(bench.path("loop.yaml")).unwrap();
    assert_eq!(bench.pods().await, ["two"]);
    symlink("x.yaml", bench.path("y.yaml")).unwrap();
    assert!(bench.broken().await.1.contains("can't be followed"));
    symlink("y.yaml", bench.path("x.yaml")).unwrap();
    assert_eq!(bench.next().await.1.len(), 2);
}

#[tokio::test]
async fn hard_links_and_nameless_files_that_get_a_name_are_complete() {
    let mut bench = Bench::start(|dir| fs::write(dir.join("elsewhere"), manifest("linked")).unwrap());
    assert!(bench.pods().await.is_empty());
    fs::hard_link(bench.path("elsewhere"), bench.path("a.yaml")).unwrap();
    assert_eq!(bench.pods().await, ["linked"]);
    use rustix::fs::{AtFlags, CWD, Mode, OFlags};
    let file = rustix::fs::open(bench.dir.path(), OFlags::TMPFILE | OFlags::WRONLY, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::io::write(&file, manifest("nameless").as_bytes()).unwrap();
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::linkat(CWD, own, CWD, bench.path("b.yaml"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(bench.pods().await, ["linked", "nameless"]);
}

#[tokio::test]
async fn a_file_over_10_mib_is_broken_and_not_read() {
    let mut bench = Bench::start(|dir| fs::write(dir.join("a.yaml"), manifest("a")).unwrap());
    assert_eq!(bench.pods().await, ["a"]);
    let file = fs::File::create(bench.path("big.yaml")).unwrap();
    (&file).write_all(&vec![b'#'; 100 << 20]).unwrap();
    drop(file);
    let (name, error) = bench.broken().await;
    assert_eq!((name.as_str(), error.as_str()), ("big.yaml", "104857600 bytes, a manifest may have 10485760"));
    let comment = format!("{}# {}\n", manifest("just"), "x".repeat(9 << 20));
    fs::write(bench.path("big.yaml"), comment).unwrap();
    assert_eq!(bench.pods().await, ["a", "just"]);
}

#[tokio::test]
async fn a_path_that_can_not_be_read_says_nothing() {
    let mut bench = Bench::with(
        |dir| {
            fs::create_dir(dir.join("m")).unwrap();
            fs::write(dir.join("m/a.yaml"), manifest("a")).unwrap();
        },
        |dir| Config { path: dir.join("m"), check_frequency: Duration::from_millis(50), all_names: false },
    );
    assert_eq!(bench.pods().await, ["a"]);
    // A link to itself in the directory's place: an error, not an empty directory.
    fs::rename(bench.path("m"), bench.path("n")).unwrap();
    symlink("m", bench.path("m")).unwrap();
    bench.silent(600).await;
    fs::remove_file(bench.path("m")).unwrap();
    fs::rename(bench.path("n"), bench.path("m")).unwrap();
    bench.silent(300).await;
    bench.write("m/b.yaml", "b");
    assert_eq!(bench.pods().await, ["a", "b"]);
}

#[tokio::test]
async fn sixty_files_at_once_all_arrive() {
    let mut bench = Bench::start(|_| {});
    assert!(bench.pods().await.is_empty());
    let mut expected: Vec<String> = (0..60).map(|i| format!("p{i:02}")).collect();
    for name in &expected {
        bench.write(&format!("{name}.yaml"), name);
    }
    expected.sort();
    bench.until(&expected.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(bench.decoded.load(Ordering::Relaxed), 60);
    for name in &expected {
        fs::remove_file(bench.path(&format!("{name}.yaml"))).unwrap();
    }
    bench.until(&[]).await;
}

#[tokio::test]
async fn the_task_ends_when_nobody_listens() {
    let mut bench = Bench::start(|_| {});
    bench.pods().await;
    drop(bench.changes);
    timeout(Duration::from_secs(5), bench.task).await.expect("it ends").unwrap();
}
