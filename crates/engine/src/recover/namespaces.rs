//! The namespaces of a pod whose shim has died. Without the agent's copies of their descriptors they are found by the pin of the network and
//! by the processes of containers. A process may have left the namespaces of its pod since (`unshare`, `setns`): one that is not as it was
//! recorded, or belongs to another user namespace, is not used. A container in it would have another network or other rights.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use podwright_cri::v1;
use podwright_linux::namespace;
use podwright_linux::pidfd::PidFd;
use podwright_shim::protocol::DescriptorKind;
use rustix::io::Errno;

use super::is_gone;
use crate::context::EngineContext;
use crate::machine::{AdoptError, SandboxId};
use crate::objects::{HeldDescriptors, find};
use crate::pod_network;
use crate::store::RecordedNamespace;

/// A pid and its process: the pid may be reused.
pub(super) type PidWithProcess = (u32, Arc<OwnedFd>);

/// Those that the agent holds, else those of pin and processes.
pub(super) async fn of_pod(
    context: &Arc<EngineContext>,
    id: &SandboxId,
    config: &v1::PodSandboxConfig,
    processes: Vec<PidWithProcess>,
) -> Result<HeldDescriptors, AdoptError> {
    let (held, recorded) = {
        let objects = context.objects();
        let entry = objects.sandboxes.get(id);
        entry.map(|entry| (entry.descriptors.clone(), entry.record.namespaces.clone())).unwrap_or_default()
    };
    if !held.is_empty() {
        return Ok(held);
    }
    let (needed, of) = (needed(config), id.clone());
    let open = move |context: &EngineContext| {
        let pin = match File::open(context.pins.path(&of.0)) {
            Err(error) if is_gone(&error) => None,
            pin => Some(pin?),
        };
        PodProcesses { pin, processes, recorded }.namespaces(&needed)
    };
    let opened = context.blocking(id, OPEN_LIMIT, open).await.map_err(AdoptError::Failed)?;
    let opened = opened.map_err(|kind| {
        tracing::error!(sandbox_id = %id, kind, "namespace of a pod lost: no process is in it, and the pod is not ready");
        AdoptError::NamespacesLost
    })?;
    if let Some(entry) = context.objects().sandboxes.get_mut(id) {
        entry.descriptors.clone_from(&opened);
    }
    Ok(opened)
}

/// The identities of namespaces, for the record.
pub(crate) fn identities(descriptors: &HeldDescriptors) -> io::Result<Vec<RecordedNamespace>> {
    let namespaces = descriptors.iter().filter(|(kind, _)| *kind != DescriptorKind::Pidfd);
    namespaces.map(|(kind, fd)| Ok(RecordedNamespace { kind: (*kind).into(), inode: inode(fd)? })).collect()
}

fn inode(namespace: &OwnedFd) -> io::Result<u64> {
    Ok(rustix::fs::fstat(namespace)?.st_ino)
}

/// The user namespace comes first: it owns the others.
fn needed(config: &v1::PodSandboxConfig) -> Vec<NamespaceKind> {
    let all = [
        (pod_network::has_user_namespace(config), DescriptorKind::User, "user"),
        (pod_network::has_own(config), DescriptorKind::Net, "net"),
        (pod_network::has_own(config), DescriptorKind::Uts, "uts"),
        (pod_network::has_own_ipc(config), DescriptorKind::Ipc, "ipc"),
        (pod_network::has_shared_pid(config), DescriptorKind::Pid, "pid"),
    ];
    all.into_iter().filter(|(needed, ..)| *needed).map(|(_, kind, name)| (kind, name)).collect()
}

/// With its name in `/proc/PID/ns`.
type NamespaceKind = (DescriptorKind, &'static str);

/// What may lead to the namespaces of a pod.
struct PodProcesses {
    pin: Option<File>,
    processes: Vec<PidWithProcess>,
    /// Empty: an earlier version has written the record.
    recorded: Vec<RecordedNamespace>,
}

impl PodProcesses {
    /// All that are needed, or the name of one that is not found.
    fn namespaces(&self, needed: &[NamespaceKind]) -> io::Result<Result<HeldDescriptors, &'static str>> {
        let mut found: HeldDescriptors = vec![];
        for (kind, name) in needed {
            let owner = match find(&found, DescriptorKind::User) {
                Some(of_pod) => inode(&of_pod)?,
                None => inode(&File::open("/proc/self/ns/user")?.into())?,
            };
            match self.namespace(*kind, name, owner)? {
                Some(namespace) => found.push((*kind, Arc::new(namespace))),
                None => return Ok(Err(name)),
            }
        }
        Ok(Ok(found))
    }

    fn namespace(&self, kind: DescriptorKind, name: &str, owner: u64) -> io::Result<Option<OwnedFd>> {
        let pin = self.pin.as_ref().filter(|_| kind == DescriptorKind::Net).map(File::try_clone).transpose()?;
        if let Some(pinned) = pin.map(OwnedFd::from)
            && self.is_of_pod(kind, &pinned, owner)?
        {
            return Ok(Some(pinned));
        }
        for process in &self.processes {
            match namespace_of(process, name) {
                Ok(namespace) if self.is_of_pod(kind, &namespace, owner)? => return Ok(Some(namespace)),
                Ok(_) => tracing::warn!(pid = process.0, kind = name, "process is not in the namespace of its pod"),
                // It has ended just now.
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn is_of_pod(&self, kind: DescriptorKind, namespace: &OwnedFd, owner: u64) -> io::Result<bool> {
        let recorded = self.recorded.iter().find(|recorded| recorded.kind() == kind);
        // The number of a namespace that is gone may be used again: the owner still tells those of a container without privileges.
        let is_recorded = match recorded {
            Some(recorded) => recorded.inode == inode(namespace)?,
            None => true,
        };
        match namespace::owner(namespace) {
            Ok(of) => Ok(is_recorded && inode(&of)? == owner),
            // No namespace, as a pin that is not mounted; or one of a user namespace that is not below ours.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOTTY | Errno::PERM)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn namespace_of((pid, pidfd): &PidWithProcess, name: &str) -> io::Result<OwnedFd> {
    let namespace = File::open(format!("/proc/{pid}/ns/{name}"))?;
    // The pid was not reused while the process existed.
    if PidFd::from(pidfd.try_clone()?).wait_exit(Duration::ZERO)? {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the process has ended"));
    }
    Ok(namespace.into())
}

const OPEN_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const UTS: NamespaceKind = (DescriptorKind::Uts, "uts");

    struct Sleep(std::process::Child);

    impl Sleep {
        /// After `unshare` with these options.
        fn unshared(options: &[&str]) -> Self {
            let (program, arguments) = match options {
                [] => ("sleep", vec!["1000"]),
                options => ("unshare", [options, &["sleep", "1000"]].concat()),
            };
            let process = Self(std::process::Command::new(program).args(arguments).spawn().unwrap());
            let name = || std::fs::read_to_string(format!("/proc/{}/comm", process.0.id())).unwrap();
            while name().trim() != "sleep" {
                std::thread::sleep(Duration::from_millis(5));
            }
            process
        }

        fn pid(&self) -> PidWithProcess {
            (self.0.id(), Arc::new(PidFd::open(self.0.id()).unwrap().into_fd()))
        }

        fn end(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    impl Drop for Sleep {
        fn drop(&mut self) {
            self.end();
        }
    }

    fn of(process: &Sleep) -> HeldDescriptors {
        vec![(DescriptorKind::Uts, Arc::new(namespace_of(&process.pid(), "uts").unwrap()))]
    }

    fn found(sources: &PodProcesses) -> Result<u64, &'static str> {
        sources.namespaces(&[UTS]).unwrap().map(|found| inode(&found[0].1).unwrap())
    }

    #[test]
    fn namespaces_are_those_of_a_process_that_still_exists() {
        let mut process = Sleep::unshared(&[]);
        let pid = process.pid();
        assert!(namespace_of(&pid, "net").is_ok());
        process.end();
        // As if the pid were another process now.
        let reused = namespace_of(&(std::process::id(), pid.1), "net");
        assert!(is_gone(&reused.unwrap_err()));
    }

    #[test]
    fn a_process_that_has_left_the_namespace_of_its_pod_is_passed_over() {
        let (of_pod, left) = (Sleep::unshared(&["--uts"]), Sleep::unshared(&["--uts"]));
        let recorded = identities(&of(&of_pod)).unwrap();
        let mut sources = PodProcesses { pin: None, processes: vec![left.pid(), of_pod.pid()], recorded };
        assert_eq!(found(&sources), Ok(inode(&of(&of_pod)[0].1).unwrap()));
        sources.processes.pop();
        assert_eq!(found(&sources), Err("uts"));
    }

    #[test]
    fn a_namespace_of_another_user_namespace_is_not_that_of_the_pod() {
        let nested = Sleep::unshared(&["--user", "--uts"]);
        // As if it had the number of the namespace of the pod, or this were not recorded.
        for recorded in [identities(&of(&nested)).unwrap(), vec![]] {
            assert_eq!(found(&PodProcesses { pin: None, processes: vec![nested.pid()], recorded }), Err("uts"));
        }
    }

    #[test]
    fn the_network_is_that_of_the_pin() {
        let net = (DescriptorKind::Net, "net");
        let (of_pod, left) = (Sleep::unshared(&["--net"]), Sleep::unshared(&["--net"]));
        let pin = || Some(File::from(namespace_of(&of_pod.pid(), "net").unwrap()));
        let wanted = inode(&namespace_of(&of_pod.pid(), "net").unwrap()).unwrap();
        let recorded = vec![RecordedNamespace { kind: DescriptorKind::Net.into(), inode: wanted }];
        let sources = PodProcesses { pin: pin(), processes: vec![left.pid()], recorded: recorded.clone() };
        assert_eq!(inode(&sources.namespaces(&[net]).unwrap().unwrap()[0].1).unwrap(), wanted);
        // A pin that is not mounted is an empty file.
        let unmounted =
            PodProcesses { pin: Some(tempfile::tempfile().unwrap()), processes: vec![left.pid()], recorded };
        assert_eq!(unmounted.namespaces(&[net]).unwrap().unwrap_err(), "net");
    }
}
