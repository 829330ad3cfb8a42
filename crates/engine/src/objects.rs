//! The sandboxes and containers of the engine in memory: their machines, their records, and the descriptors that are held for them.
//!
//! Only the driver's task changes the machines. Everyone else reads under a short lock.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use podwright_linux::pidfd;
use podwright_shim::plan::ResolvedUser;
use podwright_shim::protocol::{DescriptorKind, LaunchReply, ProcessIdentity};

use crate::machine::{ContainerId, Machines, SandboxId};
use crate::shims::ShimLink;
use crate::store::{ContainerRecord, SandboxRecord};

/// Descriptors with their meaning, shared with the steps that use them.
pub(crate) type HeldDescriptors = Vec<(DescriptorKind, Arc<OwnedFd>)>;

/// Every object of the engine.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) machines: Machines,
    pub(crate) sandboxes: BTreeMap<SandboxId, SandboxEntry>,
    pub(crate) containers: BTreeMap<ContainerId, ContainerEntry>,
}

/// A sandbox besides its machine.
#[derive(Debug)]
pub(crate) struct SandboxEntry {
    pub(crate) record: SandboxRecord,
    /// `None`: there is no connection to a shim.
    pub(crate) link: Option<ShimLink>,
    /// Namespaces, and the pidfd of the pause process.
    pub(crate) descriptors: HeldDescriptors,
    /// Held by each step: a step whose result no longer matters ends before the next one begins.
    pub(crate) steps: Arc<tokio::sync::Mutex<()>>,
}

/// A container besides its machine.
#[derive(Debug)]
pub(crate) struct ContainerEntry {
    pub(crate) record: ContainerRecord,
    /// Pidfd of the init, and the master of its terminal.
    pub(crate) descriptors: HeldDescriptors,
    pub(crate) process: Option<ProcessIdentity>,
    /// The launch is to be given up, also if it was not sent yet.
    pub(crate) abort_launch: Arc<AtomicBool>,
    /// Held while limits are read from the record and written to the cgroup, by the launch and by each update: an update comes
    /// before the launch has read them, or after the cgroup exists.
    pub(crate) limits: Arc<tokio::sync::Mutex<()>>,
}

impl SandboxEntry {
    pub(crate) fn new(record: SandboxRecord) -> Self {
        Self { record, link: None, descriptors: vec![], steps: Arc::default() }
    }
}

impl ContainerEntry {
    pub(crate) fn new(record: ContainerRecord) -> Self {
        Self { record, descriptors: vec![], process: None, abort_launch: Arc::default(), limits: Arc::default() }
    }

    /// Takes up what the shim reports of the launch.
    pub(crate) fn launched(&mut self, reply: LaunchReply, pidfd: OwnedFd, pty: Option<OwnedFd>) {
        let LaunchReply { process, uid, gid, groups, home, started_at } = reply;
        let pty = pty.map(|pty| (DescriptorKind::Pty, Arc::new(pty)));
        self.process = process;
        self.descriptors = std::iter::once((DescriptorKind::Pidfd, Arc::new(pidfd))).chain(pty).collect();
        self.record.user = Some(ResolvedUser { uid, gid, groups, home });
        self.record.started_at_ns = i64::try_from(started_at).unwrap_or(i64::MAX);
    }

    /// A process of the container exists, or existed. The answer to its launch may be lost: without a start time an exit would count
    /// as that of a failed start, after which another one is tried.
    pub(crate) fn learn_process(&mut self, process: ProcessIdentity) {
        self.process = Some(process);
        self.learn_start(pidfd::started_at_ns(process.start_time));
    }

    /// Nanoseconds since 1970; what is known already stays.
    pub(crate) fn learn_start(&mut self, started_at: u64) {
        if self.record.started_at_ns == 0 {
            self.record.started_at_ns = i64::try_from(started_at).unwrap_or(i64::MAX);
        }
    }

    /// The pidfd of the init.
    pub(crate) fn pidfd(&self) -> Option<Arc<OwnedFd>> {
        find(&self.descriptors, DescriptorKind::Pidfd)
    }

    /// The user of the init, which its execs have too. `None`: not launched, or the shim was lost before it could report it.
    pub(crate) fn user(&self) -> Option<&ResolvedUser> {
        self.record.user.as_ref()
    }
}

/// More than one object has an id with this beginning. A call that stops or removes it must not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{prefix:?} is the beginning of more than one id: {}", shortened(.matches))]
pub(crate) struct AmbiguousId {
    prefix: String,
    matches: Vec<String>,
}

impl Objects {
    /// The sandbox with this id, or with this unique beginning of one.
    pub(crate) fn find_sandbox(&self, text: &str) -> Result<Option<SandboxId>, AmbiguousId> {
        let shown = |id: &SandboxId| self.machines.sandbox(id).is_some_and(|sandbox| sandbox.is_shown());
        unique(self.sandboxes.keys().filter(|id| shown(id)), text, |id| &id.0).map(|found| found.cloned())
    }

    /// The container with this id, or with this unique beginning of one.
    pub(crate) fn find_container(&self, text: &str) -> Result<Option<ContainerId>, AmbiguousId> {
        let shown = |id: &ContainerId| self.machines.container(id).is_some_and(|c| c.shown().is_some());
        unique(self.containers.keys().filter(|id| shown(id)), text, |id| &id.0).map(|found| found.cloned())
    }

    /// The ids of the containers of a sandbox.
    pub(crate) fn containers_of(&self, sandbox: &SandboxId) -> Vec<ContainerId> {
        let of = |entry: &ContainerEntry| entry.record.sandbox_id == sandbox.0;
        self.containers.iter().filter(|(_, entry)| of(entry)).map(|(id, _)| id.clone()).collect()
    }
}

/// The first descriptor of a kind.
pub(crate) fn find(descriptors: &HeldDescriptors, kind: DescriptorKind) -> Option<Arc<OwnedFd>> {
    descriptors.iter().find(|(of, _)| *of == kind).map(|(_, fd)| Arc::clone(fd))
}

fn unique<'a, I>(
    ids: impl Iterator<Item = &'a I>,
    text: &str,
    name: impl Fn(&I) -> &str,
) -> Result<Option<&'a I>, AmbiguousId> {
    let mut found = vec![];
    for id in ids {
        if name(id) == text {
            return Ok(Some(id));
        }
        if !text.is_empty() && name(id).starts_with(text) {
            found.push(id);
        }
    }
    match found[..] {
        [] => Ok(None),
        [id] => Ok(Some(id)),
        _ => {
            let matches = found.into_iter().map(|id| name(id).to_owned()).collect();
            Err(AmbiguousId { prefix: text.to_owned(), matches })
        }
    }
}

fn shortened(matches: &[String]) -> String {
    let shown = matches.iter().take(MATCHES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match matches.len().saturating_sub(MATCHES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Ids that an error names.
const MATCHES_SHOWN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(ids: &'a [String], text: &str) -> Result<Option<&'a String>, AmbiguousId> {
        unique(ids.iter(), text, |id| id.as_str())
    }

    #[test]
    fn a_beginning_of_several_ids_is_an_error_that_names_them() {
        let ids = ["ab1", "ab2", "b", "bc"].map(String::from);
        assert_eq!(found(&ids, "ab1"), Ok(Some(&ids[0])));
        assert_eq!(found(&ids, "bc"), Ok(Some(&ids[3])));
        assert_eq!(found(&ids, "b"), Ok(Some(&ids[2])), "a whole id is not ambiguous");
        assert_eq!((found(&ids, "c"), found(&ids, "")), (Ok(None), Ok(None)));
        let error = found(&ids, "a").unwrap_err().to_string();
        assert_eq!(error, "\"a\" is the beginning of more than one id: ab1, ab2");
        let many: Vec<String> = (0..9).map(|n| format!("a{n}")).collect();
        assert!(found(&many, "a").unwrap_err().to_string().ends_with(": a0, a1, a2, a3 and 5 more"));
    }
}
