//! The numbers of the kubelet's message about a pod that does not fit:
//! `Node didn't have enough resource: cpu, requested: 1000, used: 100, capacity: 2000`.

/// A resource of which the node has too little for a pod, in the units of the message: bytes, or thousandths of a CPU.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shortage<'a> {
    pub(super) resource: &'a str,
    pub(super) requested: i64,
    pub(super) used: i64,
    /// What the node has for pods: without what is reserved.
    pub(super) capacity: i64,
}

impl<'a> Shortage<'a> {
    pub(super) fn of(message: &'a str) -> Option<Self> {
        let (_, numbers) = message.split_once("enough resource: ")?;
        let (resource, numbers) = numbers.split_once(", requested: ")?;
        let (requested, numbers) = numbers.split_once(", used: ")?;
        let (used, capacity) = numbers.split_once(", capacity: ")?;
        let number = |text: &str| text.trim().parse::<i64>().ok();
        Some(Self { resource, requested: number(requested)?, used: number(used)?, capacity: number(capacity)? })
    }

    /// The pod would not fit on the empty node either.
    pub(super) fn exceeds_node(&self) -> bool {
        self.requested > self.capacity
    }

    pub(super) fn free(&self) -> i64 {
        self.capacity.saturating_sub(self.used).max(0)
    }
}
