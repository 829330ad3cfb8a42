//! Journaled state of a resize of a pod's resources.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::{Deserialize, Serialize};

use super::Name;

/// Resources of a pod: its own and those of its init and app containers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodResources {
    /// `spec.resources`.
    pub pod: Option<ResourceRequirements>,
    /// By container.
    pub containers: BTreeMap<Name, ResourceRequirements>,
}

/// A resize that is not complete. Both may be there: a newer resize is pending while an older one is applied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResizeRecord {
    /// Other resources are wanted than are allocated.
    pub pending: Option<PendingResize>,
    /// Other resources are allocated than running containers have.
    pub in_progress: Option<ResizeInProgress>,
}

/// A resize that is not allocated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingResize {
    /// The resources of the spec.
    pub desired: PodResources,
    /// `metadata.generation` of the spec.
    pub generation: Option<i64>,
    /// When it was requested: the oldest is tried first.
    pub since: Timestamp,
    /// `None`: it has not been tried yet.
    pub refusal: Option<ResizeRefusal>,
}

/// Why a resize is not allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeRefusal {
    /// It can never be allocated (`Infeasible`); else it is tried again (`Deferred`).
    pub infeasible: bool,
    /// Message of the condition.
    pub message: String,
}

impl ResizeRefusal {
    /// Reason of the condition `PodResizePending`.
    pub fn reason(&self) -> &'static str {
        if self.infeasible { "Infeasible" } else { "Deferred" }
    }
}

/// A resize that is being applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeInProgress {
    /// `metadata.generation` of the spec that was allocated.
    pub generation: Option<i64>,
    /// The last failure.
    pub error: Option<String>,
}

/// The resources that one instance of a container has, where they are not the allocated ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActuatedResources {
    /// The restart count of the instance.
    pub attempt: u32,
    /// Its resources.
    pub resources: ResourceRequirements,
}
