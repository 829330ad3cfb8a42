//! Why a launch failed: the step, the kernel's error and a text for users.

use std::fmt;
use std::io;

use crate::plan::ResolvedUser;

/// A failed launch. `Display` is what a user reads: `exec /foo: no such file or directory`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchFailure {
    /// Where it failed.
    pub step: LaunchStep,
    /// The kernel's error, if one was the cause.
    pub errno: Option<i32>,
    /// Subject and reason, on one line.
    pub text: String,
    /// The user of the container, if the launch had got that far.
    pub user: Option<Box<ResolvedUser>>,
}

/// The steps of a launch, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum LaunchStep {
    /// The plan itself is invalid, or asks for something that this launcher cannot do.
    Plan = 0,
    /// A process could not be made.
    Clone = 1,
    /// Inherited state could not be reset.
    Process = 2,
    /// A cgroup could not be joined.
    Cgroup = 3,
    /// The source of a mount.
    Source = 4,
    /// The root directory.
    Rootfs = 5,
    /// User and groups.
    User = 6,
    /// A namespace could not be made or joined.
    Namespace = 7,
    /// A mount inside the container.
    Mount = 8,
    /// A device node.
    Device = 9,
    /// A masked or read-only path.
    Mask = 10,
    /// The change to the new root.
    Pivot = 11,
    /// A resource limit.
    Limit = 12,
    /// Session, terminal, standard streams.
    Terminal = 13,
    /// Capabilities, uid and gid.
    Privileges = 14,
    /// The seccomp filter.
    Seccomp = 15,
    /// The working directory.
    WorkingDirectory = 16,
    /// The label of a security module.
    Label = 17,
    /// The program.
    Exec = 18,
    /// A sysctl of the pod.
    Sysctl = 19,
    /// The launcher ended without a report, e.g. because it was killed.
    Lost = 20,
}

impl LaunchFailure {
    /// A failure with a text that is complete.
    pub(crate) fn new(step: LaunchStep, text: impl Into<String>) -> Self {
        Self { step, errno: None, text: text.into(), user: None }
    }

    /// A failed system call on a subject: `<subject>: <reason>`.
    pub(crate) fn io(step: LaunchStep, subject: impl fmt::Display, error: &io::Error) -> Self {
        Self { step, errno: error.raw_os_error(), text: format!("{subject}: {}", reason(error)), user: None }
    }
}

impl fmt::Display for LaunchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for LaunchFailure {}

/// The text of an error as Go programs write it, because users search for it: lower case, without the number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_the_subject_and_the_reason() {
        let failure = LaunchFailure::io(LaunchStep::Exec, "exec /foo", &io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(failure.to_string(), "exec /foo: no such file or directory");
        assert_eq!(failure.errno, Some(libc::ENOENT));
    }
}
