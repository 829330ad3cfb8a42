//! Texts of a pod's history that `podwright explain` recognises: core writes them by these names, and explain finds them by the same.

use std::fmt;

/// Admission refused the pod; the cause has the details.
pub const REJECTED: &str = "rejected";
/// The cause names it.
pub const SANDBOX_CREATED: &str = "sandbox created";
/// Begins what is said of a container.
pub const CONTAINER: &str = "container ";
/// The first start of a container; more may follow.
pub const STARTED: &str = "started";
/// A later start; more may follow.
pub const RESTARTED: &str = "restarted";
/// The exit code follows.
pub const EXITED: &str = "exited";
/// Ends the name of a call (`CallKey`) that failed.
pub const FAILED: &str = " failed";
/// The name of the call that creates the sandbox.
pub const SANDBOX_CREATION: &str = "creation of the sandbox";
/// Begins the name of a mount; the name of the volume follows.
pub const VOLUME_MOUNT: &str = "mount of volume ";
/// Begins the name of a postStart hook.
pub const POST_START_HOOK: &str = "postStart hook";

/// What happened to a container.
pub fn container_text(name: impl fmt::Display, what: impl fmt::Display) -> String {
    format!("{CONTAINER}{name} {what}")
}

/// A call failed.
pub fn call_failed(call: impl fmt::Display) -> String {
    format!("{call}{FAILED}")
}

/// A user requested the restart of a container.
pub fn restart_requested(container: impl fmt::Display) -> String {
    format!("restart of container {container} requested")
}
