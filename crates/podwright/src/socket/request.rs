//! What a caller asks for, read from the path and the query.

use std::borrow::Cow;

use http::{Method, Uri};

use super::failure::Failure;

/// A question.
#[derive(Debug, PartialEq)]
pub(super) enum Ask {
    /// Pods, of one namespace or of all.
    Pods(Option<String>),
    /// One pod.
    Pod { namespace: String, name: String },
    /// Events, of one namespace or of all.
    Events(Option<String>),
    /// Manifests that can't be used.
    Manifests,
    /// The story of a pod.
    Explain(String),
}

impl Ask {
    pub(super) fn read(method: &Method, uri: &Uri) -> Result<Self, Failure> {
        let parts: Vec<Cow<'_, str>> = uri.path().trim_matches('/').split('/').map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
        let ask = match parts.as_slice() {
            ["api", "v1", "pods"] => Self::Pods(None),
            ["api", "v1", "namespaces", namespace, "pods"] => Self::Pods(Some((*namespace).into())),
            ["api", "v1", "namespaces", namespace, "pods", name] => {
                Self::Pod { namespace: (*namespace).into(), name: (*name).into() }
            }
            ["api", "v1", "events"] => Self::Events(None),
            ["api", "v1", "namespaces", namespace, "events"] => Self::Events(Some((*namespace).into())),
            ["podwright", "v1", "manifests"] => Self::Manifests,
            ["podwright", "v1", "explain"] => Self::Explain(String::new()),
            _ => return Err(Failure::no_such_path()),
        };
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(Failure::method());
        }
        ask.with_query(uri.query().unwrap_or_default())
    }

    /// What would change the answer and isn't known is refused: a filter that is ignored shows too much.
    fn with_query(mut self, query: &str) -> Result<Self, Failure> {
        for (key, value) in
            query.split('&').filter(|pair| !pair.is_empty()).map(|p| p.split_once('=').unwrap_or((p, "")))
        {
            match (&mut self, decode(key).as_ref()) {
                (Self::Explain(pod), "pod") => *pod = decode(value).into_owned(),
                (_, "limit" | "pretty" | "resourceVersion" | "resourceVersionMatch" | "timeoutSeconds") => {}
                (_, key) => return Err(Failure::bad_request(format!("the parameter {key:?} is not supported here"))),
            }
        }
        match self {
            Self::Explain(pod) if pod.is_empty() => Err(Failure::bad_request("which pod? ?pod=NAMESPACE/NAME")),
            known => Ok(known),
        }
    }
}

/// Percent signs undone. What is no text becomes a name that nothing has.
fn decode(text: &str) -> Cow<'_, str> {
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

    fn read(text: &str) -> Result<Ask, Failure> {
        Ask::read(&Method::GET, &text.parse().unwrap())
    }

    #[test]
    fn paths_are_the_api_servers() {
        assert_eq!(read("/api/v1/pods"), Ok(Ask::Pods(None)));
        assert_eq!(read("/api/v1/pods?limit=500"), Ok(Ask::Pods(None)));
        assert_eq!(read("/api/v1/namespaces/a/pods"), Ok(Ask::Pods(Some("a".into()))));
        assert_eq!(read("/api/v1/namespaces/a/pods/b"), Ok(Ask::Pod { namespace: "a".into(), name: "b".into() }));
        assert_eq!(read("/api/v1/namespaces/a/events"), Ok(Ask::Events(Some("a".into()))));
        assert_eq!(read("/podwright/v1/explain?pod=a%2Fb"), Ok(Ask::Explain("a/b".into())));
        assert_eq!(read("/podwright/v1/explain?pod=a/b"), Ok(Ask::Explain("a/b".into())));
    }

    #[test]
    fn what_is_not_known_is_refused_and_never_ignored() {
        for path in ["/", "/api/v1/nodes", "/api/v1/namespaces/a/pods/b/c", "/api/v1/../v1/pods", "/apis"] {
            assert_eq!(read(path), Err(Failure::no_such_path()), "{path}");
        }
        for path in [
            "/api/v1/pods?watch=true",
            "/api/v1/pods?labelSelector=a",
            "/podwright/v1/explain",
            "/podwright/v1/explain?pod=",
        ] {
            assert!(read(path).is_err(), "{path}");
        }
        let post = Ask::read(&Method::POST, &"/api/v1/pods".parse().unwrap());
        assert_eq!(post, Err(Failure::method()));
    }

    #[test]
    fn escapes_are_undone_and_broken_ones_stay() {
        assert_eq!(decode("a%2Fb%zz%4"), "a/b%zz%4");
        assert_eq!(decode("%ff"), "\u{fffd}");
    }
}
