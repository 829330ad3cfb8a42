//! Authenticates and authorizes a request, then routes it to its handler.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ALLOW, CONNECTION};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use tokio::time::timeout;

use super::connection::{ClientConnection, HEAD_BYTES_MAX};
use super::healthz::{self, PING};
use super::reviews::UserInfo;
use super::state::ServerState;
use super::streams::{StreamKind, stream};
use super::{HandlerSwitches, client_ip, container_logs, running_pods, streams, system_logs};
use crate::health_server::{MetricsPage, summary};
use crate::query::decode;
use crate::serve::{HttpResponse, RESPONSE_TIMEOUT, compressed, json, prometheus_text, text, too_many};

/// What a request asks for. Names are not checked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route<'a> {
    /// A single check, or all for an empty name.
    Healthz(&'a str),
    Pods,
    RunningPods,
    Metrics(MetricsPage),
    StatsSummary,
    Configz,
    ContainerLogs(ContainerPath<'a>),
    Exec(ContainerPath<'a>),
    Attach(ContainerPath<'a>),
    Run(ContainerPath<'a>),
    /// The container is empty.
    PortForward(ContainerPath<'a>),
    /// Below the directory of logs; empty: the directory.
    SystemLogs(&'a str),
    Verbosity,
    Profiling,
    Unknown,
}

/// A container by the names in the path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContainerPath<'a> {
    pub(super) namespace: &'a str,
    pub(super) pod: &'a str,
    pub(super) uid: Option<&'a str>,
    pub(super) container: &'a str,
}

impl<'a> Route<'a> {
    /// The route of a decoded path.
    pub(super) fn parse(path: &'a str) -> Self {
        let Some(relative) = path.strip_prefix('/') else { return Self::Unknown };
        if let Some(page) = MetricsPage::of_path(path) {
            return Self::Metrics(page);
        }
        let parts: Vec<&str> = relative.split('/').collect();
        let of = |namespace, pod, uid, container| ContainerPath { namespace, pod, uid, container };
        if parts.len() > 2 && parts[1..].contains(&"") && !["logs", "debug"].contains(&parts[0]) {
            return Self::Unknown;
        }
        match parts.as_slice() {
            ["healthz"] => Self::Healthz(""),
            ["healthz", check] if !check.is_empty() => Self::Healthz(check),
            ["pods"] | ["pods", ""] => Self::Pods,
            ["runningpods"] | ["runningpods", ""] => Self::RunningPods,
            ["stats", "summary"] => Self::StatsSummary,
            ["configz"] => Self::Configz,
            ["containerLogs", namespace, pod, container] => Self::ContainerLogs(of(namespace, pod, None, container)),
            ["exec", namespace, pod, container] => Self::Exec(of(namespace, pod, None, container)),
            ["exec", namespace, pod, uid, container] => Self::Exec(of(namespace, pod, Some(uid), container)),
            ["attach", namespace, pod, container] => Self::Attach(of(namespace, pod, None, container)),
            ["attach", namespace, pod, uid, container] => Self::Attach(of(namespace, pod, Some(uid), container)),
            ["run", namespace, pod, container] => Self::Run(of(namespace, pod, None, container)),
            ["run", namespace, pod, uid, container] => Self::Run(of(namespace, pod, Some(uid), container)),
            ["portForward", namespace, pod] => Self::PortForward(of(namespace, pod, None, "")),
            ["portForward", namespace, pod, uid] => Self::PortForward(of(namespace, pod, Some(uid), "")),
            ["logs", ..] => Self::SystemLogs(relative.strip_prefix("logs").unwrap_or_default()),
            ["debug", "flags", "v"] => Self::Verbosity,
            ["debug", "pprof", ..] => Self::Profiling,
            _ => Self::Unknown,
        }
    }

    /// The methods that the route allows; empty: any.
    fn methods(&self) -> &'static [Method] {
        match self {
            Self::Pods | Self::RunningPods | Self::ContainerLogs(_) | Self::SystemLogs(_) => &[Method::GET],
            Self::Exec(_) | Self::Attach(_) | Self::PortForward(_) | Self::StatsSummary => &[Method::GET, Method::POST],
            Self::Run(_) => &[Method::POST],
            Self::Healthz(_) | Self::Metrics(_) | Self::Configz | Self::Verbosity | Self::Profiling | Self::Unknown => {
                &[]
            }
        }
    }

    /// The response if the configuration has switched the route off.
    fn switched_off(&self, handlers: HandlerSwitches) -> Option<(StatusCode, &'static str)> {
        let off = |on: bool, message| (!on).then_some((StatusCode::METHOD_NOT_ALLOWED, message));
        match self {
            Self::Configz | Self::Verbosity if !handlers.debugging => Some((StatusCode::NOT_FOUND, NOT_FOUND)),
            Self::RunningPods
            | Self::ContainerLogs(_)
            | Self::Exec(_)
            | Self::Attach(_)
            | Self::Run(_)
            | Self::PortForward(_)
            | Self::SystemLogs(_)
            | Self::Profiling
                if !handlers.debugging =>
            {
                Some((StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.\n"))
            }
            Self::SystemLogs(_) => off(handlers.system_logs, "logs endpoint is disabled.\n"),
            Self::Profiling => off(handlers.profiling, "profiling endpoint is disabled.\n"),
            Self::Verbosity => off(handlers.debug_flags, "flags endpoint is disabled.\n"),
            _ => None,
        }
    }
}

/// Answers one request.
pub(super) async fn handle(
    state: Arc<ServerState>,
    client: Arc<ClientConnection>,
    mut request: Request<Incoming>,
) -> HttpResponse {
    if header_bytes(&request) > HEAD_BYTES_MAX as usize {
        let mut response = text(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "");
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return response;
    }
    let path = decode(request.uri().path()).into_owned();
    let ip = client_ip(client.peer);
    let user = match state.access.authenticate(ip, &client.certificates, request.headers_mut()).await {
        Ok(user) => user,
        Err(response) => return *response,
    };
    if let Err(response) = state.access.authorize(&user, request.method().as_str(), &path).await {
        return *response;
    }
    if user.name != ANONYMOUS && !client.slot.authorize(&user.name) {
        return too_many("too many connections\n");
    }
    let route = Route::parse(&path);
    if let Some((code, message)) = route.switched_off(state.api.handlers) {
        return text(code, message);
    }
    let methods = route.methods();
    if !methods.is_empty() && !methods.contains(request.method()) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
        let allow: Vec<&str> = methods.iter().map(Method::as_str).collect();
        response.headers_mut().insert(ALLOW, HeaderValue::from_str(&allow.join(", ")).expect("plain names"));
        return response;
    }
    let limit =
        if matches!(route, Route::Run(_)) { state.api.run_timeout + RESPONSE_TIMEOUT } else { RESPONSE_TIMEOUT };
    match timeout(limit, dispatch(&state, &client, &user, route, request)).await {
        Ok(response) => response,
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the agent did not respond in time\n"),
    }
}

async fn dispatch(
    state: &Arc<ServerState>,
    client: &ClientConnection,
    user: &UserInfo,
    route: Route<'_>,
    request: Request<Incoming>,
) -> HttpResponse {
    let query = request.uri().query().unwrap_or_default().to_owned();
    match route {
        Route::Healthz(check) => {
            let checks = [PING, ("log", None), ("syncloop", state.api.status.not_live())];
            healthz::respond(&checks, check, &query, &*state.api.status)
        }
        Route::Pods => match state.api.pods.body().await {
            Ok(pods) => json(StatusCode::OK, pods),
            Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "the list of pods is not available yet\n"),
        },
        Route::RunningPods => running_pods::respond(&*state.api.runtime).await,
        // Kubernetes: `SLIMetricsWithReset`.
        Route::Metrics(MetricsPage::Slis) if request.method() == Method::DELETE => {
            state.api.status.reset_healthchecks();
            text(StatusCode::OK, "metrics reset\n")
        }
        Route::Metrics(page) => compressed(prometheus_text(state.metrics(page).await), request.headers()),
        Route::StatsSummary => summary(&*state.api.status, &query).await,
        Route::Configz => json(StatusCode::OK, state.api.configz.clone()),
        Route::ContainerLogs(of) => container_logs::respond(state, &user.name, &of, &query).await,
        Route::Exec(of) => stream(StreamKind::Exec, state, client, &user.name, &of, request).await,
        Route::Attach(of) => stream(StreamKind::Attach, state, client, &user.name, &of, request).await,
        Route::PortForward(of) => stream(StreamKind::PortForward, state, client, &user.name, &of, request).await,
        Route::Run(of) => streams::run(state, &of, &query).await,
        Route::SystemLogs(path) => system_logs::respond(state, &user.name, path).await,
        Route::Verbosity => set_verbosity(state, request).await,
        Route::Profiling | Route::Unknown => text(StatusCode::NOT_FOUND, not_found(&decode(request.uri().path()))),
    }
}

/// The text for a path that leads nowhere. Below the routes of go-restful, that one answers in the Go kubelet, else Go's `ServeMux`.
fn not_found(path: &str) -> &'static str {
    let service = path.strip_prefix('/').and_then(|relative| relative.split('/').next()).unwrap_or_default();
    if SERVICES.contains(&service) { "404: Page Not Found" } else { NOT_FOUND }
}

/// The connection's buffer may be a little larger than the limit.
fn header_bytes(request: &Request<Incoming>) -> usize {
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
    fields.sum::<usize>() + request.uri().path().len() + request.uri().query().map_or(0, str::len)
}

/// Kubernetes: `StringFlagPutHandler` with `GlogSetter`.
async fn set_verbosity(state: &ServerState, request: Request<Incoming>) -> HttpResponse {
    if *request.method() != Method::PUT {
        return text(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n");
    }
    let body = timeout(BODY_TIMEOUT, Limited::new(request.into_body(), BODY_MAX).collect()).await;
    let Ok(Ok(body)) = body else { return text(StatusCode::BAD_REQUEST, "error reading request body\n") };
    let body = body.to_bytes();
    let given = String::from_utf8_lossy(&body);
    match given.trim().parse::<u32>() {
        Ok(level) => {
            (state.api.set_verbosity)(u8::try_from(level).unwrap_or(u8::MAX));
            text(StatusCode::OK, format!("successfully set klog.logging.verbosity to {level}\n"))
        }
        Err(_) => {
            let message = format!("strconv.ParseUint: parsing {:?}: invalid syntax\n", given.trim());
            text(StatusCode::BAD_REQUEST, message)
        }
    }
}

const ANONYMOUS: &str = "system:anonymous";
const NOT_FOUND: &str = "404 page not found\n";
/// The first parts of paths that go-restful routes in the Go kubelet.
const SERVICES: [&str; 8] = ["pods", "runningpods", "stats", "run", "exec", "attach", "portForward", "containerLogs"];
/// Bytes of a request body.
const BODY_MAX: usize = 64 << 10;
/// For a client that sends slowly.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(uid: Option<&'a str>, container: &'a str) -> ContainerPath<'a> {
        ContainerPath { namespace: "ns", pod: "p", uid, container }
    }

    #[test]
    fn paths_lead_to_their_routes() {
        let table = [
            ("/healthz", Route::Healthz("")),
            ("/healthz/ping", Route::Healthz("ping")),
            ("/pods", Route::Pods),
            ("/pods/", Route::Pods),
            ("/runningpods/", Route::RunningPods),
            ("/metrics", Route::Metrics(MetricsPage::Agent)),
            ("/metrics/cadvisor", Route::Metrics(MetricsPage::Cadvisor)),
            ("/metrics/slis", Route::Metrics(MetricsPage::Slis)),
            ("/metrics/other", Route::Unknown),
            ("/stats/summary", Route::StatsSummary),
            ("/stats", Route::Unknown),
            ("/configz", Route::Configz),
            ("/containerLogs/ns/p/c", Route::ContainerLogs(of(None, "c"))),
            ("/exec/ns/p/c", Route::Exec(of(None, "c"))),
            ("/exec/ns/p/u/c", Route::Exec(of(Some("u"), "c"))),
            ("/attach/ns/p/u/c", Route::Attach(of(Some("u"), "c"))),
            ("/run/ns/p/c", Route::Run(of(None, "c"))),
            ("/portForward/ns/p", Route::PortForward(of(None, ""))),
            ("/portForward/ns/p/u", Route::PortForward(of(Some("u"), ""))),
            ("/logs/", Route::SystemLogs("/")),
            ("/logs", Route::SystemLogs("")),
            ("/logs/a//b/../c", Route::SystemLogs("/a//b/../c")),
            ("/debug/flags/v", Route::Verbosity),
            ("/debug/pprof/heap", Route::Profiling),
        ];
        for (path, expected) in table {
            assert_eq!(Route::parse(path), expected, "{path}");
        }
        for unknown in [
            "",
            "*",
            "/",
            "pods",
            "//pods",
            "/Pods",
            "/pods/x",
            "/exec/ns/p",
            "/exec/ns//c",
            "/exec/ns/p/u/c/x",
            "/containerLogs/ns/p/u/c",
            "/logsx",
            "/healthz/",
            "/metrics/",
            "/debug",
            "/spec/",
        ] {
            assert_eq!(Route::parse(unknown), Route::Unknown, "{unknown}");
        }
    }

    #[test]
    fn the_text_for_an_unknown_path_depends_on_its_first_part() {
        for (path, text) in [
            ("/exec/ns", "404: Page Not Found"),
            ("/pods/x", "404: Page Not Found"),
            ("/nowhere", NOT_FOUND),
            ("/healthz/", NOT_FOUND),
            ("/", NOT_FOUND),
        ] {
            assert_eq!(not_found(path), text, "{path}");
        }
    }

    #[test]
    fn switches_turn_routes_off_with_the_texts_of_the_go_kubelet() {
        let debug = ["/run/a/b/c", "/exec/a/b/c", "/attach/a/b/c", "/portForward/a/b", "/containerLogs/a/b/c"];
        let off = HandlerSwitches { debugging: false, ..HandlerSwitches::default() };
        for path in debug.into_iter().chain(["/runningpods/", "/debug/pprof/x", "/logs/"]) {
            assert_eq!(
                Route::parse(path).switched_off(off).unwrap(),
                (StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.\n"),
                "{path}"
            );
            assert_eq!(Route::parse(path).switched_off(HandlerSwitches::default()), None, "{path}");
        }
        for path in ["/configz", "/debug/flags/v"] {
            assert_eq!(Route::parse(path).switched_off(off).unwrap().0, StatusCode::NOT_FOUND, "{path}");
        }
        for path in ["/pods", "/healthz", "/metrics"] {
            assert_eq!(Route::parse(path).switched_off(off), None, "{path}");
        }
        let none = HandlerSwitches { debugging: true, system_logs: false, profiling: false, debug_flags: false };
        for (path, what) in [("/logs/", "logs"), ("/debug/pprof/", "profiling"), ("/debug/flags/v", "flags")] {
            let (code, message) = Route::parse(path).switched_off(none).unwrap();
            assert_eq!((code, message), (StatusCode::METHOD_NOT_ALLOWED, &*format!("{what} endpoint is disabled.\n")));
        }
    }
}
