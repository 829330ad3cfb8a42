//! Watching pods: one line of JSON per change, read from the ring buffer of changes that all watchers share.
//!
//! A watcher holds only its position in the ring and up to [`BATCH`] unsent lines. A watcher that falls behind the ring gets a
//! 410 Expired and must list again; one whose client does not read at all is closed after [`WATCH_WRITE_TIMEOUT`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::unfold;
use podwright_agent::feed::{PodChange, PodFeed, PodView};
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::images::NodeImages;
use super::pods::PodFilter;
use super::router::LocalState;
use super::table::{self, ObjectForm, TableCells};
use crate::query::QueryParams;
use crate::serve::{HttpResponse, WriteTimeout, stream};
use crate::status_error::StatusError;

pub(super) fn watch(
    state: &LocalState,
    namespace: Option<String>,
    form: ObjectForm,
    mut params: QueryParams,
) -> Result<HttpResponse, StatusError> {
    let filter = PodFilter::parse(namespace, &mut params)?;
    let (deadline, from) = (deadline(&mut params)?, start_version(&mut params)?);
    let bookmarks = params.flag("allowWatchBookmarks")?;
    params.finish()?;
    let feed = Arc::clone(&state.api.feed);
    let (cursor, first) = match from {
        Some(version) => (version, VecDeque::new()),
        None => {
            let (version, views) = feed.list();
            (version, views.into_iter().filter(|view| filter.matches(view)).collect())
        }
    };
    let watcher = PodWatcher {
        filter,
        form,
        cells: state.api.cells,
        images: state.api.images.as_ref().ok().cloned(),
        cursor,
        first,
        ready: VecDeque::new(),
        updates: feed.subscribe(),
        feed,
        deadline,
        bookmark: bookmarks.then(|| Instant::now() + BOOKMARK_EVERY),
        stop: state.stop.clone(),
        ended: false,
        _permit: state.stream_permit()?,
    };
    let lines = unfold(watcher, |mut watcher| async move { Some((watcher.next().await?, watcher)) });
    Ok(stream(true, lines, WriteTimeout::After(WATCH_WRITE_TIMEOUT)))
}

/// When the server ends the watch.
pub(super) fn deadline(params: &mut QueryParams) -> Result<Instant, StatusError> {
    let seconds = params.number::<u64>("timeoutSeconds")?.map(Duration::from_secs);
    Ok(Instant::now() + seconds.unwrap_or(WATCH_DEFAULT).min(WATCH_MAX))
}

/// The resource version after which a watch starts; `None`: with all existing objects.
pub(super) fn start_version(params: &mut QueryParams) -> Result<Option<u64>, StatusError> {
    let from = params.text("resourceVersion").filter(|version| version != "0");
    let from = from.map(|text| text.parse::<u64>()).transpose();
    from.map_err(|_| StatusError::bad_request("resourceVersion must be one that this server returned"))
}

struct PodWatcher {
    filter: PodFilter,
    form: ObjectForm,
    cells: TableCells,
    /// Those of the node, if it has its own.
    images: Option<Arc<dyn NodeImages>>,
    /// All changes up to this version were taken from the feed.
    cursor: u64,
    /// Pods that existed at the start and are not sent yet.
    first: VecDeque<Arc<PodView>>,
    /// Unsent lines.
    ready: VecDeque<Bytes>,
    feed: Arc<PodFeed>,
    updates: watch::Receiver<u64>,
    deadline: Instant,
    bookmark: Option<Instant>,
    stop: CancellationToken,
    ended: bool,
    _permit: crate::serve::StreamGuard,
}

impl PodWatcher {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(view) = self.first.pop_front() {
                return Some(self.line("ADDED", &view));
            }
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            if self.ended {
                return None;
            }
            // Reset before reading, so that a change during the read is not missed.
            self.updates.mark_unchanged();
            self.take_changes();
            if self.ready.is_empty() {
                self.wait().await;
            }
        }
    }

    fn take_changes(&mut self) {
        match self.feed.changes_after(self.cursor, BATCH) {
            Ok(changes) => {
                for change in changes {
                    self.cursor = change.version;
                    self.ready.extend(self.event(&change));
                }
            }
            Err(old) => {
                self.ready.push_back(line("ERROR", &StatusError::expired(&old.to_string()).status()));
                self.ended = true;
            }
        }
    }

    fn event(&self, change: &PodChange) -> Option<Bytes> {
        let old = change.old.as_ref().filter(|view| self.filter.matches(view));
        let new = change.new.as_ref().filter(|view| self.filter.matches(view));
        match (old, new) {
            (None, Some(new)) => Some(self.line("ADDED", new)),
            (Some(_), Some(new)) => Some(self.line("MODIFIED", new)),
            // The last object, with the resource version of the deletion.
            (Some(old), None) => Some(self.line("DELETED", &old.at_version(change.version))),
            (None, None) => None,
        }
    }

    fn line(&self, kind: &'static str, view: &PodView) -> Bytes {
        match self.form {
            ObjectForm::Object => line(kind, view),
            ObjectForm::Table(rows) => {
                line(kind, &table::of_pods(self.cells, rows, None, &[view.pod()], self.images.as_deref()))
            }
        }
    }

    async fn wait(&mut self) {
        // More changes are in the feed already; the ones taken so far did not match the filter.
        if *self.updates.borrow() > self.cursor && self.feed.version() > self.cursor {
            return;
        }
        let bookmark = self.bookmark.unwrap_or(self.deadline);
        tokio::select! {
            changed = self.updates.changed() => self.ended = changed.is_err(),
            () = sleep_until(bookmark.min(self.deadline)) => {
                self.ended = Instant::now() >= self.deadline;
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
struct WatchEvent<'a, T> {
    r#type: &'static str,
    object: &'a T,
}

/// One watch event as a line of JSON.
pub(super) fn line(kind: &'static str, object: &impl Serialize) -> Bytes {
    let mut text = serde_json::to_vec(&WatchEvent { r#type: kind, object }).expect("plain data");
    text.push(b'\n');
    text.into()
}

/// Lines prepared ahead of the client.
const BATCH: usize = 8;
/// Kubernetes: the API server ends a watch after 30 minutes at the earliest.
const WATCH_DEFAULT: Duration = Duration::from_secs(1800);
const WATCH_MAX: Duration = Duration::from_secs(86_400);
/// Kubernetes: one a minute.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// For a client that does not read.
pub(super) const WATCH_WRITE_TIMEOUT: Duration = Duration::from_secs(60);
