//! The query parameters of a log request.

use jiff::{SignedDuration, Timestamp};
use podwright_core::kubelet_api::log_query::{InvalidLogQuery, LogQuery};

use crate::query::QueryParams;
use crate::status_error::StatusError;

/// The fields of v1 PodLogOptions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LogOptions {
    pub(crate) container: Option<String>,
    pub(crate) follow: bool,
    pub(crate) previous: bool,
    /// Only lines from this time on.
    pub(crate) since: Option<Timestamp>,
    /// Prefix each line with its time.
    pub(crate) timestamps: bool,
    /// The number of lines from the end; `None`: all.
    pub(crate) tail: Option<u64>,
    /// The maximum number of bytes.
    pub(crate) limit: Option<u64>,
    /// `stdout` or `stderr`; `None`: both.
    pub(crate) stream: Option<&'static str>,
}

impl LogOptions {
    /// The options of a request to the local API.
    pub(crate) fn parse(params: &mut QueryParams) -> Result<Self, StatusError> {
        let since_time = params.text("sinceTime").map(|text| {
            let wrong = |_| {
                StatusError::bad_request(format!("sinceTime={text:?} must be a time, such as 2024-01-01T00:00:00Z"))
            };
            text.parse::<Timestamp>().map_err(wrong)
        });
        let query = LogQuery {
            tail_lines: params.number("tailLines")?,
            limit_bytes: params.number("limitBytes")?,
            since_seconds: params.number("sinceSeconds")?,
            since_time: since_time.transpose()?,
            stream: params.text("stream"),
        };
        let container = params.text("container");
        let flags = (params.flag("follow")?, params.flag("previous")?, params.flag("timestamps")?);
        Self::new(&query, container, flags).map_err(|error| StatusError::bad_request(error.to_string()))
    }

    /// Checks the query. `flags`: follow, previous, timestamps.
    pub(crate) fn new(
        query: &LogQuery,
        container: Option<String>,
        (follow, previous, timestamps): (bool, bool, bool),
    ) -> Result<Self, InvalidLogQuery> {
        query.validate()?;
        let ago = |seconds| Timestamp::now().checked_sub(SignedDuration::from_secs(seconds)).ok();
        let positive = |number: i64| u64::try_from(number).ok();
        Ok(Self {
            container,
            follow,
            previous,
            since: query.since_time.or_else(|| query.since_seconds.and_then(ago)),
            timestamps,
            tail: query.tail_lines.and_then(positive),
            limit: query.limit_bytes.and_then(positive),
            stream: match query.stream.as_deref() {
                Some("Stdout") => Some("stdout"),
                Some("Stderr") => Some("stderr"),
                _ => None,
            },
        })
    }
}
