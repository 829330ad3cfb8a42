//! Query parameters. Each handler removes the parameters it knows; any parameter that is left fails the request, because an ignored
//! filter would return too much.

use std::borrow::Cow;
use std::str::FromStr;

use crate::status_error::StatusError;

/// The query parameters of one request that no handler has consumed yet.
#[derive(Debug, Default)]
pub(crate) struct QueryParams(Vec<(String, String)>);

/// Clients send these; they have no effect here, because every response is complete and current.
const IGNORED: [&str; 8] = [
    "limit",
    "pretty",
    "resourceVersionMatch",
    "fieldManager",
    "timeout",
    "orphanDependents",
    "propagationPolicy",
    "insecureSkipTLSVerifyBackend",
];

impl QueryParams {
    pub(crate) fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|p| p.split_once('=').unwrap_or((p, "")));
        Self(pairs.map(|(key, value)| (decode_component(key), decode_component(value))).collect())
    }

    /// Removes every value of this parameter.
    pub(crate) fn all(&mut self, key: &str) -> Vec<String> {
        let (own, others) = std::mem::take(&mut self.0).into_iter().partition(|(name, _)| name == key);
        self.0 = others;
        let own: Vec<(String, String)> = own;
        own.into_iter().map(|(_, value)| value).collect()
    }

    /// Removes the parameter; its first value unless that is empty.
    pub(crate) fn text(&mut self, key: &str) -> Option<String> {
        self.all(key).into_iter().next().filter(|value| !value.is_empty())
    }

    pub(crate) fn flag(&mut self, key: &str) -> Result<bool, StatusError> {
        match self.all(key).first().map(String::as_str) {
            None | Some("false" | "0" | "False" | "f") => Ok(false),
            Some("true" | "1" | "True" | "t" | "") => Ok(true),
            Some(other) => Err(StatusError::bad_request(format!("{key}={other:?} must be true or false"))),
        }
    }

    pub(crate) fn number<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, StatusError> {
        let parse = |text: String| {
            text.parse().map_err(|_| StatusError::bad_request(format!("{key}={text:?} must be a whole number")))
        };
        self.text(key).map(parse).transpose()
    }

    /// Removes `dryRun`, whose only valid value is `All`.
    pub(crate) fn dry_run(&mut self) -> Result<bool, StatusError> {
        match self.all("dryRun").as_slice() {
            [] => Ok(false),
            [all] if all == "All" => Ok(true),
            other => Err(StatusError::bad_request(format!("dryRun={other:?} must be All"))),
        }
    }

    /// Fails if an unknown parameter is left.
    pub(crate) fn finish(self) -> Result<(), StatusError> {
        match self.0.iter().find(|(key, _)| !IGNORED.contains(&key.as_str())) {
            Some((key, _)) => Err(StatusError::bad_request(format!("the parameter {key:?} is not supported here"))),
            None => Ok(()),
        }
    }
}

fn decode_component(text: &str) -> String {
    match text.contains('+') {
        true => decode(&text.replace('+', " ")).into_owned(),
        false => decode(text).into_owned(),
    }
}

/// Decodes percent escapes. Invalid UTF-8 becomes U+FFFD, which no valid name contains.
pub(crate) fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return text.into();
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let escaped = tail.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_consumed_by_name_and_unknown_ones_are_rejected() {
        let mut params = QueryParams::parse("command=sh&command=-c&command=echo+a%2Bb&tty=1&tailLines=7&pretty=true&x");
        assert_eq!(params.all("command"), ["sh", "-c", "echo a+b"]);
        assert_eq!((params.flag("tty"), params.flag("stdin")), (Ok(true), Ok(false)));
        assert_eq!(params.number::<u64>("tailLines"), Ok(Some(7)));
        assert!(params.finish().unwrap_err().status().message.unwrap().contains("\"x\""));
        assert!(QueryParams::parse("pretty=1&limit=500").finish().is_ok());
        assert!(QueryParams::parse("tty=maybe").flag("tty").is_err());
        assert!(QueryParams::parse("tailLines=-1").number::<u64>("tailLines").is_err());
        assert!(QueryParams::parse("dryRun=Some").dry_run().is_err());
    }

    #[test]
    fn percent_escapes_are_decoded_and_invalid_ones_are_kept() {
        assert_eq!(decode("a%2Fb%zz%4"), "a/b%zz%4");
        assert_eq!(decode("%ff"), "\u{fffd}");
    }
}
