//! The events in memory as v1 Event objects: list and read.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use podwright_agent::event_loop::CorrelatedEvent;
use podwright_core::model::FullName;

use super::router::{LocalState, list as list_of, object as one_object};
use super::selector::Selector;
use super::table::{self, ObjectForm};
use crate::query::QueryParams;
use crate::serve::HttpResponse;
use crate::status_error::StatusError;

mod watch;

/// The reporting component of every event.
const COMPONENT: &str = "podwright";

/// The namespace and fields that a list or watch selects by.
struct EventFilter {
    namespace: Option<String>,
    selector: Selector,
}

impl EventFilter {
    fn parse(namespace: Option<String>, params: &mut QueryParams) -> Result<Self, StatusError> {
        let selector = Selector::parse(None, params.text("fieldSelector").as_deref(), &FIELDS)?;
        Ok(Self { namespace, selector })
    }

    fn matches(&self, event: &Event) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| Some(namespace) == event.metadata.namespace.as_deref())
            && self.selector.matches(None, |name| field(event, name))
    }
}

pub(super) fn list(
    state: &LocalState,
    namespace: Option<String>,
    form: ObjectForm,
    mut params: QueryParams,
) -> Result<HttpResponse, StatusError> {
    if params.flag("watch")? {
        return watch::watch(state, namespace, form, params);
    }
    let filter = EventFilter::parse(namespace, &mut params)?;
    params.text("resourceVersion");
    params.text("timeoutSeconds");
    params.finish()?;
    let (node, correlated) = (&state.api.node, state.api.agent.events());
    let events = correlated.iter().map(|event| object(event, node)).filter(|event| filter.matches(event));
    let events: Vec<Event> = events.collect();
    let version = correlated.iter().map(version).max().unwrap_or(1);
    Ok(match form {
        ObjectForm::Object => list_of("EventList", version, events),
        ObjectForm::Table(rows) => one_object(&table::of_events(state.api.cells, rows, Some(version), &events)),
    })
}

pub(super) fn one(
    state: &LocalState,
    of: &FullName,
    form: ObjectForm,
    mut params: QueryParams,
) -> Result<HttpResponse, StatusError> {
    params.text("resourceVersion");
    params.finish()?;
    let named = |event: &Event| {
        (event.metadata.namespace.as_deref(), event.metadata.name.as_deref()) == (Some(&*of.namespace), Some(&*of.name))
    };
    let found = state.api.agent.events().iter().map(|kept| object(kept, &state.api.node)).find(named);
    let found = found.ok_or_else(|| StatusError::not_found("events", &of.name))?;
    Ok(match form {
        ObjectForm::Object => one_object(&found),
        ObjectForm::Table(rows) => one_object(&table::of_events(state.api.cells, rows, None, &[found])),
    })
}

/// The resource version of an event: the time of its last occurrence in microseconds.
fn version(kept: &CorrelatedEvent) -> u64 {
    u64::try_from(kept.last.wall.as_microsecond()).unwrap_or_default()
}

fn field<'a>(event: &'a Event, name: &str) -> Option<&'a str> {
    let object = &event.involved_object;
    match name {
        "involvedObject.apiVersion" => object.api_version.as_deref(),
        "involvedObject.kind" => object.kind.as_deref(),
        "involvedObject.namespace" => object.namespace.as_deref(),
        "involvedObject.name" => object.name.as_deref(),
        "involvedObject.uid" => object.uid.as_deref(),
        "involvedObject.fieldPath" => object.field_path.as_deref(),
        "reason" => event.reason.as_deref(),
        "type" => event.type_.as_deref(),
        "metadata.name" => event.metadata.name.as_deref(),
        "metadata.namespace" => event.metadata.namespace.as_deref(),
        _ => None,
    }
}

const FIELDS: [&str; 10] = [
    "involvedObject.apiVersion",
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.fieldPath",
    "reason",
    "type",
    "metadata.name",
    "metadata.namespace",
];

fn object(kept: &CorrelatedEvent, node: &str) -> Event {
    let CorrelatedEvent { event, field_path, first, last, count } = kept;
    let (namespace, name) = (event.pod.namespace.to_string(), event.pod.name.to_string());
    let of_node = event.is_about_node();
    let namespace = if of_node { "default".into() } else { namespace };
    let uid = if of_node { Some(name.clone()) } else { event.uid.as_ref().map(ToString::to_string) };
    let annotations: BTreeMap<String, String> =
        event.annotations.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", first.wall.as_nanosecond())),
            namespace: Some(namespace.clone()),
            creation_timestamp: Some(whole_seconds(first.wall)),
            resource_version: Some(version(kept).to_string()),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some(if of_node { "Node" } else { "Pod" }.into()),
            namespace: (!of_node).then_some(namespace),
            name: Some(name),
            uid,
            field_path: field_path.clone(),
            ..ObjectReference::default()
        },
        type_: Some(if event.warning { "Warning" } else { "Normal" }.into()),
        reason: Some(event.reason.into()),
        message: Some(event.message.clone()),
        count: Some(i32::try_from(*count).unwrap_or(i32::MAX)),
        first_timestamp: Some(whole_seconds(first.wall)),
        last_timestamp: Some(whole_seconds(last.wall)),
        source: Some(EventSource { component: Some(COMPONENT.into()), host: Some(node.into()) }),
        reporting_component: Some(COMPONENT.into()),
        reporting_instance: Some(node.into()),
        ..Event::default()
    }
}

/// API timestamps have whole seconds.
fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use podwright_core::model::{KubeEvent, Now};

    use super::*;

    #[test]
    fn an_event_is_converted_to_a_v1_event() {
        let at =
            |secs: u64| Now { boot: Duration::ZERO, wall: Timestamp::UNIX_EPOCH + Duration::from_millis(secs * 1500) };
        let event = KubeEvent {
            annotations: vec![],
            uid: Some("u".into()),
            pod: FullName { namespace: "ns".into(), name: "web".into() },
            container: Some("c".into()),
            warning: true,
            reason: "BackOff",
            message: "Back-off".into(),
        };
        let field_path = Some("spec.containers{c}".into());
        let mut kept = CorrelatedEvent { event, field_path, first: at(1), last: at(3), count: 4 };
        insta::assert_snapshot!("event", serde_json::to_string_pretty(&object(&kept, "node")).unwrap());
        kept.event.pod = FullName { namespace: "".into(), name: "node".into() };
        let about = object(&kept, "node").involved_object;
        assert_eq!((about.kind.as_deref(), about.namespace, about.uid.as_deref()), (Some("Node"), None, Some("node")));
    }
}
