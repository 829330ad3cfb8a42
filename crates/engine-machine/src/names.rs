//! The names of sandboxes and containers. A name is reserved when its object is requested and released when the object is gone, so
//! that a repeated call can not make a second object.
//!
//! Reservations are in memory only: recovery makes them again from the records.

use std::collections::BTreeMap;
use std::fmt;

use super::{ContainerId, Refusal, SandboxId};

/// What makes a sandbox unique.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxKey {
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's UID.
    pub uid: String,
    /// How often the pod got a new sandbox.
    pub attempt: u32,
}

/// What makes a container unique.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerKey {
    /// The sandbox it belongs to.
    pub sandbox: SandboxId,
    /// Its name in the pod.
    pub name: String,
    /// How often it was restarted.
    pub attempt: u32,
}

impl fmt::Display for SandboxKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}_{}", self.name, self.namespace, self.uid, self.attempt)
    }
}

impl fmt::Display for ContainerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.name, self.sandbox, self.attempt)
    }
}

/// The reserved names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Names {
    sandboxes: BTreeMap<SandboxKey, SandboxId>,
    containers: BTreeMap<ContainerKey, ContainerId>,
}

impl Names {
    /// Reserves the name of a sandbox.
    pub(super) fn reserve_sandbox(&mut self, key: &SandboxKey, id: &SandboxId) -> Result<(), Refusal> {
        match self.sandboxes.get(key) {
            Some(owner) => Err(Refusal::NameReserved { name: key.to_string(), id: owner.0.clone() }),
            None => {
                self.sandboxes.insert(key.clone(), id.clone());
                Ok(())
            }
        }
    }

    /// Reserves the name of a container.
    pub(super) fn reserve_container(&mut self, key: &ContainerKey, id: &ContainerId) -> Result<(), Refusal> {
        match self.containers.get(key) {
            Some(owner) => Err(Refusal::NameReserved { name: key.to_string(), id: owner.0.clone() }),
            None => {
                self.containers.insert(key.clone(), id.clone());
                Ok(())
            }
        }
    }

    /// The name of a recorded sandbox. Of two records with one name the first keeps it.
    pub(super) fn restore_sandbox(&mut self, key: &SandboxKey, id: &SandboxId) {
        self.sandboxes.entry(key.clone()).or_insert_with(|| id.clone());
    }

    /// The name of a recorded container. Of two records with one name the first keeps it.
    pub(super) fn restore_container(&mut self, key: &ContainerKey, id: &ContainerId) {
        self.containers.entry(key.clone()).or_insert_with(|| id.clone());
    }

    /// The sandbox is gone.
    pub(super) fn release_sandbox(&mut self, key: &SandboxKey) {
        self.sandboxes.remove(key);
    }

    /// The container is gone.
    pub(super) fn release_container(&mut self, key: &ContainerKey) {
        self.containers.remove(key);
    }

    /// No name is reserved.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}
