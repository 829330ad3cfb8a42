//! `/containerLogs`: the log of a container, with the query and the texts of the Go kubelet (`getContainerLogs`).

use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use podwright_agent::feed::PodView;
use podwright_core::kubelet_api::log_query::LogQuery;

use super::connection::WRITE_TIMEOUT;
use super::router::ContainerPath;
use super::state::ServerState;
use crate::log::{ContainerLog, LogFiles, LogOptions};
use crate::query::QueryParams;
use crate::serve::{HttpResponse, text, too_many};

pub(super) async fn respond(state: &ServerState, user: &str, of: &ContainerPath<'_>, query: &str) -> HttpResponse {
    let Some((query, flags)) = parse(query) else {
        return text(StatusCode::BAD_REQUEST, r#"{"message": "Unable to decode query."}"#);
    };
    let Ok(options) = LogOptions::new(&query, Some(of.container.to_owned()), flags) else {
        return text(StatusCode::UNPROCESSABLE_ENTITY, r#"{"message": "Invalid request."}"#);
    };
    let Some(view) = state.api.feed.by_name(of.namespace, of.pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod {:?} does not exist", of.pod));
    };
    if !has_container(&view, of.container) {
        return text(StatusCode::NOT_FOUND, format!("container {:?} not found in pod {:?}", of.container, of.pod));
    }
    let Some(permit) = state.stream_permit(user) else { return too_many("too many open logs and execs\n") };
    let files = LogFiles { paths: state.api.paths.clone(), pool: state.api.pool.clone() };
    let log = match ContainerLog::new(files, Arc::clone(&state.api.feed), view, options) {
        Ok(log) => log.respond(permit, WRITE_TIMEOUT, state.stop.clone()).await,
        Err(error) => Err(error),
    };
    log.unwrap_or_else(|error| error.text_response())
}

/// The spec of the pod has a container of any kind with this name.
pub(super) fn has_container(view: &PodView, name: &str) -> bool {
    let Some(spec) = &view.object.spec else { return false };
    let init = spec.init_containers.iter().flatten();
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let names = spec.containers.iter().chain(init).map(|container| &container.name);
    names.chain(ephemeral.map(|container| &container.name)).any(|known| known == name)
}

/// The options, and follow, previous, timestamps. `None`: a value cannot be decoded. Unknown parameters are ignored, as by every
/// version of the kubelet.
fn parse(query: &str) -> Option<(LogQuery, (bool, bool, bool))> {
    let mut params = QueryParams::parse(query);
    // Kubernetes: the conversion of query parameters to a bool never fails.
    let mut flag = |key: &str| {
        let given = params.all(key);
        given.first().is_some_and(|value| !value.eq_ignore_ascii_case("false") && value != "0")
    };
    let flags = (flag("follow"), flag("previous"), flag("timestamps"));
    let tail = params.text("tail");
    let tail_lines = params.text("tailLines");
    let tail_lines = match tail.as_deref() {
        Some("all") => None,
        Some(_) => tail,
        None => tail_lines,
    };
    let number = |text: Option<String>| text.map(|text| text.parse::<i64>().ok()).map_or(Some(None), |n| n.map(Some));
    let since_time = params.text("sinceTime").filter(|text| text != "null");
    let since_time = since_time.map(|text| text.parse::<Timestamp>().ok()).map_or(Some(None), |time| time.map(Some));
    let query = LogQuery {
        tail_lines: number(tail_lines)?,
        limit_bytes: number(params.text("limitBytes"))?,
        since_seconds: number(params.text("sinceSeconds"))?,
        since_time: since_time?,
        stream: params.text("stream"),
    };
    Some((query, flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_like_by_the_go_kubelet() {
        let tail = |query: &str| parse(query).unwrap().0.tail_lines;
        assert_eq!(
            (tail("tailLines=5"), tail("tail=7&tailLines=5"), tail("tail=all&tailLines=5")),
            (Some(5), Some(7), None)
        );
        assert_eq!((tail(""), tail("tailLines=-1"), tail("tailLines=")), (None, Some(-1), None));
        let flags = |query: &str| parse(query).unwrap().1;
        assert_eq!(flags("follow=true&previous=1&timestamps=yes"), (true, true, true));
        assert_eq!(flags("follow=false&previous=0&timestamps=False&unknown=x"), (false, false, false));
        assert_eq!(flags("follow"), (true, false, false));
        let all = parse("sinceTime=2024-01-01T00:00:00Z&sinceSeconds=3&limitBytes=9&stream=Stderr").unwrap().0;
        assert!(all.since_time.is_some() && all.since_seconds == Some(3) && all.limit_bytes == Some(9));
        assert_eq!(all.stream.as_deref(), Some("Stderr"));
        for wrong in ["tailLines=x", "limitBytes=1.5", "sinceSeconds=1s", "sinceTime=yesterday", "tail=some"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
