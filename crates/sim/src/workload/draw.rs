//! Random pods and scripts for their containers.

use podwright_core::model::Source;

use crate::container_script::{ContainerScript, Health, HookScript, OnTerm, Run};
use crate::manifest::{ContainerPlan, PodPlan};
use crate::rng::Rng;
use crate::world::World;

/// A pod with one of the workload's names and a new UID.
pub(crate) fn draw_plan(world: &mut World) -> PodPlan {
    let World { workload, env, runtime, .. } = world;
    let (rng, scripts) = (&mut env.rng, &mut runtime.scripts);
    workload.created += 1;
    let slot = rng.below(u64::from(workload.names));
    let name = format!("p{slot}");
    let uid = format!("u{}", workload.created);
    let url = rng.chance(150);
    let policy = ["Always", "Always", "OnFailure", "Never"][rng.index(4)];
    let inits = draw_inits(rng, scripts, policy);
    let active_deadline = (workload.extended && rng.chance(150)).then(|| 3 + i64::try_from(rng.below(60)).unwrap_or(0));
    let apps = (0..=rng.below(2)).map(|n| draw_container(rng, scripts, &format!("app{n}"), policy, false)).collect();
    PodPlan {
        origin: format!("/manifests/{name}.yaml"),
        name,
        uid,
        source: if url { Source::Url } else { Source::File },
        policy,
        grace: [1, 2, 5, 10, 30][rng.index(5)],
        inits,
        apps,
        volumes: rng.index(2),
        active_deadline,
        claimed_source: None,
    }
}

fn draw_inits(rng: &mut Rng, scripts: &mut Vec<ContainerScript>, policy: &str) -> Vec<(ContainerPlan, bool)> {
    let mut inits = vec![];
    if !rng.chance(350) {
        return inits;
    }
    for n in 0..=rng.below(2) {
        let sidecar = rng.chance(500);
        let policy = if sidecar { "Always" } else { policy };
        let mut container = draw_container(rng, scripts, &format!("init{n}"), policy, !sidecar);
        if !sidecar {
            (container.startup, container.readiness, container.liveness) = (false, false, false);
            (container.post_start, container.pre_stop) = (false, false);
        }
        inits.push((container, sidecar));
    }
    inits
}

fn draw_container(
    rng: &mut Rng,
    scripts: &mut Vec<ContainerScript>,
    name: &str,
    policy: &str,
    init: bool,
) -> ContainerPlan {
    ContainerPlan {
        name: name.into(),
        image: format!("app:{}", rng.below(3)),
        always_pull: rng.chance(150),
        script: draw_script(rng, scripts, policy, init),
        post_start: rng.chance(120),
        pre_stop: rng.chance(250),
        startup: rng.chance(100),
        readiness: rng.chance(120),
        liveness: rng.chance(120),
    }
}

/// Adds a random script to the list. Returns its index.
pub(crate) fn draw_script(rng: &mut Rng, scripts: &mut Vec<ContainerScript>, policy: &str, init: bool) -> usize {
    let runs = draw_runs(rng, policy, init);
    let obeys = rng.chance(750);
    let on_term = if obeys {
        OnTerm::Exits { after: rng.millis(0, 3000), code: [0, 143][rng.index(2)] }
    } else {
        OnTerm::Ignores
    };
    scripts.push(ContainerScript {
        runs,
        on_term,
        post_start: draw_hook(rng),
        pre_stop: draw_hook(rng),
        startup: draw_health(rng),
        readiness: draw_health(rng),
        liveness: draw_health(rng),
    });
    scripts.len() - 1
}

fn draw_runs(rng: &mut Rng, policy: &str, init: bool) -> Vec<Run> {
    let exits = |rng: &mut Rng, code| Run::Exits { after: rng.millis(0, 8000), code };
    let mut runs = vec![];
    if init {
        while rng.chance(250) && runs.len() < 2 {
            runs.push(exits(rng, 1));
        }
        runs.push(exits(rng, 0));
        return runs;
    }
    while rng.chance(400) && runs.len() < 3 {
        let code = [0, 1, 7, 42][rng.index(4)];
        runs.push(exits(rng, code));
    }
    // Under Always, a container whose every run exits never settles.
    let last = if policy != "Always" && rng.chance(400) { exits(rng, 0) } else { Run::Forever };
    runs.push(last);
    runs
}

fn draw_hook(rng: &mut Rng) -> HookScript {
    match rng.below(6) {
        0 => HookScript::Hangs,
        1 => HookScript::Completes { after: rng.millis(0, 2000), succeeds: false },
        _ => HookScript::Completes { after: rng.millis(0, 2000), succeeds: true },
    }
}

fn draw_health(rng: &mut Rng) -> Health {
    match rng.below(3) {
        0 => Health::UnhealthyAfter(rng.millis(0, 20_000)),
        1 => Health::HealthyAfter(rng.millis(0, 10_000)),
        _ => Health::Healthy,
    }
}
