//! Watching events: first those that are kept, or those after a version, then each as it happens.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use futures::stream::unfold;
use jiff::Timestamp;
use podwright_agent::event_loop::CorrelatedEvent;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::super::answer::Room;
use super::super::failure::Failure;
use super::super::params::Params;
use super::super::watch::{STALL_MAX, from, line, until};
use super::{Wanted, object, version};
use crate::serve::{Answer, Stall, stream};

pub(super) fn watch(room: &Room, namespace: Option<String>, mut params: Params) -> Result<Answer, Failure> {
    let wanted = Wanted::read(namespace, &mut params)?;
    let (until, from) = (until(&mut params)?, from(&mut params)?);
    // Clients that ask for bookmarks must do without as well.
    params.flag("allowWatchBookmarks")?;
    params.finish()?;
    // Before the look at what is kept, so that nothing comes between.
    let news = room.local.views.follow_events();
    let kept = room.local.views.events();
    let known = kept.iter().map(|event| (event.first.wall, event.count)).collect();
    let first = kept.into_iter().filter(|event| from.is_none_or(|from| version(event) > from)).collect();
    let watcher = Watcher {
        wanted,
        node: room.local.node.clone(),
        changes: from.is_some(),
        first,
        known,
        news,
        until,
        stop: room.stop.clone(),
        ended: false,
        _place: room.place()?,
    };
    let lines = unfold(watcher, |mut watcher| async move { Some((watcher.next().await?, watcher)) });
    Ok(stream(true, lines, Stall(Some(STALL_MAX))))
}

struct Watcher {
    wanted: Wanted,
    node: String,
    /// What comes first are changes, not all there is.
    changes: bool,
    /// What is not sent yet of what was there at the beginning.
    first: VecDeque<CorrelatedEvent>,
    /// How often each had happened at the beginning, by its first moment: what is told of that is no news.
    known: BTreeMap<Timestamp, u64>,
    news: Receiver<CorrelatedEvent>,
    until: Instant,
    stop: CancellationToken,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

impl Watcher {
    async fn next(&mut self) -> Option<Bytes> {
        while let Some(kept) = self.first.pop_front() {
            if let Some(line) = self.line(&kept, self.changes) {
                return Some(line);
            }
        }
        while !self.ended {
            let news = tokio::select! {
                news = self.news.recv() => news,
                () = sleep_until(self.until) => return None,
                () = self.stop.cancelled() => return None,
            };
            match news {
                Ok(kept) if self.known.get(&kept.first.wall).is_some_and(|count| kept.count <= *count) => {}
                Ok(kept) => {
                    if let Some(line) = self.line(&kept, true) {
                        return Some(line);
                    }
                }
                Err(RecvError::Lagged(missed)) => {
                    self.ended = true;
                    let why = format!("{missed} events were not read in time: list them again");
                    return Some(line("ERROR", &Failure::expired(&why).status()));
                }
                Err(RecvError::Closed) => return None,
            }
        }
        None
    }

    fn line(&self, kept: &CorrelatedEvent, change: bool) -> Option<Bytes> {
        let event = object(kept, &self.node);
        let kind = if change && kept.count > 1 { "MODIFIED" } else { "ADDED" };
        self.wanted.is(&event).then(|| line(kind, &event))
    }
}
