//! A node in the hands of a test, which plays everything around it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use crate::NodeConfig;
use crate::model::*;
use crate::node::Node;
use crate::pod::{PodFacts, State};

/// A node and the few things a test answers for.
pub(super) struct Lab {
    pub(super) node: Node,
    pub(super) now: Time,
    pub(super) calls: Vec<(CallId, PodUid, Call)>,
    pub(super) looks: Vec<(PodUid, Seq)>,
    pub(super) asks: Vec<(RequestId, ObjectRequest)>,
    pub(super) events: Vec<KubeEvent>,
    pub(super) records: BTreeMap<PodUid, PodRecord>,
    pub(super) released: Vec<u64>,
}

pub(super) fn wall(boot: Time) -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap() + boot
}

impl Lab {
    /// A node whose runtime is up and has this.
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
        Self { node, now, calls: vec![], looks: vec![], asks: vec![], events: vec![], records, released: vec![] }
    }

    pub(super) fn bring_up(&mut self, listing: Listing) {
        self.tell(Event::Wake);
        self.tell(Event::Runtime { result: Ok(RuntimeReady { network: true, ..RuntimeReady::default() }) });
        self.tell(Event::Listed { seq: self.node.pods.sequences.seq, result: Ok(listing) });
    }

    /// Tell the node, and return the new calls.
    pub(super) fn tell(&mut self, event: Event) -> Vec<Call> {
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
                Effect::Call { id, uid, call, .. } => {
                    new.push(call.clone());
                    self.calls.push((id, uid, call));
                }
                Effect::Observe { uid, seq } => self.looks.push((uid, seq)),
                Effect::RequestObject { id, request, .. } => self.asks.push((id, request)),
                Effect::Event(event) => self.events.push(event),
                Effect::Released { waiter } => self.released.push(waiter),
                _ => {}
            }
        }
        new
    }

    pub(super) fn set(&mut self, pods: &[&Manifest]) -> Vec<Call> {
        let pods = pods.iter().map(|m| (*m).clone()).collect();
        self.tell(Event::Source { source: Source::File, change: SourceChange::Set { pods, broken: vec![] } })
    }

    pub(super) fn answer(&mut self, test: impl Fn(&Call) -> bool, result: Result<Answer, CallError>) -> Vec<Call> {
        let at = self.calls.iter().position(|(_, _, c)| test(c)).expect("such a call is under way");
        let (id, ..) = self.calls.remove(at);
        self.tell(Event::Done { id, result })
    }

    pub(super) fn ok(&mut self, test: impl Fn(&Call) -> bool) -> Vec<Call> {
        self.answer(test, Ok(Answer::Done))
    }

    /// Answer the newest look at the first pod that waits for one.
    pub(super) fn see(&mut self, seen: &PodSeen) -> Vec<Call> {
        let (uid, seq) = self.looks.remove(0);
        self.tell(Event::Observed { uid, seq, result: Ok(seen.clone()), covered: true })
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
    };
    Listing { pods: BTreeMap::from([(uid.into(), listed)]) }
}

/// A lab in which the pod's container was made as shown, and is being started.
pub(super) fn starting(made: &PodSeen) -> Lab {
    starting_of(&pod("a", "1"), made)
}

/// The same, of this pod.
pub(super) fn starting_of(manifest: &Manifest, made: &PodSeen) -> Lab {
    let mut lab = Lab::new(Listing::default());
    lab.set(&[manifest]);
    lab.host_is_ready();
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::RunSandbox { .. })), Ok(Answer::Sandbox("sb".into())));
    lab.see(&seen(None));
    lab.answer(
        |c| matches!(c, Call::Runtime(RuntimeCall::ImageStatus { .. })),
        Ok(Answer::Image(Some(ImageFacts { id: "sha".into(), ..ImageFacts::default() }))),
    );
    lab.ok(|c| matches!(c, Call::Host(HostCall::PrepareContainer { .. })));
    lab.answer(|c| matches!(c, Call::Runtime(RuntimeCall::CreateContainer { .. })), Ok(Answer::Container("id".into())));
    lab.see(made);
    lab
}

/// A lab in which the pod runs.
pub(super) fn running() -> Lab {
    let mut lab = starting(&seen(Some(RunState::Created)));
    lab.ok(|c| matches!(c, Call::Runtime(RuntimeCall::StartContainer { .. })));
    lab.see(&seen(Some(RunState::Running)));
    lab
}
