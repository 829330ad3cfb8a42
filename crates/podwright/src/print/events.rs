//! The table of events.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;

use super::{Colour, Paint, TextTable, age, age_at, plain, seconds};

/// The table of events, the newest last.
pub(crate) fn table(events: &[Event], namespace: bool, now: Timestamp) -> TextTable {
    let mut head = vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
    if namespace {
        head.insert(0, "NAMESPACE");
    }
    let mut table = TextTable::new(&head);
    for event in by_time(events) {
        let object = &event.involved_object;
        let kind = object.kind.as_deref().unwrap_or_default().to_lowercase();
        let mut row = vec![
            (age_at(last(event), now), None),
            event_type(event),
            (plain(event.reason.as_deref().unwrap_or_default()), None),
            (plain(&format!("{kind}/{}", object.name.as_deref().unwrap_or_default())), None),
            (message(event), None),
        ];
        if namespace {
            row.insert(0, (plain(object.namespace.as_deref().unwrap_or_default()), None));
        }
        table.row(row);
    }
    table
}

/// The events of one pod, for `podwright describe`.
pub(crate) fn of_pod(events: &[Event], now: Timestamp, paint: Paint) -> String {
    if events.is_empty() {
        return "Events:  <none>\n".into();
    }
    let mut table = TextTable::new(&["Type", "Reason", "Age", "From", "Message"]);
    table.row(["----", "------", "----", "----", "-------"].map(|text| (text.to_owned(), None)).into());
    for event in by_time(events) {
        let ago = age_at(last(event), now);
        let times = match (event.count, event.first_timestamp.as_ref()) {
            (Some(count @ 2..), Some(first)) => format!("{ago} (x{count} over {})", age(seconds(first.0, now))),
            _ => ago,
        };
        table.row(vec![
            event_type(event),
            (plain(event.reason.as_deref().unwrap_or_default()), None),
            (times, None),
            (plain(event.reporting_component.as_deref().unwrap_or_default()), None),
            (message(event), None),
        ]);
    }
    let lines: String = table.render(paint).lines().map(|line| format!("  {line}\n")).collect();
    format!("Events:\n{lines}")
}

/// With the name of the container that it is about: `a: Container created`.
fn message(event: &Event) -> String {
    let path = event.involved_object.field_path.as_deref().unwrap_or_default();
    let container = path.split_once('{').and_then(|(_, rest)| rest.strip_suffix('}'));
    let about = container.map(|name| format!("{name}: ")).unwrap_or_default();
    plain(&format!("{about}{}", event.message.as_deref().unwrap_or_default().trim()))
}

fn by_time(events: &[Event]) -> Vec<&Event> {
    let mut events: Vec<&Event> = events.iter().collect();
    events.sort_by_key(|event| last(event));
    events
}

fn last(event: &Event) -> Option<Timestamp> {
    event.last_timestamp.as_ref().map(|time| time.0)
}

fn event_type(event: &Event) -> (String, Option<Colour>) {
    let warning = event.type_.as_deref() == Some("Warning");
    (plain(event.type_.as_deref().unwrap_or_default()), warning.then_some(Colour::Bad))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_event_is_last_and_counts_are_shown() {
        let event = |reason: &str, last: &str, count: i32| -> Event {
            serde_json::from_value(json!({
                "metadata": {}, "type": if count > 1 { "Warning" } else { "Normal" }, "reason": reason, "message": "a\nb", "count": count,
                "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"}, "reportingComponent": "podwright",
                "firstTimestamp": "2024-01-01T00:00:00Z", "lastTimestamp": last
            }))
            .unwrap()
        };
        let mut events = [event("BackOff", "2024-01-01T00:01:30Z", 3), event("Pulled", "2024-01-01T00:00:10Z", 1)];
        events[0].involved_object.field_path = Some("spec.containers{server}".into());
        let now = "2024-01-01T00:02:00Z".parse().unwrap();
        let both =
            format!("{}\n{}", table(&events, true, now).render(Paint::off()), of_pod(&events, now, Paint::off()));
        insta::assert_snapshot!("tables", both);
    }
}
