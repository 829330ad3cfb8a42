//! Random runs and a search through all states of a small configuration, with the rules of `check`.

mod check;
mod world;

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::mutate::{self, MachineMutant};
use world::{Action, Budget, World};

fn hash(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Searches every state that can be reached, breadth first. From every state, the end is checked too.
fn explore(start: World, states_max: usize) -> Result<usize, (Vec<Action>, String)> {
    let mut seen = HashSet::from([hash(&start)]);
    // Each state with the index of the one before it and the action between them.
    let mut path: Vec<(usize, Option<Action>)> = vec![(0, None)];
    let mut queue = VecDeque::from([(0, start)]);
    while let Some((index, world)) = queue.pop_front() {
        for action in world.actions() {
            let mut next = world.clone();
            next.apply(&action);
            if !seen.insert(hash(&next)) {
                continue;
            }
            path.push((index, Some(action)));
            let place = path.len() - 1;
            if let Some(rule) = next.broken.clone().or_else(|| next.clone().check_end()) {
                return Err((actions_to(&path, place), rule));
            }
            assert!(seen.len() < states_max, "more than {states_max} states");
            queue.push_back((place, next));
        }
    }
    Ok(seen.len())
}

fn actions_to(path: &[(usize, Option<Action>)], mut place: usize) -> Vec<Action> {
    let mut actions = vec![];
    while let (before, Some(action)) = &path[place] {
        actions.push(action.clone());
        place = *before;
    }
    actions.reverse();
    actions
}

/// One random run, then its end.
fn random_run(seed: u64, steps: usize) -> Result<(), (Vec<Action>, String)> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03);
    let budget = Budget { calls: 14, failures: 4, shim_losses: 4, abandons: 4, crashes: 2, other: 4, wakes: 20 };
    let mut world = if seed.is_multiple_of(2) { World::new(2, budget) } else { after(2, &running(), budget) };
    let mut done = vec![];
    for _ in 0..steps {
        let mut actions = world.actions();
        // Most choices of a state are trouble, and would end every run before it gets anywhere.
        actions.retain(|action| random.below(100) < per_cent(action));
        let Some(action) = actions.get(random.below(actions.len())) else { continue };
        done.push(action.clone());
        world.apply(action);
        if let Some(rule) = world.broken.clone() {
            return Err((done, rule));
        }
    }
    world.check_end().map_or(Ok(()), |rule| Err((done, rule)))
}

fn per_cent(action: &Action) -> usize {
    match action {
        Action::Run | Action::End(_, true) | Action::ReportExit(_) => 100,
        Action::Create(_) | Action::Start(_) => 50,
        Action::Stop(..) | Action::ProcessEnds(_) => 30,
        Action::Remove(_) | Action::Wake(_) | Action::Abandon(_) | Action::End(_, false) => 12,
        Action::ShimDies { .. } | Action::ReportAnotherExit(_) => 8,
        Action::StopSandbox | Action::RemoveSandbox | Action::PauseDies | Action::AgentCrashes { .. } => 3,
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % n.max(1)
    }
}

/// A world after these actions, with the budget for the search.
fn after(containers: usize, actions: &[Action], budget: Budget) -> World {
    let mut world = World::new(containers, Budget { calls: 9, ..budget });
    for action in actions {
        assert!(world.actions().contains(action), "{action:?} is not possible");
        world.apply(action);
    }
    world.budget = budget;
    world
}

fn ready() -> Vec<Action> {
    let step = Action::End(0, true);
    vec![Action::Run, step.clone(), step.clone(), step.clone(), step]
}

fn running() -> Vec<Action> {
    let step = Action::End(0, true);
    [ready(), vec![Action::Create(0), step.clone(), Action::Start(0), step]].concat()
}

/// Some trouble of each kind from each start: enough for every cell of the tables. Builds without optimization get less of it.
fn searches() -> Vec<(&'static str, World)> {
    let none = Budget { calls: 0, failures: 0, shim_losses: 0, abandons: 0, crashes: 0, other: 0, wakes: 2 };
    let more = u8::from(!cfg!(debug_assertions));
    vec![
        ("run", World::new(1, Budget { calls: 3, failures: 1, shim_losses: 1, abandons: more, crashes: 1, ..none })),
        ("create", after(1, &ready(), Budget { calls: 3, failures: more, shim_losses: 1, abandons: more, ..none })),
        ("create, crash", after(1, &ready(), Budget { calls: 3, shim_losses: more, crashes: 1, ..none })),
        (
            "stop",
            after(1, &running(), Budget { calls: 2, failures: 1, shim_losses: 1, abandons: more, other: more, ..none }),
        ),
        ("exit", after(1, &running(), Budget { calls: 1, failures: 1, shim_losses: 1, abandons: 1, other: 1, ..none })),
        ("stop, crash", after(1, &running(), Budget { calls: 2, crashes: 1, shim_losses: more, other: more, ..none })),
        ("many stops", after(1, &running(), Budget { calls: 2 + more, shim_losses: 1, abandons: 1 + more, ..none })),
        ("two shims lost", after(1, &running(), Budget { calls: 1, crashes: 1, shim_losses: 2, ..none })),
        ("shims lost", after(1, &running(), Budget { calls: 1 + more, failures: 1, shim_losses: 3, ..none })),
    ]
}

#[test]
fn every_reachable_state_keeps_the_rules() {
    for (name, start) in searches() {
        match explore(start, STATES_MAX) {
            Ok(states) => println!("{name}: {states} states"),
            Err((actions, rule)) => panic!("{name}: {rule}\nafter {actions:#?}"),
        }
    }
}

#[test]
fn random_runs_keep_the_rules() {
    for seed in 0..3_000 {
        if let Err((actions, rule)) = random_run(seed, 120) {
            panic!("seed {seed}: {rule}\nafter {actions:#?}");
        }
    }
}

const MUTANTS: [MachineMutant; 16] = [
    MachineMutant::SignalAgain,
    MachineMutant::AbandonKeepsDeadline,
    MachineMutant::AbandonKills,
    MachineMutant::LaunchWhileStopping,
    MachineMutant::OneWaiterAnswered,
    MachineMutant::JoinedTwice,
    MachineMutant::NetworkStaysHeld,
    MachineMutant::CleanupHangs,
    MachineMutant::LastExitWins,
    MachineMutant::AnsweredAtKill,
    MachineMutant::LostStartFailed,
    MachineMutant::FailedStepNotHeld,
    MachineMutant::StopLostInStart,
    MachineMutant::SandboxDoesNotWait,
    MachineMutant::NotWatched,
    MachineMutant::LostLaunchForgotten,
];

/// The rules can fail: each deliberate bug breaks one.
#[test]
fn every_mutant_is_caught_by_random_runs_and_by_the_search() {
    for mutant in MUTANTS {
        mutate::make(Some(mutant));
        let random = (0..3_000).find_map(|seed| random_run(seed, 120).err());
        let searched = searches().into_iter().find_map(|(_, start)| explore(start, STATES_MAX).err());
        mutate::make(None);
        let rule = |found: &Option<(Vec<Action>, String)>| {
            found.as_ref().map(|(_, rule)| rule.chars().take(80).collect::<String>())
        };
        println!("{mutant:?}: {:?}, {:?}", rule(&random), rule(&searched));
        assert!(random.is_some(), "the random runs did not catch {mutant:?}");
        assert!(searched.is_some(), "the search did not catch {mutant:?}");
    }
}

const STATES_MAX: usize = 2_000_000;
