//! Amounts of CPU and memory in the units of manifests.

/// `1.5` for 1500 thousandths.
pub(crate) fn cpus(millis: i64) -> String {
    match millis % 1000 {
        0 => (millis / 1000).to_string(),
        rest => format!("{}.{:03}", millis / 1000, rest).trim_end_matches('0').to_owned(),
    }
}

/// With one digit after the point, in the largest unit of which there is one.
pub(crate) fn bytes(bytes: i64) -> String {
    let units = [(50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) if bytes % (1 << shift) == 0 => format!("{}{unit}", bytes >> shift),
        Some((shift, unit)) => format!("{}.{}{unit}", bytes >> shift, ((bytes >> (shift - 10)) % 1024) * 10 / 1024),
        None => bytes.to_string(),
    }
}

/// `12.3 MB`, as docker and crictl print it.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_decimal() {
        assert_eq!(
            ["0 B", "999 B", "1.0 kB", "12.3 MB", "2.0 GB"],
            [0, 999, 1_000, 12_345_678, 2_000_000_001].map(size)
        );
    }
}
