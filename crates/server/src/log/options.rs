//! Which part of a log is asked for.

use jiff::{SignedDuration, Timestamp};

use crate::local::{Failure, Params};

/// As in v1 PodLogOptions.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    pub(crate) container: Option<String>,
    pub(crate) follow: bool,
    pub(crate) previous: bool,
    /// Nothing that is older.
    pub(crate) since: Option<Timestamp>,
    /// Each line begins with its time.
    pub(crate) timestamps: bool,
    /// Only so many lines, from the end.
    pub(crate) tail: Option<u64>,
    /// At most so many bytes.
    pub(crate) limit: Option<u64>,
    /// Only one of the two streams.
    pub(crate) stream: Option<&'static str>,
}

impl Options {
    pub(crate) fn read(params: &mut Params) -> Result<Self, Failure> {
        let seconds = params.number::<i64>("sinceSeconds")?;
        let time = params.text("sinceTime");
        let since = match (seconds, time) {
            (Some(_), Some(_)) => {
                return Err(Failure::bad_request("at most one of sinceTime or sinceSeconds may be specified"));
            }
            (Some(seconds), None) if seconds < 1 => {
                return Err(Failure::bad_request("sinceSeconds must be greater than 0"));
            }
            (Some(seconds), None) => Timestamp::now().checked_sub(SignedDuration::from_secs(seconds)).ok(),
            (None, Some(text)) => {
                let wrong = |_| {
                    Failure::bad_request(format!("sinceTime={text:?} must be a time, such as 2024-01-01T00:00:00Z"))
                };
                Some(text.parse().map_err(wrong)?)
            }
            (None, None) => None,
        };
        let limit = params.number::<u64>("limitBytes")?;
        if limit == Some(0) {
            return Err(Failure::bad_request("limitBytes must be greater than 0"));
        }
        let stream = match params.text("stream").as_deref() {
            None | Some("All") => None,
            Some("Stdout") => Some("stdout"),
            Some("Stderr") => Some("stderr"),
            Some(other) => return Err(Failure::bad_request(format!("stream={other:?} must be All, Stdout or Stderr"))),
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
