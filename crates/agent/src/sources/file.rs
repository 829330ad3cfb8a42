//! Manifests in a directory, or in one file.
//!
//! ```text
//!   inotify ──▶ Memory (what is being written, what has just gone) ──▶ look (blocking: list, stat, read what changed)
//!   relist ───▶                                                              │
//!                      SET, if it differs from the last one ◀── Memory ◀─────┘
//! ```
//! Events only say when to look and which names are being written; what is true is what the look finds. One look at a
//! time, off the runtime: a directory that hangs costs this source and nobody else.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, Watches};
use podwright_core::model::{Source, SourceChange};
use tokio::time::{Instant, sleep_until};

use super::{Changes, Decode};

mod look;
mod memory;

pub use look::is_manifest;
use look::{Look, Question};
use memory::Memory;

/// The file source's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// `staticPodPath`: a directory of manifests, or one manifest.
    pub path: PathBuf,
    /// `fileCheckFrequency`.
    pub check_frequency: Duration,
    /// Take files of every name, as the Go kubelet does. Names that begin with a dot stay out.
    pub all_names: bool,
}

/// Watch the path and tell what is there, until nobody listens any more.
pub async fn run(config: Config, decode: Decode, changes: Changes) {
    tokio::select! {
        () = changes.closed() => {}
        () = Task::new(config, decode, changes.clone()).run() => {}
    }
}

struct Task {
    config: Config,
    decode: Decode,
    changes: Changes,
    memory: Memory,
    /// `None`: inotify is not to be had; the relist does it alone.
    watch: Option<Watch>,
    /// The last error of the path as a whole, so that it is logged once.
    failing: Option<String>,
}

struct Watch {
    events: EventStream<Vec<u8>>,
    watches: Watches,
    /// The watch on the directory itself, and the one on its parent.
    inner: Option<WatchDescriptor>,
    outer: Option<WatchDescriptor>,
}

impl Task {
    fn new(config: Config, decode: Decode, changes: Changes) -> Self {
        let watch = Watch::new()
            .inspect_err(|error| {
                tracing::warn!(path = %config.path.display(), %error, "no inotify: manifests are only seen every fileCheckFrequency");
            })
            .ok();
        Self { config, decode, changes, memory: Memory::default(), watch, failing: None }
    }

    async fn run(mut self) {
        loop {
            let again = self.look().await;
            if !self.tell().await {
                return;
            }
            let now = Instant::now();
            let relist = now + self.config.check_frequency;
            let wake = match self.memory.wake() {
                _ if self.failing.is_some() => relist.min(now + RETRY),
                _ if again => now,
                Some(at) => at.min(relist),
                None => relist,
            };
            self.wait(wake).await;
        }
    }

    /// Until something happened that is worth a look, or this moment.
    async fn wait(&mut self, until: Instant) {
        loop {
            let Some(watch) = &mut self.watch else { return sleep_until(until).await };
            let event = tokio::select! {
                () = sleep_until(until) => break,
                // Nothing is lost when this is dropped: events stay in the stream's buffer.
                event = watch.events.next() => event,
            };
            if self.happened(event) {
                break;
            }
        }
        // What else is there already is taken along: sixty files dropped at once are a few looks, not sixty.
        self.drain();
    }

    /// Take the events that are there already. True if one of them is worth a look.
    fn drain(&mut self) -> bool {
        let mut worth = false;
        while let Some(event) = self.watch.as_mut().and_then(|watch| watch.events.next().now_or_never()) {
            worth |= self.happened(event);
        }
        worth
    }

    /// One event. True if it is worth a look.
    fn happened(&mut self, event: Option<io::Result<EventOwned>>) -> bool {
        let Some(watch) = &self.watch else { return false };
        let event = match event {
            Some(Ok(event)) => event,
            ended => {
                let error = ended.and_then(Result::err);
                tracing::warn!(?error, "inotify ended: manifests are only seen every fileCheckFrequency");
                self.watch = None;
                return false;
            }
        };
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            // Whatever was being written may have been closed among the lost events.
            self.memory.forget_writers();
            return true;
        }
        let inner = watch.inner.as_ref() == Some(&event.wd);
        let outer = watch.outer.as_ref() == Some(&event.wd);
        match event.name {
            // Links of a directory often lead through one that is swapped as a whole, `..data`.
            Some(name) if inner && name.as_bytes().starts_with(b"..") => true,
            Some(name) if inner && look::is_manifest(&name, self.config.all_names) => {
                self.memory.happened(name, event.mask, Instant::now())
            }
            Some(name) if outer && self.config.path.file_name() == Some(&name) => {
                self.memory.happened(name, event.mask, Instant::now())
            }
            // The directory itself was moved, removed or unmounted.
            None => inner,
            Some(_) => false,
        }
    }

    /// Look at the path, and remember what was found. Waits as long as the file system does. True if it is to be done
    /// again at once, because of what happened meanwhile.
    async fn look(&mut self) -> bool {
        let question = Question {
            path: self.config.path.clone(),
            all_names: self.config.all_names,
            known: self.memory.known(Instant::now()),
            watches: self.watch.as_ref().map(|watch| watch.watches.clone()),
        };
        let decode = self.decode.clone();
        let mut job = tokio::task::spawn_blocking(move || look::look(question, &decode));
        let done = loop {
            match tokio::time::timeout(LOOK_MAX, &mut job).await {
                Ok(done) => break done,
                // A blocked read can't be taken back; a second one would only hang beside it.
                Err(_) => {
                    tracing::warn!(path = %self.config.path.display(), "the manifests can't be read: the file system does not answer");
                }
            }
        };
        let done = done.map(|Look { inner, outer, found }| {
            if let Some(watch) = &mut self.watch {
                watch.replace(inner, outer);
            }
            found
        });
        // Only now are events of a directory that this look has begun to watch known as such.
        let again = self.drain();
        match done {
            Ok(found) => {
                self.log_whole(found.as_ref().err());
                match found {
                    Ok(found) => self.memory.seen(found, Instant::now()),
                    Err(_) => self.memory.saw_nothing(),
                }
            }
            Err(error) => {
                self.log_whole(Some(&io::Error::other(error)));
                self.memory.saw_nothing();
            }
        }
        again
    }

    /// Say once that the path as a whole can't be seen, and once that it can again.
    fn log_whole(&mut self, error: Option<&io::Error>) {
        let error = error.map(ToString::to_string);
        if error != self.failing {
            let path = self.config.path.display();
            match &error {
                Some(error) => tracing::warn!(%path, error, "the manifests can't be read: pods stay as they are"),
                None => tracing::info!(%path, "the manifests can be read again"),
            }
            self.failing = error;
        }
    }

    /// Send what there is, if it is news. False when nobody listens.
    async fn tell(&mut self) -> bool {
        let Some((pods, broken)) = self.memory.news() else { return true };
        self.changes.send((Source::File, SourceChange::Set { pods, broken })).await.is_ok()
    }
}

impl Watch {
    fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        Ok(Self { events: inotify.into_event_stream(vec![0; 16 << 10])?, watches, inner: None, outer: None })
    }

    /// The watches of the newest look; those of a directory that is elsewhere now are given up.
    fn replace(&mut self, inner: Option<WatchDescriptor>, outer: Option<WatchDescriptor>) {
        for old in [self.inner.take(), self.outer.take()].into_iter().flatten() {
            if inner.as_ref() != Some(&old) && outer.as_ref() != Some(&old) {
                let _ = self.watches.remove(old);
            }
        }
        (self.inner, self.outer) = (inner, outer);
    }
}

/// A path that can't be seen as a whole gives no events to wait for.
const RETRY: Duration = Duration::from_secs(1);
/// After this long without an answer from the file system, people are told.
const LOOK_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
