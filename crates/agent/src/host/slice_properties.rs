//! The limits of a cgroup as properties of its systemd slice.
//!
//! systemd may write the files of its cgroups again at any time (`daemon-reload`, a change of a sibling), so a limit that
//! it does not know would be lost. The rules are those of runc's cgroup manager, which the Go kubelet uses
//! (`genV1ResourcesProperties`, `genV2ResourcesProperties`, `addCPUQuota`).

use podwright_linux::cgroup::{Bound, CgroupResources, CgroupVersion, CpuQuota, cpu_weight};

/// A property of a unit: its name in D-Bus and its value.
pub(super) type SliceProperty = (&'static str, PropertyValue);

/// The types of the properties that slices have here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PropertyValue {
    Number(u64),
    /// A bit per CPU, the lowest first.
    Bits(Vec<u8>),
}

/// The properties of a slice with these limits, for systemd of this version (252, for example).
pub(super) fn slice_properties(
    resources: &CgroupResources,
    cgroup: CgroupVersion,
    systemd_version: u32,
) -> Vec<SliceProperty> {
    let v1 = cgroup == CgroupVersion::V1;
    let mut properties = Vec::new();
    let mut number = |name, value| properties.push((name, PropertyValue::Number(value)));
    if let Some(memory) = resources.memory {
        number(if v1 { "MemoryLimit" } else { "MemoryMax" }, infinite(memory));
    }
    match resources.cpu_shares {
        Some(shares) if v1 => number("CPUShares", shares),
        Some(shares) => number("CPUWeight", cpu_weight(shares)),
        None => {}
    }
    if let Some(quota) = resources.cpu_quota {
        if systemd_version >= QUOTA_PERIOD_SINCE {
            number("CPUQuotaPeriodUSec", micros(quota));
        }
        number("CPUQuotaPerSecUSec", per_second(quota).unwrap_or(u64::MAX));
    }
    if let Some(pids) = resources.pids {
        // systemd refuses 0.
        number("TasksMax", infinite(pids).max(1));
    }
    properties
}

/// The property that lets a slice use all CPUs. Without it, systemd disables the cpuset controller that pods need (Go kubelet:
/// `getCgroupConfig` with CPU manager policy `none`). `None`: this systemd has no such property, or the list can't be read.
pub(super) fn allowed_cpus(list: &str, systemd_version: u32) -> Option<SliceProperty> {
    if systemd_version < ALLOWED_CPUS_SINCE {
        return None;
    }
    Some(("AllowedCPUs", PropertyValue::Bits(cpu_bits(list)?)))
}

/// The limits with the quota that systemd can express, so that it and the files agree. systemd counts in whole percents of a
/// CPU; rounding up leaves the containers below what they expect.
pub(super) fn round_quota(resources: &CgroupResources) -> CgroupResources {
    let rounded = resources.cpu_quota.map(|quota| match per_second(quota) {
        Some(per_second) => {
            let micros = u128::from(per_second) * u128::from(micros(quota)) / u128::from(MICROS_PER_SECOND);
            CpuQuota { quota: Bound::At(u64::try_from(micros).unwrap_or(u64::MAX)), ..quota }
        }
        None => quota,
    });
    CgroupResources { cpu_quota: rounded, ..resources.clone() }
}

/// Microseconds of CPU time per second, in whole percents of a CPU; `None` without limit.
fn per_second(quota: CpuQuota) -> Option<u64> {
    let Bound::At(limit) = quota.quota else { return None };
    let exact = u128::from(limit) * u128::from(MICROS_PER_SECOND) / u128::from(micros(quota).max(1));
    let percents = exact.div_ceil(u128::from(PERCENT));
    Some(u64::try_from(percents).unwrap_or(u64::MAX).saturating_mul(PERCENT))
}

fn micros(quota: CpuQuota) -> u64 {
    u64::try_from(quota.period.as_micros()).unwrap_or(u64::MAX)
}

fn infinite(bound: Bound) -> u64 {
    match bound {
        Bound::Max => u64::MAX,
        Bound::At(limit) => limit,
    }
}

/// A list of the kernel (`0-3,8`) as a bit mask. `None` if it is not such a list.
fn cpu_bits(list: &str) -> Option<Vec<u8>> {
    let mut bits = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last > CPU_MAX {
            return None;
        }
        bits.resize(bits.len().max(last / 8 + 1), 0u8);
        (first..=last).for_each(|cpu| bits[cpu / 8] |= 1 << (cpu % 8));
    }
    Some(bits)
}

const MICROS_PER_SECOND: u64 = 1_000_000;
/// One percent of a CPU, in microseconds per second.
const PERCENT: u64 = 10_000;
/// The versions of systemd that introduced the properties.
const QUOTA_PERIOD_SINCE: u32 = 242;
const ALLOWED_CPUS_SINCE: u32 = 244;
/// More than any kernel supports (`NR_CPUS`).
const CPU_MAX: usize = 65_535;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::PropertyValue::{Bits, Number};
    use super::*;

    fn resources(quota: Bound, period: u64) -> CgroupResources {
        CgroupResources {
            cpu_shares: Some(1024),
            cpu_quota: Some(CpuQuota { quota, period: Duration::from_micros(period) }),
            memory: Some(Bound::At(1 << 30)),
            pids: Some(Bound::At(0)),
            ..CgroupResources::default()
        }
    }

    #[test]
    fn properties_of_both_cgroup_versions() {
        let limits = resources(Bound::At(50_000), 100_000);
        let quota = [("CPUQuotaPeriodUSec", Number(100_000)), ("CPUQuotaPerSecUSec", Number(500_000))];
        let [period, per_second] = quota;
        let v2 = [("MemoryMax", Number(1 << 30)), ("CPUWeight", Number(39)), period.clone(), per_second.clone()];
        let tasks = ("TasksMax", Number(1));
        assert_eq!(slice_properties(&limits, CgroupVersion::V2, 252), [&v2[..], std::slice::from_ref(&tasks)].concat());
        let v1 = [("MemoryLimit", Number(1 << 30)), ("CPUShares", Number(1024)), per_second, tasks];
        assert_eq!(slice_properties(&limits, CgroupVersion::V1, 241), v1, "an old systemd has a fixed period");
        assert_eq!(slice_properties(&CgroupResources::default(), CgroupVersion::V2, 252), []);
    }

    #[test]
    fn no_limit_is_infinity() {
        let none = CgroupResources { memory: Some(Bound::Max), pids: Some(Bound::Max), ..CgroupResources::default() };
        let infinity = [("MemoryMax", Number(u64::MAX)), ("TasksMax", Number(u64::MAX))];
        assert_eq!(slice_properties(&none, CgroupVersion::V2, 252), infinity);
    }

    /// Quota, period, microseconds per second and the quota for the file: the values of runc's `TestAddCPUQuota` and more.
    #[test]
    fn a_quota_is_rounded_up_to_whole_percents() {
        let table = [
            (50_000, 100_000, 500_000, 50_000),
            (99_999, 100_000, 1_000_000, 100_000),
            (1_000, 100_000, 10_000, 1_000),
            (1_500, 100_000, 20_000, 2_000),
            (12_345, 50_000, 250_000, 12_500),
            (1, 1_000_000, 10_000, 10_000),
        ];
        for (quota, period, per_second, file) in table {
            let limits = resources(Bound::At(quota), period);
            let properties = slice_properties(&limits, CgroupVersion::V2, 252);
            assert!(properties.contains(&("CPUQuotaPerSecUSec", Number(per_second))), "{quota} {properties:?}");
            assert_eq!(round_quota(&limits).cpu_quota.unwrap().quota, Bound::At(file), "{quota}");
        }
        let unlimited = resources(Bound::Max, 100_000);
        assert!(
            slice_properties(&unlimited, CgroupVersion::V2, 252).contains(&("CPUQuotaPerSecUSec", Number(u64::MAX)))
        );
        assert_eq!(round_quota(&unlimited), unlimited);
    }

    #[test]
    fn lists_of_cpus_are_bit_masks() {
        assert_eq!(allowed_cpus("0-3,8\n", 252), Some(("AllowedCPUs", Bits(vec![0b1111, 1]))));
        assert_eq!(allowed_cpus("1", 244), Some(("AllowedCPUs", Bits(vec![2]))));
        for bad in ["", "a", "3-1", "0-99999999", "1,,2"] {
            assert_eq!(allowed_cpus(bad, 252), None, "{bad:?}");
        }
        assert_eq!(allowed_cpus("0-3", 243), None, "an old systemd has no such property");
    }
}
