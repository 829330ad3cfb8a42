//! A memory limit is not set below the memory in use (Go kubelet: `validateMemoryResizeAction`): the kernel would kill processes.

use std::collections::BTreeMap;

use crate::model::{ContainerId, MemoryUse, Name};

/// Memory limits that are to be lowered, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoweredMemory {
    pub(crate) pod: Option<i64>,
    pub(crate) containers: BTreeMap<Name, (ContainerId, i64)>,
}

impl LoweredMemory {
    pub(crate) fn is_empty(&self) -> bool {
        self.pod.is_none() && self.containers.is_empty()
    }
}

/// The error names every limit that cannot be set now.
pub(crate) fn check_memory(lowered: &LoweredMemory, used: &MemoryUse) -> Result<(), MemoryInUse> {
    let mut errors = Vec::new();
    let mut check = |what: &str, limit: i64, used: Option<u64>| match used {
        None => errors.push(format!("missing {what} memory usage")),
        Some(used) if i128::from(used) >= i128::from(limit) => {
            errors.push(format!("attempting to set {what} memory limit ({limit}) below current usage ({used})"));
        }
        Some(_) => {}
    };
    if let Some(limit) = lowered.pod {
        check("pod", limit, used.pod);
    }
    for (name, (_, limit)) in &lowered.containers {
        check(&format!("container {:?}", name.as_str()), *limit, used.containers.get(name).copied());
    }
    if errors.is_empty() { Ok(()) } else { Err(MemoryInUse(errors)) }
}

/// Limits that are at or below the memory in use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot decrease memory limits: {}", self.text())]
pub(crate) struct MemoryInUse(Vec<String>);

impl MemoryInUse {
    /// As Go writes an aggregate of errors.
    fn text(&self) -> String {
        match &self.0[..] {
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        }
    }
}
