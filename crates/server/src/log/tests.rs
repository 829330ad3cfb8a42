//! Logs over real files, written as a runtime does and rotated as the agent does.

use std::fs;
use std::io::Write;

use http_body_util::BodyExt;
use podwright_core::model::{Pod, Source};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
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
    status(json!({"terminated": {"exitCode": 0}}), restarts, json!({}))
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
        let log = ContainerLog::new(paths, Arc::clone(&self.feed), view, LogOptions::parse(&mut params)?)?;
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        log.respond(permit, CancellationToken::new()).await
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
    let died = json!({"terminated": {"exitCode": 1}});
    logs.show(&status(json!({"running": {}}), 2, died.clone()));
    assert_eq!((logs.all("").await, logs.all("previous=true").await), ("now\n".into(), "before\n".into()));
    logs.show(&status(json!({"waiting": {"reason": "CrashLoopBackOff"}}), 2, died));
    assert_eq!((logs.all("").await, logs.all("previous=1").await), ("now\n".into(), "now\n".into()));
    logs.show(&status(json!({"waiting": {"reason": "ErrImagePull"}}), 0, json!({})));
    assert_eq!(logs.error("").await, "container \"c\" in pod \"web\" is waiting to start: ErrImagePull");
    assert!(logs.error("previous=true").await.contains("previous terminated container"));
    assert_eq!(logs.error("container=x").await, "container x is not valid for pod web");
    assert!(logs.error("container=i").await.contains("is waiting to start"));
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
