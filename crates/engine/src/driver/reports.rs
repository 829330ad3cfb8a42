//! What shims report.

use std::sync::Arc;

use podwright_shim::client::{Descriptors, ShimAnswer};
use podwright_shim::protocol::{ShimEvent, event};

use super::Driver;
use super::lanes::LaneItem;
use crate::machine::{ContainerEvent, ContainerId, Failure, MachineEvent, SandboxEvent, SandboxId};
use crate::objects::{ContainerEntry, HeldDescriptors};
use crate::recover;
use crate::shims::{FromShim, ShimLink, ShimReport};

impl Driver {
    pub(super) fn report(&mut self, from: FromShim) {
        let FromShim { sandbox, link, report } = from;
        match report {
            ShimReport::Launch(container, answer) => self.launch_answered(container, answer),
            ShimReport::Event(event) => self.shim_event(&sandbox, &link, event),
            ShimReport::Hold(container, descriptors) => self.hold(&sandbox, container, descriptors),
            ShimReport::Lost => self.shim_lost(&sandbox, &link),
        }
    }

    fn launch_answered(&mut self, container: ContainerId, answer: ShimAnswer) {
        let event = match answer {
            ShimAnswer::Launched { reply, pidfd, pty } => {
                if let Some(entry) = self.context.objects().containers.get_mut(&container) {
                    entry.launched(reply, pidfd, pty);
                    self.watch_shim(&container, entry);
                }
                ContainerEvent::Launched
            }
            ShimAnswer::LaunchFailed(failed) => {
                if let Some(entry) = self.context.objects().containers.get_mut(&container) {
                    entry.record.user = failed.user;
                }
                ContainerEvent::LaunchFailed(Failure::new(failed.text))
            }
            ShimAnswer::Refused(refusal) => ContainerEvent::LaunchFailed(Failure::new(refusal.text)),
            _ => ContainerEvent::LaunchFailed(Failure::new("an unexpected answer of the shim")),
        };
        self.handle(MachineEvent::Container(container, event), vec![]);
    }

    fn shim_event(&mut self, sandbox: &SandboxId, link: &ShimLink, event: ShimEvent) {
        let acknowledge = LaneItem::Acknowledge(link.clone(), event.seq);
        match event.body {
            Some(event::EventBody::Exited(exited)) => {
                let container = ContainerId(exited.container.clone());
                let record = recover::exit_record(&exited);
                // The answer to its launch may be lost.
                if let Some(entry) = self.context.objects().containers.get_mut(&container) {
                    entry.learn_start(exited.started_at);
                }
                self.handle(MachineEvent::Container(container, ContainerEvent::Exited(record)), vec![]);
            }
            Some(event::EventBody::PauseExited(_)) => {
                self.handle(MachineEvent::Sandbox(sandbox.clone(), SandboxEvent::PauseExited), vec![]);
            }
            Some(event::EventBody::ExecExited(exited)) => self.execs.ended(exited),
            Some(event::EventBody::LogFailed(failed)) => {
                let error = std::io::Error::from_raw_os_error(failed.errno);
                tracing::warn!(container_id = failed.container, %error, "container log cannot be written");
            }
            // Of a later version.
            None => {}
        }
        // After the record of the exit, which is in the lane.
        self.dispatch(sandbox, vec![], vec![acknowledge]);
    }

    fn watch_shim(&self, container: &ContainerId, entry: &ContainerEntry) {
        if let Some(pidfd) = entry.pidfd() {
            recover::watch_shim(&self.context, container, pidfd);
        }
    }

    fn hold(&self, sandbox: &SandboxId, container: Option<String>, descriptors: Descriptors) {
        let mut objects = self.context.objects();
        match container {
            None => {
                if let Some(entry) = objects.sandboxes.get_mut(sandbox) {
                    entry.descriptors = shared(descriptors);
                }
            }
            Some(container) => {
                let container = ContainerId(container);
                if let Some(entry) = objects.containers.get_mut(&container) {
                    entry.descriptors = shared(descriptors);
                    self.watch_shim(&container, entry);
                }
            }
        }
    }

    fn shim_lost(&mut self, sandbox: &SandboxId, link: &ShimLink) {
        let reporter = self.effects.exit_reporter();
        let (is_adopting, is_expected) = {
            let mut objects = self.context.objects();
            let Some(entry) = objects.sandboxes.get_mut(sandbox) else { return };
            if !entry.link.as_ref().is_some_and(|current| current.is_same(link)) {
                return;
            }
            entry.link = None;
            recover::reap_shim(Arc::clone(link.pidfd()));
            // Their parent is now this process, or pid 1.
            for id in objects.containers_of(sandbox) {
                if let Some(pidfd) = objects.containers.get(&id).and_then(|entry| entry.pidfd()) {
                    recover::reap_container(&self.context, &id, pidfd, Arc::clone(&reporter));
                }
            }
            let machine = objects.machines.sandbox(sandbox);
            (machine.is_some_and(|it| it.is_adopting()), machine.is_some_and(|it| it.ends_shim()))
        };
        self.execs.shim_lost(sandbox);
        if !is_expected {
            tracing::warn!(sandbox_id = %sandbox, "connection to the shim ended");
        }
        // The step under way fails without its link. It counts the loss once, and is begun again.
        if !is_adopting {
            self.handle(MachineEvent::Sandbox(sandbox.clone(), SandboxEvent::ShimLost), vec![]);
        }
    }
}

fn shared(descriptors: Descriptors) -> HeldDescriptors {
    descriptors.into_iter().map(|(kind, fd)| (kind, Arc::new(fd))).collect()
}
