//! The boot clock, which includes suspended time, and the boot id.

use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since the host was booted, suspended time included.
pub fn boot_time() -> Duration {
    let t = clock_gettime(ClockId::Boottime);
    // The kernel returns neither a negative time since boot nor nanoseconds beyond a second.
    Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// The kernel's random id of this boot.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_equals_proc_uptime_and_advances() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let first = boot_time();
        assert!((first.as_secs_f64() - uptime).abs() < 5.0, "{first:?} {uptime}");
        assert!(boot_time() > first);
    }

    #[test]
    fn the_boot_id_is_constant() {
        let id = boot_id().unwrap();
        assert_eq!(id.len(), 36);
        assert_eq!(id, boot_id().unwrap());
    }
}
