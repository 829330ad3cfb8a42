//! Adaptive limit of concurrent calls of one kind to the runtime: the number that completes the most calls per second.
//!
//! With more calls at a time each one takes longer. Up to some number more of them complete per second, beyond it fewer: the number
//! differs between runtimes, networks and hosts, and between starts (bound by CPUs) and stops (bound by waiting). So it is measured:
//!
//! ```text
//!  limit 4 ── 8 calls: 7.8/s ──▶ 6 ── 8 calls: 7.3/s ──▶ 4, then 3 ── 6.1/s ──▶ 4 …      the neighbours are tried again after a while
//! ```
//!
//! Only a full window counts: while fewer calls wait than are allowed, the rate of completed calls says nothing about the limit.

use crate::model::Time;

/// The limit for one kind of call.
#[derive(Clone, Debug)]
pub struct ConcurrencyLimit {
    /// Ascending.
    levels: Vec<Level>,
    current: usize,
    initial: usize,
    window: Window,
    /// Calls in a row that no longer counted when they completed.
    abandoned: usize,
    windows: u64,
}

/// One possible limit, and what was measured with it.
#[derive(Clone, Debug)]
struct Level {
    limit: usize,
    /// Completed calls per second; `None`: not measured yet.
    rate: Option<f64>,
    /// The number of the window in which it was measured last.
    measured: u64,
}

/// A measurement under way. The first calls after a change were sent under the former limit, or before all permits were used: they do
/// not count.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    skipped: usize,
    began: Option<Time>,
    completed: usize,
}

impl ConcurrencyLimit {
    /// Starts with `initial` calls at a time and stays between 1 and `max`.
    pub fn new(initial: usize, max: usize) -> Self {
        let max = max.max(1);
        let initial = initial.clamp(1, max);
        // Steps of about a half in both directions from the initial limit, which is a level itself.
        let mut limits = vec![initial, max];
        let mut above = initial;
        while above < max {
            above = (above * 3).div_ceil(2).max(above + 1).min(max);
            limits.push(above);
        }
        let mut below = initial;
        while below > LIMIT_MIN {
            below = (below * 2 / 3).min(below - 1).max(LIMIT_MIN);
            limits.push(below);
        }
        limits.sort_unstable();
        limits.dedup();
        let current = limits.iter().position(|limit| *limit == initial).unwrap_or(0);
        let levels = limits.into_iter().map(|limit| Level { limit, rate: None, measured: 0 }).collect();
        Self { levels, current, initial: current, window: Window::default(), abandoned: 0, windows: 0 }
    }

    /// Calls that may be under way at the same time.
    pub fn limit(&self) -> usize {
        self.levels[self.current].limit
    }

    /// A call completed. `saturated`: others wait because of the limit.
    pub fn completed(&mut self, saturated: bool, now: Time) {
        self.abandoned = 0;
        if !saturated {
            self.window = Window::default();
            return;
        }
        let limit = self.limit();
        let window = &mut self.window;
        if window.skipped < limit {
            window.skipped += 1;
            return;
        }
        let Some(began) = window.began else {
            window.began = Some(now);
            return;
        };
        window.completed += 1;
        let elapsed = now.saturating_sub(began);
        if window.completed < WINDOW_MIN.max(limit) || elapsed.is_zero() {
            return;
        }
        let rate = window.completed as f64 / elapsed.as_secs_f64();
        // Without a change of the limit, the next window follows at once.
        self.window = Window { skipped: limit, began: Some(now), completed: 0 };
        self.measured(rate);
        if self.limit() != limit {
            self.window = Window::default();
        }
    }

    /// A call took too long to count: the window is discarded. If all calls do, the runtime has too many calls or hangs: the
    /// limit falls to the initial one by steps. A lower limit rises to the initial one at once: calls that hang must not hold up
    /// all others.
    pub fn abandoned(&mut self) {
        self.window = Window::default();
        self.abandoned += 1;
        if self.current < self.initial {
            self.current = self.initial;
            self.abandoned = 0;
        } else if self.abandoned >= self.limit() && self.current > self.initial {
            self.current -= 1;
            self.abandoned = 0;
        }
    }

    fn measured(&mut self, rate: f64) {
        self.windows += 1;
        let windows = self.windows;
        let level = &mut self.levels[self.current];
        level.rate = Some(level.rate.map_or(rate, |before| before + (rate - before) * NEW_WEIGHT));
        level.measured = windows;
        let own = level.rate.unwrap_or(rate);
        let neighbours =
            [self.current + 1, self.current.wrapping_sub(1)].into_iter().filter(|at| *at < self.levels.len());
        let rate_of = |at: usize| self.levels[at].rate.unwrap_or(0.0);
        let best = neighbours.clone().max_by(|a, b| rate_of(*a).total_cmp(&rate_of(*b)));
        if let Some(better) = best.filter(|at| rate_of(*at) > own * BETTER) {
            self.current = better;
            return;
        }
        // The current limit is the best known one. Unknown neighbours are tried, the higher one first: nothing else shows that
        // the runtime could do more.
        let is_unknown = |level: &Level| level.rate.is_none() || windows - level.measured >= REMEASURED_AFTER;
        if let Some(unknown) = neighbours.clone().find(|at| is_unknown(&self.levels[*at])) {
            self.current = unknown;
        }
    }
}

/// The lowest limit that is tried, unless the initial one is lower: one call that hangs must not hold up all others.
const LIMIT_MIN: usize = 2;
/// Calls in one measurement, at least.
const WINDOW_MIN: usize = 8;
/// Weight of a new measurement: the runtime's other work makes single windows uncertain.
const NEW_WEIGHT: f64 = 0.5;
/// A neighbour that was not measured for so many windows is measured again: the host may have changed.
const REMEASURED_AFTER: u64 = 32;
/// A neighbour must be better by this factor.
const BETTER: f64 = 1.01;

#[cfg(test)]
mod tests {
    use std::collections::BinaryHeap;
    use std::time::Duration;

    use super::*;

    /// A runtime that completes `rate(n)` calls per second with `n` calls under way: each takes `n / rate(n)`. Returns the limit after
    /// this many calls, and the time they took.
    fn simulate(limit: &mut ConcurrencyLimit, calls: usize, rate: impl Fn(f64) -> f64) -> (usize, Time) {
        let mut noise = 12345_u64;
        let mut now = Duration::ZERO;
        let mut under_way = BinaryHeap::new();
        let mut waiting = calls;
        while waiting > 0 || !under_way.is_empty() {
            while waiting > 0 && under_way.len() < limit.limit() {
                waiting -= 1;
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let n = (under_way.len() + 1) as f64;
                // Up to 10 % more or less.
                let factor = 0.9 + 0.2 * ((noise >> 33) as f64 / f64::from(1_u32 << 31));
                let took = Duration::from_secs_f64(n / rate(n) * factor);
                under_way.push(std::cmp::Reverse(now + took));
            }
            let std::cmp::Reverse(at) = under_way.pop().expect("something is under way");
            now = now.max(at);
            limit.completed(waiting > 0, now);
        }
        (limit.limit(), now)
    }

    /// Measured with 40 pods on a bridge with portmap: 4 at a time take 5.1 s, 40 take 7.4 s.
    fn starts(n: f64) -> f64 {
        match n {
            n if n <= 4.0 => 7.84 * (n / 4.0).powf(0.5),
            n => 7.84 * (n / 4.0).powf(-0.16),
        }
    }

    /// 4 at a time take 6.0 s, 16 take 5.2 s, 40 take 4.7 s; more gain nothing.
    fn stops(n: f64) -> f64 {
        8.5 * (n.min(40.0) / 40.0).powf(0.12) * (n.max(40.0) / 40.0).powf(-0.3)
    }

    #[test]
    fn starts_stay_at_the_few_that_are_best() {
        for initial in [1, 2, 4, 16, 40] {
            let mut limit = ConcurrencyLimit::new(initial, 64);
            let (found, _) = simulate(&mut limit, 3000, starts);
            assert!((2..=9).contains(&found), "from {initial}: {found}");
        }
    }

    #[test]
    fn stops_grow_to_the_many_that_are_best() {
        for initial in [1, 4, 16, 24, 64] {
            let mut limit = ConcurrencyLimit::new(initial, 64);
            let (found, _) = simulate(&mut limit, 6000, stops);
            assert!((20..=64).contains(&found), "from {initial}: {found}");
        }
    }

    #[test]
    fn the_first_forty_calls_are_nearly_as_fast_as_with_the_best_limit() {
        let (_, up) = simulate(&mut ConcurrencyLimit::new(4, 64), 40, starts);
        assert!(up < Duration::from_millis(5600), "{up:?}");
        let (_, down) = simulate(&mut ConcurrencyLimit::new(24, 64), 40, stops);
        assert!(down < Duration::from_millis(5500), "{down:?}");
    }

    #[test]
    fn a_host_that_changes_is_measured_again() {
        let mut limit = ConcurrencyLimit::new(4, 64);
        simulate(&mut limit, 3000, starts);
        let (found, _) = simulate(&mut limit, 20_000, stops);
        assert!(found >= 20, "{found}");
    }

    #[test]
    fn calls_that_nothing_waits_for_change_nothing() {
        let mut limit = ConcurrencyLimit::new(4, 64);
        for n in 0..1000 {
            limit.completed(false, Duration::from_millis(n));
        }
        assert_eq!(limit.limit(), 4);
    }

    #[test]
    fn a_runtime_whose_calls_all_hang_gets_the_initial_number_again() {
        let mut limit = ConcurrencyLimit::new(4, 64);
        simulate(&mut limit, 6000, stops);
        assert!(limit.limit() > 10, "{limit:?}");
        (0..1000).for_each(|_| limit.abandoned());
        assert_eq!(limit.limit(), 4);
    }

    #[test]
    fn a_limit_below_the_initial_one_does_not_stay_there_while_calls_hang() {
        let mut limit = ConcurrencyLimit::new(8, 64);
        simulate(&mut limit, 3000, |n| 1.0 / n);
        assert_eq!(limit.limit(), 2, "one call that hangs must not stop all");
        limit.abandoned();
        assert_eq!(limit.limit(), 8);
    }

    #[test]
    fn limits_are_bounded_whatever_is_measured() {
        for (initial, max) in [(0, 0), (1, 1), (100, 3), (7, 64)] {
            let mut limit = ConcurrencyLimit::new(initial, max);
            let mut now = Duration::ZERO;
            for n in 0..5000_u64 {
                now += Duration::from_millis(n * 7919 % 13);
                limit.completed(n % 17 != 0, now);
                assert!((1..=max.max(1)).contains(&limit.limit()));
            }
        }
    }
}
