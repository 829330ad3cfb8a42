//! Random numbers from a seed: SplitMix64. Small, fast, the same on every platform.

use std::time::Duration;

/// The random numbers of one seed.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
    /// Nothing is random: always the smallest value, and no event of any chance.
    flat: bool,
}

impl Rng {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds must not start with similar numbers.
        let state = seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5851_f42d_4c95_7f2d;
        let mut rng = Self { state, flat: false };
        rng.next();
        rng
    }

    /// Always the smallest value, and no event of any chance.
    pub fn flat() -> Self {
        Self { state: 0, flat: true }
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "an endless stream is not meant to be iterated")]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 for `n` = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 || self.flat { 0 } else { self.next() % n }
    }

    /// An index below this length.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a length")
    }

    /// True with this chance in a thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && !self.flat && self.below(1000) < u64::from(per_mille)
    }

    /// A duration of `from` to `to` milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to.saturating_sub(from) + 1))
    }

    /// A random element.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}
