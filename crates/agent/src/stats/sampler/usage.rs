//! The current usage: CPU usage is a rate, so it needs two samples that are not too far apart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_linux::cgroup::UsageDetail;

use super::super::resource_usage::ResourceUsage;
use super::{AGE_MAX, SampleError, Sampler};

impl Sampler {
    /// CPU and memory of the node, its pods and containers, at most `AGE_MAX` old. Takes `RATE_WINDOW` longer if the last
    /// sample is too old for a rate, or does not have all containers yet.
    pub async fn usage(&self) -> Result<ResourceUsage, SampleError> {
        let mut last = self.last.lock().await;
        let newest = last.newest();
        if let Some((at, sample)) = &newest
            && at.elapsed() < AGE_MAX
            && sample.has_rates()
        {
            return Ok(ResourceUsage::of(sample, last.window));
        }
        let mut since = newest.filter(|(at, sample)| at.elapsed() < RATE_AGE_MAX && sample.has_rates());
        // Twice at most: a container that started in between has no rate, and is left out.
        for _ in 0..2 {
            if let Some((at, _)) = &since {
                let early = RATE_WINDOW.saturating_sub(at.elapsed());
                tokio::time::sleep(early).await;
            }
            let sample = Arc::new(self.take(UsageDetail::CpuAndMemory).await?);
            let now = Instant::now();
            let window = since.take().map_or(Duration::ZERO, |(at, _)| now.saturating_duration_since(at));
            (last.window, last.cpu_and_memory) = (window, Some((now, Arc::clone(&sample))));
            since = Some((now, Arc::clone(&sample)));
            if window > Duration::ZERO && sample.has_rates() {
                break;
            }
        }
        match since {
            Some((_, sample)) => Ok(ResourceUsage::of(&sample, last.window)),
            None => unreachable!("a sample was taken"),
        }
    }
}

/// The shortest time for a rate; the kernel's rounding would dominate a shorter one.
const RATE_WINDOW: Duration = Duration::from_millis(1050);
/// An older sample gives the usage of long ago.
const RATE_AGE_MAX: Duration = Duration::from_secs(60);
