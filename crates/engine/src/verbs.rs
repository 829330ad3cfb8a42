//! The calls of the CRI, one file each: they check the request, pass it to the driver or read the objects, and answer.

mod container_events;
mod container_status;
mod create_container;
mod exec_plan;
mod exec_sync;
mod list_containers;
mod list_metrics;
mod list_pod_sandbox;
mod pod_sandbox_status;
mod remove_container;
mod remove_pod_sandbox;
mod reopen_container_log;
mod run_pod_sandbox;
mod start_container;
mod stats;
mod status;
mod stop_container;
mod stop_pod_sandbox;
mod stream_target;
mod update_container_resources;
mod update_runtime_config;
mod version;

pub(crate) use container_events::container_events;
pub(crate) use container_status::container_status;
pub(crate) use create_container::create_container;
pub(crate) use exec_sync::exec_sync;
pub(crate) use list_containers::list_containers;
pub(crate) use list_metrics::{list_metric_descriptors, list_pod_sandbox_metrics};
pub(crate) use list_pod_sandbox::list_pod_sandbox;
pub(crate) use pod_sandbox_status::pod_sandbox_status;
pub(crate) use remove_container::remove_container;
pub(crate) use remove_pod_sandbox::remove_pod_sandbox;
pub(crate) use reopen_container_log::reopen_container_log;
pub(crate) use run_pod_sandbox::run_pod_sandbox;
pub(crate) use start_container::start_container;
pub(crate) use stats::{container_stats, list_container_stats, list_pod_sandbox_stats, pod_sandbox_stats};
pub(crate) use status::{runtime_config, status};
pub(crate) use stop_container::stop_container;
pub(crate) use stop_pod_sandbox::stop_pod_sandbox;
pub(crate) use stream_target::{attach_streams, connect_port, exec_streams};
pub(crate) use update_container_resources::update_container_resources;
pub(crate) use update_runtime_config::update_runtime_config;
pub(crate) use version::version;

use std::collections::BTreeMap;
use std::sync::Arc;

use podwright_cri::{Code, CriError};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::context::EngineContext;
use crate::driver::{CallFailure, DriverHandle};
use crate::machine::{ContainerId, Failure, Refusal, SandboxId};
use crate::objects::Objects;

/// What a call works with.
#[derive(Clone, Copy)]
pub(crate) struct VerbContext<'a> {
    pub(crate) context: &'a Arc<EngineContext>,
    pub(crate) driver: &'a DriverHandle,
}

/// The error of a call that the driver refused.
fn refused(call: &'static str, failure: CallFailure) -> CriError {
    let code = match &failure {
        CallFailure::Refused(Refusal::NoSandbox(_) | Refusal::NoContainer(_)) => Code::NotFound,
        CallFailure::Refused(Refusal::NameReserved { .. }) => Code::AlreadyExists,
        CallFailure::Refused(_) => Code::Other,
        CallFailure::Stopped => Code::Unavailable,
    };
    CriError::new(code, call, failure.to_string())
}

fn invalid(call: &'static str, message: impl Into<String>) -> CriError {
    CriError::new(Code::InvalidArgument, call, message)
}

fn not_found(call: &'static str, kind: &str, id: &str) -> CriError {
    CriError::new(Code::NotFound, call, format!("{kind} {id:?} not found"))
}

/// The sandbox with this id or beginning of one; `None`: there is none, which some calls take for success.
fn find_sandbox(objects: &Objects, call: &'static str, text: &str) -> Result<Option<SandboxId>, CriError> {
    objects.find_sandbox(text).map_err(|ambiguous| invalid(call, format!("sandbox {ambiguous}")))
}

/// The container with this id or beginning of one; `None`: there is none, which some calls take for success.
fn find_container(objects: &Objects, call: &'static str, text: &str) -> Result<Option<ContainerId>, CriError> {
    objects.find_container(text).map_err(|ambiguous| invalid(call, format!("container {ambiguous}")))
}

fn known_sandbox(objects: &Objects, call: &'static str, text: &str) -> Result<SandboxId, CriError> {
    find_sandbox(objects, call, text)?.ok_or_else(|| not_found(call, "sandbox", text))
}

fn known_container(objects: &Objects, call: &'static str, text: &str) -> Result<ContainerId, CriError> {
    find_container(objects, call, text)?.ok_or_else(|| not_found(call, "container", text))
}

fn failed(call: &'static str, failure: &Failure) -> CriError {
    CriError::new(Code::Other, call, failure.message.clone())
}

/// 64 hexadecimal digits, as every runtime has them.
fn new_id(call: &'static str) -> Result<String, CriError> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        let drawn = getrandom(&mut bytes[filled..], GetRandomFlags::empty());
        filled += drawn.map_err(|error| CriError::new(Code::Other, call, format!("random id: {error}")))?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// All labels of a selector, exactly.
fn has_labels(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}
