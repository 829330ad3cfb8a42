//! Watching events: first those in memory, or those after a resource version, then each new occurrence.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use futures::stream::unfold;
use jiff::Timestamp;
use podwright_agent::event_loop::CorrelatedEvent;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::super::router::LocalState;
use super::super::table::{self, ObjectForm, TableCells};
use super::super::watch::{WATCH_WRITE_TIMEOUT, deadline, line, start_version};
use super::{EventFilter, object, version};
use crate::query::QueryParams;
use crate::serve::{HttpResponse, WriteTimeout, stream};
use crate::status_error::StatusError;

pub(super) fn watch(
    state: &LocalState,
    namespace: Option<String>,
    form: ObjectForm,
    mut params: QueryParams,
) -> Result<HttpResponse, StatusError> {
    let filter = EventFilter::parse(namespace, &mut params)?;
    let (deadline, from) = (deadline(&mut params)?, start_version(&mut params)?);
    // Accepted and ignored: bookmarks are optional for the server.
    params.flag("allowWatchBookmarks")?;
    params.finish()?;
    // Subscribe before reading the events in memory, so that none is missed in between.
    let updates = state.api.agent.follow_events();
    let kept = state.api.agent.events();
    let known = kept.iter().map(|event| (event.first.wall, event.count)).collect();
    let first = kept.into_iter().filter(|event| from.is_none_or(|from| version(event) > from)).collect();
    let watcher = EventWatcher {
        filter,
        form,
        cells: state.api.cells,
        node: state.api.node.clone(),
        changes: from.is_some(),
        first,
        known,
        updates,
        deadline,
        stop: state.stop.clone(),
        ended: false,
        _permit: state.stream_permit()?,
    };
    let lines = unfold(watcher, |mut watcher| async move { Some((watcher.next().await?, watcher)) });
    Ok(stream(true, lines, WriteTimeout::After(WATCH_WRITE_TIMEOUT)))
}

struct EventWatcher {
    filter: EventFilter,
    form: ObjectForm,
    cells: TableCells,
    node: String,
    /// The watch started at a resource version, so the events in `first` are changes.
    changes: bool,
    /// Events that existed at the start and are not sent yet.
    first: VecDeque<CorrelatedEvent>,
    /// The count of each event at the start, by its first timestamp: notifications up to that count are duplicates.
    known: BTreeMap<Timestamp, u64>,
    updates: Receiver<CorrelatedEvent>,
    deadline: Instant,
    stop: CancellationToken,
    ended: bool,
    _permit: crate::serve::StreamGuard,
}

impl EventWatcher {
    async fn next(&mut self) -> Option<Bytes> {
        while let Some(kept) = self.first.pop_front() {
            if let Some(line) = self.line(&kept, self.changes) {
                return Some(line);
            }
        }
        while !self.ended {
            let update = tokio::select! {
                update = self.updates.recv() => update,
                () = sleep_until(self.deadline) => return None,
                () = self.stop.cancelled() => return None,
            };
            match update {
                Ok(kept) if self.known.get(&kept.first.wall).is_some_and(|count| kept.count <= *count) => {}
                Ok(kept) => {
                    if let Some(line) = self.line(&kept, true) {
                        return Some(line);
                    }
                }
                Err(RecvError::Lagged(missed)) => {
                    self.ended = true;
                    let why = format!("{missed} events were not read in time: list the events again");
                    return Some(line("ERROR", &StatusError::expired(&why).status()));
                }
                Err(RecvError::Closed) => return None,
            }
        }
        None
    }

    fn line(&self, kept: &CorrelatedEvent, change: bool) -> Option<Bytes> {
        let event = object(kept, &self.node);
        let kind = if change && kept.count > 1 { "MODIFIED" } else { "ADDED" };
        self.filter.matches(&event).then(|| match self.form {
            ObjectForm::Object => line(kind, &event),
            ObjectForm::Table(rows) => line(kind, &table::of_events(self.cells, rows, None, &[event])),
        })
    }
}
