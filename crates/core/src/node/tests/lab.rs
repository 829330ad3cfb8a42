//! A node whose executors and sources are played by a test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use crate::NodeConfig;
use crate::model::*;
use crate::node::Node;
use crate::pod::{PodFacts, State};

/// A node, and the effects that the test has not answered yet.
pub(super) struct Lab {
    pub(super) node: Node,
    pub(super) now: Time,
    pub(super) calls: Vec<(CallId, PodUid, Call)>,
    pub(super) observations: Vec<(PodUid, Seq)>,
    pub(super) requests: Vec<(RequestId, ObjectRequest)>,
    pub(super) events: Vec<KubeEvent>,
    /// Shutdowns that the host may continue.
    pub(super) allowed: Vec<u64>,
    /// The pods that cgroups were requested for.
    pub(super) made: Vec<Arc<Pod>>,
    /// Effects of eviction.
    pub(super) evictions: Vec<Effect>,
    pub(super) records: BTreeMap<PodUid, PodRecord>,
}

pub(super) fn wall(boot: Time) -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap() + boot
}

impl Lab {
    /// A node whose runtime is up and has these pods.
    pub(super) fn new(listing: Listing) -> Self {
        let mut lab = Self::bare(vec![]);
        lab.bring_up(listing);
        lab
    }

    pub(super) fn bare(records: Vec<PodRecord>) -> Self {
        Self::with(NodeConfig::default(), records)
    }

    pub(super) fn with(config: NodeConfig, records: Vec<PodRecord>) -> Self {
        let node = Node::new(NodeConfig { boot_id: "boot".into(), ..config }, records);
        let records = BTreeMap::new();
        let now = Duration::from_secs(100);
        let (calls, observations, requests, events) = (vec![], vec![], vec![], vec![]);
        Self {
            node,
            now,
            calls,
            observations,
            requests,
            events,
            allowed: vec![],
            made: vec![],
            evictions: vec![],
            records,
        }
    }

    pub(super) fn bring_up(&mut self, listing: Listing) {
        self.handle(Event::Wake);
        self.handle(Event::Runtime { result: Ok(RuntimeReady { network: true, ..RuntimeReady::default() }) });
        self.handle(Event::Listed { seq: self.node.pods.sequences.seq, result: Ok(listing) });
    }

    /// Handles one event and returns the new calls.
    pub(super) fn handle(&mut self, event: Event) -> Vec<Call> {
        let mut out = Out::default();
        self.node.handle(event, Now { boot: self.now, wall: wall(self.now) }, &mut out);
        for record in out.records {
            match record {
                Record::Put(put) => self.records.insert(put.uid.clone(), *put),
                Record::Forget(uid) => self.records.remove(&uid),
            };
        }
        let mut new = vec![];
        for effect in out.effects {
            match effect {
                Effect::Call { id, uid, call, pod, .. } => {
                    if call == Call::Host(HostCall::MakeCgroup) {
                        self.made.push(pod);
                    }
                    new.push(call.clone());
                    self.calls.push((id, uid, call));
                }
                Effect::Observe { uid, seq } => self.observations.push((uid, seq)),
                Effect::RequestObject { id, request, .. } => self.requests.push((id, request)),
                Effect::Event(event) => self.events.push(event),
                Effect::AllowShutdown { request } => self.allowed.push(request),
                Effect::ReadNode { .. } | Effect::RemoveUnusedImages { .. } | Effect::Evicted { .. } => {
                    self.evictions.push(effect);
                }
                _ => {}
            }
        }
        new
    }

    pub(super) fn set(&mut self, pods: &[&Manifest]) -> Vec<Call> {
        let pods = pods.iter().map(|m| (*m).clone()).collect();
        self.handle(Event::Source { source: Source::File, change: SourceChange::Set { pods, broken: vec![] } })
    }

    pub(super) fn answer(&mut self, test: impl Fn(&Call) -> bool, result: Result<Answer, CallError>) -> Vec<Call> {
        let at = self.calls.iter().position(|(_, _, c)| test(c)).expect("such a call is in flight");
        let (id, ..) = self.calls.remove(at);
        self.handle(Event::Done { id, result })
    }

    pub(super) fn ok(&mut self, test: impl Fn(&Call) -> bool) -> Vec<Call> {
        self.answer(test, Ok(Answer::Done))
    }

    /// Answers the oldest request for an observation.
    pub(super) fn observe(&mut self, seen: &PodSeen) -> Vec<Call> {
        let (uid, seq) = self.observations.remove(0);
        self.handle(Event::Observed { uid, seq, result: Ok(seen.clone()), covered: true })
    }

    pub(super) fn host_is_ready(&mut self) -> Vec<Call> {
        self.ok(|c| *c == Call::Host(HostCall::MakeCgroup));
        self.ok(|c| *c == Call::Host(HostCall::MakeDirs))
    }

    pub(super) fn state(&self, uid: &str) -> Option<State> {
        self.node.workers().get(&PodUid::from(uid)).map(PodFacts::state)
    }
}

pub(super) fn pod(name: &str, uid: &str) -> Manifest {
    let value = json!({"metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
                 "containers": [{"name": "c", "image": "img", "imagePullPolicy": "IfNotPresent"}]}});
    Manifest { pod: Arc::new(serde_json::from_value(value).unwrap()), origin: format!("{name}.yaml") }
}

pub(super) fn sandbox(ready: bool) -> SandboxSeen {
    SandboxSeen {
        id: "sb".into(),
        attempt: 0,
        ready,
        created_at: wall(Duration::from_secs(100)),
        ips: vec!["10.0.0.2".into()],
    }
}

pub(super) fn seen(state: Option<RunState>) -> PodSeen {
    let containers = state.map(|state| ContainerSeen {
        id: "id".into(),
        sandbox: "sb".into(),
        name: "c".into(),
        attempt: 0,
        hash: None,
        state,
        created_at: wall(Duration::from_secs(100)),
        started_at: Some(wall(Duration::from_secs(100))),
        finished_at: (state == RunState::Exited).then(|| wall(Duration::from_secs(101))),
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: "img".into(),
        image_id: "sha".into(),
        grace: None,
        pre_stop: None,
        user: None,
    });
    PodSeen { sandboxes: vec![sandbox(true)], containers: containers.into_iter().collect() }
}

pub(super) fn listing(uid: &str, name: &str) -> Listing {
    let listed = PodListed {
        full_name: FullName { namespace: "default".into(), name: name.into() },
        source: Some(Source::File),
        sandboxes: BTreeMap::from([("sb".into(), true)]),
        containers: BTreeMap::from([("id".into(), ("c".into(), RunState::Running))]),
        container_hashes: BTreeSet::new(),
        manifest_hash: None,
    };
    Listing { pods: BTreeMap::from([(uid.into(), listed)]) }
}

/// A lab in which the pod's container was created as given, and its start was sent.
pub(super) fn starting(made: &PodSeen) -> Lab {
    starting_of(&pod("a", "1"), made)
}

/// The same, of this pod.
pub(super) fn starting_of(manifest: &Manifest, made: &PodSeen) -> Lab {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[manifest]);
    lab.host_is_ready();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    lab.observe(&seen(None));
    lab.answer(
        |c| matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. })),
        Ok(Answer::Image(Some(ImageFacts { id: "sha".into(), ..ImageFacts::default() }))),
    );
    lab.ok(|c| matches!(c, Call::Host(HostCall::PrepareContainer { .. })));
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::CreateContainer { .. })), Ok(Answer::Container("id".into())));
    lab.observe(made);
    lab
}

/// A lab in which the pod runs.
pub(super) fn running() -> Lab {
    let mut lab = starting(&seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    lab.observe(&seen(Some(RunState::Running)));
    lab
}

fn limits_in_short(of: &str, cpu_shares: Option<u64>, cpu_quota_us: Option<i64>, memory: Option<i64>) -> String {
    let shares = cpu_shares.map(|n| format!(" shares {n}"));
    let quota = cpu_quota_us.map(|n| format!(" quota {n}"));
    let memory = memory.map(|n| format!(" memory {}Mi", n >> 20));
    [Some(of.to_owned()), shares, quota, memory].into_iter().flatten().collect()
}

/// `c cpu 1/2 memory 1Gi/2Gi`: requests and limits of a container; `pod memory 1`: limits of the pod's cgroup; `sandbox memory 1`: those that
/// the runtime is told.
pub(super) fn resize_in_short(call: &Call) -> Option<String> {
    match call {
        Call::Runtime(RuntimeCall::UpdateContainer { name, resources, .. }) => {
            let of = |list: &Option<BTreeMap<String, _>>, resource: &str| {
                let quantity: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity> =
                    list.as_ref().and_then(|list| list.get(resource));
                quantity.map_or("-", |quantity| quantity.0.as_str()).to_owned()
            };
            let both = |resource| {
                format!("{resource} {}/{}", of(&resources.requests, resource), of(&resources.limits, resource))
            };
            Some(format!("{name} {} {}", both("cpu"), both("memory")))
        }
        Call::Host(HostCall::ResizeCgroup { cpu_shares, cpu_quota_us, memory }) => {
            Some(limits_in_short("pod", *cpu_shares, *cpu_quota_us, *memory))
        }
        Call::Runtime(RuntimeCall::UpdateSandbox { cpu_shares, cpu_quota_us, memory, .. }) => {
            Some(limits_in_short("sandbox", Some(*cpu_shares), *cpu_quota_us, *memory))
        }
        _ => None,
    }
}
