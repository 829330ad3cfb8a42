//! What users do to a node: manifests are written, edited, broken and removed; pods are killed, evicted and restarted; pods
//! appear in the runtime that no source names.

mod draw;

use std::time::Duration;

use podwright_core::model::{Event, FullName, Manifest, Name, PodUid, Source};

pub(crate) use draw::{draw_plan, draw_script};

use crate::accidents::Accident;
use crate::env::{Scheduled, trace};
use crate::manifest::PodPlan;
use crate::object_store::act_on_objects;
use crate::runtime::{NewContainer, Sandbox, container_name, sandbox_name};
use crate::world::World;

/// The actions still to come, and what was created so far.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    actions_left: u32,
    /// Also with active deadlines, ephemeral containers, objects that claim another source, sources that are switched on and off,
    /// and outages of the runtime during the termination of a pod.
    pub(crate) extended: bool,
    /// How many pod names are in use.
    names: u32,
    created: u32,
    /// Manifests that were removed and may be written again.
    removed: Vec<(Source, Manifest)>,
    plans: Vec<PodPlan>,
}

/// Schedules this many actions on pods with this many names.
pub fn begin(world: &mut World, actions: u32, names: u32) {
    world.workload.actions_left = actions;
    world.workload.names = names;
    let delay = world.env.rng.millis(0, 500);
    world.env.after(delay, Scheduled::UserAction);
}

/// Performs the next action.
pub(crate) fn act(world: &mut World) {
    if world.workload.actions_left == 0 {
        return;
    }
    world.workload.actions_left -= 1;
    if world.store.is_enabled() && world.env.rng.chance(550) {
        act_on_objects(world);
    } else {
        act_on_node(world);
    }
    let env = &mut world.env;
    let quick = env.rng.chance(400);
    let delay = if quick { env.rng.millis(0, 400) } else { env.rng.millis(200, 25_000) };
    env.after(delay, Scheduled::UserAction);
}

fn act_on_node(world: &mut World) {
    if world.workload.extended && world.env.rng.chance(150) {
        return match world.env.rng.below(3) {
            0 => switch_source(world),
            _ => kill_pod_before_outage(world),
        };
    }
    match world.env.rng.below(20) {
        0..=6 => write_new(world),
        7..=9 => edit_in_place(world),
        10..=11 => remove_file(world),
        12 => restore_file(world),
        13 => break_or_repair_file(world),
        14..=16 => kill_pod(world),
        17 => restart_pod(world),
        18 => create_orphan_pod(world),
        _ => write_duplicate(world),
    }
}

fn write_plan(world: &mut World, plan: &PodPlan) {
    world.sources.put(&mut world.env, plan.source, plan.manifest());
}

/// A new pod, or new content for a file: a new UID under the same name.
fn write_new(world: &mut World) {
    let plan = draw_plan(world);
    trace!(world.env, "++ {} written: {} as {}", plan.origin, plan.name, plan.uid);
    write_plan(world, &plan);
    world.workload.plans.push(plan);
}

/// New content under the same UID: only an image, which a running pod takes over, or more, which makes the pod start from
/// scratch.
fn edit_in_place(world: &mut World) {
    let Some(at) = draw_written(world) else { return write_new(world) };
    let mut plan = world.workload.plans[at].clone();
    let rng = &mut world.env.rng;
    let image = rng.chance(500);
    if image {
        plan.apps[0].image = format!("app:{}", rng.below(5));
    } else {
        plan.apps[0].script = draw_script(rng, &mut world.runtime.scripts, plan.policy, false);
        plan.grace = 1 + i64::try_from(rng.below(10)).unwrap_or(0);
    }
    trace!(world.env, "++ {} edited in place: {}", plan.origin, if image { "image" } else { "more" });
    write_plan(world, &plan);
    world.workload.plans[at] = plan;
}

/// The index of a plan whose pod is in its file now.
fn draw_written(world: &mut World) -> Option<usize> {
    let written = |p: &PodPlan| {
        let file = world.sources.get(p.source).and_then(|s| s.files.get(&p.origin));
        file.is_some_and(|f| f.pods.iter().any(|m| m.pod.metadata.uid.as_ref() == Some(&p.uid)))
    };
    let plans = world.workload.plans.iter().enumerate();
    let all: Vec<usize> = plans.filter(|(_, p)| written(p)).map(|(i, _)| i).collect();
    (!all.is_empty()).then(|| *world.env.rng.pick(&all))
}

fn draw_file(world: &mut World) -> Option<(Source, String)> {
    let all = world.sources.paths();
    (!all.is_empty()).then(|| world.env.rng.pick(&all).clone())
}

fn remove_file(world: &mut World) {
    let Some((source, path)) = draw_file(world) else { return };
    trace!(world.env, "++ {path} removed");
    let file = world.sources.get(source).and_then(|s| s.files.get(&path)).cloned().unwrap_or_default();
    world.workload.removed.extend(file.pods.into_iter().map(|m| (source, m)));
    world.sources.remove(&mut world.env, source, &path);
}

fn restore_file(world: &mut World) {
    if world.workload.removed.is_empty() {
        return write_new(world);
    }
    let at = world.env.rng.index(world.workload.removed.len());
    let (source, manifest) = world.workload.removed.swap_remove(at);
    trace!(world.env, "++ {} restored", manifest.origin);
    world.sources.put(&mut world.env, source, manifest);
}

fn break_or_repair_file(world: &mut World) {
    let Some((source, path)) = draw_file(world) else { return };
    trace!(world.env, "++ {path} broken or repaired");
    world.sources.write(&mut world.env, source, |files| {
        if let Some(file) = files.get_mut(&path) {
            file.broken = !file.broken;
        }
    });
}

fn draw_pod(world: &mut World) -> Option<PodUid> {
    let known = world.agent.pod_uids();
    (!known.is_empty()).then(|| world.env.rng.pick(&known).clone())
}

fn kill_pod(world: &mut World) {
    let Some(uid) = draw_pod(world) else { return };
    let env = &mut world.env;
    let grace = env.rng.chance(600).then(|| Duration::from_secs(1 + env.rng.below(8)));
    let evicted = env.rng.chance(400).then(|| ("Evicted".to_owned(), "the node was low on memory".to_owned()));
    trace!(env, "++ kill {uid} grace {grace:?} evicted {}", evicted.is_some());
    env.send(Duration::ZERO, Event::Kill { uid, grace, evicted });
}

/// The runtime goes down while a pod terminates, often until its deadline has passed.
fn kill_pod_before_outage(world: &mut World) {
    kill_pod(world);
    let delay = world.env.rng.millis(0, 1500);
    world.env.after(delay, Scheduled::Accident(Accident::RuntimeDown));
}

/// The agent is configured with or without the URL source and starts again.
fn switch_source(world: &mut World) {
    let sources = &mut world.agent.config.sources;
    let on = !sources.remove(&Source::Url);
    if on {
        sources.insert(Source::Url);
    }
    trace!(world.env, "++ the URL source is switched {}", if on { "on" } else { "off" });
    world.crash_agent("to be configured again");
    world.sources.switch(Source::Url, on);
}

fn restart_pod(world: &mut World) {
    let Some(uid) = draw_pod(world) else { return };
    let container = world.env.rng.chance(500).then(|| Name::from("app0"));
    trace!(world.env, "++ restart {uid} {container:?}");
    world.env.send(Duration::ZERO, Event::Restart { uid, container });
}

/// A second file of the same source with a pod of the same name.
fn write_duplicate(world: &mut World) {
    let mut plan = draw_plan(world);
    plan.origin = format!("/manifests/double-{}.yaml", plan.uid);
    trace!(world.env, "++ {} written: duplicate {} as {}", plan.origin, plan.name, plan.uid);
    write_plan(world, &plan);
    world.workload.plans.push(plan);
}

/// A pod in the runtime that no source ever named.
fn create_orphan_pod(world: &mut World) {
    let World { env, runtime, workload, .. } = world;
    if runtime.down {
        return;
    }
    workload.created += 1;
    let uid = PodUid::from(format!("orphan{}", workload.created));
    let source = [None, Some(Source::File), Some(Source::Url)][env.rng.index(3)];
    let labelled = env.rng.chance(800);
    let labels = if labelled { "with the kubelet's labels" } else { "without labels" };
    trace!(env, "++ {uid} created in the runtime, source {source:?}, {labels}");
    let wall = env.clock.wall();
    let full_name = FullName { namespace: "default".into(), name: uid.as_str().into() };
    let _ = runtime.reserve(sandbox_name(&uid, 0));
    let sandbox = runtime.run_sandbox(Sandbox {
        uid: uid.clone(),
        full_name,
        source,
        labelled,
        attempt: 0,
        ready: true,
        created_at: wall,
    });
    let name = Name::from("app0");
    let _ = runtime.reserve(container_name(&uid, &name, 0));
    let script = draw_script(&mut env.rng, &mut runtime.scripts, "Always", false);
    let new = NewContainer {
        uid: uid.clone(),
        name,
        attempt: 0,
        sandbox,
        hash: None,
        script,
        grace: Some(Duration::from_secs(3)),
        pre_stop: None,
        incarnation: 0,
    };
    if let Ok(id) = runtime.create(new, wall) {
        let _ = runtime.start(&id, env.clock.now, wall);
    }
    env.hint(&uid);
}
