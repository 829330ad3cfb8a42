//! What others may ask of the loop, and what they may see without asking.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use podwright_core::Node;
use podwright_core::model::{Event, KubeEvent, Now, Pod, PodUid};
use tokio::sync::{mpsc, oneshot, watch};

/// Events kept for people, over all pods.
const EVENTS_KEPT: usize = 1000;

/// A question to the loop.
pub enum Query {
    /// Every pod with its status, and the manifests that are broken.
    Pods(oneshot::Sender<Shown>),
    /// The story of the pods of this name, those that are gone included.
    Story {
        /// `name` or `namespace/name`.
        pod: String,
        /// The lines, oldest first.
        answer: oneshot::Sender<Vec<String>>,
    },
}

/// The answer to [`Query::Pods`].
#[derive(Debug, Default)]
pub struct Shown {
    /// The pods.
    pub pods: Vec<Pod>,
    /// Files and what is wrong with them.
    pub broken: Vec<(String, String)>,
    /// The runtime answers.
    pub runtime_up: bool,
}

/// The way to the loop.
#[derive(Clone)]
pub struct Handle {
    events: mpsc::Sender<Event>,
    queries: mpsc::Sender<Query>,
    views: Arc<Views>,
}

impl Handle {
    pub(super) fn new(events: mpsc::Sender<Event>, queries: mpsc::Sender<Query>, views: Arc<Views>) -> Self {
        Self { events, queries, views }
    }

    /// Tell the loop what happened; waits for a place in its queue.
    pub async fn tell(&self, event: Event) {
        let _ = self.events.send(event).await;
    }

    /// All pods. `None` while the agent ends.
    pub async fn pods(&self) -> Option<Shown> {
        let (answer, shown) = oneshot::channel();
        self.queries.send(Query::Pods(answer)).await.ok()?;
        shown.await.ok()
    }

    /// The story of a pod.
    pub async fn story(&self, pod: String) -> Option<Vec<String>> {
        let (answer, story) = oneshot::channel();
        self.queries.send(Query::Story { pod, answer }).await.ok()?;
        story.await.ok()
    }

    /// What can be seen without asking.
    pub fn views(&self) -> &Arc<Views> {
        &self.views
    }
}

/// An event as it is kept: equal ones are counted.
#[derive(Clone, Debug)]
pub struct KeptEvent {
    /// What happened.
    pub event: KubeEvent,
    /// The first time.
    pub first: Now,
    /// The last time.
    pub last: Now,
    /// How often.
    pub count: u64,
}

/// What the loop shows of itself.
#[derive(Default)]
pub struct Views {
    events: Mutex<VecDeque<KeptEvent>>,
    beat: Mutex<Option<Now>>,
    journal: Mutex<Option<String>>,
    waiters: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    changes: watch::Sender<u64>,
}

impl Views {
    /// The events kept, oldest first.
    pub fn events(&self) -> Vec<KeptEvent> {
        self.events.lock().expect("no panic under this lock").iter().cloned().collect()
    }

    /// When the loop last did something.
    pub fn last_beat(&self) -> Option<Now> {
        *self.beat.lock().expect("no panic under this lock")
    }

    /// Why records are not on disk, if so.
    pub fn journal_error(&self) -> Option<String> {
        self.journal.lock().expect("no panic under this lock").clone()
    }

    /// Changes with every change of a status.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn event(&self, event: &KubeEvent, now: Now) {
        let mut events = self.events.lock().expect("no panic under this lock");
        if let Some(kept) = events.iter_mut().rev().find(|kept| kept.event == *event) {
            (kept.last, kept.count) = (now, kept.count + 1);
            return;
        }
        if events.len() == EVENTS_KEPT {
            events.pop_front();
        }
        events.push_back(KeptEvent { event: event.clone(), first: now, last: now, count: 1 });
    }

    pub(super) fn beat(&self, now: Now) {
        *self.beat.lock().expect("no panic under this lock") = Some(now);
    }

    pub(super) fn journal(&self, error: Option<String>) {
        *self.journal.lock().expect("no panic under this lock") = error;
    }

    pub(super) fn status_changed(&self, _uid: &PodUid) {
        self.changes.send_modify(|n| *n += 1);
    }

    pub(super) fn released(&self, waiter: u64) {
        if let Some(waiter) = self.waiters.lock().expect("no panic under this lock").remove(&waiter) {
            let _ = waiter.send(());
        }
    }
}

/// Answer from what core knows. Whoever asked may have gone away.
pub(super) fn answer(node: &Node, query: Query) {
    match query {
        Query::Pods(answer) => {
            let broken = node.broken().map(|(file, why)| (file.to_owned(), why.to_owned())).collect();
            let _ = answer.send(Shown { pods: node.pods(), broken, runtime_up: node.runtime_up() });
        }
        Query::Story { pod, answer } => {
            let _ = answer.send(story(node, &pod));
        }
    }
}

fn story(node: &Node, pod: &str) -> Vec<String> {
    let matches = |name: &podwright_core::model::FullName| name.to_string() == pod || &*name.name == pod;
    let gone =
        node.gone().filter(|g| matches(&g.full_name)).map(|g| (&g.full_name, &g.uid, &g.story, "gone".to_owned()));
    let here = node.workers().iter().filter(|(_, m)| matches(m.full_name()));
    let here = here.map(|(uid, m)| (m.full_name(), uid, m.story(), format!("{:?}", m.state()).to_lowercase()));
    let mut lines = vec![];
    for (name, uid, story, state) in gone.chain(here) {
        lines.push(format!("{name} ({uid}): {state}"));
        if story.forgotten() > 0 {
            lines.push(format!("  … {} earlier lines are not kept", story.forgotten()));
        }
        lines.extend(story.lines().map(|t| format!("  {}  {}: {}", t.at.wall, t.what, t.cause)));
    }
    lines
}
