//! Logs over real files, written as a runtime does and rotated as the agent does.

use std::fs;
use std::io::Write;

use http_body_util::BodyExt;
use podwright_core::model::{Pod, Source};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::query::QueryParams;

struct LogFixture {
    dir: tempfile::TempDir,
    feed: Arc<PodFeed>,
}

fn status(state: Value, restarts: i32, last: Value) -> Value {
    json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": restarts, "state": state, "lastState": last})
}

fn running(restarts: i32) -> Value {
    status(json!({"running": {}}), restarts, json!({}))
}

fn ended(restarts: i32) -> Value {
    status(json!({"terminated": {"exitCode": 0, "containerID": "containerd://a"}}), restarts, json!({}))
}

impl LogFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("default_web_u/c")).unwrap();
        let logs = Self { dir, feed: Arc::default() };
        logs.show(&running(0));
        logs
    }

    fn show(&self, status: &Value) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "default", "name": "web", "uid": "u"},
            "spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
            "status": {"containerStatuses": [status]}
        }))
        .unwrap();
        self.feed.put_object(Arc::new(pod), Source::File, None);
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join("default_web_u/c").join(file)
    }

    fn write(&self, file: &str, text: &str) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(self.path(file)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    async fn request(&self, query: &str) -> Result<HttpResponse, StatusError> {
        let mut params = QueryParams::parse(query);
        let paths = HostPaths {
            root_dir: "/r".into(),
            pod_logs_dir: self.dir.path().into(),
            container_logs_dir: "/c".into(),
            cgroup_root: "/".into(),
        };
        let view = self.feed.by_name("default", "web").unwrap();
        let files = LogFiles { paths, pool: Pool::default() };
        let log = ContainerLog::new(files, Arc::clone(&self.feed), view, LogOptions::parse(&mut params)?)?;
        log.respond(Box::new(()), Duration::from_secs(60), CancellationToken::new()).await
    }

    async fn all(&self, query: &str) -> String {
        let body = self.request(query).await.unwrap().into_body();
        let all = timeout(Duration::from_secs(10), body.collect()).await.expect("the log ends").unwrap();
        String::from_utf8_lossy(&all.to_bytes()).into_owned()
    }

    async fn error(&self, query: &str) -> String {
        self.request(query).await.unwrap_err().message()
    }
}

fn line(second: u32, content: &str) -> String {
    format!("2024-01-01T00:00:{second:02}.5Z stdout F {content}\n")
}

#[tokio::test]
async fn the_query_selects_part_of_a_log() {
    let logs = LogFixture::new();
    logs.write("0.log", &line(1, "one"));
    logs.write("0.log", "2024-01-01T00:00:02Z stderr P tw\n2024-01-01T00:00:02.1Z stderr F o\nnonsense\n");
    logs.write("0.log", &line(3, "three"));
    assert_eq!(logs.all("").await, "one\ntwo\nthree\n");
    assert_eq!(
        logs.all("timestamps=true").await,
        "2024-01-01T00:00:01.5Z one\n2024-01-01T00:00:02Z two\n2024-01-01T00:00:03.5Z three\n"
    );
    assert_eq!((logs.all("tailLines=1").await, logs.all("tailLines=0").await), ("three\n".into(), String::new()));
    assert_eq!(logs.all("sinceTime=2024-01-01T00:00:02Z").await, "two\nthree\n");
    assert_eq!(logs.all("sinceSeconds=5").await, "");
    assert_eq!(
        (logs.all("limitBytes=5").await, logs.all("limitBytes=4&tailLines=1").await),
        ("one\nt".into(), "thre".into())
    );
    assert_eq!(
        (logs.all("stream=Stderr").await, logs.all("stream=Stdout").await),
        ("two\n".into(), "one\nthree\n".into())
    );
    for wrong in [
        "sinceSeconds=0",
        "sinceTime=yesterday",
        "limitBytes=0",
        "stream=Both",
        "sinceSeconds=1&sinceTime=2024-01-01T00:00:00Z",
    ] {
        assert!(logs.request(wrong).await.is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn each_attempt_has_its_own_log() {
    let logs = LogFixture::new();
    assert!(logs.error("").await.contains("does not exist"), "no file yet");
    logs.write("1.log", &line(1, "before"));
    logs.write("2.log", &line(2, "now"));
    let died = json!({"terminated": {"exitCode": 1, "containerID": "containerd://a"}});
    logs.show(&status(json!({"running": {}}), 2, died.clone()));
    assert_eq!((logs.all("").await, logs.all("previous=true").await), ("now\n".into(), "before\n".into()));
    logs.show(&status(json!({"waiting": {"reason": "CrashLoopBackOff"}}), 2, died));
    assert_eq!((logs.all("").await, logs.all("previous=1").await), ("now\n".into(), "now\n".into()));
    logs.show(&status(json!({"waiting": {"reason": "ErrImagePull"}}), 0, json!({})));
    assert_eq!(logs.error("").await, "container \"c\" in pod \"web\" is waiting to start: image can't be pulled");
    assert!(logs.error("previous=true").await.contains("previous terminated container"));
    assert_eq!(logs.error("container=x").await, "container x is not valid for pod web");
    assert_eq!(logs.error("container=i").await, "container \"i\" in pod \"web\" is not available");
}

#[tokio::test]
async fn a_follower_sees_every_line_across_rotations_and_ends_with_the_container() {
    let logs = LogFixture::new();
    logs.write("0.log", &line(0, "0"));
    let mut body = logs.request("follow=true").await.unwrap().into_body();
    let reader = tokio::spawn(async move {
        let mut all = Vec::new();
        while let Some(Ok(frame)) = body.frame().await {
            all.extend(frame.into_data().unwrap());
        }
        String::from_utf8(all).unwrap()
    });
    for n in 1..60 {
        if n % 20 == 0 {
            // As in a rotation: renamed, still written to for a moment, then created again.
            fs::rename(logs.path("0.log"), logs.path(&format!("0.log.{n}"))).unwrap();
            logs.write(&format!("0.log.{n}"), &line(n, &n.to_string()));
        } else {
            logs.write("0.log", &line(n, &n.to_string()));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    logs.write("0.log", "2024-01-01T00:01:00Z stdout F last\n");
    logs.show(&ended(0));
    let all = timeout(Duration::from_secs(10), reader).await.expect("the log ends with the container").unwrap();
    let expected: String = (0..60).map(|n| format!("{n}\n")).chain(["last\n".to_owned()]).collect();
    assert_eq!(all, expected);
}

#[tokio::test]
async fn symlinks_and_pipes_are_not_read() {
    let logs = LogFixture::new();
    std::os::unix::fs::symlink("/etc/passwd", logs.path("0.log")).unwrap();
    assert!(logs.error("").await.contains("can't be read"));
    fs::remove_file(logs.path("0.log")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, logs.path("0.log"), rustix::fs::Mode::RUSR).unwrap();
    assert!(
        timeout(Duration::from_secs(5), logs.error("")).await.expect("a pipe does not block").contains("can't be read")
    );
}

#[test]
fn logs_are_read_while_the_shared_blocking_threads_hang() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).max_blocking_threads(1).enable_all().build().unwrap();
    let (release, hung) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || hung.recv());
    let logs = LogFixture::new();
    logs.write("0.log", &line(1, "one"));
    let read = runtime.block_on(async { timeout(Duration::from_secs(5), logs.all("")).await });
    drop(release);
    assert_eq!(read.as_deref(), Ok("one\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_swapped_with_a_link_all_the_time_never_shows_another_file() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let logs = LogFixture::new();
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(outside.path().join("c")).unwrap();
    fs::write(outside.path().join("c/0.log"), line(0, "secret")).unwrap();
    logs.write("0.log", &line(0, "own"));
    // The file, and the directory that it is in.
    let dir = logs.path("").parent().unwrap().to_owned();
    std::os::unix::fs::symlink(outside.path().join("c/0.log"), logs.path("link")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("c"), dir.with_file_name("c-link")).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let pairs = [(logs.path("0.log"), logs.path("link")), (dir.clone(), dir.with_file_name("c-link"))];
    let attacker = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            while !done.load(Ordering::Relaxed) {
                for (one, other) in &pairs {
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    let _ = rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, flags);
                }
            }
        }
    });
    let end = std::time::Instant::now() + Duration::from_millis(700);
    let (mut read, mut leaked) = (0, None);
    while std::time::Instant::now() < end && leaked.is_none() {
        let Ok(response) = logs.request("").await else { continue };
        let all = response.into_body().collect().await.unwrap().to_bytes();
        read += usize::from(&all[..] == b"own\n");
        leaked = (!all.is_empty() && &all[..] != b"own\n").then_some(all);
    }
    done.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    assert_eq!(leaked, None);
    assert!(read > 0);
}
