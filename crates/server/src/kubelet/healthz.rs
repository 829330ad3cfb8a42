//! `/healthz` in the form of Kubernetes (`healthz.InstallHandler`): named checks, `?verbose`, `?exclude=`; and its own plain listener.

use std::net::SocketAddr;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::health_server::AgentStatus;
use crate::query::QueryParams;
use crate::serve::{self, HttpResponse, text};

/// A check, and why it fails; `None`: it passes.
pub(super) type Check = (&'static str, Option<String>);

/// The response to `/healthz` (`which` is empty) or to one check. The results are recorded.
pub(super) fn respond(checks: &[Check], which: &str, query: &str, status: &dyn AgentStatus) -> HttpResponse {
    let excluded = QueryParams::parse(query).all("exclude");
    let made = checks.iter().filter(|(name, _)| match which {
        "" => !excluded.iter().any(|other| other == name),
        one => *name == one,
    });
    made.for_each(|(name, failure)| status.record_healthcheck(name, failure.is_none()));
    response(checks, which, query)
}

fn response(checks: &[Check], which: &str, query: &str) -> HttpResponse {
    if !which.is_empty() {
        return match checks.iter().find(|(name, _)| *name == which) {
            Some((_, None)) => text(StatusCode::OK, "ok"),
            Some((_, Some(why))) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n")),
            None => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        };
    }
    let mut params = QueryParams::parse(query);
    let (excluded, verbose) = (params.all("exclude"), !params.all("verbose").is_empty());
    let (healthy, list) = report(checks, &excluded);
    match (healthy, verbose) {
        (true, false) => text(StatusCode::OK, "ok"),
        (true, true) => text(StatusCode::OK, format!("{list}healthz check passed\n")),
        (false, _) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{list}healthz check failed\n")),
    }
}

fn report(checks: &[Check], excluded: &[String]) -> (bool, String) {
    let (mut healthy, mut list) = (true, String::new());
    for (name, failure) in checks {
        match failure {
            _ if excluded.iter().any(|other| other == name) => list += &format!("[+]{name} excluded: ok\n"),
            None => list += &format!("[+]{name} ok\n"),
            Some(_) => {
                healthy = false;
                list += &format!("[-]{name} failed: reason withheld\n");
            }
        }
    }
    let mut unknown: Vec<String> =
        excluded.iter().filter(|name| !checks.iter().any(|(check, _)| check == name)).cloned().collect();
    unknown.sort();
    unknown.dedup();
    if !unknown.is_empty() {
        let quoted: Vec<String> = unknown.iter().map(|name| format!("{name:?}")).collect();
        list += &format!("warn: some health checks cannot be excluded: no matches for {}\n", quoted.join(","));
    }
    (healthy, list)
}

/// Serves `/healthz` over plain HTTP until `stop` is cancelled. An address in use is tried again.
pub async fn serve_healthz(address: SocketAddr, stop: CancellationToken) {
    let mut complained = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) if !complained => tracing::warn!(%address, %error, "healthz listener failed: retrying"),
            Err(_) => {}
        }
        complained = true;
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(BIND_RETRY) => {}
        }
    };
    let handler = |request: Request<Incoming>| async move {
        let path = request.uri().path();
        match path.strip_prefix("/healthz") {
            Some("") => response(&[PING], "", request.uri().query().unwrap_or_default()),
            Some("/ping") => response(&[PING], "ping", ""),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    };
    serve::serve(listener, handler, stop).await;
}

/// Passes while the process answers.
pub(super) const PING: Check = ("ping", None);
/// Kubernetes: the interval of `wait.Forever` around the healthz server.
const BIND_RETRY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn get(failing: Option<&str>, which: &str, query: &str) -> (u16, String) {
        let checks = [PING, ("log", None), ("syncloop", failing.map(ToOwned::to_owned))];
        let response = response(&checks, which, query);
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn responses_have_the_form_of_kubernetes() {
        let all = "[+]ping ok\n[+]log ok\n";
        assert_eq!(get(None, "", "").await, (200, "ok".into()));
        assert_eq!(get(None, "", "verbose").await, (200, format!("{all}[+]syncloop ok\nhealthz check passed\n")));
        let failed = format!("{all}[-]syncloop failed: reason withheld\nhealthz check failed\n");
        assert_eq!(get(Some("stood"), "", "").await, (500, failed));
        assert_eq!(get(Some("stood"), "", "exclude=syncloop").await, (200, "ok".into()));
        let excluded = format!(
            "{all}[+]syncloop excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"x\"\nhealthz check passed\n"
        );
        assert_eq!(get(Some("stood"), "", "exclude=syncloop&exclude=x&verbose").await, (200, excluded));
        assert_eq!(get(Some("stood"), "ping", "").await, (200, "ok".into()));
        assert_eq!(get(Some("stood"), "syncloop", "").await, (500, "internal server error: stood\n".into()));
        assert_eq!(get(None, "x", "").await.0, 404);
    }
}
