//! Huge pages: the sizes that this kernel has, and how many of each are reserved.

use std::fs;
use std::path::Path;

/// The pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HugePages {
    /// Bytes in one page.
    pub size: u64,
    /// `nr_hugepages`.
    pub count: u64,
}

/// All sizes of this host, the smallest first; empty if the kernel has no huge pages.
pub fn read() -> Vec<HugePages> {
    read_in(Path::new("/sys/kernel/mm/hugepages"))
}

/// A size as in the kernel's file names (`2MB`): in the largest unit that divides it.
pub fn size_name(size: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)];
    let unit = UNITS.iter().find(|(_, unit)| size.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{size}B"), |(name, unit)| format!("{}{name}", size / unit))
}

fn read_in(dir: &Path) -> Vec<HugePages> {
    let mut all: Vec<HugePages> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let count = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
            Some(HugePages { size: size_of(entry.file_name().to_str()?)?, count })
        })
        .collect();
    all.sort();
    all
}

fn size_of(dir: &str) -> Option<u64> {
    let kilobytes: u64 = dir.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_are_read() {
        let dir = tempfile::tempdir().unwrap();
        for (name, count) in [("hugepages-1048576kB", "0\n"), ("hugepages-2048kB", "3\n"), ("other", "1\n")] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("nr_hugepages"), count).unwrap();
        }
        let found = read_in(dir.path());
        assert_eq!(found, [HugePages { size: 2 << 20, count: 3 }, HugePages { size: 1 << 30, count: 0 }]);
        assert!(read_in(&dir.path().join("none")).is_empty());
    }

    #[test]
    fn sizes_have_the_kernels_names() {
        assert_eq!([64 << 10, 2 << 20, 1 << 30, 1500].map(size_name), ["64KB", "2MB", "1GB", "1500B"]);
    }
}
