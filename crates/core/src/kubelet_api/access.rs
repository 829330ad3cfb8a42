//! The access that a request needs (Go kubelet: `nodeAuthorizerAttributesGetter.GetRequestAttributes`).
//!
//! Every request is an access to a subresource of the Node object. Where there are two, the first that is allowed suffices.

/// The verb of a request with this HTTP method; empty for methods without one.
pub fn verb(method: &str) -> &'static str {
    match method {
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// The subresources that grant access to a decoded path, in the order in which they are checked. A pattern matches whole
/// path segments: `/podsx` is not `/pods`.
pub fn subresources(path: &str) -> &'static [&'static str] {
    let is_below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let found = SUBRESOURCES.iter().find(|(root, _)| is_below(root));
    found.map_or(&["proxy"], |(_, subresources)| subresources)
}

/// The answer to a request that no subresource allows.
pub fn forbidden(user: &str, verb: &str, subresources: &[&str]) -> String {
    format!("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{}])\n", subresources.join(" "))
}

/// The answer to a request that could not be reviewed.
pub fn review_failed(user: &str, verb: &str, subresource: &str) -> String {
    format!("Authorization error (user={user}, verb={verb}, resource=nodes, subresource={subresource})")
}

const SUBRESOURCES: [(&str, &[&str]); 10] = [
    ("/pods", &["pods", "proxy"]),
    ("/runningpods", &["pods", "proxy"]),
    ("/healthz", &["healthz", "proxy"]),
    ("/configz", &["configz", "proxy"]),
    ("/stats", &["stats"]),
    ("/metrics", &["metrics"]),
    ("/logs", &["log"]),
    ("/checkpoint", &["checkpoint"]),
    ("/statusz", &["statusz"]),
    ("/flagz", &["configz"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_have_the_verbs_of_the_api() {
        let verbs = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "get", ""].map(verb);
        assert_eq!(verbs, ["get", "create", "update", "patch", "delete", "", "", "", ""]);
    }

    #[test]
    fn paths_have_the_subresources_of_the_go_kubelet() {
        let table: [(&[&str], &[&str]); 12] = [
            (&["/pods", "/pods/", "/pods/x"], &["pods", "proxy"]),
            (&["/runningpods", "/runningpods/"], &["pods", "proxy"]),
            (&["/healthz", "/healthz/ping"], &["healthz", "proxy"]),
            (&["/configz"], &["configz", "proxy"]),
            (&["/stats", "/stats/summary"], &["stats"]),
            (&["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes"], &["metrics"]),
            (&["/logs", "/logs/", "/logs/syslog"], &["log"]),
            (&["/checkpoint/ns/pod/c"], &["checkpoint"]),
            (&["/statusz"], &["statusz"]),
            (&["/flagz"], &["configz"]),
            (&["/exec/a/b/c", "/attach/a/b/c", "/portForward/a/b", "/run/a/b/c", "/containerLogs/a/b/c"], &["proxy"]),
            (
                &["/", "", "/podsx", "/logsx", "/metricsx/y", "//pods", "/Pods", "/debug/flags/v", "/spec", "*"],
                &["proxy"],
            ),
        ];
        for (paths, expected) in table {
            for path in paths {
                assert_eq!(subresources(path), expected, "{path}");
            }
        }
    }

    #[test]
    fn refusals_have_the_texts_of_the_go_kubelet() {
        assert_eq!(
            forbidden("jane", "get", &["pods", "proxy"]),
            "Forbidden (user=jane, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
        );
        assert_eq!(
            review_failed("jane", "create", "proxy"),
            "Authorization error (user=jane, verb=create, resource=nodes, subresource=proxy)"
        );
    }
}
