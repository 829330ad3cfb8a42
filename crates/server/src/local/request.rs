//! What a caller asks for, read from the method and the path.

use std::borrow::Cow;

use http::Method;
use podwright_core::model::FullName;

use super::failure::Failure;
use super::params::decode;

/// A question.
#[derive(Debug, PartialEq)]
pub(super) enum Ask {
    /// What there is: `/version`, `/api`, `/api/v1`, `/apis`.
    Discovery(Discovery),
    /// Pods, of one namespace or of all; a list or a watch.
    Pods(Option<String>),
    /// One pod.
    Pod(FullName),
    /// Take a pod into this namespace.
    Create(String),
    /// Replace a pod.
    Update(FullName),
    /// Let a pod end.
    Delete(FullName),
    /// What a container wrote.
    Log(FullName),
    /// Run a command in a container.
    Exec(FullName),
    /// Be connected with a container.
    Attach(FullName),
    /// Restart containers.
    Restart(FullName),
    /// Events, of one namespace or of all.
    Events(Option<String>),
    /// One of them.
    Event(FullName),
    /// Manifests that can't be used.
    Manifests,
    /// The story of a pod.
    Explain,
    /// End pods, their objects stay.
    Stop,
}

/// What there is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Discovery {
    Version,
    Versions,
    Resources,
    Groups,
}

impl Ask {
    pub(super) fn read(method: &Method, path: &str) -> Result<Self, Failure> {
        let parts: Vec<Cow<'_, str>> = path.trim_matches('/').split('/').map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
        let head = *method == Method::HEAD;
        let method = if head { &Method::GET } else { method };
        let read = |ask: Self| if *method == Method::GET { Ok(ask) } else { Err(Failure::method("")) };
        let post = |ask: Self| if *method == Method::POST { Ok(ask) } else { Err(Failure::method("")) };
        match parts.as_slice() {
            ["version"] => read(Self::Discovery(Discovery::Version)),
            ["api"] => read(Self::Discovery(Discovery::Versions)),
            ["api", "v1"] => read(Self::Discovery(Discovery::Resources)),
            ["apis"] => read(Self::Discovery(Discovery::Groups)),
            ["api", "v1", "pods"] => read(Self::Pods(None)),
            ["api", "v1", "events"] => read(Self::Events(None)),
            ["api", "v1", "namespaces", namespace, "events"] => read(Self::Events(Some((*namespace).into()))),
            ["api", "v1", "namespaces", namespace, "events", name] => {
                read(Self::Event(FullName { namespace: (*namespace).into(), name: (*name).into() }))
            }
            ["api", "v1", "namespaces", namespace, "pods"] => match *method {
                Method::GET => Ok(Self::Pods(Some((*namespace).into()))),
                Method::POST => Ok(Self::Create((*namespace).into())),
                _ => Err(Failure::method("")),
            },
            ["api", "v1", "namespaces", namespace, "pods", name, rest @ ..] => {
                let of = FullName { namespace: (*namespace).into(), name: (*name).into() };
                match (rest, method) {
                    ([], &Method::GET) => Ok(Self::Pod(of)),
                    ([], &Method::PUT) => Ok(Self::Update(of)),
                    ([], &Method::DELETE) => Ok(Self::Delete(of)),
                    ([], &Method::PATCH) => Err(Failure::method(": read the pod, change it, and PUT it")),
                    (["log"], _) => read(Self::Log(of)),
                    (["exec"], &Method::GET | &Method::POST) => Ok(Self::Exec(of)),
                    (["attach"], &Method::GET | &Method::POST) => Ok(Self::Attach(of)),
                    (["restart"], _) => post(Self::Restart(of)),
                    ([] | ["exec" | "attach"], _) => Err(Failure::method("")),
                    _ => Err(Failure::no_such_path()),
                }
            }
            ["podwright", "v1", "manifests"] => read(Self::Manifests),
            ["podwright", "v1", "explain"] => read(Self::Explain),
            ["podwright", "v1", "stop"] => post(Self::Stop),
            _ => Err(Failure::no_such_path()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> Result<Ask, Failure> {
        Ask::read(&Method::GET, path)
    }

    fn of(namespace: &str, name: &str) -> FullName {
        FullName { namespace: namespace.into(), name: name.into() }
    }

    #[test]
    fn paths_are_the_api_servers() {
        assert_eq!(get("/api/v1/pods"), Ok(Ask::Pods(None)));
        assert_eq!(get("/api/v1/namespaces/a/pods"), Ok(Ask::Pods(Some("a".into()))));
        assert_eq!(get("/api/v1/namespaces/a/pods/b"), Ok(Ask::Pod(of("a", "b"))));
        assert_eq!(get("/api/v1/namespaces/a/pods/b/log"), Ok(Ask::Log(of("a", "b"))));
        assert_eq!(get("/api/v1/namespaces/a/events"), Ok(Ask::Events(Some("a".into()))));
        assert_eq!(get("/api/v1/namespaces/a/events/e"), Ok(Ask::Event(of("a", "e"))));
        assert_eq!(get("/apis/"), Ok(Ask::Discovery(Discovery::Groups)));
        let with = |method: Method, path: &str| Ask::read(&method, path);
        assert_eq!(with(Method::POST, "/api/v1/namespaces/a/pods"), Ok(Ask::Create("a".into())));
        assert_eq!(with(Method::PUT, "/api/v1/namespaces/a/pods/b"), Ok(Ask::Update(of("a", "b"))));
        assert_eq!(with(Method::DELETE, "/api/v1/namespaces/a/pods/b"), Ok(Ask::Delete(of("a", "b"))));
        assert_eq!(with(Method::POST, "/api/v1/namespaces/a/pods/b/exec"), Ok(Ask::Exec(of("a", "b"))));
        assert_eq!(with(Method::POST, "/podwright/v1/stop"), Ok(Ask::Stop));
        assert_eq!(with(Method::HEAD, "/version"), Ok(Ask::Discovery(Discovery::Version)));
    }

    #[test]
    fn what_is_not_known_is_refused_and_never_ignored() {
        for path in ["/", "/api/v1/nodes", "/api/v1/namespaces/a/pods/b/c", "/api/v1/../v1/pods", "/apis/apps/v1"] {
            assert_eq!(get(path), Err(Failure::no_such_path()), "{path}");
        }
        for (method, path) in [
            (Method::POST, "/api/v1/pods"),
            (Method::DELETE, "/api/v1/namespaces/a/pods"),
            (Method::PATCH, "/api/v1/namespaces/a/pods/b"),
            (Method::GET, "/podwright/v1/stop"),
            (Method::GET, "/api/v1/namespaces/a/pods/b/restart"),
            (Method::PUT, "/api/v1/namespaces/a/pods/b/exec"),
        ] {
            let said = Ask::read(&method, path).unwrap_err().status();
            assert_eq!(said.reason.as_deref(), Some("MethodNotAllowed"), "{method} {path}");
        }
    }
}
