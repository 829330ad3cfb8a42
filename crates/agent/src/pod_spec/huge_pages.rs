//! Limits of huge pages, by the page sizes of the kernel.

use std::collections::BTreeMap;

use podwright_linux::hugepages;

/// A limit for every page size of the kernel, by the size's name (`2MB`): 0 unless requested (Go kubelet: `toResources`).
/// Sizes and limits are in bytes.
pub(crate) fn huge_page_limits(requested: &BTreeMap<i64, i64>, sizes: &[u64]) -> Vec<(String, u64)> {
    let limit = |size: u64| i64::try_from(size).ok().and_then(|size| requested.get(&size)).copied().unwrap_or_default();
    sizes.iter().map(|size| (hugepages::size_name(*size), u64::try_from(limit(*size)).unwrap_or(0))).collect()
}
