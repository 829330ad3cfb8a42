//! What people do to a node: manifests come, change, break and go; pods are killed, evicted, restarted; strangers appear.

use std::time::Duration;

use podwright_core::model::{Event, FullName, Manifest, Name, PodUid, Source};

use crate::behaviour::{Behaviour, Health, Hook, Run, Term};
use crate::files::File;
use crate::manifest::{Part, PodPlan};
use crate::runtime::{NewContainer, Sandbox, container_name, sandbox_name};
use crate::world::{Item, World, trace};

/// The actions still to come, and what was done.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    left: u32,
    names: u32,
    made: u32,
    waiters: u64,
    /// Manifests that were removed and may come back.
    gone: Vec<(Source, Manifest)>,
    plans: Vec<PodPlan>,
}

impl World {
    /// So many actions over names of this many pods; the first comes at once.
    pub fn begin_work(&mut self, actions: u32, names: u32) {
        self.workload.left = actions;
        self.workload.names = names;
        let delay = self.rng.millis(0, 500);
        self.after(delay, Item::Act);
    }

    /// The next action.
    pub(crate) fn act(&mut self) {
        if self.workload.left == 0 {
            return;
        }
        self.workload.left -= 1;
        if self.has_keeper() && self.rng.chance(550) {
            self.act_on_objects();
        } else {
            self.act_on_files();
        }
        let quick = self.rng.chance(400);
        let delay = if quick { self.rng.millis(0, 400) } else { self.rng.millis(200, 25_000) };
        self.after(delay, Item::Act);
    }

    fn act_on_files(&mut self) {
        match self.rng.below(20) {
            0..=6 => self.write_new(),
            7..=9 => self.edit_in_place(),
            10..=11 => self.remove_one(),
            12 => self.bring_back(),
            13 => self.break_one(),
            14..=16 => self.kill_one(),
            17 => self.restart_one(),
            18 => self.stranger(),
            _ => self.double(),
        }
    }

    /// A new pod, or new content for a file: a new UID under the same name.
    fn write_new(&mut self) {
        let plan = self.draw_plan();
        trace!(self, "++ {} written: {} as {}", plan.origin, plan.name, plan.uid);
        let source = plan.source;
        self.put(source, plan.manifest());
        self.workload.plans.push(plan);
    }

    /// New content under the same UID: an image, which a living pod takes, or more, which ends it and begins anew.
    fn edit_in_place(&mut self) {
        let Some(at) = self.draw_written() else { return self.write_new() };
        let mut plan = self.workload.plans[at].clone();
        let image = self.rng.chance(500);
        if image {
            let n = self.rng.below(5);
            plan.apps[0].image = format!("app:{n}");
        } else {
            plan.apps[0].behaviour = self.draw_behaviour(plan.policy, false);
            plan.grace = 1 + i64::try_from(self.rng.below(10)).unwrap_or(0);
        }
        trace!(self, "++ {} edited in place: {}", plan.origin, if image { "image" } else { "more" });
        let source = plan.source;
        self.put(source, plan.manifest());
        self.workload.plans[at] = plan;
    }

    /// A plan whose pod is in its file now.
    fn draw_written(&mut self) -> Option<usize> {
        let written = |p: &PodPlan| {
            let files = self.sources.get(&p.source);
            let file = files.and_then(|f| f.files.get(&p.origin));
            file.is_some_and(|f| f.pods.iter().any(|m| m.pod.metadata.uid.as_ref() == Some(&p.uid)))
        };
        let all: Vec<usize> =
            self.workload.plans.iter().enumerate().filter(|(_, p)| written(p)).map(|(i, _)| i).collect();
        (!all.is_empty()).then(|| *self.rng.pick(&all))
    }

    fn draw_file(&mut self) -> Option<(Source, String)> {
        let all = self.sources.iter().flat_map(|(s, f)| f.files.keys().map(|path| (*s, path.clone())));
        let all: Vec<_> = all.collect();
        (!all.is_empty()).then(|| self.rng.pick(&all).clone())
    }

    fn remove_one(&mut self) {
        let Some((source, path)) = self.draw_file() else { return };
        trace!(self, "++ {path} removed");
        let file = self.sources.get(&source).and_then(|f| f.files.get(&path)).cloned().unwrap_or_default();
        self.workload.gone.extend(file.pods.into_iter().map(|m| (source, m)));
        self.remove(source, &path);
    }

    fn bring_back(&mut self) {
        if self.workload.gone.is_empty() {
            return self.write_new();
        }
        let at = self.rng.index(self.workload.gone.len());
        let (source, manifest) = self.workload.gone.swap_remove(at);
        trace!(self, "++ {} is back", manifest.origin);
        self.put(source, manifest);
    }

    fn break_one(&mut self) {
        let Some((source, path)) = self.draw_file() else { return };
        trace!(self, "++ {path} breaks or heals");
        self.write(source, |files| {
            if let Some(file) = files.get_mut(&path) {
                file.broken = !file.broken;
            }
        });
    }

    fn kill_one(&mut self) {
        let known: Vec<PodUid> = self.checks_uids();
        if known.is_empty() {
            return;
        }
        let uid = self.rng.pick(&known).clone();
        let grace = self.rng.chance(600).then(|| Duration::from_secs(1 + self.rng.below(8)));
        let evicted = self.rng.chance(400).then(|| ("Evicted".to_owned(), "the node was low on memory".to_owned()));
        let waiter = self.rng.chance(600).then(|| {
            self.workload.waiters += 1;
            self.workload.waiters
        });
        trace!(self, "++ kill {uid} grace {grace:?} evicted {} waiter {waiter:?}", evicted.is_some());
        self.send(Duration::ZERO, Event::Kill { uid, grace, evicted, waiter });
    }

    fn checks_uids(&self) -> Vec<PodUid> {
        self.node.iter().flat_map(|n| n.workers().iter().map(|(uid, _)| uid.clone())).collect()
    }

    fn restart_one(&mut self) {
        let known = self.checks_uids();
        if known.is_empty() {
            return;
        }
        let uid = self.rng.pick(&known).clone();
        let container = self.rng.chance(500).then(|| Name::from("app0"));
        trace!(self, "++ restart {uid} {container:?}");
        self.send(Duration::ZERO, Event::Restart { uid, container });
    }

    /// A second file of the same source with a pod of the same name.
    fn double(&mut self) {
        let mut plan = self.draw_plan();
        plan.origin = format!("/manifests/double-{}.yaml", plan.uid);
        trace!(self, "++ {} written: {} once more as {}", plan.origin, plan.name, plan.uid);
        let source = plan.source;
        self.put(source, plan.manifest());
        self.workload.plans.push(plan);
    }

    /// A pod in the runtime that no source ever named.
    fn stranger(&mut self) {
        if self.runtime.down {
            return;
        }
        self.workload.made += 1;
        let uid = PodUid::from(format!("stranger{}", self.workload.made));
        let source = [None, Some(Source::File), Some(Source::Url)][self.rng.index(3)];
        let labelled = self.rng.chance(800);
        trace!(
            self,
            "++ {uid} appears, source {source:?}, {}",
            if labelled { "ours by its labels" } else { "not ours" }
        );
        let wall = self.clock.wall();
        let full_name = FullName { namespace: "default".into(), name: uid.as_str().into() };
        let _ = self.runtime.reserve(sandbox_name(&uid, 0));
        let sandbox = self.runtime.run_sandbox(Sandbox {
            uid: uid.clone(),
            full_name,
            source,
            labelled,
            attempt: 0,
            ready: true,
            created_at: wall,
        });
        let name = Name::from("app0");
        let _ = self.runtime.reserve(container_name(&uid, &name, 0));
        let behaviour = self.draw_behaviour("Always", false);
        let new = NewContainer {
            uid: uid.clone(),
            name,
            attempt: 0,
            sandbox,
            hash: None,
            behaviour,
            grace: Some(Duration::from_secs(3)),
            pre_stop: None,
            life: 0,
        };
        if let Ok(id) = self.runtime.create(new, wall) {
            let _ = self.runtime.start(&id, self.clock.now, wall);
        }
        self.hint(&uid);
    }

    // --- drawing ---

    pub(crate) fn draw_plan(&mut self) -> PodPlan {
        self.workload.made += 1;
        let slot = self.rng.below(u64::from(self.workload.names));
        let name = format!("p{slot}");
        let uid = format!("u{}", self.workload.made);
        let url = self.rng.chance(150);
        let policy = ["Always", "Always", "OnFailure", "Never"][self.rng.index(4)];
        let mut inits = vec![];
        if self.rng.chance(350) {
            for n in 0..=self.rng.below(2) {
                let sidecar = self.rng.chance(500);
                let policy = if sidecar { "Always" } else { policy };
                let mut part = self.draw_part(&format!("init{n}"), policy, !sidecar);
                if !sidecar {
                    (part.startup, part.readiness, part.liveness) = (false, false, false);
                    (part.post_start, part.pre_stop) = (false, false);
                }
                inits.push((part, sidecar));
            }
        }
        let apps = (0..=self.rng.below(2)).map(|n| self.draw_part(&format!("app{n}"), policy, false)).collect();
        PodPlan {
            origin: format!("/manifests/{name}.yaml"),
            name,
            uid,
            source: if url { Source::Url } else { Source::File },
            policy,
            grace: [1, 2, 5, 10, 30][self.rng.index(5)],
            inits,
            apps,
            volumes: self.rng.index(2),
        }
    }

    fn draw_part(&mut self, name: &str, policy: &str, init: bool) -> Part {
        Part {
            name: name.into(),
            image: format!("app:{}", self.rng.below(3)),
            always_pull: self.rng.chance(150),
            behaviour: self.draw_behaviour(policy, init),
            post_start: self.rng.chance(120),
            pre_stop: self.rng.chance(250),
            startup: self.rng.chance(100),
            readiness: self.rng.chance(120),
            liveness: self.rng.chance(120),
        }
    }

    fn draw_behaviour(&mut self, policy: &str, init: bool) -> usize {
        let exits = |rng: &mut crate::rng::Rng, code| Run::Exits { after: rng.millis(0, 8000), code };
        let rng = &mut self.rng;
        let mut runs = vec![];
        if init {
            while rng.chance(250) && runs.len() < 2 {
                runs.push(exits(rng, 1));
            }
            runs.push(exits(rng, 0));
        } else {
            while rng.chance(400) && runs.len() < 3 {
                let code = [0, 1, 7, 42][rng.index(4)];
                runs.push(exits(rng, code));
            }
            // Under Always, a container that ends for ever never comes to rest.
            let last = if policy != "Always" && rng.chance(400) { exits(rng, 0) } else { Run::Forever };
            runs.push(last);
        }
        let obeys = rng.chance(750);
        let term = if obeys {
            Term::Obeys { after: rng.millis(0, 3000), code: [0, 143][rng.index(2)] }
        } else {
            Term::Ignores
        };
        let hook = |rng: &mut crate::rng::Rng| match rng.below(6) {
            0 => Hook::Hangs,
            1 => Hook::Ends { after: rng.millis(0, 2000), well: false },
            _ => Hook::Ends { after: rng.millis(0, 2000), well: true },
        };
        let health = |rng: &mut crate::rng::Rng| match rng.below(3) {
            0 => Health::BadAfter(rng.millis(0, 20_000)),
            1 => Health::GoodAfter(rng.millis(0, 10_000)),
            _ => Health::Good,
        };
        let behaviour = Behaviour {
            runs,
            term,
            post_start: hook(rng),
            pre_stop: hook(rng),
            startup: health(rng),
            readiness: health(rng),
            liveness: health(rng),
        };
        self.behaviours.push(behaviour);
        self.behaviours.len() - 1
    }
}

/// A file with these pods.
pub fn file(pods: Vec<Manifest>) -> File {
    File { pods, broken: false }
}
