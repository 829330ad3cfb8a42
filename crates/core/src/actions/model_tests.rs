//! Compares the plan with a reference model: random pods get random exits, probe results, sandbox deaths and removals of dead
//! containers. The model follows each event; the plan sees only the resulting state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Probe;

use super::*;
use crate::model::{ContainerSeen, RunState, Source};

const CASES: u64 = 25_000;
const STEPS: u64 = 24;

#[test]
fn init_containers_and_sidecars_follow_the_reference_model() {
    let mut plans = 0;
    for seed in 0..CASES {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
        let mut world = World::new(&mut random);
        for step in 0..STEPS {
            let plan = world.plan();
            let planned = NextAction::from(&plan);
            let truth = world.truth.next_action();
            assert_eq!(planned, truth, "seed {seed} step {step}: {:#?}\n{:#?}", world.truth, world.seen);
            plans += 1;
            if truth.over {
                break;
            }
            // One event at a time, each followed by an observation: a sidecar that was up briefly is known only if it was observed.
            match truth != NextAction::default() && random.below(4) > 0 {
                true => world.perform(&plan),
                false => world.happen(&mut random),
            }
        }
    }
    assert!(plans > CASES * 5, "the pods finished too early: only {plans} plans were compared");
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % n as u64).expect("small")
    }
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// The next action, in a form that both sides share.
#[derive(Debug, PartialEq, Default)]
struct NextAction {
    over: bool,
    sandbox: bool,
    start: BTreeSet<String>,
}

impl From<&Actions> for NextAction {
    fn from(plan: &Actions) -> Self {
        let start = plan.start.iter().map(|s| s.name.to_string()).collect();
        Self { over: plan.kill_pod, sandbox: plan.create_sandbox.is_some(), start }
    }
}

/// The reference model: counters that change with each event, not with each observation.
#[derive(Debug)]
struct Truth {
    policy: &'static str,
    inits: Vec<Part>,
    apps: Vec<Part>,
    up: bool,
    next_init: usize,
    failed: bool,
    ran: bool,
}

#[derive(Debug, Clone)]
struct Part {
    name: String,
    sidecar: bool,
    probed: bool,
    own: Option<&'static str>,
    running: bool,
    over: bool,
}

impl Truth {
    fn again(&self, part: &Part, code: i32) -> bool {
        match part.own.unwrap_or(self.policy) {
            "Always" => true,
            "OnFailure" => code != 0,
            _ => false,
        }
    }

    fn next_action(&self) -> NextAction {
        let done = self.apps.iter().all(|a| a.over);
        if !self.up {
            let over = self.failed || done || (self.policy == "Never" && self.ran);
            return NextAction { over, sandbox: !over, ..NextAction::default() };
        }
        if self.failed || (done && self.next_init == self.inits.len()) {
            return NextAction { over: true, ..NextAction::default() };
        }
        let before = self.inits.iter().take(self.next_init).filter(|i| i.sidecar);
        let at = self.inits.iter().skip(self.next_init).take(1);
        let apps = self.apps.iter().filter(|a| self.next_init == self.inits.len() && !a.over);
        let start = before.chain(at).chain(apps).filter(|p| !p.running).map(|p| p.name.clone());
        NextAction { start: start.collect(), ..NextAction::default() }
    }

    fn started(&mut self, name: &str) {
        self.ran = true;
        for part in self.inits.iter_mut().chain(&mut self.apps).filter(|p| p.name == name) {
            part.running = true;
        }
        self.move_on(|part| part.sidecar && !part.probed && part.name == name);
    }

    fn passed(&mut self, name: &str) {
        self.move_on(|part| part.sidecar && part.name == name);
    }

    fn exited(&mut self, name: &str, code: i32) {
        if let Some(index) = self.apps.iter().position(|a| a.name == name) {
            self.apps[index].running = false;
            self.apps[index].over = !self.again(&self.apps[index], code);
            return;
        }
        let index = self.inits.iter().position(|i| i.name == name).expect("a container of the pod");
        self.inits[index].running = false;
        let part = &self.inits[index];
        self.failed |= !part.sidecar && code != 0 && !self.again(part, code);
        self.move_on(|part| !part.sidecar && code == 0 && part.name == name);
    }

    fn move_on(&mut self, did: impl Fn(&Part) -> bool) {
        if self.inits.get(self.next_init).is_some_and(did) {
            self.next_init += 1;
        }
    }
}

/// Runtime and journal, as the agent keeps them.
struct World {
    truth: Truth,
    pod: Pod,
    seen: PodSeen,
    record: PodRecord,
    secs: i64,
    sandboxes: u32,
}

impl World {
    fn new(random: &mut Random) -> Self {
        let policy = random.pick(&["Always", "OnFailure", "Never"]);
        let part = |name: String, sidecar: bool, probed: bool, own| Part {
            name,
            sidecar,
            probed,
            own,
            running: false,
            over: false,
        };
        let mut inits = vec![];
        for n in 0..random.below(5) {
            let sidecar = random.below(2) == 0;
            let own =
                if sidecar { Some("Always") } else { random.pick(&[None, None, Some("OnFailure"), Some("Never")]) };
            inits.push(part(format!("i{n}"), sidecar, random.below(2) == 0, own));
        }
        let mut apps = vec![];
        for n in 0..=random.below(2) {
            apps.push(part(format!("a{n}"), false, false, random.pick(&[None, None, Some("Always"), Some("Never")])));
        }
        let container = |p: &Part| Container {
            name: p.name.clone(),
            restart_policy: p.own.map(Into::into),
            startup_probe: p.probed.then(Probe::default),
            ..Container::default()
        };
        let spec = PodSpec {
            restart_policy: Some(policy.into()),
            init_containers: Some(inits.iter().map(container).collect()),
            containers: apps.iter().map(container).collect(),
            ..PodSpec::default()
        };
        let pod = Pod { spec: Some(spec), ..Pod::default() };
        let empty = PodRecord::new("u".into(), Source::File, Arc::new(Pod::default()), Timestamp::UNIX_EPOCH);
        let record = PodRecord { life: crate::model::Life::Syncing, ..empty };
        let truth = Truth { policy, inits, apps, up: false, next_init: 0, failed: false, ran: false };
        Self { truth, pod, seen: PodSeen::default(), record, secs: 1_000_000, sandboxes: 0 }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.secs).expect("in range")
    }

    /// Back-offs are not tested here: every plan is made after they expired.
    fn plan(&mut self) -> Actions {
        self.secs += 400;
        let plan = pod_actions(&Inputs {
            pod: &self.pod,
            seen: &self.seen,
            record: &self.record,
            probes: &BTreeMap::new(),
            restart_now: &BTreeSet::new(),
            now: Now { boot: Duration::ZERO, wall: self.now() },
            backoff_max: Duration::from_secs(300),
            hash: |_| String::new(),
        });
        if let Some(cursor) = &plan.cursor {
            self.record.cursor = Some(cursor.clone());
        }
        plan
    }

    fn perform(&mut self, plan: &Actions) {
        if let Some(attempt) = plan.create_sandbox {
            assert_eq!(attempt, self.sandboxes, "sandboxes are counted");
            let id = format!("s{attempt}").into();
            let made = SandboxSeen { id, attempt, ready: true, created_at: self.now(), ips: vec![] };
            self.seen.sandboxes.insert(0, made);
            self.sandboxes += 1;
            self.record.sandbox_attempts = self.sandboxes;
            (self.truth.up, self.truth.next_init) = (true, 0);
        }
        for start in &plan.start {
            let before = self.record.containers.get(&start.name).map_or(0, |m| m.restarts + u32::from(m.created));
            assert_eq!(start.attempt, before, "restarts of {} are counted", start.name);
            let memory = self.record.containers.entry(start.name.clone()).or_default();
            (memory.created, memory.restarts) = (true, start.attempt);
            memory.previous_exit = memory.exit.take();
            memory.backoff = start.backoff.clone().or(memory.backoff.take());
            let made = ContainerSeen {
                id: format!("{}#{}", start.name, start.attempt).into(),
                sandbox: self.seen.sandboxes[0].id.clone(),
                name: start.name.clone(),
                attempt: start.attempt,
                hash: None,
                state: RunState::Running,
                created_at: self.now(),
                started_at: Some(self.now()),
                finished_at: None,
                exit_code: 0,
                reason: String::new(),
                message: String::new(),
                image: String::new(),
                image_id: String::new(),
                grace: None,
                pre_stop: None,
                user: None,
            };
            self.seen.containers.insert(0, made);
            self.truth.started(start.name.as_str());
        }
    }

    fn happen(&mut self, random: &mut Random) {
        let running: Vec<usize> =
            (0..self.seen.containers.len()).filter(|n| self.seen.containers[*n].state == RunState::Running).collect();
        match random.below(8) {
            0..4 if !running.is_empty() => {
                let code = random.pick(&[0, 0, 1, 137]);
                self.exit(random.pick(&running), code);
            }
            4..6 if !running.is_empty() => {
                let c = &self.seen.containers[random.pick(&running)];
                let memory = self.record.containers.entry(c.name.clone()).or_default();
                memory.started = Some(c.id.clone());
                self.truth.passed(c.name.as_str());
            }
            // Garbage collection of one or all: a dead container may be removed once its exit is journaled.
            6 => {
                let all = random.below(2) == 0;
                self.seen.containers.retain(|c| c.state != RunState::Exited || !(all || random.below(3) == 0));
            }
            7 if random.below(3) == 0 && self.truth.up => {
                for n in running {
                    self.exit(n, 137);
                }
                // A reboot may also remove the sandbox and all dead containers.
                match random.below(2) {
                    0 => self.seen = PodSeen::default(),
                    _ => self.seen.sandboxes.iter_mut().for_each(|s| s.ready = false),
                }
                self.truth.up = false;
            }
            _ => {}
        }
    }

    fn exit(&mut self, index: usize, code: i32) {
        let now = self.now();
        let c = &mut self.seen.containers[index];
        (c.state, c.exit_code, c.finished_at) = (RunState::Exited, code, Some(now));
        let name = c.name.clone();
        self.record.containers.entry(name.clone()).or_default().exit = Some(exit_of(c));
        self.truth.exited(name.as_str(), code);
    }
}
