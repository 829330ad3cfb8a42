//! What the event loop waits for: descriptors, each with its meaning.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::Timespec;

use crate::log_writer::OutputStream;

/// The meaning of a descriptor. Containers and others are named by numbers that are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollSource {
    Listener,
    Signals,
    Connection(u64),
    /// The report of a launch.
    Report(u64),
    ContainerExit(u64),
    ExecExit(u64),
    PauseExit,
    Output(u64, OutputStream),
    /// The terminal of a container: output and input.
    Terminal(u64),
    /// The pipe to the standard input of a container.
    Stdin(u64),
    /// A client attached to a container.
    Client(u64, u64),
}

/// An epoll instance and the meaning of its descriptors.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    sources: RefCell<BTreeMap<u64, PollSource>>,
    next: Cell<u64>,
}

/// A descriptor that the event loop waits for, until this is dropped. Closing the descriptor alone would not end it: the agent or
/// a launcher may have a copy.
#[derive(Debug)]
pub(super) struct WatchedDescriptor {
    fd: Rc<OwnedFd>,
    token: u64,
    poller: Rc<Poller>,
}

impl Poller {
    pub(super) fn new() -> io::Result<Rc<Self>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Rc::new(Self { epoll, sources: RefCell::default(), next: Cell::new(0) }))
    }

    pub(super) fn watch(
        self: &Rc<Self>,
        fd: impl Into<Rc<OwnedFd>>,
        source: PollSource,
        flags: EventFlags,
    ) -> io::Result<WatchedDescriptor> {
        let fd = fd.into();
        let token = self.next.get();
        self.next.set(token + 1);
        epoll::add(&self.epoll, &fd, EventData::new_u64(token), flags)?;
        self.sources.borrow_mut().insert(token, source);
        Ok(WatchedDescriptor { fd, token, poller: self.clone() })
    }

    /// The sources that are ready, at most [`READY_MAX`].
    pub(super) fn wait(&self, limit: Option<Duration>) -> io::Result<Vec<(u64, PollSource, EventFlags)>> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        let mut ready = Vec::with_capacity(READY_MAX);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let sources = self.sources.borrow();
        let meaning = |event: &epoll::Event| {
            let (token, flags) = (event.data.u64(), event.flags);
            sources.get(&token).map(|source| (token, *source, flags))
        };
        Ok(ready.iter().filter_map(meaning).collect())
    }

    /// Whether the descriptor of this token is still waited for: an earlier event of the same turn may have ended it.
    pub(super) fn is_watched(&self, token: u64) -> bool {
        self.sources.borrow().contains_key(&token)
    }
}

impl WatchedDescriptor {
    pub(super) fn set(&self, flags: EventFlags) {
        // It cannot fail for a descriptor that was added.
        let _ = epoll::modify(&self.poller.epoll, &self.fd, EventData::new_u64(self.token), flags);
    }
}

impl AsFd for WatchedDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for WatchedDescriptor {
    fn drop(&mut self) {
        let _ = epoll::delete(&self.poller.epoll, &self.fd);
        self.poller.sources.borrow_mut().remove(&self.token);
    }
}

/// Level-triggered: what does not fit comes with the next call, and the kernel rotates its list, so that all are served.
const READY_MAX: usize = 32;
