//! The routes of the local API: method and path.

use std::borrow::Cow;

use http::Method;
use podwright_core::model::FullName;

use crate::query::decode;
use crate::status_error::StatusError;

/// The operation that a request asks for.
#[derive(Debug, PartialEq)]
pub(super) enum Route {
    /// `/version`, `/api`, `/api/v1`, `/apis`.
    Discovery(Discovery),
    /// List or watch the pods of one namespace, or of all.
    Pods(Option<String>),
    /// Read a pod.
    Pod(FullName),
    /// Create a pod in this namespace.
    Create(String),
    /// Replace a pod.
    Update(FullName),
    /// Delete a pod gracefully.
    Delete(FullName),
    /// Read a container's log.
    Log(FullName),
    /// Run a command in a container.
    Exec(FullName),
    /// Attach to a container's process.
    Attach(FullName),
    /// Restart the containers of a pod.
    Restart(FullName),
    /// List or watch the events of one namespace, or of all.
    Events(Option<String>),
    /// Read an event.
    Event(FullName),
    /// List the manifests that can't be used.
    Manifests,
    /// Show the history of a pod.
    Explain,
    /// Stop pods; their objects stay.
    Stop,
}

/// The discovery documents of an API server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Discovery {
    Version,
    Versions,
    Resources,
    Groups,
}

impl Route {
    pub(super) fn parse(method: &Method, path: &str) -> Result<Self, StatusError> {
        let parts: Vec<Cow<'_, str>> = path.trim_matches('/').split('/').map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
        let head = *method == Method::HEAD;
        let method = if head { &Method::GET } else { method };
        let read =
            |route: Self| if *method == Method::GET { Ok(route) } else { Err(StatusError::method_not_allowed("")) };
        let post =
            |route: Self| if *method == Method::POST { Ok(route) } else { Err(StatusError::method_not_allowed("")) };
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
                _ => Err(StatusError::method_not_allowed("")),
            },
            ["api", "v1", "namespaces", namespace, "pods", name, rest @ ..] => {
                let of = FullName { namespace: (*namespace).into(), name: (*name).into() };
                match (rest, method) {
                    ([], &Method::GET) => Ok(Self::Pod(of)),
                    ([], &Method::PUT) => Ok(Self::Update(of)),
                    ([], &Method::DELETE) => Ok(Self::Delete(of)),
                    ([], &Method::PATCH) => {
                        Err(StatusError::method_not_allowed(": read the pod, change it, and PUT it"))
                    }
                    (["log"], _) => read(Self::Log(of)),
                    (["exec"], &Method::GET | &Method::POST) => Ok(Self::Exec(of)),
                    (["attach"], &Method::GET | &Method::POST) => Ok(Self::Attach(of)),
                    (["restart"], _) => post(Self::Restart(of)),
                    ([] | ["exec" | "attach"], _) => Err(StatusError::method_not_allowed("")),
                    _ => Err(StatusError::no_such_path()),
                }
            }
            ["podwright", "v1", "manifests"] => read(Self::Manifests),
            ["podwright", "v1", "explain"] => read(Self::Explain),
            ["podwright", "v1", "stop"] => post(Self::Stop),
            _ => Err(StatusError::no_such_path()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> Result<Route, StatusError> {
        Route::parse(&Method::GET, path)
    }

    fn of(namespace: &str, name: &str) -> FullName {
        FullName { namespace: namespace.into(), name: name.into() }
    }

    #[test]
    fn paths_are_those_of_an_api_server() {
        assert_eq!(get("/api/v1/pods"), Ok(Route::Pods(None)));
        assert_eq!(get("/api/v1/namespaces/a/pods"), Ok(Route::Pods(Some("a".into()))));
        assert_eq!(get("/api/v1/namespaces/a/pods/b"), Ok(Route::Pod(of("a", "b"))));
        assert_eq!(get("/api/v1/namespaces/a/pods/b/log"), Ok(Route::Log(of("a", "b"))));
        assert_eq!(get("/api/v1/namespaces/a/events"), Ok(Route::Events(Some("a".into()))));
        assert_eq!(get("/api/v1/namespaces/a/events/e"), Ok(Route::Event(of("a", "e"))));
        assert_eq!(get("/apis/"), Ok(Route::Discovery(Discovery::Groups)));
        let with = |method: Method, path: &str| Route::parse(&method, path);
        assert_eq!(with(Method::POST, "/api/v1/namespaces/a/pods"), Ok(Route::Create("a".into())));
        assert_eq!(with(Method::PUT, "/api/v1/namespaces/a/pods/b"), Ok(Route::Update(of("a", "b"))));
        assert_eq!(with(Method::DELETE, "/api/v1/namespaces/a/pods/b"), Ok(Route::Delete(of("a", "b"))));
        assert_eq!(with(Method::POST, "/api/v1/namespaces/a/pods/b/exec"), Ok(Route::Exec(of("a", "b"))));
        assert_eq!(with(Method::POST, "/podwright/v1/stop"), Ok(Route::Stop));
        assert_eq!(with(Method::HEAD, "/version"), Ok(Route::Discovery(Discovery::Version)));
    }

    #[test]
    fn unknown_paths_and_methods_are_rejected() {
        for path in ["/", "/api/v1/nodes", "/api/v1/namespaces/a/pods/b/c", "/api/v1/../v1/pods", "/apis/apps/v1"] {
            assert_eq!(get(path), Err(StatusError::no_such_path()), "{path}");
        }
        for (method, path) in [
            (Method::POST, "/api/v1/pods"),
            (Method::DELETE, "/api/v1/namespaces/a/pods"),
            (Method::PATCH, "/api/v1/namespaces/a/pods/b"),
            (Method::GET, "/podwright/v1/stop"),
            (Method::GET, "/api/v1/namespaces/a/pods/b/restart"),
            (Method::PUT, "/api/v1/namespaces/a/pods/b/exec"),
        ] {
            let status = Route::parse(&method, path).unwrap_err().status();
            assert_eq!(status.reason.as_deref(), Some("MethodNotAllowed"), "{method} {path}");
        }
    }
}
