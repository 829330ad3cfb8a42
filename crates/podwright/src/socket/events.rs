//! Kept events as v1 Event objects.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use podwright_agent::the_loop::KeptEvent;

/// Who says so.
const COMPONENT: &str = "podwright";

pub(super) fn object(kept: &KeptEvent, node: &str) -> Event {
    let KeptEvent { event, field_path, first, last, count } = kept;
    let (namespace, pod) = (event.pod.namespace.to_string(), event.pod.name.to_string());
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{pod}.{:x}", first.wall.as_nanosecond())),
            namespace: Some(namespace.clone()),
            creation_timestamp: Some(second(first.wall)),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(namespace),
            name: Some(pod),
            uid: Some(event.uid.to_string()),
            field_path: field_path.clone(),
            ..ObjectReference::default()
        },
        type_: Some(if event.warning { "Warning" } else { "Normal" }.into()),
        reason: Some(event.reason.into()),
        message: Some(event.message.clone()),
        count: Some(i32::try_from(*count).unwrap_or(i32::MAX)),
        first_timestamp: Some(second(first.wall)),
        last_timestamp: Some(second(last.wall)),
        source: Some(EventSource { component: Some(COMPONENT.into()), host: Some(node.into()) }),
        reporting_component: Some(COMPONENT.into()),
        reporting_instance: Some(node.into()),
        ..Event::default()
    }
}

/// The API's times have whole seconds.
fn second(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use podwright_core::model::{FullName, KubeEvent, Now};

    use super::*;

    #[test]
    fn an_event_is_what_kubectl_reads() {
        let at =
            |secs: u64| Now { boot: Duration::ZERO, wall: Timestamp::UNIX_EPOCH + Duration::from_millis(secs * 1500) };
        let event = KubeEvent {
            uid: "u".into(),
            pod: FullName { namespace: "ns".into(), name: "web".into() },
            container: Some("c".into()),
            warning: true,
            reason: "BackOff",
            message: "Back-off".into(),
        };
        let field_path = Some("spec.containers{c}".into());
        let kept = KeptEvent { event, field_path, first: at(1), last: at(3), count: 4 };
        insta::assert_snapshot!("event", serde_json::to_string_pretty(&object(&kept, "node")).unwrap());
    }
}
