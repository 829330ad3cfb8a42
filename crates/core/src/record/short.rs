//! One-line summaries of events, records and effects.

use crate::model::{
    Answer, Call, CallError, Effect, Event, HostCall, ObjectRef, PodSeen, PodUid, ProbeVerdict, Record, RunState,
    RuntimeCall, SourceChange,
};

/// Summary of an event; `call` names the call that a result belongs to.
pub fn event_in_short(event: &Event, call: Option<&str>) -> String {
    match event {
        Event::Source { source, change } => format!("source {}: {}", source.as_str(), change_in_short(change)),
        Event::Listed { result, .. } => match result {
            Ok(listing) => format!("the runtime has {} pods", listing.pods.len()),
            Err(error) => format!("relist failed: {}", error_in_short(error)),
        },
        Event::Observed { result, .. } => match result {
            Ok(seen) => format!("seen: {}", seen_in_short(seen)),
            Err(error) => format!("observation failed: {}", error_in_short(error)),
        },
        Event::Hint { .. } => "a hint".into(),
        Event::EventStream { up } => format!("the event stream is {}", if *up { "up" } else { "down" }),
        Event::Runtime { result } => match result {
            Ok(ready) if ready.network => format!("{} is ready", ready.name),
            Ok(ready) => format!("{} has no network: {}", ready.name, ready.message),
            Err(error) => format!("the runtime does not answer: {}", error_in_short(error)),
        },
        Event::Done { id, result } => {
            let call = call.map_or_else(|| format!("call {}", id.0), |call| format!("{call} ({})", id.0));
            match result {
                Ok(answer) => format!("{call}: {}", answer_in_short(answer)),
                Err(error) => format!("{call} failed: {}", error_in_short(error)),
            }
        }
        Event::Kill { grace, evicted, .. } => {
            let grace = grace.map_or(String::new(), |grace| format!(" within {} s", grace.as_secs()));
            let why = evicted.as_ref().map_or(String::new(), |(reason, _)| format!(" ({reason})"));
            format!("kill requested{grace}{why}")
        }
        Event::Restart { container, .. } => match container {
            Some(name) => format!("restart of {name} requested"),
            None => "restart requested".into(),
        },
        Event::Leftovers { found, .. } => match found {
            Ok(found) => format!("{} pods have data on this node", found.len()),
            Err(error) => format!("search for leftovers failed: {}", error_in_short(error)),
        },
        Event::Wake => "wake".into(),
        // Rare, so printed in full.
        other => one_line(&format!("{other:?}")),
    }
}

/// Summary of a record.
pub fn record_in_short(record: &Record) -> String {
    let record = match record {
        Record::Put(record) => record,
        Record::Forget(_) => return "forget".into(),
    };
    let mut text = record.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_else(|| "no status".into());
    if let Some(ending) = record.termination() {
        text.push_str(&format!(", ending ({:?}) by {:.1}", ending.cause, ending.deadline.boot.as_secs_f64()));
    }
    for (is, text_of_flag) in [
        (record.is_terminated(), ", terminated"),
        (record.is_finished(), ", finished"),
        (record.restart_requested(), ", to begin again"),
    ] {
        text.push_str(if is { text_of_flag } else { "" });
    }
    if let Some(cursor) = &record.cursor {
        text.push_str(&format!(", sandbox {} init {}", brief(cursor.sandbox.as_str()), cursor.done));
    }
    text
}

/// Summary of an effect.
pub fn effect_in_short(effect: &Effect) -> String {
    match effect {
        Effect::Call { id, call, limit, .. } => {
            format!("{} ({}), within {} s", call_in_short(call), id.0, limit.as_secs())
        }
        Effect::Cancel { id } => format!("cancel call {}", id.0),
        Effect::Observe { seq, .. } => format!("observe ({})", seq.0),
        Effect::List { seq } => format!("relist ({})", seq.0),
        Effect::CheckRuntime => "check the runtime".into(),
        Effect::ReadNode { seq, pods } => format!("read the node ({}), pods: {pods:?}", seq.0),
        Effect::RemoveUnusedImages { seq } => format!("remove unused images ({})", seq.0),
        Effect::Evicted { signal } => format!("count an eviction for {signal}"),
        Effect::FindLeftovers { seq } => format!("find leftovers ({})", seq.0),
        Effect::Sweep { .. } => "remove leftovers".into(),
        Effect::SaveQuarantinedRecord { .. } => "save its record".into(),
        Effect::Event(event) => format!("event {}: {}", event.reason, one_line(&event.message)),
        Effect::StatusChanged(_) => "the status changed".into(),
        Effect::PodRemoved { .. } => "the pod was removed".into(),
        Effect::AllowShutdown { request } => format!("allow shutdown {request}"),
        Effect::RuntimeChanged => "the runtime's state changed".into(),
        Effect::RequestObject { id, request, .. } => format!("request {}: {}", id.0, one_line(&format!("{request:?}"))),
    }
}

/// Summary of a call.
pub(super) fn call_in_short(call: &Call) -> String {
    let text = match call {
        Call::Runtime(call) => format!("{call:?}"),
        Call::Host(call) => format!("{call:?}"),
    };
    let name = text.split([' ', '{']).next().unwrap_or_default().to_owned();
    match call {
        Call::Runtime(call) => runtime_call_in_short(&name, call),
        Call::Host(HostCall::PrepareContainer { name: of, attempt, .. }) => format!("{name} {of} #{attempt}"),
        Call::Host(HostCall::MountVolume { volume }) => format!("{name} {volume}"),
        Call::Host(_) => name,
    }
}

fn runtime_call_in_short(name: &str, call: &RuntimeCall) -> String {
    match call {
        RuntimeCall::StopSandbox { id } | RuntimeCall::RemoveSandbox { id } | RuntimeCall::UpdateSandbox { id, .. } => {
            format!("{name} {}", brief(id.as_str()))
        }
        RuntimeCall::UpdateContainer { name: of, id, .. } => format!("{name} {of} {}", brief(id.as_str())),
        RuntimeCall::StopContainer { name: of, id, timeout } => {
            format!("{name} {of} {} ({} s)", brief(id.as_str()), timeout.as_secs())
        }
        RuntimeCall::StartContainer { name: of, id } | RuntimeCall::RemoveContainer { name: of, id } => {
            format!("{name} {of} {}", brief(id.as_str()))
        }
        RuntimeCall::CreateContainer { name: of, attempt, .. } => format!("{name} {of} #{attempt}"),
        RuntimeCall::ImageStatus { image, .. } | RuntimeCall::PullImage { image, .. } => format!("{name} {image}"),
        RuntimeCall::Hook { kind, name: of, .. } => format!("{kind:?} hook of {of}"),
        RuntimeCall::Probe { kind, name: of, .. } => format!("{kind:?} probe of {of}"),
        RuntimeCall::RunSandbox { .. } => name.to_owned(),
    }
}

/// The pods of an event.
pub(super) fn uids_of(event: &Event) -> Vec<PodUid> {
    let uid = |text: Option<&str>| text.map(PodUid::from);
    match event {
        Event::Observed { uid, .. }
        | Event::Hint { uid }
        | Event::Kill { uid, .. }
        | Event::Restart { uid, .. }
        | Event::EmptyDirExceeded { uid, .. }
        | Event::ObjectsChanged { uid } => vec![uid.clone()],
        Event::Source { change: SourceChange::Put(manifest), .. } => {
            uid(manifest.pod.metadata.uid.as_deref()).into_iter().collect()
        }
        Event::Source { change: SourceChange::Remove(uid), .. } => vec![uid.clone()],
        _ => vec![],
    }
}

/// The pod of an effect.
pub(super) fn uid_of(effect: &Effect) -> Option<&PodUid> {
    match effect {
        Effect::Call { uid, .. } | Effect::Observe { uid, .. } | Effect::Sweep { uid } | Effect::PodRemoved { uid } => {
            Some(uid)
        }
        Effect::StatusChanged(pod) => Some(&pod.uid),
        Effect::SaveQuarantinedRecord { record } => Some(&record.uid),
        Effect::Event(event) => event.uid.as_ref(),
        Effect::RequestObject { request, .. } => object_of(request).map(|object| &object.uid),
        _ => None,
    }
}

fn object_of(request: &crate::model::ObjectRequest) -> Option<&ObjectRef> {
    use crate::model::ObjectRequest;
    match request {
        ObjectRequest::PatchStatus { object, .. }
        | ObjectRequest::Delete { object }
        | ObjectRequest::DeleteMirror { object } => Some(object),
        ObjectRequest::CreateMirror { .. } => None,
    }
}

fn change_in_short(change: &SourceChange) -> String {
    let name = |pod: &crate::model::Pod| pod.metadata.name.clone().unwrap_or_default();
    match change {
        SourceChange::Set { pods, broken } => {
            let names: Vec<String> = pods.iter().take(8).map(|manifest| name(&manifest.pod)).collect();
            let more = if pods.len() > names.len() { ", …" } else { "" };
            let broken = if broken.is_empty() { String::new() } else { format!(", {} broken", broken.len()) };
            format!("{} pods ({}{more}){broken}", pods.len(), names.join(", "))
        }
        SourceChange::Put(manifest) => format!("{} is new or changed", name(&manifest.pod)),
        SourceChange::Remove(_) => "a pod was removed".into(),
        SourceChange::Reconnected => "reconnected".into(),
        SourceChange::HistoryReset => "history reset".into(),
    }
}

fn seen_in_short(seen: &PodSeen) -> String {
    if seen.is_empty() {
        return "nothing".into();
    }
    let sandboxes = seen.sandboxes.iter().map(|s| {
        let state = if s.ready { "ready" } else { "stopped" };
        format!("sandbox {} {state}", brief(s.id.as_str()))
    });
    let containers = seen.containers.iter().map(|c| {
        let code = if c.state == RunState::Exited { format!(" {}", c.exit_code) } else { String::new() };
        format!("{}#{} {:?}{code}", c.name, c.attempt, c.state)
    });
    sandboxes.chain(containers).collect::<Vec<_>>().join(", ")
}

fn answer_in_short(answer: &Answer) -> String {
    match answer {
        Answer::Done => "done".into(),
        Answer::Sandbox(id) => format!("sandbox {}", brief(id.as_str())),
        Answer::Container(id) => format!("container {}", brief(id.as_str())),
        Answer::Image(Some(facts)) => format!("image {}", brief(&facts.id)),
        Answer::Cgroup { made } => if *made { "created" } else { "existed" }.into(),
        Answer::Memory(used) => format!("{} bytes in use", used.pod.unwrap_or_default()),
        Answer::Image(None) => "image not present".into(),
        Answer::Probe(ProbeVerdict::Success) => "passed".into(),
        Answer::Probe(ProbeVerdict::Failure(why) | ProbeVerdict::Unknown(why)) => {
            format!("not passed: {}", one_line(why))
        }
    }
}

fn error_in_short(error: &CallError) -> String {
    let mark = match error {
        CallError::Failed { .. } => "",
        CallError::InDoubt { .. } => " [in doubt]",
        CallError::ConnectionLost { .. } => " [in doubt] [unavailable]",
        CallError::Unavailable { .. } => " [unavailable]",
        CallError::Busy { .. } => " [busy]",
        CallError::Cancelled => " [cancelled]",
    };
    let reason = error.reason().unwrap_or_default();
    format!("{}{mark}", one_line(&format!("{reason} {}", error.message())))
}

/// A prefix is enough to distinguish ids.
fn brief(id: &str) -> &str {
    let id = id.strip_prefix("sha256:").unwrap_or(id);
    &id[..id.floor_char_boundary(12)]
}

fn one_line(text: &str) -> String {
    let flat: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = flat.floor_char_boundary(LINE_MAX);
    if end < flat.len() { format!("{}…", &flat[..end]) } else { flat }
}

/// Longer texts are cut.
const LINE_MAX: usize = 200;
