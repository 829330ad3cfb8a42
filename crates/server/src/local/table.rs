//! Tables: what `kubectl get` prints. Clients ask for one with `Accept: application/json;as=Table;v=v1;g=meta.k8s.io`.

use http::HeaderMap;
use http::header::ACCEPT;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use podwright_core::model::Pod;
use serde::Serialize;
use serde_json::{Value, json};

use super::images::{self, NodeImages};
use crate::query::QueryParams;
use crate::status_error::StatusError;

/// The computed cells of tables.
#[derive(Clone, Copy)]
pub struct TableCells {
    /// Ready, status, restarts, age, IP and node of a pod.
    pub pod: fn(&Pod, Timestamp) -> [String; 6],
    /// The age of something that happened at this time.
    pub age: fn(Option<Timestamp>, Timestamp) -> String,
}

/// The form of objects in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectForm {
    Object,
    Table(RowObject),
}

/// The object that comes with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowObject {
    None,
    Metadata,
    Object,
}

impl ObjectForm {
    /// The first form of the client's list that is known.
    pub(super) fn parse(headers: &HeaderMap, params: &mut QueryParams) -> Result<Self, StatusError> {
        let row = match params.text("includeObject").as_deref() {
            None | Some("Metadata") => RowObject::Metadata,
            Some("None") => RowObject::None,
            Some("Object") => RowObject::Object,
            Some(other) => {
                return Err(StatusError::bad_request(format!(
                    "includeObject={other:?} must be None, Metadata or Object"
                )));
            }
        };
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        for range in accepted.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let parameters: Vec<&str> = parts.filter(|part| !part.starts_with("q=")).collect();
            let is_table = ["as=Table", "v=v1", "g=meta.k8s.io"].iter().all(|part| parameters.contains(part));
            match kind {
                "application/json" if is_table => return Ok(Self::Table(row)),
                "application/json" | "*/*" | "application/*" if parameters.is_empty() => return Ok(Self::Object),
                _ => {}
            }
        }
        Ok(Self::Object)
    }
}

/// A table of pods. `version`: that of the list; `None`: the table is one object. `images`: those of the node, if it has its own.
pub(super) fn of_pods(
    cells: TableCells,
    rows: RowObject,
    version: Option<u64>,
    pods: &[Pod],
    images: Option<&dyn NodeImages>,
) -> Value {
    let now = Timestamp::now();
    let row = |pod: &Pod| {
        let [ready, status, restarts, age, ip, node] = (cells.pod)(pod, now);
        let name = pod.metadata.name.clone().unwrap_or_default();
        let none = || "<none>".to_owned();
        let pull = images::pulls_of_pod(pod, pod.status.as_ref(), images).into_iter().next();
        let pull = pull.map_or_else(none, |pull| pull.amount.to_string());
        (vec![name, ready, status, restarts, age, ip, node, none(), none(), pull], object(rows, pod, "Pod"))
    };
    table(POD_COLUMNS, version, pods.iter().map(row).collect())
}

/// A table of events.
pub(super) fn of_events(cells: TableCells, rows: RowObject, version: Option<u64>, events: &[Event]) -> Value {
    let now = Timestamp::now();
    let row = |event: &Event| {
        let about = &event.involved_object;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let age = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
            (cells.age)(time.as_ref().map(|time| time.0), now)
        };
        let source = event.source.as_ref();
        let source = source.map(|source| format!("{}, {}", text(&source.component), text(&source.host)));
        let cells = vec![
            age(&event.last_timestamp),
            text(&event.type_),
            text(&event.reason),
            format!("{}/{}", text(&about.kind).to_lowercase(), text(&about.name)),
            text(&about.field_path),
            source.unwrap_or_default(),
            text(&event.message).trim().to_owned(),
            age(&event.first_timestamp),
            event.count.unwrap_or(1).to_string(),
            text(&event.metadata.name),
        ];
        (cells, object(rows, event, "Event"))
    };
    table(EVENT_COLUMNS, version, events.iter().map(row).collect())
}

fn object(form: RowObject, object: &impl Serialize, kind: &str) -> Value {
    let mut whole = serde_json::to_value(object).expect("plain data");
    match form {
        RowObject::None => Value::Null,
        RowObject::Object => {
            (whole["kind"], whole["apiVersion"]) = (kind.into(), "v1".into());
            whole
        }
        RowObject::Metadata => {
            let metadata = whole["metadata"].take();
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
        }
    }
}

fn table(columns: &[(&str, u8)], version: Option<u64>, rows: Vec<(Vec<String>, Value)>) -> Value {
    let column = |(name, priority): &(&str, u8)| {
        let format = if *name == "Name" { "name" } else { "" };
        json!({"name": name, "type": "string", "format": format, "description": "", "priority": priority})
    };
    let columns: Vec<Value> = columns.iter().map(column).collect();
    let rows: Vec<Value> = rows.into_iter().map(|(cells, object)| json!({"cells": cells, "object": object})).collect();
    let metadata = version.map_or_else(|| json!({}), |version| json!({"resourceVersion": version.to_string()}));
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": columns, "rows": rows})
}

/// Names and priorities of the API server's columns, and one of our own; those above 0 are for `-o wide`.
const POD_COLUMNS: &[(&str, u8)] = &[
    ("Name", 0),
    ("Ready", 0),
    ("Status", 0),
    ("Restarts", 0),
    ("Age", 0),
    ("IP", 1),
    ("Node", 1),
    ("Nominated Node", 1),
    ("Readiness Gates", 1),
    ("Pull", 1),
];
const EVENT_COLUMNS: &[(&str, u8)] = &[
    ("Last Seen", 0),
    ("Type", 0),
    ("Reason", 0),
    ("Object", 0),
    ("Subobject", 1),
    ("Source", 1),
    ("Message", 0),
    ("First Seen", 1),
    ("Count", 1),
    ("Name", 1),
];

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_first_known_form_of_the_client_is_used() {
        let table = ObjectForm::Table(RowObject::Metadata);
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        for (accept, query, expected) in [
            (kubectl, "", table),
            (kubectl, "includeObject=Object", ObjectForm::Table(RowObject::Object)),
            ("application/json", "", ObjectForm::Object),
            ("application/json, application/json;as=Table;v=v1;g=meta.k8s.io", "", ObjectForm::Object),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", "", ObjectForm::Object),
            ("application/vnd.kubernetes.protobuf", "", ObjectForm::Object),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            let form = ObjectForm::parse(&headers, &mut QueryParams::parse(query));
            assert_eq!(form, Ok(expected), "{accept} {query}");
        }
        assert!(ObjectForm::parse(&HeaderMap::new(), &mut QueryParams::parse("includeObject=x")).is_err());
    }
}
