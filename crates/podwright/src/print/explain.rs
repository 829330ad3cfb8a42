//! The life of a pod as a history: how it is, what happened and why, what it waits for, and what can be done about it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use podwright_agent::event_loop::{CorrelatedEvent, Explanation};
use podwright_core::model::{Pod, Transition};
use podwright_core::pod::{State, Wait};

use super::pods::condition;
use super::{age, hints, plain, seconds};

/// Lives of one name that are told; of those before only the number.
const LIVES_MAX: usize = 3;
/// An id of a container or sandbox, and what is shown of it.
const ID_LENGTH: usize = 64;
const ID_SHOWN: usize = 13;
/// Events that the story itself has no line for.
const EVENTS_TOLD: [&str; 4] = ["Pulling", "Pulled", "Killing", "Unhealthy"];

/// Tell the lives of a name, the oldest first.
pub(crate) fn tell(lives: &[Explanation], events: &[CorrelatedEvent], logs: &Path, now: Timestamp) -> String {
    let mut out = String::new();
    let hidden = lives.len().saturating_sub(LIVES_MAX);
    if hidden > 0 {
        let _ = writeln!(
            out,
            "{hidden} earlier {} of this name are not shown\n",
            if hidden == 1 { "life" } else { "lives" }
        );
    }
    for (place, told) in lives.iter().skip(hidden).enumerate() {
        if place > 0 {
            out.push('\n');
        }
        let own: Vec<&CorrelatedEvent> = events.iter().filter(|kept| kept.event.uid == told.uid).collect();
        Teller { told, events: own, logs, now }.tell(&mut out);
    }
    out
}

struct Teller<'a> {
    told: &'a Explanation,
    events: Vec<&'a CorrelatedEvent>,
    logs: &'a Path,
    now: Timestamp,
}

impl Teller<'_> {
    fn tell(&self, out: &mut String) {
        let told = self.told;
        let _ = writeln!(out, "Pod {} {}", told.full_name, self.headline());
        let _ = writeln!(out, "  uid {}", told.uid);
        if let Some(origin) = &told.origin {
            let _ = writeln!(out, "  from {}", plain(origin));
        }
        out.push_str("\nWhat happened (UTC)\n");
        if told.forgotten > 0 {
            let _ = writeln!(out, "  … {} earlier lines are not kept", told.forgotten);
        }
        let lines = self.lines();
        if lines.is_empty() {
            out.push_str("  nothing since the agent started\n");
        }
        for (at, line) in lines {
            let _ = writeln!(out, "  {}  {line}", clock(at));
        }
        if told.pod.is_none() {
            return;
        }
        let (waits, ends) = (self.waits(), self.ends());
        let mut reasons: BTreeSet<(&str, &str)> = ends.iter().map(|(reason, _)| (reason.as_str(), "")).collect();
        if !ends.is_empty() {
            out.push_str("\nHow containers ended\n");
            ends.iter().for_each(|(_, line)| _ = writeln!(out, "  {line}"));
        }
        out.push_str("\nWhat it waits for\n");
        if waits.is_empty() {
            out.push_str("  nothing\n");
        }
        for wait in &waits {
            reasons.insert((&wait.reason, &wait.message));
            self.wait(wait, out);
        }
        let hints: Vec<&str> = {
            let known: BTreeSet<&str> =
                reasons.iter().filter_map(|(reason, message)| hints::for_reason(reason, message)).collect();
            known.into_iter().collect()
        };
        if !hints.is_empty() {
            out.push_str("\nWhat you can do\n");
            hints.iter().for_each(|hint| fold(hint, out));
        }
    }

    /// How it is, in a few words.
    fn headline(&self) -> String {
        let phase = self.status().and_then(|s| s.phase.clone()).unwrap_or_else(|| "Pending".into());
        let since = self.told.history.last().map(|last| age(seconds(last.at.wall, self.now)));
        match self.told.state {
            None => format!("is gone{}", since.map(|ago| format!(", for {ago}")).unwrap_or_default()),
            Some(State::Waiting) => "waits for its turn".into(),
            Some(State::Terminating) => "is ending".into(),
            Some(State::Terminated) => "has ended; what it had on this machine is being removed".into(),
            Some(State::Finished) => format!("has ended: {phase}"),
            Some(State::Syncing) if phase == "Pending" => "is starting".into(),
            Some(State::Syncing) => match self.status().is_some_and(|s| condition(s, "Ready")) {
                true => "is running and ready".into(),
                false => "is running, not ready".into(),
            },
        }
    }

    /// The story, and those events it has no line for.
    fn lines(&self) -> Vec<(Timestamp, String)> {
        let line = |t: &Transition| (t.at.wall, shorter_ids(&plain(&format!("{}: {}", in_words(&t.what), t.cause))));
        let mut lines: Vec<_> = self.told.history.iter().map(line).collect();
        let first = self.told.history.first().filter(|_| self.told.forgotten > 0).map(|t| t.at.wall);
        for kept in self.events.iter().filter(|kept| EVENTS_TOLD.contains(&kept.event.reason)) {
            let container = kept.event.container.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
            let times = if kept.count > 1 { format!(" ({} times)", kept.count) } else { String::new() };
            if first.is_none_or(|first| kept.last.wall >= first) {
                lines.push((kept.last.wall, plain(&format!("{container}{}{times}", kept.event.message))));
            }
        }
        lines.sort_by_key(|(at, _)| *at);
        once(lines)
    }

    fn status(&self) -> Option<&podwright_core::model::PodStatus> {
        self.told.pod.as_ref()?.status.as_ref()
    }

    /// What core says it waits for, and what only probes wait for.
    fn waits(&self) -> Vec<Wait> {
        let pod_wait = |reason: &str, message: &str| Wait {
            container: None,
            reason: reason.into(),
            message: message.into(),
            since: None,
            until: None,
        };
        let mut waits = vec![];
        if !self.told.runtime_up {
            waits.push(pod_wait("NoRuntime", "the container runtime does not answer"));
        }
        waits.extend(self.told.waits.iter().cloned());
        if self.told.state != Some(State::Syncing) {
            return waits;
        }
        waits.extend(self.init_under_way());
        let statuses = self
            .status()
            .into_iter()
            .flat_map(|s| s.init_container_statuses.iter().flatten().chain(s.container_statuses.iter().flatten()));
        for status in statuses.filter(|s| s.state.as_ref().is_some_and(|s| s.running.is_some())) {
            let Some(container) = self.told.pod.as_ref().and_then(|pod| find(pod, &status.name)) else { continue };
            let (reason, probe) = match status.started {
                Some(false) if container.startup_probe.is_some() => ("NotStarted", "Startup"),
                _ if !status.ready && container.readiness_probe.is_some() => ("NotReady", "Readiness"),
                _ => continue,
            };
            let about = |kept: &&&CorrelatedEvent| {
                let of = kept.event.container.as_ref().is_some_and(|name| name.as_str() == status.name);
                of && kept.event.reason == "Unhealthy" && kept.event.message.starts_with(probe)
            };
            let last = self.events.iter().rev().find(about).map(|kept| kept.event.message.clone());
            let message = last.unwrap_or_else(|| format!("its {} probe has not passed yet", probe.to_lowercase()));
            waits.push(Wait { container: Some(status.name.as_str().into()), ..pod_wait(reason, &message) });
        }
        waits
    }

    /// The init container that runs, while the others wait for its end.
    fn init_under_way(&self) -> Option<Wait> {
        let inits = self.told.pod.as_ref()?.spec.as_ref()?.init_containers.as_deref()?;
        let statuses = self.status()?.init_container_statuses.as_deref()?;
        let plain = |name: &str| inits.iter().any(|c| c.name == name && c.restart_policy.as_deref() != Some("Always"));
        let (place, status) = statuses.iter().enumerate().find(|(_, status)| plain(&status.name) && running(status))?;
        let started = status.state.as_ref()?.running.as_ref()?.started_at.as_ref().map(|time| time.0);
        let message =
            format!("init container {} of {} runs; what comes after it waits for its end", place + 1, inits.len());
        let (container, reason) = (Some(status.name.as_str().into()), "PodInitializing".into());
        Some(Wait { container, reason, message, since: started, until: None })
    }

    fn wait(&self, wait: &Wait, out: &mut String) {
        let about = wait.container.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        let message = if wait.message.is_empty() { String::new() } else { format!(": {}", plain(&wait.message)) };
        let _ = writeln!(out, "  {about}{}{message}", wait.reason);
        if let Some(since) = wait.since {
            let _ = writeln!(out, "    since {}, for {}", clock(since), age(seconds(since, self.now)));
        }
        match wait.until {
            Some(until) if until > self.now => {
                let _ = writeln!(out, "    until {}, in {}", clock(until), age(seconds(self.now, until)));
            }
            Some(until) => _ = writeln!(out, "    that was due at {}", clock(until)),
            None => {}
        }
    }

    /// The last end of each container, where there was one that is worth a word, and where its log is.
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
            let count = i64::from(container.restart_count) - i64::from(before && running(container));
            let log = self.log(&container.name, count);
            let message = ended.message.as_deref().map(plain).filter(|m| !m.is_empty());
            let message = message.map(|m| format!(": {m}")).unwrap_or_default();
            let line = format!("{}: exit code {} ({reason}){message}; log {log}", container.name, ended.exit_code);
            ends.push((reason, line));
        }
        ends
    }

    fn log(&self, container: &str, count: i64) -> String {
        let name = &self.told.full_name;
        let dir = format!("{}_{}_{}", name.namespace, name.name, self.told.uid);
        self.logs.join(dir).join(container).join(format!("{}.log", count.max(0))).display().to_string()
    }
}

fn running(container: &k8s_openapi::api::core::v1::ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|s| s.running.is_some())
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a podwright_core::model::Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
}

/// What happened again and again is told once, with the last time.
fn once(lines: Vec<(Timestamp, String)>) -> Vec<(Timestamp, String)> {
    let mut told: Vec<(Timestamp, String, u32)> = vec![];
    for (at, line) in lines {
        match told.last_mut() {
            Some((last, same, times)) if *same == line => (*last, *times) = (at, *times + 1),
            _ => told.push((at, line, 1)),
        }
    }
    let times = |line: String, times: u32| if times > 1 { format!("{line} ({times} times)") } else { line };
    told.into_iter().map(|(at, line, n)| (at, times(line, n))).collect()
}

/// A call that failed, as people call what it was about.
fn in_words(what: &str) -> Cow<'_, str> {
    let Some(call) = what.strip_prefix("failed: ") else { return what.into() };
    let (kind, about) = call.strip_suffix(')').and_then(|call| call.split_once('(')).unwrap_or((call, ""));
    let about = about.split(", ").next().unwrap_or_default();
    match kind {
        "RunSandbox" => "sandbox failed".into(),
        "Sandbox" => format!("end of sandbox {about} failed").into(),
        "Container" => format!("{about} failed").into(),
        "Instance" => format!("container {about} failed").into(),
        "Stop" => format!("stop of container {about} failed").into(),
        "Hook" => format!("hook of container {about} failed").into(),
        "Probe" => format!("probe of {about} failed").into(),
        "Cgroup" => "cgroup failed".into(),
        "Dirs" => "directories failed".into(),
        "Volume" => format!("volume {about} failed").into(),
        "Volumes" => "removal of volumes failed".into(),
        "Logs" => "removal of logs failed".into(),
        _ => what.into(),
    }
}

/// The runtime's long ids, as short as its own tools print them.
fn shorter_ids(text: &str) -> String {
    let hex = |word: &str| word.len() == ID_LENGTH && word.bytes().all(|b| b.is_ascii_hexdigit());
    let parts = text.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
    let short = |part: &str| {
        let word = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        if hex(word) { format!("{}{}", &word[..ID_SHOWN], &part[word.len()..]) } else { part.to_owned() }
    };
    parts.map(short).collect()
}

/// A moment, to the millisecond.
fn clock(at: Timestamp) -> String {
    at.to_zoned(TimeZone::UTC).strftime("%F %T%.3f").to_string()
}

/// A paragraph in lines that fit.
fn fold(text: &str, out: &mut String) {
    let (mut line, mut begin) = (String::new(), "  - ");
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
