//! Manifests in a directory, or in one file.
//!
//! ```text
//!   inotify ──▶ FileTracker (files being written or just removed) ──▶ scan (blocking: list, stat, read changed files)
//!   relist ───▶                                                             │
//!                  SET, if it differs from the last one ◀── FileTracker ◀───┘
//! ```
//! Events only determine when to scan and which files are being written; the scan determines the state. One scan at a time,
//! on a thread of the pool: a directory that hangs affects this source only.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, Watches};
use podwright_core::model::{Source, SourceChange};
use tokio::time::{Instant, sleep_until};

use super::{Changes, Decode};
use crate::host::Pool;

mod scan;
mod tracker;

pub use scan::is_manifest;
use scan::{Scan, ScanRequest};
use tracker::FileTracker;

/// The file source's settings.
#[derive(Clone, Debug)]
pub struct FileSourceConfig {
    /// `staticPodPath`: a directory of manifests, or one manifest.
    pub path: PathBuf,
    /// `fileCheckFrequency`.
    pub check_frequency: Duration,
    /// Read files of every name, as the Go kubelet does, except names that begin with a dot. Else only `.yaml`, `.yml` and
    /// `.json`.
    pub all_names: bool,
}

/// Watches the path and sends its pods, until the receiver is dropped.
pub async fn run(config: FileSourceConfig, decode: Decode, changes: Changes, pool: Pool) {
    tokio::select! {
        () = changes.closed() => {}
        () = FileSource::new(config, decode, changes.clone(), pool).run() => {}
    }
}

struct FileSource {
    config: FileSourceConfig,
    decode: Decode,
    changes: Changes,
    pool: Pool,
    tracker: FileTracker,
    /// `None`: inotify is not available; changes are found by the relist.
    watch: Option<Watch>,
    /// The last error of the path itself, so that it is logged once.
    failing: Option<String>,
    /// The path did not exist at the last scan.
    missing: bool,
}

struct Watch {
    events: EventStream<Vec<u8>>,
    watches: Watches,
    /// The watch on the directory itself, and the one on its parent.
    inner: Option<WatchDescriptor>,
    outer: Option<WatchDescriptor>,
}

impl FileSource {
    fn new(config: FileSourceConfig, decode: Decode, changes: Changes, pool: Pool) -> Self {
        let watch = Watch::new()
            .inspect_err(|error| {
                tracing::warn!(path = %config.path.display(), %error, "inotify unavailable, changes are found every fileCheckFrequency");
            })
            .ok();
        Self { config, decode, changes, pool, tracker: FileTracker::default(), watch, failing: None, missing: false }
    }

    async fn run(mut self) {
        loop {
            let again = self.scan().await;
            if !self.send().await {
                return;
            }
            let now = Instant::now();
            let relist = now + self.config.check_frequency;
            let wake = match self.tracker.wake() {
                _ if self.failing.is_some() => relist.min(now + RETRY_INTERVAL),
                _ if again => now,
                Some(at) => at.min(relist),
                None => relist,
            };
            self.wait(wake).await;
        }
    }

    /// Waits for an event that requires a scan, or until this moment.
    async fn wait(&mut self, until: Instant) {
        loop {
            let Some(watch) = &mut self.watch else { return sleep_until(until).await };
            let event = tokio::select! {
                () = sleep_until(until) => break,
                // Cancellation safe: events stay in the stream's buffer.
                event = watch.events.next() => event,
            };
            if self.on_event(event) {
                break;
            }
        }
        // Pending events are handled together: many files created at once need a few scans only.
        self.drain();
    }

    /// Handles the pending events. True if one of them requires a scan.
    fn drain(&mut self) -> bool {
        let mut required = false;
        while let Some(event) = self.watch.as_mut().and_then(|watch| watch.events.next().now_or_never()) {
            required |= self.on_event(event);
        }
        required
    }

    /// Handles one event. True if it requires a scan.
    fn on_event(&mut self, event: Option<io::Result<EventOwned>>) -> bool {
        let Some(watch) = &self.watch else { return false };
        let event = match event {
            Some(Ok(event)) => event,
            ended => {
                let error = ended.and_then(Result::err);
                tracing::warn!(?error, "inotify ended, changes are found every fileCheckFrequency");
                self.watch = None;
                return false;
            }
        };
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            // The close of a file that was being written may be among the lost events.
            self.tracker.forget_writers();
            return true;
        }
        let inner = watch.inner.as_ref() == Some(&event.wd);
        let outer = watch.outer.as_ref() == Some(&event.wd);
        match event.name {
            // Symlinks may lead through a directory that is swapped as a whole, as `..data` of ConfigMap volumes.
            Some(name) if inner && name.as_bytes().starts_with(b"..") => true,
            Some(name) if inner && scan::is_manifest(&name, self.config.all_names) => {
                self.tracker.on_event(name, event.mask, Instant::now())
            }
            Some(name) if outer && self.config.path.file_name() == Some(&name) => {
                self.tracker.on_event(name, event.mask, Instant::now())
            }
            // The directory itself was moved, removed or unmounted.
            None => inner,
            Some(_) => false,
        }
    }

    /// Scans the path and records the result. Waits as long as the file system does. True if an event in the meantime
    /// requires another scan at once.
    async fn scan(&mut self) -> bool {
        let request = ScanRequest {
            path: self.config.path.clone(),
            all_names: self.config.all_names,
            known: self.tracker.known(Instant::now()),
            watches: self.watch.as_ref().map(|watch| watch.watches.clone()),
        };
        let decode = self.decode.clone();
        let key = format!("manifests {}", self.config.path.display());
        let mut job = Box::pin(self.pool.run_to_end(key, move || scan::scan(request, &decode)));
        let done = loop {
            match tokio::time::timeout(SCAN_WARN_AFTER, &mut job).await {
                Ok(done) => break done,
                // A blocked read can't be cancelled, and a second scan would hang too.
                Err(_) => {
                    tracing::warn!(path = %self.config.path.display(), "reading manifests hangs, the file system does not respond");
                }
            }
        };
        drop(job);
        let done = done.map(|Scan { inner, outer, found, missing }| {
            if missing && !self.missing {
                tracing::warn!(path = %self.config.path.display(), "manifest path does not exist, pods start when it is created");
            }
            self.missing = missing;
            if let Some(watch) = &mut self.watch {
                watch.replace(inner, outer);
            }
            found
        });
        // After the watches are replaced, so that events of a newly watched directory are recognised.
        let again = self.drain();
        match done {
            Ok(found) => {
                self.log_path_error(found.as_ref().err());
                match found {
                    Ok(found) => self.tracker.on_scan(found, Instant::now()),
                    Err(_) => self.tracker.on_scan_failed(),
                }
            }
            Err(error) => {
                self.log_path_error(Some(&io::Error::other(error)));
                self.tracker.on_scan_failed();
            }
        }
        again
    }

    /// Logs once that the path can't be read, and once that it can be read again.
    fn log_path_error(&mut self, error: Option<&io::Error>) {
        let error = error.map(ToString::to_string);
        if error != self.failing {
            let path = self.config.path.display();
            match &error {
                Some(error) => tracing::warn!(%path, error, "reading manifests failed, pods stay as they are"),
                None => tracing::info!(%path, "reading manifests succeeded again"),
            }
            self.failing = error;
        }
    }

    /// Sends the pods if they have changed. False if the receiver is gone.
    async fn send(&mut self) -> bool {
        let Some((pods, broken)) = self.tracker.take_changed() else { return true };
        self.changes.send((Source::File, SourceChange::Set { pods, broken })).await.is_ok()
    }
}

impl Watch {
    fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        Ok(Self { events: inotify.into_event_stream(vec![0; 16 << 10])?, watches, inner: None, outer: None })
    }

    /// Uses the watches of the last scan and removes those of a directory that was moved.
    fn replace(&mut self, inner: Option<WatchDescriptor>, outer: Option<WatchDescriptor>) {
        for old in [self.inner.take(), self.outer.take()].into_iter().flatten() {
            if inner.as_ref() != Some(&old) && outer.as_ref() != Some(&old) {
                let _ = self.watches.remove(old);
            }
        }
        (self.inner, self.outer) = (inner, outer);
    }
}

/// A path that can't be read gives no events to wait for.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// A scan that takes longer is logged.
const SCAN_WARN_AFTER: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
