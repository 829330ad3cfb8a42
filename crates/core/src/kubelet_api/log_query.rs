//! The part of a container's log that a request reads: the valid options, and the attempt whose log is selected.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ContainerStatus;

/// The options of v1 PodLogOptions that exclude each other or have bounds, as they were sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogQuery {
    /// Lines from the end.
    pub tail_lines: Option<i64>,
    /// Bytes of the answer.
    pub limit_bytes: Option<i64>,
    /// Only lines that are younger.
    pub since_seconds: Option<i64>,
    /// Only lines from this time on.
    pub since_time: Option<Timestamp>,
    /// `All`, `Stdout` or `Stderr`; `None`: all.
    pub stream: Option<String>,
}

/// An option that is not valid (Kubernetes: `ValidatePodLogOptions`).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLogQuery {
    /// `tailLines` is negative.
    #[error("tailLines must be greater than or equal to 0")]
    TailLines,
    /// `limitBytes` is not positive.
    #[error("limitBytes must be greater than 0")]
    LimitBytes,
    /// `sinceSeconds` is not positive.
    #[error("sinceSeconds must be greater than 0")]
    SinceSeconds,
    /// Two times are given.
    #[error("at most one of sinceTime or sinceSeconds may be specified")]
    BothSince,
    /// The stream has no such name.
    #[error("stream={0:?} must be All, Stdout or Stderr")]
    Stream(String),
    /// The lines of one stream cannot be counted from the end.
    #[error("tailLines and a single stream are mutually exclusive")]
    TailOfStream,
}

impl LogQuery {
    /// Checks the options; the first invalid one is the error.
    pub fn validate(&self) -> Result<(), InvalidLogQuery> {
        let single = match self.stream.as_deref() {
            None | Some("All") => false,
            Some("Stdout" | "Stderr") => true,
            Some(other) => return Err(InvalidLogQuery::Stream(other.into())),
        };
        match self {
            _ if self.tail_lines.is_some_and(|lines| lines < 0) => Err(InvalidLogQuery::TailLines),
            _ if self.limit_bytes.is_some_and(|bytes| bytes < 1) => Err(InvalidLogQuery::LimitBytes),
            _ if self.since_seconds.is_some() && self.since_time.is_some() => Err(InvalidLogQuery::BothSince),
            _ if self.since_seconds.is_some_and(|seconds| seconds < 1) => Err(InvalidLogQuery::SinceSeconds),
            _ if single && self.tail_lines.is_some() => Err(InvalidLogQuery::TailOfStream),
            _ => Ok(()),
        }
    }
}

/// Why a container has no log that can be read. The texts are the Go kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLog {
    /// It has not been restarted, or its earlier instance is gone.
    #[error("previous terminated container {container:?} in pod {pod:?} not found")]
    NoPrevious {
        /// Name of the container.
        container: String,
        /// Name of the pod.
        pod: String,
    },
    /// `what` describes its state.
    #[error("container {container:?} in pod {pod:?} is {what}")]
    State {
        /// Name of the container.
        container: String,
        /// Name of the pod.
        pod: String,
        /// Such as `waiting to start: ContainerCreating`.
        what: String,
    },
}

/// The attempt whose log is read (Go kubelet: `validateContainerLogStatus`). Each restart has a log of its own, named by the restart
/// count; a container that waits for its restart still has the count of the instance that terminated.
pub fn select_attempt(
    pod: &str,
    container: &str,
    status: Option<&ContainerStatus>,
    previous: bool,
) -> Result<u32, NoLog> {
    let is = |what: &str| NoLog::State { container: container.into(), pod: pod.into(), what: what.into() };
    let status = status.ok_or_else(|| is("not available"))?;
    let newest = u32::try_from(status.restart_count).unwrap_or_default();
    let state = status.state.as_ref();
    let (waiting, terminated) = (state.and_then(|s| s.waiting.as_ref()), state.and_then(|s| s.terminated.as_ref()));
    let running = state.is_some_and(|state| state.running.is_some());
    let has_id = |id: &Option<String>| id.as_deref().is_some_and(|id| !id.is_empty());
    let last = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let last_ran = last.is_some_and(|last| has_id(&last.container_id));
    let started = running || terminated.is_some_and(|terminated| has_id(&terminated.container_id));
    if previous {
        let none = || NoLog::NoPrevious { container: container.into(), pod: pod.into() };
        return if !last_ran { Err(none()) } else { Ok(if started { newest.saturating_sub(1) } else { newest }) };
    }
    match waiting {
        _ if started || last_ran => Ok(newest),
        _ if terminated.is_some() || last.is_some() => Err(is("terminated")),
        Some(waiting) => Err(is(&match waiting.reason.as_deref().unwrap_or_default() {
            "ErrImagePull" => "waiting to start: image can't be pulled".into(),
            "ImagePullBackOff" => "waiting to start: trying and failing to pull image".into(),
            reason => format!("waiting to start: {reason}"),
        })),
        None => Err(is("waiting to start - no logs yet")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn select(state: Value, last: Value, restarts: i32, previous: bool) -> Result<u32, String> {
        let status = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": restarts,
                            "state": state, "lastState": last});
        let status: ContainerStatus = serde_json::from_value(status).unwrap();
        select_attempt("p", "c", Some(&status), previous).map_err(|error| error.to_string())
    }

    #[test]
    fn the_log_of_the_newest_instance_that_ran_is_selected() {
        let ended = || json!({"terminated": {"exitCode": 1, "containerID": "containerd://a"}});
        let lost = || json!({"terminated": {"exitCode": 137}});
        let waits = |reason: &str| json!({"waiting": {"reason": reason}});
        let up = || json!({"running": {}});
        let not_found = "previous terminated container \"c\" in pod \"p\" not found";
        let is = |what: &str| Err(format!("container \"c\" in pod \"p\" is {what}"));
        let table = [
            (up(), json!({}), 0, false, Ok(0)),
            (up(), ended(), 3, false, Ok(3)),
            (up(), ended(), 3, true, Ok(2)),
            (up(), json!({}), 3, true, Err(not_found.into())),
            (up(), lost(), 3, true, Err(not_found.into())),
            (ended(), json!({}), 0, false, Ok(0)),
            (ended(), ended(), 1, true, Ok(0)),
            (lost(), json!({}), 0, false, is("terminated")),
            (lost(), ended(), 1, false, Ok(1)),
            (waits("CrashLoopBackOff"), ended(), 2, false, Ok(2)),
            (waits("CrashLoopBackOff"), ended(), 2, true, Ok(2)),
            (waits("CrashLoopBackOff"), lost(), 2, false, is("terminated")),
            (waits("ContainerCreating"), json!({}), 0, false, is("waiting to start: ContainerCreating")),
            (waits("ErrImagePull"), json!({}), 0, false, is("waiting to start: image can't be pulled")),
            (waits("ImagePullBackOff"), json!({}), 0, false, is("waiting to start: trying and failing to pull image")),
            (waits("PodInitializing"), json!({}), 0, true, Err(not_found.into())),
            (json!({}), json!({}), 0, false, is("waiting to start - no logs yet")),
        ];
        for (row, (state, last, restarts, previous, expected)) in table.into_iter().enumerate() {
            assert_eq!(select(state, last, restarts, previous), expected, "row {row}");
        }
        let unknown = select_attempt("p", "c", None, false).unwrap_err().to_string();
        assert_eq!(unknown, "container \"c\" in pod \"p\" is not available");
    }

    #[test]
    fn options_have_the_bounds_of_kubernetes() {
        let time: Timestamp = "2024-01-01T00:00:00Z".parse().unwrap();
        let query = LogQuery::default;
        let table = [
            (query(), Ok(())),
            (LogQuery { tail_lines: Some(0), limit_bytes: Some(1), since_seconds: Some(1), ..query() }, Ok(())),
            (LogQuery { stream: Some("Stderr".into()), since_time: Some(time), ..query() }, Ok(())),
            (LogQuery { stream: Some("All".into()), tail_lines: Some(1), ..query() }, Ok(())),
            (LogQuery { tail_lines: Some(-1), ..query() }, Err(InvalidLogQuery::TailLines)),
            (LogQuery { limit_bytes: Some(0), ..query() }, Err(InvalidLogQuery::LimitBytes)),
            (LogQuery { since_seconds: Some(0), ..query() }, Err(InvalidLogQuery::SinceSeconds)),
            (LogQuery { since_seconds: Some(1), since_time: Some(time), ..query() }, Err(InvalidLogQuery::BothSince)),
            (LogQuery { stream: Some("stdout".into()), ..query() }, Err(InvalidLogQuery::Stream("stdout".into()))),
            (
                LogQuery { stream: Some("Stdout".into()), tail_lines: Some(1), ..query() },
                Err(InvalidLogQuery::TailOfStream),
            ),
        ];
        for (query, expected) in table {
            assert_eq!(query.validate(), expected, "{query:?}");
        }
    }
}
