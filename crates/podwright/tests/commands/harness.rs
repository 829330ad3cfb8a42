//! A local API in this process, and the built binary as its client.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use podwright_agent::event_loop::{CorrelatedEvent, Explanation};
use podwright_agent::feed::PodFeed;
use podwright_agent::host::{HostPaths, Pool};
use podwright_agent::local::{LocalObjectStore, Store};
use podwright_agent::object_store::PodObjectStore;
use podwright_agent::stats::{CpuAndMemory, PodResourceUsage, ResourceUsage, SampleError};
use podwright_core::model::{Event, FullName, ObjectRef, ObjectRequest, Pod, Source, SourceChange, full_name};
use podwright_cri::BoxFuture;
use podwright_server::local::{
    AgentApi, ImageErrorKind, ImageRequestError, LocalApi, LocalSocket, NodeCapacity, TableCells, UsageSource,
};
use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use crate::host_processes::HostRuntime;

/// A command must end within this time.
const LIMIT: Duration = Duration::from_secs(60);

/// Exit code and output of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The event loop: it performs the stop of a pod at once, unless its label `app` is `hangs`, and records what it was asked to do.
#[derive(Default)]
struct RecordingAgent {
    requests: Mutex<Vec<String>>,
    feed: Arc<PodFeed>,
    kube_events: Mutex<Option<broadcast::Sender<CorrelatedEvent>>>,
    runtime_pending: AtomicBool,
}

impl AgentApi for RecordingAgent {
    fn broken_manifests(&self) -> BoxFuture<'_, Option<Vec<(String, String)>>> {
        Box::pin(async { Some(vec![]) })
    }

    fn runtime_up(&self) -> BoxFuture<'_, Option<bool>> {
        Box::pin(async { Some(false) })
    }

    fn runtime_pending(&self) -> BoxFuture<'_, Option<bool>> {
        let pending = self.runtime_pending.load(Ordering::Relaxed);
        Box::pin(std::future::ready(Some(pending)))
    }

    fn explain(&self, pod: String) -> BoxFuture<'_, Option<Vec<Explanation>>> {
        let (namespace, name) = pod.split_once('/').unwrap_or(("default", &pod));
        let view = self.feed.by_name(namespace, name).or_else(|| self.feed.by_name(namespace, &format!("{name}-node")));
        let explanation = view.map(|view| Explanation {
            full_name: FullName { namespace: view.namespace().into(), name: view.name().into() },
            uid: view.uid(),
            state: None,
            pod: None,
            origin: None,
            history: vec![],
            forgotten: 0,
            waits: vec![],
            runtime_up: true,
            runtime_pending: false,
        });
        Box::pin(async move { Some(explanation.into_iter().collect()) })
    }

    fn events(&self) -> Vec<CorrelatedEvent> {
        vec![]
    }

    fn follow_events(&self) -> broadcast::Receiver<CorrelatedEvent> {
        let mut sender = self.kube_events.lock().expect("not poisoned");
        sender.get_or_insert_with(|| broadcast::Sender::new(4)).subscribe()
    }

    fn send(&self, event: Event) -> BoxFuture<'_, ()> {
        let (verb, uid) = match &event {
            Event::Kill { uid, .. } => ("stop", uid.clone()),
            Event::Restart { uid, .. } => ("restart", uid.clone()),
            other => panic!("an unexpected request: {other:?}"),
        };
        let view = self.feed.get(&uid).expect("a request is about a pod that exists");
        let full_name = format!("{verb} {}/{}", view.namespace(), view.name());
        self.requests.lock().expect("not poisoned").push(full_name);
        let hangs = view.metadata().labels.is_some_and(|labels| labels.get("app").is_some_and(|app| app == "hangs"));
        if verb == "stop" && !hangs {
            let mut stopped = view.pod();
            stopped.status = serde_json::from_value(json!({"phase": "Failed"})).expect("a status");
            self.feed.put_object(Arc::new(stopped), view.source, view.origin.clone());
        }
        Box::pin(async {})
    }
}

/// Every pod in the phase Running has a container c, and a container d that uses 1 MiB for each letter of the pod's name.
struct FixedUsage(Arc<PodFeed>);

impl UsageSource for FixedUsage {
    fn usage(&self) -> BoxFuture<'_, Result<ResourceUsage, SampleError>> {
        let used = |cpu_nano_cores, memory| CpuAndMemory { cpu_nano_cores, memory };
        let running = self
            .0
            .list()
            .1
            .into_iter()
            .filter(|view| view.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running")));
        let pods = running.map(|view| PodResourceUsage {
            namespace: view.namespace().into(),
            name: view.name().into(),
            containers: vec![
                ("c".into(), used(250_000_000, 10 << 20)),
                ("d".into(), used(1, (view.name().len() as u64) << 20)),
            ],
        });
        let (node, at) = (Some(used(500_000_000, 1 << 30)), jiff::Timestamp::UNIX_EPOCH);
        let usage = ResourceUsage { at, window: Duration::from_secs(1), node, pods: pods.collect() };
        Box::pin(async { Ok(usage) })
    }
}

/// A served API with pods that a test publishes.
pub(crate) struct Api {
    dir: tempfile::TempDir,
    agent: Arc<RecordingAgent>,
    feed: Arc<PodFeed>,
    stop: CancellationToken,
    runtime: tokio::runtime::Runtime,
}

impl Api {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let feed = Arc::new(PodFeed::default());
        let agent = Arc::new(RecordingAgent { feed: Arc::clone(&feed), ..RecordingAgent::default() });
        let api = Self { dir, agent, feed, stop: CancellationToken::new(), runtime };
        api.serve();
        api
    }

    /// Ends the agent, and starts it again with the same pods.
    pub(crate) fn restart(&mut self) {
        self.end();
        self.stop = CancellationToken::new();
        self.serve();
    }

    fn serve(&self) {
        let paths = HostPaths {
            root_dir: self.dir.path().into(),
            pod_logs_dir: self.dir.path().join("logs"),
            container_logs_dir: self.dir.path().into(),
            cgroup_root: "/".into(),
        };
        let (sender, changes) = mpsc::channel(1000);
        let _guard = self.runtime.enter();
        let until = std::time::Instant::now() + LIMIT;
        // The lock of an agent that ended is released after its socket was removed.
        let socket = loop {
            match LocalSocket::open(&self.run_dir()) {
                Err(_) if std::time::Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                socket => break socket.expect("a socket"),
            }
        };
        let (pool, feed) = (podwright_tasks::Pool::default(), Arc::clone(&self.feed));
        let store = Store::open(self.dir.path(), "node", &[], feed, sender, pool).expect("a store");
        let api = LocalApi {
            node: "node".into(),
            paths,
            pool: Pool::default(),
            feed: Arc::clone(&self.feed),
            store: Arc::clone(&store),
            runtime: Arc::new(self.runtime.block_on(HostRuntime::start(Arc::clone(&self.feed)))),
            images: Err(ImageRequestError::new(ImageErrorKind::Elsewhere, "the images are kept elsewhere")),
            usage: Arc::new(FixedUsage(Arc::clone(&self.feed))),
            capacity: NodeCapacity { cpu_millis: 2000, memory: 4 << 30 },
            allocatable: NodeCapacity { cpu_millis: 2000, memory: 4 << 30 },
            agent: Arc::<RecordingAgent>::clone(&self.agent),
            cells: TableCells { pod: |_, _| ["", "", "", "", "", ""].map(str::to_owned), age: |_, _| String::new() },
            format_explanation: |pods, _, _, _, _| {
                format!("Pod {} does not terminate: the test wants it so\n", pods[0].full_name)
            },
        };
        self.runtime.spawn(socket.serve(api, self.stop.clone()));
        self.runtime.spawn(finish_deletions(changes, store));
    }

    /// The run directory that the commands use.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Ends the agent: its socket is removed.
    pub(crate) fn end(&self) {
        self.stop.cancel();
        let socket = self.run_dir().join("api.sock");
        let until = std::time::Instant::now() + LIMIT;
        while socket.exists() {
            assert!(std::time::Instant::now() < until, "the socket is left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs a command that needs no input.
    pub(crate) fn run(&self, line: &str) -> Outcome {
        self.run_with(line, &[])
    }

    /// `line` is split at spaces; `more` are arguments that contain spaces or paths.
    pub(crate) fn run_with(&self, line: &str, more: &[&str]) -> Outcome {
        let output = self.command(line).args(more).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Outcome { code: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// Runs a command during whose first request the agent ends; then it is started again. `until`: the command runs until it is
    /// interrupted, when its output has this text.
    pub(crate) fn run_during_restart(&mut self, line: &str, until: Option<&str>) -> Outcome {
        self.end();
        let socket = self.run_dir().join("api.sock");
        let dying = UnixListener::bind(&socket).expect("bound");
        let mut child = self.command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        let mut connection = dying.accept().expect("a connection").0;
        let _ = connection.read(&mut [0; 64]);
        std::fs::remove_file(&socket).expect("removed");
        drop((connection, dying));
        self.stop = CancellationToken::new();
        self.serve();
        let mut stdout = String::new();
        if let Some(until) = until {
            let mut lines = BufReader::new(child.stdout.take().expect("piped"));
            while !stdout.contains(until) {
                assert_ne!(lines.read_line(&mut stdout).expect("read"), 0, "no {until:?} in {stdout:?}");
            }
            child.kill().expect("killed");
        }
        let output = child.wait_with_output().expect("it ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        stdout.push_str(&text(&output.stdout));
        Outcome { code: output.status.code().unwrap_or(-1), stdout, stderr: text(&output.stderr) }
    }

    /// A command without input, to be run by the caller.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_podwright"));
        command.args(line.split_whitespace()).env("PODWRIGHT_RUN_DIR", self.run_dir()).stdin(Stdio::null());
        command
    }

    /// Writes a file, and returns its path.
    pub(crate) fn write(&self, name: &str, content: &str) -> String {
        let file = self.dir.path().join(name);
        std::fs::create_dir_all(file.parent().expect("a parent")).expect("created");
        std::fs::write(&file, content).expect("written");
        file.display().to_string()
    }

    /// Creates a pod with `apply`.
    pub(crate) fn apply(&self, namespace: &str, name: &str) {
        let object = json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}});
        let file = self.write(&format!("{namespace}-{name}.json"), &object.to_string());
        let outcome = self.run_with("apply -f", &[&file]);
        assert_eq!(outcome.code, 0, "{outcome:?}");
    }

    /// Publishes a static pod with one container, as the event loop does.
    pub(crate) fn publish_static(&self, namespace: &str, name: &str, status: &Value) {
        self.publish(namespace, name, &json!([{"name": "c", "image": "busybox:1"}]), status);
    }

    /// Publishes a static pod with these containers; its UID is `uid-NAMESPACE-NAME`.
    pub(crate) fn publish(&self, namespace: &str, name: &str, containers: &Value, status: &Value) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": format!("{name}-node"), "uid": format!("uid-{namespace}-{name}"),
                "labels": {"app": name}, "annotations": {"kubernetes.io/config.source": "file"}},
            "spec": {"nodeName": "node", "containers": containers}, "status": status,
        }))
        .expect("a pod");
        self.feed.put_object(Arc::new(pod), Source::File, Some(format!("/m/{name}.yaml").into()));
    }

    /// Removes a published pod.
    pub(crate) fn remove(&self, namespace: &str, name: &str) {
        self.feed.remove_object(&format!("uid-{namespace}-{name}").as_str().into());
    }

    /// Appends lines to the log of the first attempt of a container of a published pod; line n is written n seconds after
    /// 2024-01-01T00:00:00Z.
    pub(crate) fn write_log(&self, namespace: &str, name: &str, container: &str, first: usize, lines: &[&str]) {
        let dir = format!("logs/{namespace}_{name}-node_uid-{namespace}-{name}/{container}");
        let dir = self.dir.path().join(dir);
        std::fs::create_dir_all(&dir).expect("created");
        let mut log = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("0.log")).expect("opened");
        for (n, line) in (first..).zip(lines) {
            writeln!(log, "2024-01-01T00:00:{n:02}Z stdout F {line}").expect("written");
        }
    }

    /// `namespace/name` of all pods that exist and have not ended.
    pub(crate) fn living(&self) -> Vec<String> {
        let views = self.feed.list().1;
        let living = views.iter().filter(|view| !view.has_ended() && view.metadata().deletion_timestamp.is_none());
        let mut names: Vec<String> = living.map(|view| format!("{}/{}", view.namespace(), view.name())).collect();
        names.sort();
        names
    }

    /// The agent was just started, and has not queried the runtime yet.
    pub(crate) fn set_runtime_pending(&self) {
        self.agent.runtime_pending.store(true, Ordering::Relaxed);
    }

    /// The requests to the event loop since the last call, sorted.
    pub(crate) fn requests(&self) -> Vec<String> {
        let mut requests = std::mem::take(&mut *self.agent.requests.lock().expect("not poisoned"));
        requests.sort();
        requests
    }
}

/// A pod whose deletion does not end.
pub(crate) const UNDELETABLE: &str = "undeletable";

/// Deletes an object as soon as its deletion was requested: no container has to be stopped. [`UNDELETABLE`] stays.
async fn finish_deletions(mut changes: mpsc::Receiver<(Source, SourceChange)>, store: Arc<Store>) {
    while let Some((_, change)) = changes.recv().await {
        let SourceChange::Put(manifest) = change else { continue };
        let meta = &manifest.pod.metadata;
        if meta.deletion_timestamp.is_some() && meta.name.as_deref() != Some(UNDELETABLE) {
            let uid = meta.uid.as_deref().unwrap_or_default().into();
            let object = ObjectRef { full_name: full_name(&manifest.pod), uid };
            LocalObjectStore(Arc::clone(&store)).request(ObjectRequest::Delete { object }).await.expect("deleted");
        }
    }
}
