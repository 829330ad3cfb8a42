//! The query parameters of a log request.

use jiff::{SignedDuration, Timestamp};

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
    pub(crate) fn parse(params: &mut QueryParams) -> Result<Self, StatusError> {
        let seconds = params.number::<i64>("sinceSeconds")?;
        let time = params.text("sinceTime");
        let since = match (seconds, time) {
            (Some(_), Some(_)) => {
                return Err(StatusError::bad_request("at most one of sinceTime or sinceSeconds may be specified"));
            }
            (Some(seconds), None) if seconds < 1 => {
                return Err(StatusError::bad_request("sinceSeconds must be greater than 0"));
            }
            (Some(seconds), None) => Timestamp::now().checked_sub(SignedDuration::from_secs(seconds)).ok(),
            (None, Some(text)) => {
                let wrong = |_| {
                    StatusError::bad_request(format!("sinceTime={text:?} must be a time, such as 2024-01-01T00:00:00Z"))
                };
                Some(text.parse().map_err(wrong)?)
            }
            (None, None) => None,
        };
        let limit = params.number::<u64>("limitBytes")?;
        if limit == Some(0) {
            return Err(StatusError::bad_request("limitBytes must be greater than 0"));
        }
        let stream = match params.text("stream").as_deref() {
            None | Some("All") => None,
            Some("Stdout") => Some("stdout"),
            Some("Stderr") => Some("stderr"),
            Some(other) => {
                return Err(StatusError::bad_request(format!("stream={other:?} must be All, Stdout or Stderr")));
            }
        };
        Ok(Self {
            container: params.text("container"),
            follow: params.flag("follow")?,
            previous: params.flag("previous")?,
            since,
            timestamps: params.flag("timestamps")?,
            tail: params.number("tailLines")?,
            limit,
            stream,
        })
    }
}
