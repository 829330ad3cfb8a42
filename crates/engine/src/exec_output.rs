//! The output of ExecSync in memory, bounded over all calls. A pod may have many exec probes with much output, and each call alone may
//! keep 32 MiB; what a call may not keep it reads and drops, so that the process does not block.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// The bytes that all calls keep. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExecOutputBudget(Arc<Mutex<UsedBytes>>);

#[derive(Debug, Default)]
struct UsedBytes {
    all: usize,
    by_pod: BTreeMap<String, usize>,
}

/// The output of one stream. Its bytes are counted until the caller has dropped the answer.
#[derive(Debug)]
pub(crate) struct ExecOutput {
    bytes: Vec<u8>,
    /// Of `bytes`, what the budget was charged.
    charged: usize,
    pod: String,
    budget: ExecOutputBudget,
}

impl ExecOutputBudget {
    pub(crate) fn output(&self, pod: &str) -> ExecOutput {
        ExecOutput { bytes: vec![], charged: 0, pod: pod.to_owned(), budget: self.clone() }
    }

    /// How much of `wanted` may be kept.
    fn charge(&self, pod: &str, wanted: usize) -> usize {
        let mut used = self.used();
        let of_pod = used.by_pod.get(pod).copied().unwrap_or_default();
        let left = ALL_BYTES_MAX.saturating_sub(used.all).min(POD_BYTES_MAX.saturating_sub(of_pod));
        let granted = wanted.min(left);
        if granted > 0 {
            used.all += granted;
            used.by_pod.insert(pod.to_owned(), of_pod + granted);
        }
        granted
    }

    fn release(&self, pod: &str, bytes: usize) {
        let mut used = self.used();
        used.all = used.all.saturating_sub(bytes);
        let left = used.by_pod.get(pod).copied().unwrap_or_default().saturating_sub(bytes);
        if left == 0 {
            used.by_pod.remove(pod);
        } else {
            used.by_pod.insert(pod.to_owned(), left);
        }
    }

    fn used(&self) -> MutexGuard<'_, UsedBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExecOutput {
    /// Keeps the beginning of the output.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        let chunk = &chunk[..chunk.len().min(STREAM_BYTES_MAX.saturating_sub(self.bytes.len()))];
        let free = chunk.len().min(FREE_BYTES.saturating_sub(self.bytes.len()));
        let granted = self.budget.charge(&self.pod, chunk.len() - free);
        self.charged += granted;
        self.bytes.extend_from_slice(&chunk[..free + granted]);
    }

    pub(crate) fn into_bytes(mut self) -> Bytes {
        self.bytes.shrink_to_fit();
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for ExecOutput {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for ExecOutput {
    fn drop(&mut self) {
        self.budget.release(&self.pod, self.charged);
    }
}

/// Per stream, as containerd and CRI-O have it.
const STREAM_BYTES_MAX: usize = 16 << 20;
/// Both streams of one call.
const POD_BYTES_MAX: usize = 2 * STREAM_BYTES_MAX;
/// Of all pods: four of them with all their output.
const ALL_BYTES_MAX: usize = 4 * POD_BYTES_MAX;
/// Per stream, whatever others use: an agent shows 10 KiB of a probe.
const FREE_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(budget: &ExecOutputBudget, pod: &str) -> Bytes {
        let mut output = budget.output(pod);
        (0..20).for_each(|_| output.push(&vec![7; 1 << 20]));
        output.into_bytes()
    }

    #[test]
    fn the_outputs_of_a_pod_and_of_all_pods_are_bounded_and_each_has_its_beginning() {
        let budget = ExecOutputBudget::default();
        let mut kept: Vec<Bytes> = (0..3).map(|_| filled(&budget, "a")).collect();
        assert_eq!(kept[0].len(), STREAM_BYTES_MAX);
        assert_eq!(kept.iter().map(Bytes::len).sum::<usize>(), POD_BYTES_MAX + 3 * FREE_BYTES, "of one pod");
        kept.extend((0..20).map(|n| filled(&budget, &format!("pod-{n}"))));
        assert_eq!(kept.iter().map(Bytes::len).sum::<usize>(), ALL_BYTES_MAX + kept.len() * FREE_BYTES);
        assert_eq!(kept.last().map(Bytes::len), Some(FREE_BYTES));
        let copies = kept.clone();
        drop(kept);
        assert_eq!(filled(&budget, "b").len(), FREE_BYTES, "the answers are not sent yet");
        drop(copies);
        assert_eq!(filled(&budget, "b").len(), STREAM_BYTES_MAX);
        assert!(budget.used().by_pod.is_empty() && budget.used().all == 0);
    }
}
