//! What goes wrong, and how often: a mix of faults by name, and the dice for one call.

use std::time::Duration;

use crate::rng::Rng;

/// How often things go wrong, in thousandths.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// A runtime call fails and had no effect.
    pub call_fails: u32,
    /// A runtime call hangs past its limit.
    pub call_hangs: u32,
    /// A call that hung never has its effect.
    pub hang_is_forever: u32,
    /// Host work fails.
    pub host_fails: u32,
    /// Host work hangs.
    pub host_hangs: u32,
    /// A pull fails.
    pub pull_fails: u32,
    /// A pull hangs until it is cancelled.
    pub pull_hangs: u32,
    /// A look or a list fails.
    pub look_fails: u32,
    /// A look or a list answers late, with what was there in between.
    pub look_late: u32,
    /// A hint is lost.
    pub hint_lost: u32,
    /// A hint comes twice.
    pub hint_twice: u32,
    /// A hint comes late.
    pub hint_late: u32,
    /// The runtime has no event stream.
    pub no_stream: bool,
    /// The agent dies in a turn.
    pub crash: u32,
    /// How often during a run the runtime goes away and comes back.
    pub outages: u32,
    /// How often the disk is full for a while.
    pub full_disk: u32,
    /// How often the machine is started anew.
    pub reboots: u32,
    /// How often the wall clock is set.
    pub jumps: u32,
    /// How often a sandbox dies by itself.
    pub sandbox_deaths: u32,
    /// How often somebody removes the cgroup of a pod that runs.
    pub cgroup_losses: u32,
    /// A source reports late after a start of the agent.
    pub source_late: u32,
    /// The API server does not do what it is asked.
    pub api_fails: u32,
    /// It does it, and the answer is lost.
    pub api_lost: u32,
    /// How often it goes away.
    pub api_outages: u32,
    /// Its watch, or an answer, is late.
    pub watch_late: u32,
    /// Its watch or list shows an old version.
    pub watch_old: u32,
}

/// What becomes of one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// It has its effect after this time, and answers.
    Fine(Duration),
    /// It answers with an error after this time, and had no effect.
    Fails(Duration),
    /// It does not answer in time; its effect comes after this time.
    Late(Duration),
    /// It does not answer in time and never has an effect.
    Never,
}

impl Faults {
    /// The mixes by their place: 0 is a world without faults.
    pub const MIXES: usize = 9;

    /// One of the mixes.
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
                    look_fails: 80,
                    crash: 5,
                    api_fails: 200,
                    api_lost: 100,
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
                    api_lost: 150,
                    ..none
                },
            ),
            4 => (
                "blind",
                Self {
                    hint_lost: 300,
                    hint_twice: 300,
                    hint_late: 300,
                    look_late: 400,
                    look_fails: 30,
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
                    look_late: 100,
                    crash: 15,
                    source_late: 200,
                    sandbox_deaths: 1,
                    api_outages: 2,
                    ..none
                },
            ),
            6 => ("disk", Self { full_disk: 2, crash: 15, call_fails: 20, ..none }),
            7 => ("reboots", Self { reboots: 1, jumps: 1, crash: 5, look_late: 100, hint_lost: 100, ..none }),
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
                    look_fails: 40,
                    look_late: 150,
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
                    api_lost: 50,
                    api_outages: 1,
                    watch_late: 100,
                    watch_old: 100,
                    ..none
                },
            ),
        }
    }

    /// The fate of a runtime call with this limit.
    pub fn runtime_call(&self, limit: Duration, rng: &mut Rng) -> Fate {
        if rng.chance(self.call_fails) {
            return Fate::Fails(rng.millis(1, 200));
        }
        if rng.chance(self.call_hangs) {
            if rng.chance(self.hang_is_forever) {
                return Fate::Never;
            }
            // Some effects come before the limit, and only the answer is lost.
            return Fate::Late(rng.millis(1, 1 + 4 * millis(limit)));
        }
        Fate::Fine(rng.millis(1, 60))
    }

    /// The fate of host work.
    pub fn host_call(&self, limit: Duration, rng: &mut Rng) -> Fate {
        if rng.chance(self.host_fails) {
            return Fate::Fails(rng.millis(1, 50));
        }
        if rng.chance(self.host_hangs) {
            return if rng.chance(500) { Fate::Never } else { Fate::Late(rng.millis(1, 1 + millis(limit) * 3 / 2)) };
        }
        Fate::Fine(rng.millis(0, 10))
    }

    /// The fate of a pull.
    pub fn pull(&self, rng: &mut Rng) -> Fate {
        if rng.chance(self.pull_fails) {
            return Fate::Fails(rng.millis(10, 2000));
        }
        if rng.chance(self.pull_hangs) {
            return Fate::Never;
        }
        Fate::Fine(rng.millis(10, 3000))
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
