//! What goes wrong and how often: named mixes of faults, and the random fate of one call.

use std::time::Duration;

use podwright_core::model::PodUid;

use crate::rng::Rng;

/// Frequencies are in thousandths, unless they count occurrences in a run.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// A runtime call fails without effect.
    pub call_fails: u32,
    /// A runtime call does not return within its time limit.
    pub call_hangs: u32,
    /// A call that hangs never takes effect.
    pub hang_is_forever: u32,
    /// Host work fails.
    pub host_fails: u32,
    /// Host work hangs.
    pub host_hangs: u32,
    /// A pull fails.
    pub pull_fails: u32,
    /// A pull does not return until it is cancelled.
    pub pull_hangs: u32,
    /// An observation or a list fails.
    pub observe_fails: u32,
    /// An observation or a list is late, with the state of some moment in between.
    pub observe_late: u32,
    /// An event of the runtime's stream is lost.
    pub hint_lost: u32,
    /// It comes twice.
    pub hint_twice: u32,
    /// It comes late.
    pub hint_late: u32,
    /// The runtime has no event stream.
    pub no_stream: bool,
    /// The agent dies while it handles an event.
    pub crash: u32,
    /// How often the runtime goes down in a run.
    pub outages: u32,
    /// How often the disk is full for a while.
    pub full_disk: u32,
    /// How often the host reboots.
    pub reboots: u32,
    /// How often the wall clock is set.
    pub jumps: u32,
    /// How often a sandbox of a running pod dies.
    pub sandbox_deaths: u32,
    /// How often another process removes the cgroup of a running pod.
    pub cgroup_losses: u32,
    /// A source reports late after a start of the agent.
    pub source_late: u32,
    /// A request to the API server fails.
    pub api_fails: u32,
    /// A request is served and its answer is lost.
    pub api_answer_lost: u32,
    /// How often the API server goes down.
    pub api_outages: u32,
    /// A watch or an answer of the API server is late.
    pub watch_late: u32,
    /// A watch or a list has an old version.
    pub watch_old: u32,
    /// A start whose caller died ends later without a process, with exit code 128, instead of taking effect.
    pub start_cut_off: u32,
    /// How often one pod can't be observed for a while although the runtime works.
    pub unobservable: u32,
    /// All runtime calls and observations of this pod hang.
    pub hung_pod: Option<PodUid>,
}

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CallFate {
    /// It takes effect and returns after this time.
    Succeeds(Duration),
    /// It returns an error after this time, without effect.
    Fails(Duration),
    /// It does not return within its time limit; it takes effect after this time.
    Late(Duration),
    /// It does not return within its time limit and never takes effect.
    Never,
}

impl Faults {
    /// The number of mixes; mix 0 has no faults.
    pub const MIXES: usize = 9;

    /// A mix and its name.
    pub fn mix(n: usize) -> (&'static str, Self) {
        let none = Self::default();
        match n {
            0 => ("calm", none),
            1 => ("crashes", Self { crash: 40, cgroup_losses: 1, source_late: 300, watch_late: 100, ..none }),
            2 => (
                "failures",
                Self {
                    call_fails: 120,
                    host_fails: 80,
                    pull_fails: 200,
                    observe_fails: 80,
                    crash: 5,
                    api_fails: 200,
                    api_answer_lost: 100,
                    ..none
                },
            ),
            3 => (
                "hangs",
                Self {
                    call_hangs: 100,
                    hang_is_forever: 400,
                    host_hangs: 30,
                    pull_hangs: 150,
                    crash: 10,
                    api_answer_lost: 150,
                    ..none
                },
            ),
            4 => (
                "unobserved",
                Self {
                    hint_lost: 300,
                    hint_twice: 300,
                    hint_late: 300,
                    observe_late: 400,
                    observe_fails: 30,
                    crash: 5,
                    watch_late: 300,
                    watch_old: 300,
                    ..none
                },
            ),
            5 => (
                "outages",
                Self {
                    outages: 2,
                    no_stream: true,
                    observe_late: 100,
                    crash: 15,
                    source_late: 200,
                    sandbox_deaths: 1,
                    api_outages: 2,
                    ..none
                },
            ),
            6 => ("disk", Self { full_disk: 2, crash: 15, call_fails: 20, ..none }),
            7 => ("reboots", Self { reboots: 1, jumps: 1, crash: 5, observe_late: 100, hint_lost: 100, ..none }),
            _ => (
                "everything",
                Self {
                    call_fails: 40,
                    call_hangs: 30,
                    hang_is_forever: 300,
                    host_fails: 30,
                    host_hangs: 10,
                    pull_fails: 100,
                    pull_hangs: 50,
                    observe_fails: 40,
                    observe_late: 150,
                    hint_lost: 150,
                    hint_twice: 100,
                    hint_late: 150,
                    crash: 12,
                    outages: 1,
                    jumps: 1,
                    sandbox_deaths: 1,
                    cgroup_losses: 1,
                    source_late: 150,
                    api_fails: 80,
                    api_answer_lost: 50,
                    api_outages: 1,
                    watch_late: 100,
                    watch_old: 100,
                    ..none
                },
            ),
        }
    }

    /// The fate of a runtime call with this time limit.
    pub fn runtime_call(&self, limit: Duration, rng: &mut Rng) -> CallFate {
        if rng.chance(self.call_fails) {
            return CallFate::Fails(rng.millis(1, 200));
        }
        if rng.chance(self.call_hangs) {
            if rng.chance(self.hang_is_forever) {
                return CallFate::Never;
            }
            // Some take effect within the limit, and only the answer is lost.
            return CallFate::Late(rng.millis(1, 1 + 4 * millis(limit)));
        }
        CallFate::Succeeds(rng.millis(1, 60))
    }

    /// The fate of host work.
    pub fn host_call(&self, limit: Duration, rng: &mut Rng) -> CallFate {
        if rng.chance(self.host_fails) {
            return CallFate::Fails(rng.millis(1, 50));
        }
        if rng.chance(self.host_hangs) {
            return if rng.chance(500) {
                CallFate::Never
            } else {
                CallFate::Late(rng.millis(1, 1 + millis(limit) * 3 / 2))
            };
        }
        CallFate::Succeeds(rng.millis(0, 10))
    }

    /// The fate of a pull.
    pub fn pull(&self, rng: &mut Rng) -> CallFate {
        if rng.chance(self.pull_fails) {
            return CallFate::Fails(rng.millis(10, 2000));
        }
        if rng.chance(self.pull_hangs) {
            return CallFate::Never;
        }
        CallFate::Succeeds(rng.millis(10, 3000))
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
