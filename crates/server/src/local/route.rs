//! The routes of the local API: method and path.

use std::borrow::Cow;

use http::Method;
use podwright_core::model::FullName;

use super::images::ImageRoute;
use crate::query::decode;
use crate::status_error::StatusError;

/// The operation that a request asks for.
#[derive(Debug, PartialEq)]
pub(super) enum LocalRoute {
    /// `/version`, `/api`, `/api/v1`, `/apis` and below, `/openapi/v3`.
    Discovery(Discovery),
    /// List or watch the pods of one namespace, or of all.
    Pods(Option<String>),
    /// Read a pod.
    Pod(FullName),
    /// Create a pod in this namespace.
    Create(String),
    /// Replace a pod.
    Update(FullName),
    /// Change a pod.
    Patch(FullName),
    /// Delete a pod gracefully.
    Delete(FullName),
    /// Read a container's log.
    Log(FullName),
    /// Run a command in a container.
    Exec(FullName),
    /// Attach to a container's process.
    Attach(FullName),
    /// Connect to ports of a pod.
    PortForward(FullName),
    /// Restart the containers of a pod.
    Restart(FullName),
    /// List or watch the events of one namespace, or of all.
    Events(Option<String>),
    /// Read an event.
    Event(FullName),
    /// Read this node, or list it.
    Nodes(Option<String>),
    /// What the node uses: one object if it is named, else a list.
    NodeMetrics(Option<String>),
    /// What the pods of one namespace use, or of all.
    PodMetricsList(Option<String>),
    /// What a pod uses.
    PodMetrics(FullName),
    /// List the manifests that can't be used.
    Manifests,
    /// Show the history of a pod.
    Explain,
    /// Stop pods; their objects stay.
    Stop,
    /// Work on the images of the node.
    Images(ImageRoute),
    /// List the pulls that pods wait for.
    Pulls,
}

/// The discovery documents of an API server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Discovery {
    Version,
    Versions,
    Resources,
    Groups,
    MetricsGroup,
    MetricsResources,
    OpenApi,
    OpenApiCore,
}

impl LocalRoute {
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
            ["openapi", "v3"] => read(Self::Discovery(Discovery::OpenApi)),
            ["openapi", "v3", "api", "v1"] => read(Self::Discovery(Discovery::OpenApiCore)),
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
                    ([], &Method::PATCH) => Ok(Self::Patch(of)),
                    (["log"], _) => read(Self::Log(of)),
                    (["exec"], &Method::GET | &Method::POST) => Ok(Self::Exec(of)),
                    (["attach"], &Method::GET | &Method::POST) => Ok(Self::Attach(of)),
                    (["portforward"], &Method::GET | &Method::POST) => Ok(Self::PortForward(of)),
                    (["restart"], _) => post(Self::Restart(of)),
                    ([] | ["exec" | "attach" | "portforward"], _) => Err(StatusError::method_not_allowed("")),
                    _ => Err(StatusError::no_such_path()),
                }
            }
            ["api", "v1", "nodes"] => read(Self::Nodes(None)),
            ["api", "v1", "nodes", name] => read(Self::Nodes(Some((*name).into()))),
            ["apis", "metrics.k8s.io", rest @ ..] => read(Self::metrics(rest)?),
            ["podwright", "v1", "manifests"] => read(Self::Manifests),
            ["podwright", "v1", "explain"] => read(Self::Explain),
            ["podwright", "v1", "stop"] => post(Self::Stop),
            ["podwright", "v1", "pulls"] => read(Self::Pulls),
            ["podwright", "v1", "images"] => read(Self::Images(ImageRoute::List)),
            ["podwright", "v1", "images", verb] => post(Self::Images(ImageRoute::of_verb(verb)?)),
            _ => Err(StatusError::no_such_path()),
        }
    }

    /// Below `/apis/metrics.k8s.io`.
    fn metrics(parts: &[&str]) -> Result<Self, StatusError> {
        match parts {
            [] => Ok(Self::Discovery(Discovery::MetricsGroup)),
            ["v1beta1"] => Ok(Self::Discovery(Discovery::MetricsResources)),
            ["v1beta1", "nodes"] => Ok(Self::NodeMetrics(None)),
            ["v1beta1", "nodes", name] => Ok(Self::NodeMetrics(Some((*name).into()))),
            ["v1beta1", "pods"] => Ok(Self::PodMetricsList(None)),
            ["v1beta1", "namespaces", namespace, "pods"] => Ok(Self::PodMetricsList(Some((*namespace).into()))),
            ["v1beta1", "namespaces", namespace, "pods", name] => {
                Ok(Self::PodMetrics(FullName { namespace: (*namespace).into(), name: (*name).into() }))
            }
            _ => Err(StatusError::no_such_path()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> Result<LocalRoute, StatusError> {
        LocalRoute::parse(&Method::GET, path)
    }

    fn of(namespace: &str, name: &str) -> FullName {
        FullName { namespace: namespace.into(), name: name.into() }
    }

    #[test]
    fn paths_are_those_of_an_api_server() {
        assert_eq!(get("/api/v1/pods"), Ok(LocalRoute::Pods(None)));
        assert_eq!(get("/api/v1/namespaces/a/pods"), Ok(LocalRoute::Pods(Some("a".into()))));
        assert_eq!(get("/api/v1/namespaces/a/pods/b"), Ok(LocalRoute::Pod(of("a", "b"))));
        assert_eq!(get("/api/v1/namespaces/a/pods/b/log"), Ok(LocalRoute::Log(of("a", "b"))));
        assert_eq!(get("/api/v1/namespaces/a/events"), Ok(LocalRoute::Events(Some("a".into()))));
        assert_eq!(get("/api/v1/namespaces/a/events/e"), Ok(LocalRoute::Event(of("a", "e"))));
        assert_eq!(get("/apis/"), Ok(LocalRoute::Discovery(Discovery::Groups)));
        assert_eq!(get("/api/v1/nodes/n"), Ok(LocalRoute::Nodes(Some("n".into()))));
        let metrics = |rest: &str| get(&format!("/apis/metrics.k8s.io{rest}"));
        assert_eq!(metrics("/v1beta1"), Ok(LocalRoute::Discovery(Discovery::MetricsResources)));
        assert_eq!(metrics("/v1beta1/nodes"), Ok(LocalRoute::NodeMetrics(None)));
        assert_eq!(metrics("/v1beta1/namespaces/a/pods/b"), Ok(LocalRoute::PodMetrics(of("a", "b"))));
        assert_eq!(metrics("/v1beta1/namespaces/a"), Err(StatusError::no_such_path()));
        let with = |method: Method, path: &str| LocalRoute::parse(&method, path);
        assert_eq!(with(Method::POST, "/api/v1/namespaces/a/pods"), Ok(LocalRoute::Create("a".into())));
        assert_eq!(with(Method::PUT, "/api/v1/namespaces/a/pods/b"), Ok(LocalRoute::Update(of("a", "b"))));
        assert_eq!(with(Method::DELETE, "/api/v1/namespaces/a/pods/b"), Ok(LocalRoute::Delete(of("a", "b"))));
        assert_eq!(with(Method::POST, "/api/v1/namespaces/a/pods/b/exec"), Ok(LocalRoute::Exec(of("a", "b"))));
        assert_eq!(
            with(Method::GET, "/api/v1/namespaces/a/pods/b/portforward"),
            Ok(LocalRoute::PortForward(of("a", "b")))
        );
        assert_eq!(with(Method::POST, "/podwright/v1/stop"), Ok(LocalRoute::Stop));
        assert_eq!(get("/podwright/v1/images"), Ok(LocalRoute::Images(ImageRoute::List)));
        assert_eq!(with(Method::POST, "/podwright/v1/images/pull"), Ok(LocalRoute::Images(ImageRoute::Pull)));
        assert_eq!(get("/podwright/v1/images/x"), Err(StatusError::no_such_path()));
        assert_eq!(with(Method::HEAD, "/version"), Ok(LocalRoute::Discovery(Discovery::Version)));
    }

    #[test]
    fn unknown_paths_and_methods_are_rejected() {
        for path in ["/", "/api/v1/services", "/api/v1/namespaces/a/pods/b/c", "/api/v1/../v1/pods", "/apis/apps/v1"] {
            assert_eq!(get(path), Err(StatusError::no_such_path()), "{path}");
        }
        for (method, path) in [
            (Method::POST, "/api/v1/pods"),
            (Method::DELETE, "/api/v1/namespaces/a/pods"),
            (Method::PATCH, "/api/v1/namespaces/a/pods/b/log"),
            (Method::GET, "/podwright/v1/stop"),
            (Method::GET, "/podwright/v1/images/pull"),
            (Method::DELETE, "/podwright/v1/images"),
            (Method::GET, "/api/v1/namespaces/a/pods/b/restart"),
            (Method::PUT, "/api/v1/namespaces/a/pods/b/exec"),
            (Method::DELETE, "/api/v1/namespaces/a/pods/b/portforward"),
        ] {
            let status = LocalRoute::parse(&method, path).unwrap_err().status();
            assert_eq!(status.reason.as_deref(), Some("MethodNotAllowed"), "{method} {path}");
        }
    }
}
