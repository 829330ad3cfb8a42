//! Watching pods: one line of JSON for every change, from the ring of changes that all watchers share.
//!
//! A watcher has a place in the ring and the few events it has not taken yet, nothing more. Who falls out of the ring is told to
//! list again; who does not read at all is cut off.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::unfold;
use podwright_agent::feed::{PodChange, PodFeed, PodView};
use serde::Serialize;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::answer::Room;
use super::failure::Failure;
use super::params::Params;
use super::pods::Wanted;
use crate::serve::{Answer, Stall, stream};

pub(super) fn watch(room: &Room, namespace: Option<String>, mut params: Params) -> Result<Answer, Failure> {
    let wanted = Wanted::read(namespace, &mut params)?;
    let (until, from) = (until(&mut params)?, from(&mut params)?);
    let bookmarks = params.flag("allowWatchBookmarks")?;
    params.finish()?;
    let feed = Arc::clone(&room.local.feed);
    let (cursor, first) = match from {
        Some(version) => (version, VecDeque::new()),
        None => {
            let (version, views) = feed.list();
            (version, views.into_iter().filter(|view| wanted.is(view)).collect())
        }
    };
    let watcher = Watcher {
        wanted,
        cursor,
        first,
        ready: VecDeque::new(),
        news: feed.subscribe(),
        feed,
        until,
        bookmark: bookmarks.then(|| Instant::now() + BOOKMARK_EVERY),
        stop: room.stop.clone(),
        ended: false,
        _place: room.place()?,
    };
    let lines = unfold(watcher, |mut watcher| async move { Some((watcher.next().await?, watcher)) });
    Ok(stream(true, lines, Stall(Some(STALL_MAX))))
}

/// When a watch ends by itself.
pub(super) fn until(params: &mut Params) -> Result<Instant, Failure> {
    let seconds = params.number::<u64>("timeoutSeconds")?.map(Duration::from_secs);
    Ok(Instant::now() + seconds.unwrap_or(WATCH_USUAL).min(WATCH_MAX))
}

/// The version after which a watch begins; `None`: with everything that is there.
pub(super) fn from(params: &mut Params) -> Result<Option<u64>, Failure> {
    let from = params.text("resourceVersion").filter(|version| version != "0");
    let from = from.map(|text| text.parse::<u64>()).transpose();
    from.map_err(|_| Failure::bad_request("resourceVersion must be one that was given out here"))
}

struct Watcher {
    wanted: Wanted,
    /// The version up to which everything is on its way.
    cursor: u64,
    /// What was there at the beginning, and is not sent yet.
    first: VecDeque<Arc<PodView>>,
    /// Lines that are made, and not sent yet.
    ready: VecDeque<Bytes>,
    feed: Arc<PodFeed>,
    news: watch::Receiver<u64>,
    until: Instant,
    bookmark: Option<Instant>,
    stop: CancellationToken,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

impl Watcher {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(view) = self.first.pop_front() {
                return Some(line("ADDED", &*view));
            }
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            if self.ended {
                return None;
            }
            // Before the look, so that what comes during it is not missed.
            self.news.mark_unchanged();
            self.take_changes();
            if self.ready.is_empty() {
                self.wait().await;
            }
        }
    }

    fn take_changes(&mut self) {
        match self.feed.changes_after(self.cursor, AT_ONCE) {
            Ok(changes) => {
                for change in changes {
                    self.cursor = change.version;
                    self.ready.extend(self.event(&change));
                }
            }
            Err(old) => {
                self.ready.push_back(line("ERROR", &Failure::expired(&old.to_string()).status()));
                self.ended = true;
            }
        }
    }

    fn event(&self, change: &PodChange) -> Option<Bytes> {
        let old = change.old.as_ref().filter(|view| self.wanted.is(view));
        let new = change.new.as_ref().filter(|view| self.wanted.is(view));
        match (old, new) {
            (None, Some(new)) => Some(line("ADDED", &**new)),
            (Some(_), Some(new)) => Some(line("MODIFIED", &**new)),
            // As it was, with the version of its end.
            (Some(old), None) => Some(line("DELETED", &old.at_version(change.version))),
            (None, None) => None,
        }
    }

    async fn wait(&mut self) {
        // Changes that others made and this one does not want are behind it.
        if *self.news.borrow() > self.cursor && self.feed.version() > self.cursor {
            return;
        }
        let bookmark = self.bookmark.unwrap_or(self.until);
        tokio::select! {
            changed = self.news.changed() => self.ended = changed.is_err(),
            () = sleep_until(bookmark.min(self.until)) => {
                self.ended = Instant::now() >= self.until;
                if let Some(bookmark) = &mut self.bookmark {
                    *bookmark = Instant::now() + BOOKMARK_EVERY;
                    let version = json!({"resourceVersion": self.cursor.to_string()});
                    let object = json!({"kind": "Pod", "apiVersion": "v1", "metadata": version, "spec": {"containers": null}, "status": {}});
                    self.ready.push_back(line("BOOKMARK", &object));
                }
            }
            () = self.stop.cancelled() => self.ended = true,
        }
    }
}

#[derive(Serialize)]
struct Event<'a, T> {
    r#type: &'static str,
    object: &'a T,
}

/// One change, as watchers read it.
pub(super) fn line(kind: &'static str, object: &impl Serialize) -> Bytes {
    let mut text = serde_json::to_vec(&Event { r#type: kind, object }).expect("plain data");
    text.push(b'\n');
    text.into()
}

/// Events made ahead of the reader.
const AT_ONCE: usize = 8;
/// Kubernetes: a watch ends by itself after half an hour at least.
const WATCH_USUAL: Duration = Duration::from_secs(1800);
const WATCH_MAX: Duration = Duration::from_secs(86_400);
/// Kubernetes: one a minute.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// For who does not read.
pub(super) const STALL_MAX: Duration = Duration::from_secs(60);
