//! Frees the addresses of released pods once their links are gone.
//!
//! Deleting a veth pair takes the kernel's global lock of links for 13–38 ms; the kernel deletes it with the namespace, later and
//! without delaying the release. Orphaned TCP sockets can hold a namespace for minutes, though: a link that still exists after a
//! second is deleted explicitly. An address is free only afterwards, as until then the old pod may still use it.

use std::collections::VecDeque;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use podwright_tasks::ThreadEnd;
use tracing::warn;

use crate::model::NetworkError;
use crate::netlink::route::RouteSocket;

/// How long the kernel may take to delete the link.
const LINK_DEADLINE: Duration = Duration::from_secs(1);
/// How often the links of released pods are checked.
const POLL: Duration = Duration::from_millis(50);
/// More pods than a node releases at once; a full queue makes the release wait.
const QUEUE_LEN: usize = 1024;

/// A released pod whose link may still be there.
#[derive(Debug)]
pub(crate) struct Released {
    pub(crate) sandbox_id: String,
    pub(crate) link: String,
}

/// Frees what a released pod still holds; called on the collector's thread.
pub(crate) type FreeAddresses = Box<dyn Fn(&str) -> Result<(), NetworkError> + Send>;

/// Leaves a released pod to the next reconcile; called on the collector's thread.
pub(crate) type GiveUp = Box<dyn Fn(&str) + Send>;

/// A thread in the namespace in which it was started.
#[derive(Debug)]
pub(crate) struct Collector {
    queue: Option<mpsc::SyncSender<Released>>,
    thread: Option<JoinHandle<()>>,
    /// `None`: it is supervised.
    end: Option<ThreadEnd>,
}

impl Collector {
    pub(crate) fn start(free: FreeAddresses, give_up: GiveUp) -> std::io::Result<Self> {
        let (queue, released) = mpsc::sync_channel(QUEUE_LEN);
        let run = move || run(&released, &free, &give_up);
        let (thread, end) = podwright_tasks::spawn_thread("net-collector", run)?;
        Ok(Collector { queue: Some(queue), thread: Some(thread), end: Some(end) })
    }

    /// The end of the thread, to be supervised: without the thread no address of a released pod becomes free.
    pub(crate) fn take_end(&mut self) -> Option<ThreadEnd> {
        self.end.take()
    }

    /// Takes over a released pod.
    pub(crate) fn collect(&self, released: Released) {
        let sent = self.queue.as_ref().map(|queue| queue.send(released));
        if !matches!(sent, Some(Ok(()))) {
            warn!("the collector of links has ended; the next reconcile frees the address");
        }
    }
}

impl Drop for Collector {
    /// Waits until all released pods are collected, a little over a second at most.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(queue: &mpsc::Receiver<Released>, free: &FreeAddresses, give_up: &GiveUp) {
    let mut pending: VecDeque<(Released, Instant)> = VecDeque::new();
    loop {
        let next = if pending.is_empty() {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            queue.recv_timeout(POLL)
        };
        let mut open = true;
        match next {
            Ok(released) => pending.push_back((released, Instant::now() + LINK_DEADLINE)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => open = false,
        }
        collect(&mut pending, free, give_up);
        if !open {
            if pending.is_empty() {
                return;
            }
            thread::sleep(POLL);
        }
    }
}

/// Frees those whose link is gone or overdue, and keeps the others.
fn collect(pending: &mut VecDeque<(Released, Instant)>, free: &FreeAddresses, give_up: &GiveUp) {
    pending.retain(|(released, deadline)| {
        let overdue = Instant::now() >= *deadline;
        match link_is_gone(&released.link, overdue).and_then(|gone| match gone {
            true => free(&released.sandbox_id).map(|()| true),
            false => Ok(false),
        }) {
            Ok(done) => !done,
            // The next reconcile finds what no pod owns and does it.
            Err(error) if overdue => {
                warn!(sandbox_id = released.sandbox_id, %error, "release of a pod's link failed");
                give_up(&released.sandbox_id);
                false
            }
            Err(_) => true,
        }
    });
}

fn link_is_gone(name: &str, delete: bool) -> Result<bool, NetworkError> {
    let mut route = RouteSocket::open()?;
    match route.link(name)? {
        None => Ok(true),
        Some(link) if delete => {
            route.delete_link(&link)?;
            Ok(true)
        }
        Some(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn a_pod_that_cannot_be_freed_in_time_is_left_to_the_next_reconcile() {
        let left = Arc::new(Mutex::new(vec![]));
        let seen = Arc::clone(&left);
        let free: FreeAddresses = Box::new(|_| Err(NetworkError::NotReady("disk full".to_owned())));
        let give_up: GiveUp = Box::new(move |id| seen.lock().unwrap().push(id.to_owned()));
        let released = |id: &str| Released { sandbox_id: id.to_owned(), link: "no-such-link".to_owned() };
        let later = Instant::now() + Duration::from_secs(600);
        let mut pending = VecDeque::from([(released("overdue"), Instant::now()), (released("early"), later)]);
        collect(&mut pending, &free, &give_up);
        assert_eq!(*left.lock().unwrap(), ["overdue"]);
        assert_eq!(pending.len(), 1, "the other one is tried again");
    }
}
