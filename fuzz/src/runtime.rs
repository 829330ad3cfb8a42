//! Messages of a container runtime that does not keep to the protocol: observed by the agent, handled by core, which asserts its
//! invariants.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use jiff::Timestamp;
use podwright_agent::host::{HostPaths, Pool};
use podwright_agent::observe::Observer;
use podwright_agent::perform::SharedFeatures;
use podwright_core::model::{CallError, Effect, Event, Now, Out, RuntimeReady, Source, SourceChange};
use podwright_core::{Node, NodeConfig, static_pod};
use podwright_cri::labels::Owner;
use podwright_cri::{CriError, CriFuture, RuntimeService, v1};
use serde_json::json;

/// Choices: which pods there are, what the runtime answers, how much time passes.
pub fn runtime(data: &[u8]) {
    // An input that ends early is a short run.
    let _ = run(&mut Unstructured::new(data));
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let runtime = Arc::new(FuzzRuntime::default());
    let (hints, _hinted) = tokio::sync::mpsc::channel(16);
    let pool = Pool::default();
    let paths = HostPaths {
        root_dir: "/nowhere".into(),
        pod_logs_dir: "/nowhere".into(),
        container_logs_dir: "/nowhere".into(),
        cgroup_root: "/".into(),
    };
    let limit = Duration::from_secs(1);
    let observer = Observer::new(runtime.clone(), SharedFeatures::default(), pool, paths, limit, hints);
    let mut node = Node::new(NodeConfig { sources: [Source::File].into(), ..NodeConfig::default() }, Vec::new());
    let mut now = Now { boot: Duration::from_secs(1000), wall: Timestamp::from_second(1_700_000_000).expect("a time") };
    let mut events = vec![Event::Wake, source(u, now)?];
    let mut uids = Vec::new();
    for _ in 0..24 {
        let mut out = Out::default();
        for event in events.drain(..) {
            node.handle(event, now, &mut out);
        }
        let advance = Duration::from_millis(u.int_in_range(0..=100_000)?);
        now = Now { boot: now.boot + advance, wall: now.wall + advance };
        for effect in out.effects {
            match effect {
                Effect::Observe { uid, seq } => {
                    *runtime.0.lock().expect("not poisoned") = Answers::choose(u, uid.as_str())?;
                    let (result, covered) = match crate::run(observer.observe(&uid)) {
                        Ok((seen, covered)) => (Ok(seen), covered),
                        Err(error) => (Err(error), false),
                    };
                    uids.push(uid.clone());
                    events.push(Event::Observed { uid, seq, result, covered });
                }
                Effect::List { seq } => events.push(Event::Listed { seq, result: crate::run(observer.list()) }),
                Effect::CheckRuntime => events.push(Event::Runtime { result: ready(u)? }),
                Effect::Call { id, .. } if u.ratio(3, 4)? => events.push(Event::Done { id, result: Err(failure(u)?) }),
                Effect::FindLeftovers { seq } => events.push(Event::Leftovers { seq, found: Ok(Default::default()) }),
                _ => {}
            }
        }
        match u.int_in_range(0..=9)? {
            0 => events.push(source(u, now)?),
            1 if !uids.is_empty() => {
                let uid = u.choose(&uids)?.clone();
                events.push(Event::Kill { uid, grace: None, evicted: None });
            }
            2 if !uids.is_empty() => events.push(Event::Hint { uid: u.choose(&uids)?.clone() }),
            3 if !uids.is_empty() => events.push(Event::Restart { uid: u.choose(&uids)?.clone(), container: None }),
            _ => events.push(Event::Wake),
        }
    }
    Ok(())
}

fn source(u: &mut Unstructured<'_>, now: Now) -> Result<Event> {
    let mut pods = Vec::new();
    for n in 0..u.int_in_range(0..=2)? {
        let policy = *u.choose(&["Always", "OnFailure", "Never"])?;
        let probe = u.ratio(1, 3)?.then(|| json!({"exec": {"command": ["true"]}, "periodSeconds": 1}));
        let init = u.ratio(1, 3)?.then(|| json!([{"name": "init", "image": "i"}]));
        let container = json!({"name": "main", "image": "i", "livenessProbe": probe});
        let grace = u.int_in_range(0..=40)?;
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p{n}")},
            "spec": {"restartPolicy": policy, "terminationGracePeriodSeconds": grace, "initContainers": init, "containers": [container]}});
        let read = static_pod::from_value(pod, Source::File, "/m.yaml", "node", now.wall);
        pods.extend(read.expect("a valid manifest"));
    }
    Ok(Event::Source { source: Source::File, change: SourceChange::Set { pods, broken: Vec::new() } })
}

fn ready(u: &mut Unstructured<'_>) -> Result<std::result::Result<RuntimeReady, CallError>> {
    if u.ratio(1, 5)? {
        return Ok(Err(failure(u)?));
    }
    Ok(Ok(RuntimeReady { name: "fuzz".into(), network: true, ..RuntimeReady::default() }))
}

fn failure(u: &mut Unstructured<'_>) -> Result<CallError> {
    let message = "fuzz".to_owned();
    Ok(match u.int_in_range(0..=4)? {
        0 => CallError::Failed { reason: None, message },
        1 => CallError::InDoubt { reason: None, message },
        2 => CallError::ConnectionLost { message },
        3 => CallError::Unavailable { message },
        _ => CallError::Busy { message },
    })
}

/// What the runtime answers next.
#[derive(Default)]
struct Answers {
    sandboxes: Vec<v1::PodSandbox>,
    containers: Vec<v1::Container>,
    sandbox_status: Option<v1::PodSandboxStatusResponse>,
    container_status: BTreeMap<String, v1::ContainerStatusResponse>,
}

impl Answers {
    fn choose(u: &mut Unstructured<'_>, uid: &str) -> Result<Self> {
        let mut answers = Self::default();
        let ids = ["", "a", "b", "c"];
        for _ in 0..u.int_in_range(0..=2)? {
            let (id, attempt) = (*u.choose(&ids)?, u.int_in_range(0..=3)?);
            let labels = Owner { name: "p0", namespace: "default", uid, container: None }.to_labels();
            let metadata = v1::PodSandboxMetadata { name: "p0".into(), uid: uid.into(), attempt, ..Default::default() };
            let metadata = (!u.ratio(1, 20)?).then_some(metadata);
            let (state, created_at) = (u.int_in_range(-1..=2)?, time(u)?);
            answers.sandboxes.push(v1::PodSandbox { id: id.into(), metadata, state, created_at, labels, ..Default::default() });
        }
        let ips = (0..u.int_in_range(0..=2)?).map(|_| Ok(v1::PodIp { ip: (*u.choose(&["", "10.0.0.1", "::1", "x"])?).into() }));
        let network = v1::PodSandboxNetworkStatus { ip: "10.0.0.2".into(), additional_ips: ips.collect::<Result<_>>()? };
        let status = v1::PodSandboxStatus {
            id: (*u.choose(&ids)?).into(),
            state: u.int_in_range(-1..=2)?,
            network: u.ratio(3, 4)?.then_some(network),
            ..Default::default()
        };
        answers.sandbox_status = u.ratio(7, 8)?.then(|| v1::PodSandboxStatusResponse { status: Some(status), ..Default::default() });
        for _ in 0..u.int_in_range(0..=4)? {
            answers.add_container(u, uid, &ids)?;
        }
        Ok(answers)
    }

    fn add_container(&mut self, u: &mut Unstructured<'_>, uid: &str, ids: &[&str]) -> Result<()> {
        let (id, name) = (*u.choose(&["k", "l", "m", "n", ""])?, *u.choose(&["main", "init", "other", ""])?);
        let labels = Owner { name: "p0", namespace: "default", uid, container: Some(name) }.to_labels();
        let counts = ["0", "1", "7", "-1", "x", "4294967295"];
        let annotation = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let annotations = BTreeMap::from([
            annotation(podwright_cri::labels::RESTART_COUNT, u.choose(&counts)?),
            annotation(podwright_cri::labels::CONTAINER_HASH, u.choose(&["", "0", "abc"])?),
        ]);
        let metadata = v1::ContainerMetadata { name: name.into(), attempt: u.arbitrary()? };
        let state = u.int_in_range(-1..=4)?;
        self.containers.push(v1::Container {
            id: id.into(),
            pod_sandbox_id: (*u.choose(ids)?).into(),
            metadata: Some(metadata.clone()),
            state,
            created_at: time(u)?,
            labels: labels.clone(),
            annotations: annotations.clone(),
            ..Default::default()
        });
        let status = v1::ContainerStatus {
            id: id.into(),
            metadata: Some(metadata),
            state: if u.ratio(3, 4)? { state } else { u.int_in_range(-1..=4)? },
            created_at: time(u)?,
            started_at: time(u)?,
            finished_at: time(u)?,
            exit_code: *u.choose(&[0, 1, 128, 137, 143, -1, i32::MIN, i32::MAX])?,
            reason: (*u.choose(&["", "Completed", "Error", "OOMKilled"])?).into(),
            labels,
            annotations,
            ..Default::default()
        };
        let response = v1::ContainerStatusResponse { status: u.ratio(15, 16)?.then_some(status), ..Default::default() };
        if u.ratio(7, 8)? {
            self.container_status.insert(id.into(), response);
        }
        Ok(())
    }
}

/// Often a sensible time, sometimes any number.
fn time(u: &mut Unstructured<'_>) -> Result<i64> {
    match u.ratio(1, 6)? {
        true => u.arbitrary(),
        false => Ok(1_700_000_000_000_000_000 + i64::from(u.int_in_range(-5..=500)?) * 1_000_000_000),
    }
}

#[derive(Default)]
struct FuzzRuntime(Mutex<Answers>);

fn answer<T: Send + 'static>(value: Option<T>) -> CriFuture<'static, T> {
    Box::pin(async move { value.ok_or_else(|| CriError::unimplemented("fuzz")) })
}

impl RuntimeService for FuzzRuntime {
    fn version(&self, _: Duration) -> CriFuture<'_, v1::VersionResponse> {
        answer(None)
    }
    fn status(&self, _: bool, _: Duration) -> CriFuture<'_, v1::StatusResponse> {
        answer(None)
    }
    fn run_pod_sandbox(&self, _: v1::RunPodSandboxRequest, _: Duration) -> CriFuture<'_, String> {
        answer(None)
    }
    fn stop_pod_sandbox(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        answer(None)
    }
    fn remove_pod_sandbox(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        answer(None)
    }
    fn pod_sandbox_status(&self, _: &str, _: bool, _: Duration) -> CriFuture<'_, v1::PodSandboxStatusResponse> {
        answer(self.0.lock().expect("not poisoned").sandbox_status.clone())
    }
    fn list_pod_sandbox(&self, _: Option<v1::PodSandboxFilter>, _: Duration) -> CriFuture<'_, Vec<v1::PodSandbox>> {
        answer(Some(self.0.lock().expect("not poisoned").sandboxes.clone()))
    }
    fn create_container(&self, _: v1::CreateContainerRequest, _: Duration) -> CriFuture<'_, String> {
        answer(None)
    }
    fn start_container(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        answer(None)
    }
    fn stop_container(&self, _: &str, _: u32, _: Duration) -> CriFuture<'_, ()> {
        answer(None)
    }
    fn remove_container(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        answer(None)
    }
    fn list_containers(&self, _: Option<v1::ContainerFilter>, _: Duration) -> CriFuture<'_, Vec<v1::Container>> {
        answer(Some(self.0.lock().expect("not poisoned").containers.clone()))
    }
    fn container_status(&self, id: &str, _: bool, _: Duration) -> CriFuture<'_, v1::ContainerStatusResponse> {
        answer(self.0.lock().expect("not poisoned").container_status.get(id).cloned())
    }
    fn reopen_container_log(&self, _: &str, _: Duration) -> CriFuture<'_, ()> {
        answer(None)
    }
    fn exec_sync(&self, _: v1::ExecSyncRequest, _: Duration) -> CriFuture<'_, v1::ExecSyncResponse> {
        answer(None)
    }
}
