//! Every route of the kubelet's API with every kind of credential, asked of this agent and of the Go kubelet in the same cluster: status,
//! content type, allowed methods and body are the same.

use std::process::Command;

use anyhow::ensure;
use podwright_testbed::{Containerd, ControlPlane, Flavor, GoKubelet, Scratch, wait_until};
use serde_json::{Value, json};

use crate::kubelet_api::reachable;
use crate::suite::{LIMIT, condition, one, sh};

const OURS: &str = "answers";
const THEIRS: &str = "answers-go";
const ADMINISTRATOR: &str = "the administrator";

/// How much of the body of a successful response is the same.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Body {
    /// All of it.
    Same,
    /// The names of the fields of a JSON object at its top.
    Fields,
    /// It depends on the kubelet; other tests compare it.
    Own,
}

/// Method, path with `NS` for the namespace of the pod, and what is compared of the body for the administrator.
type RouteRow = (&'static str, &'static str, Body);

const ROUTES: &[RouteRow] = &[
    ("GET", "/healthz", Body::Same),
    ("POST", "/healthz", Body::Same),
    ("GET", "/healthz/ping", Body::Same),
    ("GET", "/healthz/log", Body::Same),
    ("GET", "/healthz/syncloop", Body::Same),
    ("GET", "/healthz/none", Body::Same),
    ("GET", "/healthz/", Body::Same),
    ("GET", "/pods", Body::Fields),
    ("GET", "/pods/", Body::Fields),
    ("GET", "/pods/x", Body::Same),
    ("HEAD", "/pods", Body::Same),
    ("POST", "/pods", Body::Same),
    ("DELETE", "/pods", Body::Same),
    ("GET", "/runningpods", Body::Fields),
    ("GET", "/runningpods/", Body::Fields),
    ("POST", "/runningpods/", Body::Same),
    ("GET", "/stats", Body::Same),
    ("GET", "/stats/", Body::Same),
    ("GET", "/stats/summary", Body::Fields),
    ("POST", "/stats/summary", Body::Fields),
    ("PUT", "/stats/summary", Body::Same),
    ("GET", "/stats/container", Body::Same),
    ("GET", "/metrics", Body::Own),
    ("POST", "/metrics", Body::Own),
    ("GET", "/metrics/", Body::Same),
    ("GET", "/metrics/cadvisor", Body::Own),
    ("GET", "/metrics/resource", Body::Own),
    ("GET", "/metrics/probes", Body::Own),
    ("GET", "/metrics/slis", Body::Own),
    ("DELETE", "/metrics/slis", Body::Same),
    ("GET", "/metrics/none", Body::Same),
    ("GET", "/containerLogs/NS/web/c", Body::Same),
    ("GET", "/containerLogs/NS/web/c?tailLines=1&timestamps=false", Body::Same),
    ("GET", "/containerLogs/NS/web/c?tailLines=-1", Body::Same),
    ("GET", "/containerLogs/NS/web/c?tailLines=x", Body::Same),
    ("GET", "/containerLogs/NS/web/c?previous=true", Body::Same),
    ("GET", "/containerLogs/NS/web/none", Body::Same),
    ("GET", "/containerLogs/NS/none/c", Body::Same),
    ("GET", "/containerLogs/none/web/c", Body::Same),
    ("GET", "/containerLogs/NS/web", Body::Same),
    ("GET", "/containerLogs/", Body::Same),
    ("POST", "/containerLogs/NS/web/c", Body::Same),
    ("GET", "/exec/NS/web/c?command=true&output=1", Body::Same),
    ("POST", "/exec/NS/web/c?command=true&output=1", Body::Same),
    ("GET", "/exec/NS/web/c?command=true", Body::Same),
    ("GET", "/exec/NS/web/none?command=true&output=1", Body::Same),
    ("GET", "/exec/NS/none/c?command=true&output=1", Body::Same),
    ("GET", "/exec/NS/web/00000000-0000-0000-0000-000000000000/c?command=true&output=1", Body::Same),
    ("PUT", "/exec/NS/web/c?command=true&output=1", Body::Same),
    ("GET", "/exec/NS/web", Body::Same),
    ("GET", "/attach/NS/web/c?output=1", Body::Same),
    ("GET", "/attach/NS/web/c", Body::Same),
    ("GET", "/attach/NS/web/none?output=1", Body::Same),
    ("GET", "/attach/NS/none/c?output=1", Body::Same),
    ("DELETE", "/attach/NS/web/c?output=1", Body::Same),
    ("GET", "/portForward/NS/web", Body::Same),
    ("POST", "/portForward/NS/web", Body::Same),
    ("GET", "/portForward/NS/none", Body::Same),
    ("PUT", "/portForward/NS/web", Body::Same),
    ("GET", "/portForward/NS", Body::Same),
    ("POST", "/run/NS/web/c?cmd=echo%20hello", Body::Same),
    ("POST", "/run/NS/web/c?cmd=false", Body::Same),
    ("POST", "/run/NS/web/none?cmd=true", Body::Same),
    ("POST", "/run/NS/none/c?cmd=true", Body::Same),
    ("GET", "/run/NS/web/c?cmd=true", Body::Same),
    ("GET", "/logs", Body::Own),
    ("GET", "/logs/", Body::Own),
    ("GET", "/logs/none", Body::Same),
    ("GET", "/logs/../../etc/passwd", Body::Same),
    ("POST", "/logs/", Body::Same),
    ("GET", "/configz", Body::Fields),
    ("POST", "/configz", Body::Fields),
    ("POST", "/checkpoint/NS/web/none", Body::Same),
    ("GET", "/checkpoint/NS/web/c", Body::Same),
    ("GET", "/debug/flags/v", Body::Same),
    ("PUT", "/debug/flags/v", Body::Same),
    ("GET", "/debug/flags", Body::Same),
    ("GET", "/debug/pprof/", Body::Own),
    ("GET", "/debug/pprof/cmdline", Body::Own),
    ("GET", "/flagz", Body::Own),
    ("GET", "/statusz", Body::Own),
    ("GET", "/spec/", Body::Same),
    ("GET", "/nowhere", Body::Same),
    ("POST", "/nowhere", Body::Same),
    ("GET", "/", Body::Same),
];

/// Rows that differ on purpose.
struct AcceptedAnswer {
    routes: &'static [(&'static str, &'static str)],
    /// The credentials that get another answer.
    who: Who,
    reason: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum Who {
    Everyone,
    Administrator,
}

const ACCEPTED: &[AcceptedAnswer] = &[
    AcceptedAnswer {
        routes: &[
            ("GET", "/healthz/none"),
            ("GET", "/healthz/"),
            ("GET", "/stats"),
            ("GET", "/metrics/"),
            ("GET", "/metrics/none"),
            ("GET", "/runningpods"),
            ("GET", "/logs"),
            ("GET", "/logs/../../etc/passwd"),
            ("GET", "/debug/flags"),
            ("GET", "/spec/"),
            ("GET", "/nowhere"),
            ("POST", "/nowhere"),
            ("GET", "/"),
        ],
        who: Who::Everyone,
        reason: "paths without a handler: the Go kubelet answers 404 or redirects without asking for credentials",
    },
    AcceptedAnswer {
        routes: &[("GET", "/exec/NS/web/00000000-0000-0000-0000-000000000000/c?command=true&output=1")],
        who: Who::Administrator,
        reason: "a pod with another UID is another pod; the Go kubelet ignores the UID",
    },
    AcceptedAnswer {
        routes: &[("POST", "/checkpoint/NS/web/none"), ("GET", "/checkpoint/NS/web/c")],
        who: Who::Administrator,
        reason: "there are no checkpoints",
    },
    AcceptedAnswer {
        routes: &[("GET", "/debug/pprof/"), ("GET", "/debug/pprof/cmdline"), ("GET", "/flagz"), ("GET", "/statusz")],
        who: Who::Administrator,
        reason: "profiles of Go, and pages that are beta and for people",
    },
];

/// What a client sees of a response.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    content_type: String,
    allow: String,
    body: String,
}

/// One of the two kubelets.
struct Asked {
    name: &'static str,
    port: u16,
    /// Name and the arguments of curl.
    credentials: Vec<(&'static str, Vec<String>)>,
}

impl Asked {
    fn new(plane: &ControlPlane, name: &'static str, port: u16) -> Self {
        let token = plane.kubectl(&["-n", name, "create", "token", "default"]).expect("a token").trim().to_owned();
        let bearer = |token: &str| vec!["-H".to_owned(), format!("Authorization: Bearer {token}")];
        let certificate = |user: &str, group: &str| {
            let (certificate, key) = plane.user_certificate(user, group).expect("a certificate");
            vec!["--cert".to_owned(), certificate.display().to_string(), "--key".into(), key.display().to_string()]
        };
        let credentials = vec![
            ("none", vec![]),
            ("a bad token", bearer("bad")),
            ("a service account", bearer(&token)),
            ("the node itself", certificate(&format!("system:node:{name}"), "system:nodes")),
            (ADMINISTRATOR, certificate("root", "system:masters")),
        ];
        Self { name, port, credentials }
    }

    fn ask(&self, credential: &[String], method: &str, path: &str, body: Body) -> Answer {
        let mut curl = Command::new("curl");
        curl.args(["-skD", "-", "--http1.1", "--path-as-is", "--max-time", "25"]).args(credential);
        match method {
            "HEAD" => curl.arg("-I"),
            method => curl.args(["-X", method]),
        };
        let output = curl.arg(format!("https://127.0.0.1:{}{}", self.port, path.replace("NS", self.name))).output();
        let text = String::from_utf8_lossy(&output.expect("curl runs").stdout).into_owned();
        let (head, content) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{method} {path}: {text:?}"));
        let header = |name: &str| {
            let mut fields = head.lines().filter_map(|line| line.split_once(':'));
            fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value.trim()).to_owned()
        };
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let content = match body {
            Body::Own if status == 200 => String::new(),
            Body::Fields if status == 200 => fields(content),
            _ => content.replace(self.name, "NODE"),
        };
        // Parameters differ by the version of the library: charset, escaping.
        let content_type = header("content-type").split(';').next().unwrap_or_default().to_owned();
        Answer { status, content_type, allow: header("allow"), body: content }
    }
}

/// The names of the fields of an object.
fn fields(body: &str) -> String {
    let object: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
    let names: Vec<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    names.join(" ")
}

#[test]
fn every_route_answers_every_credential_as_the_go_kubelet() {
    let plane = ControlPlane::shared();
    let node = reachable(plane, OURS);
    let scratch = Scratch::new().expect("a scratch");
    let containerd = Containerd::start(&scratch, Flavor::V2).expect("containerd starts");
    let kubelet = go_kubelet(plane, &scratch, &containerd);
    put_pod(plane, OURS);
    put_pod(plane, THEIRS);
    let theirs = Asked::new(plane, THEIRS, kubelet.https_port());
    let ours = Asked::new(plane, OURS, node.agent.https_port());
    let (mut wrong, mut used, mut asked) = (vec![], vec![], 0);
    for (method, path, body) in ROUTES {
        for ((who, here), (_, there)) in ours.credentials.iter().zip(&theirs.credentials) {
            asked += 1;
            let (mut here, there) = (ours.ask(here, method, path, *body), theirs.ask(there, method, path, *body));
            // A log of the Go kubelet has none.
            if there.content_type.is_empty() {
                here.content_type.clear();
            }
            if here == there {
                continue;
            }
            let is_admin = *who == ADMINISTRATOR;
            let accepted = ACCEPTED.iter().position(|accepted| {
                (is_admin || accepted.who == Who::Everyone) && accepted.routes.contains(&(method, path))
            });
            match accepted {
                Some(rule) => used.push(rule),
                None => wrong.push(format!("{method} {path} by {who}:\n  ours   {here:?}\n  theirs {there:?}")),
            }
        }
    }
    for name in [OURS, THEIRS] {
        let pods = ["-n", name, "delete", "pods", "--all", "--grace-period=1"];
        plane.kubectl(&pods).expect("deleted");
    }
    drop(kubelet);
    plane.kubectl(&["delete", "node", THEIRS]).expect("deleted");
    println!("{asked} requests compared, {} accepted differences", used.len());
    assert!(wrong.is_empty(), "{} responses differ:\n{}", wrong.len(), wrong.join("\n"));
    let stale = ACCEPTED.iter().enumerate().filter(|(rule, _)| !used.contains(rule)).map(|(_, rule)| rule.reason);
    assert_eq!(stale.collect::<Vec<_>>(), Vec::<&str>::new(), "accepted differences that no longer occur");
}

/// The Go kubelet with the access control of a real node.
fn go_kubelet(plane: &ControlPlane, scratch: &Scratch, containerd: &Containerd) -> GoKubelet {
    plane.namespace(THEIRS).expect("a namespace");
    let kubeconfig = plane.node_kubeconfig(THEIRS).expect("a kubeconfig");
    let authentication = json!({"anonymous": {"enabled": false}, "webhook": {"enabled": true},
        "x509": {"clientCAFile": plane.certificate_authority()}});
    let access = json!({"authentication": authentication, "authorization": {"mode": "Webhook"}});
    GoKubelet::start_joined(scratch, containerd, THEIRS, &kubeconfig, &access).expect("the Go kubelet starts")
}

/// A pod with a line in its log, on the node with the name of the namespace.
fn put_pod(plane: &ControlPlane, namespace: &str) {
    let mut spec = one(&sh("c", "echo hello; trap 'exit 0' TERM; while :; do sleep 0.1; done"));
    spec["nodeName"] = json!(namespace);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    plane.api().create(&pods, &json!({"metadata": {"name": "web"}, "spec": spec})).expect("created");
    wait_until(LIMIT, "the pod to be ready", || {
        let pod = plane.api().get(&format!("{pods}/web"))?;
        ensure!(condition(&pod, "Ready")["status"] == "True", "{:#}", pod["status"]);
        Ok(())
    });
}
