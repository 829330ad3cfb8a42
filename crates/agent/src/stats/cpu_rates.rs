//! CPU usage per second, from the last two samples of each cgroup.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::sample::CgroupSample;

/// The last sample of every cgroup.
#[derive(Debug, Default)]
pub(super) struct CpuRates(BTreeMap<String, CpuPoint>);

#[derive(Clone, Copy, Debug)]
struct CpuPoint {
    at: Instant,
    usage_ns: u64,
    nano_cores: Option<u64>,
    /// Seen in the current round.
    fresh: bool,
}

impl CpuRates {
    /// Sets the rate of a cgroup that was read at this moment.
    pub(super) fn apply(&mut self, sample: &mut CgroupSample, at: Instant) {
        let Some(usage_ns) = sample.usage.cpu.usage_ns else { return };
        let point = match self.0.get(&sample.path) {
            Some(last) if last.usage_ns > usage_ns => CpuPoint { at, usage_ns, nano_cores: None, fresh: true },
            // Over a short time the kernel's rounding would dominate.
            Some(last) if at.saturating_duration_since(last.at) < INTERVAL_MIN => CpuPoint { fresh: true, ..*last },
            Some(last) => {
                let elapsed = at.saturating_duration_since(last.at).as_nanos().max(1);
                let rate = u128::from(usage_ns - last.usage_ns) * 1_000_000_000 / elapsed;
                CpuPoint { at, usage_ns, nano_cores: u64::try_from(rate).ok(), fresh: true }
            }
            None => CpuPoint { at, usage_ns, nano_cores: None, fresh: true },
        };
        sample.nano_cores = point.nano_cores;
        self.0.insert(sample.path.clone(), point);
    }

    /// Ends a round: cgroups that were not in it are forgotten.
    pub(super) fn end_round(&mut self) {
        self.0.retain(|_, point| std::mem::take(&mut point.fresh));
    }
}

const INTERVAL_MIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use podwright_linux::cgroup::CgroupUsage;

    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_two_samples() {
        let mut rates = CpuRates::default();
        let begin = Instant::now();
        let mut read = |millis: u64, usage_ns: u64| {
            let mut usage = CgroupUsage::default();
            usage.cpu.usage_ns = Some(usage_ns);
            let mut sample = CgroupSample { path: "/a".into(), at: Timestamp::UNIX_EPOCH, usage, nano_cores: None };
            rates.apply(&mut sample, begin + Duration::from_millis(millis));
            sample.nano_cores
        };
        assert_eq!(read(0, 1_000), None);
        assert_eq!(read(10_000, 5_000_001_000), Some(500_000_000));
        assert_eq!(read(10_400, 5_900_000_000), Some(500_000_000), "too soon for a new rate");
        assert_eq!(read(12_000, 6_000_001_000), Some(500_000_000));
        assert_eq!(read(14_000, 7), None, "the counter began again");
        rates.end_round();
        rates.end_round();
        assert!(rates.0.is_empty());
    }
}
