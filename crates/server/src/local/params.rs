//! What stands after the question mark. Each is taken by who knows it; one that nobody took is refused, because a filter that
//! is ignored shows too much.

use std::borrow::Cow;
use std::str::FromStr;

use super::failure::Failure;

/// The parameters of one question.
#[derive(Debug, Default)]
pub(crate) struct Params(Vec<(String, String)>);

/// Clients send these, and they change nothing here: everything is answered whole, from what is newest.
const HARMLESS: [&str; 8] = [
    "limit",
    "pretty",
    "resourceVersionMatch",
    "fieldManager",
    "timeout",
    "orphanDependents",
    "propagationPolicy",
    "insecureSkipTLSVerifyBackend",
];

impl Params {
    pub(crate) fn of(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|p| p.split_once('=').unwrap_or((p, "")));
        Self(pairs.map(|(key, value)| (unescaped(key), unescaped(value))).collect())
    }

    /// Every value of this name.
    pub(crate) fn all(&mut self, key: &str) -> Vec<String> {
        let (own, others) = std::mem::take(&mut self.0).into_iter().partition(|(name, _)| name == key);
        self.0 = others;
        let own: Vec<(String, String)> = own;
        own.into_iter().map(|(_, value)| value).collect()
    }

    /// The value of this name, if it says something.
    pub(crate) fn text(&mut self, key: &str) -> Option<String> {
        self.all(key).into_iter().next().filter(|value| !value.is_empty())
    }

    pub(crate) fn flag(&mut self, key: &str) -> Result<bool, Failure> {
        match self.all(key).first().map(String::as_str) {
            None | Some("false" | "0" | "False" | "f") => Ok(false),
            Some("true" | "1" | "True" | "t" | "") => Ok(true),
            Some(other) => Err(Failure::bad_request(format!("{key}={other:?} must be true or false"))),
        }
    }

    pub(crate) fn number<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, Failure> {
        let parse = |text: String| {
            text.parse().map_err(|_| Failure::bad_request(format!("{key}={text:?} must be a whole number")))
        };
        self.text(key).map(parse).transpose()
    }

    /// `dryRun=All`, and nothing else.
    pub(super) fn dry_run(&mut self) -> Result<bool, Failure> {
        match self.all("dryRun").as_slice() {
            [] => Ok(false),
            [all] if all == "All" => Ok(true),
            other => Err(Failure::bad_request(format!("dryRun={other:?} must be All"))),
        }
    }

    /// Whatever is left is not known.
    pub(super) fn finish(self) -> Result<(), Failure> {
        match self.0.iter().find(|(key, _)| !HARMLESS.contains(&key.as_str())) {
            Some((key, _)) => Err(Failure::bad_request(format!("the parameter {key:?} is not supported here"))),
            None => Ok(()),
        }
    }
}

fn unescaped(text: &str) -> String {
    match text.contains('+') {
        true => decode(&text.replace('+', " ")).into_owned(),
        false => decode(text).into_owned(),
    }
}

/// Percent signs undone. What is no text becomes a name that nothing has.
pub(super) fn decode(text: &str) -> Cow<'_, str> {
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
    fn parameters_are_taken_by_name_and_what_is_left_is_refused() {
        let mut params = Params::of("command=sh&command=-c&command=echo+a%2Bb&tty=1&tailLines=7&pretty=true&x");
        assert_eq!(params.all("command"), ["sh", "-c", "echo a+b"]);
        assert_eq!((params.flag("tty"), params.flag("stdin")), (Ok(true), Ok(false)));
        assert_eq!(params.number::<u64>("tailLines"), Ok(Some(7)));
        assert!(params.finish().unwrap_err().status().message.unwrap().contains("\"x\""));
        assert!(Params::of("pretty=1&limit=500").finish().is_ok());
        assert!(Params::of("tty=maybe").flag("tty").is_err());
        assert!(Params::of("tailLines=-1").number::<u64>("tailLines").is_err());
        assert!(Params::of("dryRun=Some").dry_run().is_err());
    }

    #[test]
    fn escapes_are_undone_and_broken_ones_stay() {
        assert_eq!(decode("a%2Fb%zz%4"), "a/b%zz%4");
        assert_eq!(decode("%ff"), "\u{fffd}");
    }
}
