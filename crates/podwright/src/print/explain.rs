//! `podwright explain`: the state of a pod, its history with causes, what it is waiting for, and what a user can do about it.

use std::fmt::Write;
use std::path::Path;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use podwright_agent::event_loop::{CorrelatedEvent, Explanation};
use podwright_core::model::{Pod, Transition};
use podwright_core::pod::{State, Wait};
use podwright_server::local::PullLookup;

use super::pods::condition;
use super::{age, hints, plain, seconds};

mod cause;
mod waits;

/// Pods of one name that are shown; of older ones only the number is.
const PODS_MAX: usize = 3;
/// Length of a container or sandbox id, and how many characters of it are shown.
const ID_LENGTH: usize = 64;
const ID_SHOWN: usize = 13;
/// Reasons of the events that are shown; the history has its own line for all others.
const EVENTS_SHOWN: [&str; 4] = ["Pulling", "Pulled", "Killing", "Unhealthy"];

/// Explains all pods that have or had one name, the newest first. `logs` is the directory of pod logs; `pulls` says how far the pull
/// of an image is.
pub(crate) fn render(
    pods: &[Explanation],
    events: &[CorrelatedEvent],
    logs: &Path,
    now: Timestamp,
    pulls: PullLookup<'_>,
) -> String {
    let mut out = String::new();
    let hidden = pods.len().saturating_sub(PODS_MAX);
    for (index, explanation) in pods.iter().skip(hidden).rev().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let events: Vec<&CorrelatedEvent> = events.iter().filter(|event| is_about(event, explanation)).collect();
        let waits = waits::of(explanation, &events);
        let cause = cause::of(explanation, &waits, &events, now);
        Renderer { explanation, events, waits, cause, logs, now, pulls }.render(&mut out);
    }
    if hidden > 0 {
        let (plural, verb) = if hidden == 1 { ("", "is") } else { ("s", "are") };
        let _ = writeln!(out, "\n{hidden} earlier pod{plural} of this name {verb} not shown");
    }
    out
}

/// The event is about this instance: the instances of one manifest have the same UID, one after the other.
fn is_about(event: &CorrelatedEvent, explanation: &Explanation) -> bool {
    let begin = explanation.history.first().map(|line| line.at.wall);
    let end = explanation.history.last().filter(|_| explanation.state.is_none()).map(|line| line.at.wall);
    event.event.uid.as_ref() == Some(&explanation.uid)
        && begin.is_none_or(|begin| event.last.wall >= begin)
        && end.is_none_or(|end| event.first.wall <= end)
}

struct Renderer<'a> {
    explanation: &'a Explanation,
    /// The events of this pod only.
    events: Vec<&'a CorrelatedEvent>,
    /// Everything that the pod waits for; nothing if it is gone.
    waits: Vec<Wait>,
    /// The cause that the first line names; `None`: the state is named.
    cause: Option<cause::Headline>,
    logs: &'a Path,
    now: Timestamp,
    pulls: PullLookup<'a>,
}

impl Renderer<'_> {
    fn render(&self, out: &mut String) {
        let explanation = self.explanation;
        let ends = self.ends();
        let _ = writeln!(out, "Pod {} {}", explanation.full_name, self.headline());
        self.advice(&ends, out);
        let _ = writeln!(out, "  uid {}", explanation.uid);
        if let Some(origin) = &explanation.origin {
            let _ = writeln!(out, "  from {}", plain(origin));
        }
        out.push_str("\nWhat happened (UTC)\n");
        if explanation.forgotten > 0 {
            let _ = writeln!(out, "  … {} earlier lines were dropped", explanation.forgotten);
        }
        let lines = self.lines();
        if lines.is_empty() {
            out.push_str("  nothing since the agent was started\n");
        }
        for (at, line) in lines {
            let _ = writeln!(out, "  {}  {line}", clock(at));
        }
        if explanation.pod.is_none() {
            return;
        }
        if !ends.is_empty() {
            out.push_str("\nHow containers terminated\n");
            ends.iter().for_each(|(_, line)| _ = writeln!(out, "  {line}"));
        }
        out.push_str("\nWhat it waits for\n");
        if self.waits.is_empty() {
            out.push_str("  nothing\n");
        }
        self.waits.iter().for_each(|wait| self.wait(wait, out));
    }

    /// What a user can do, directly below the first line. The advice for the cause replaces that for how containers ended.
    fn advice(&self, ends: &[(String, String)], out: &mut String) {
        let mut reasons: Vec<(&str, &str)> = vec![];
        reasons.extend(self.cause.iter().map(|cause| (cause.reason.as_str(), cause.message.as_str())));
        // What a loop does at this moment adds nothing to its cause.
        let moments = ["CrashLoopBackOff", "Error", "Started", "ContainerCreating"];
        let explained = |reason: &str| self.cause.is_some() && moments.contains(&reason);
        let waits = self.waits.iter().filter(|wait| !explained(&wait.reason));
        reasons.extend(waits.map(|wait| (wait.reason.as_str(), wait.message.as_str())));
        reasons.extend(ends.iter().filter(|(reason, _)| !explained(reason)).map(|(reason, _)| (reason.as_str(), "")));
        let mut hints: Vec<&str> = vec![];
        for hint in reasons.iter().filter_map(|(reason, message)| hints::for_reason(reason, message)) {
            if !hints.contains(&hint) {
                hints.push(hint);
            }
        }
        hints.iter().for_each(|hint| fold(hint, out));
    }

    /// The state of the pod, as the end of the sentence that begins with its name.
    fn headline(&self) -> String {
        let phase = self.status().and_then(|s| s.phase.clone()).unwrap_or_else(|| "Pending".into());
        let since = self.explanation.history.last().map(|last| age(seconds(last.at.wall, self.now)));
        if let Some(cause) = &self.cause {
            return cause.text.clone();
        }
        match self.explanation.state {
            None => since.map_or("was removed".into(), |ago| format!("was removed {ago} ago")),
            Some(State::Waiting) => "is waiting to be admitted".into(),
            Some(State::Terminating) => "is terminating".into(),
            Some(State::Terminated) => "has terminated; its volumes and cgroup are being removed".into(),
            Some(State::Finished) => format!("has terminated: {phase}"),
            Some(State::Syncing) if phase == "Pending" => "is starting".into(),
            Some(State::Syncing) => match self.status().is_some_and(|s| condition(s, "Ready")) {
                true => "is running and ready".into(),
                false => "is running but not ready".into(),
            },
        }
    }

    /// The history, merged with the events of [`EVENTS_SHOWN`].
    fn lines(&self) -> Vec<(Timestamp, String)> {
        let line = |t: &Transition| {
            let text = if t.cause.is_empty() { t.what.clone() } else { format!("{}: {}", t.what, t.cause) };
            (t.at.wall, shorten_ids(&plain(&text)))
        };
        let mut lines: Vec<_> = self.explanation.history.iter().map(line).collect();
        let first = self.explanation.history.first().filter(|_| self.explanation.forgotten > 0).map(|t| t.at.wall);
        for shown in self.events.iter().filter(|event| EVENTS_SHOWN.contains(&event.event.reason)) {
            let container = shown.event.container.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
            let times = if shown.count > 1 { format!(" ({} times)", shown.count) } else { String::new() };
            if first.is_none_or(|first| shown.last.wall >= first) {
                lines.push((shown.last.wall, plain(&format!("{container}{}{times}", shown.event.message))));
            }
        }
        lines.sort_by_key(|(at, _)| *at);
        merge_repeats(lines)
    }

    fn status(&self) -> Option<&podwright_core::model::PodStatus> {
        self.explanation.pod.as_ref()?.status.as_ref()
    }

    fn wait(&self, wait: &Wait, out: &mut String) {
        let about = wait.container.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        let message = if wait.message.is_empty() { String::new() } else { format!(": {}", plain(&wait.message)) };
        let _ = writeln!(out, "  {about}{}{message}", self.pull(wait).as_deref().unwrap_or(&wait.reason));
        if let Some(since) = wait.since {
            let _ = writeln!(out, "    since {}, for {}", clock(since), age(seconds(since, self.now)));
        }
        match wait.until {
            Some(until) if until > self.now => {
                let _ = writeln!(out, "    until {}, in {}", clock(until), age(seconds(self.now, until)));
            }
            Some(until) => _ = writeln!(out, "    was due at {}", clock(until)),
            None => {}
        }
    }

    /// `Pulling 34 of 120 MB`, of a container that waits for its image.
    fn pull(&self, wait: &Wait) -> Option<String> {
        let container = wait.container.as_ref().filter(|_| wait.reason == "Pulling")?;
        let image = find(self.explanation.pod.as_ref()?, container.as_str())?.image.as_deref()?;
        Some((self.pulls)(image)?.to_string())
    }

    /// The reason and a line for the last termination of each container, unless its current instance completed without error.
    fn ends(&self) -> Vec<(String, String)> {
        let Some(status) = self.status() else { return vec![] };
        let all = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
        let mut ends = vec![];
        for container in all {
            let states = [&container.state, &container.last_state];
            let Some(ended) = states.into_iter().flatten().find_map(|s| s.terminated.as_ref()) else { continue };
            let before = container.state.as_ref().is_none_or(|s| s.terminated.is_none());
            let reason = ended.reason.clone().unwrap_or_default();
            if reason == "Completed" && !before {
                continue;
            }
            let count = i64::from(container.restart_count) - i64::from(before && is_running(container));
            let log = self.log(&container.name, count);
            let message = ended.message.as_deref().map(plain).filter(|m| !m.is_empty());
            let message = message.map(|m| format!(": {m}")).unwrap_or_default();
            let line = format!("{}: exit code {} ({reason}){message}; log {log}", container.name, ended.exit_code);
            ends.push((reason, line));
        }
        ends
    }

    fn log(&self, container: &str, count: i64) -> String {
        let name = &self.explanation.full_name;
        let dir = format!("{}_{}_{}", name.namespace, name.name, self.explanation.uid);
        self.logs.join(dir).join(container).join(format!("{}.log", count.max(0))).display().to_string()
    }
}

fn is_running(container: &k8s_openapi::api::core::v1::ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|s| s.running.is_some())
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a podwright_core::model::Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
}

/// Merges equal neighbours into one line with their number and the time of the last.
fn merge_repeats(lines: Vec<(Timestamp, String)>) -> Vec<(Timestamp, String)> {
    let mut merged: Vec<(Timestamp, String, u32)> = vec![];
    for (at, line) in lines {
        match merged.last_mut() {
            Some((last, same, times)) if *same == line => (*last, *times) = (at, *times + 1),
            _ => merged.push((at, line, 1)),
        }
    }
    let times = |line: String, times: u32| if times > 1 { format!("{line} ({times} times)") } else { line };
    merged.into_iter().map(|(at, line, n)| (at, times(line, n))).collect()
}

/// Shortens container and sandbox ids to the length that crictl prints.
fn shorten_ids(text: &str) -> String {
    let hex = |id: &str| id.len() == ID_LENGTH && id.bytes().all(|b| b.is_ascii_hexdigit());
    let parts = text.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
    let short = |part: &str| {
        let id = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        if hex(id) { format!("{}{}", &id[..ID_SHOWN], &part[id.len()..]) } else { part.to_owned() }
    };
    parts.map(short).collect()
}

/// A time in UTC, to the millisecond.
fn clock(at: Timestamp) -> String {
    at.to_zoned(TimeZone::UTC).strftime("%F %T%.3f").to_string()
}

/// Writes an item of the advice, wrapped at 100 columns.
fn fold(text: &str, out: &mut String) {
    let (mut line, mut begin) = (String::new(), "  → ");
    for word in text.split_whitespace() {
        if line.len() + word.len() > 96 {
            let _ = writeln!(out, "{begin}{line}");
            (line, begin) = (String::new(), "    ");
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(out, "{begin}{line}");
}

#[cfg(test)]
mod tests;
