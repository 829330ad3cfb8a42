//! Processes get what the pod's spec requests: environment, commands, names, resolver, namespaces, ports, termination messages, logs.
//!
//! The pods print what they find and exit; the output is read from the log files, so every check covers those too.

use std::fs;

use anyhow::{Context, Result, ensure};
use podwright_cri::labels;
use podwright_testbed::{Flavor, NodeRuntime, free_port, image, wait_until};
use serde_json::{Value, json};

use super::container_output::{read_output, read_output_of};
use super::cri::{self, annotation};
use super::{LIMIT, TestNode, condition, container, container_id, one, sh, sleeper};

/// A pod's name, its spec, and the check after it has terminated.
pub(crate) type Asked = (&'static str, Value, fn(&TestNode, &Value) -> Result<()>);

pub(crate) fn pods_get_what_their_specs_request(flavor: Flavor) {
    let node = TestNode::configured(flavor, json!({"clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.test"}));
    let port = free_port().expect("a port");
    let all: [Asked; 9] = [
        ("env", env(), env_is_right),
        ("commands", commands(), commands_are_right),
        ("names", names(), names_are_right),
        ("dns-none", dns_none(), dns_none_is_right),
        ("dns-default", with(sh("c", "cat /etc/resolv.conf"), json!({"dnsPolicy": "Default"})), dns_default_is_right),
        ("on-host", on_host(), on_host_is_right),
        ("shared-pids", shared_pids(), shared_pids_are_right),
        ("last-words", termination_messages(), termination_messages_are_right),
        ("logs", with(sh("c", LOUD), json!({})), logs_are_right),
    ];
    for (name, spec, _) in &all {
        node.put_labeled(name, spec);
    }
    node.put_labeled("web", &web(port));
    node.put_labeled("known", &known());
    for (name, _, check) in &all {
        wait_until(LIMIT, name, || {
            let pod = node.pod(name)?;
            let phase = if *name == "last-words" { "Failed" } else { "Succeeded" };
            ensure!(pod["status"]["phase"] == phase, "{:#}", pod["status"]);
            check(&node, &pod).with_context(|| format!("{:#}", pod["status"]))
        });
    }
    wait_until(LIMIT, "the page behind the host port", || {
        let page = podwright_testbed::get(&format!("127.0.0.1:{port}"), "/index.html")?;
        ensure!(page.body.trim() == "the page", "{page:?}");
        let pod = node.phase("web", "Running")?;
        let own = format!("{}:8080", pod["status"]["podIP"].as_str().context("no address")?);
        ensure!(podwright_testbed::get(&own, "/index.html")?.status == 200, "no page on the pod's own address");
        Ok(())
    });
    if flavor == Flavor::Engine {
        objects_of_the_engine_are_found(&node);
    }
    let pod = node.wait_phase("known", "Running");
    runtime_objects_have_the_kubelets_names(&node, &pod);
    unknown_fields_are_named(&node);
    node.remove_all();
    node.wait_nothing_left();
}

/// The check for leftovers sees everything that the engine makes for a pod with a host port.
fn objects_of_the_engine_are_found(node: &TestNode) {
    let found = node.runtime.objects().expect("listed");
    for kind in ["sandbox", "container", "shim directory", "netns", "shim", "address", "link", "port map"] {
        assert!(found.iter().any(|object| object.starts_with(&format!("{kind} "))), "no {kind} in {found:#?}");
    }
}

/// A pod with one container that exits, with more fields in its spec.
pub(crate) fn with(container: Value, more: Value) -> Value {
    let mut spec = one(&container);
    spec["restartPolicy"] = json!("Never");
    if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
        spec.extend(more);
    }
    spec
}

fn env() -> Value {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let resource = |name: &str, of: &str, divisor: &str| json!({"name": name, "valueFrom": {"resourceFieldRef": {"resource": of, "divisor": divisor}}});
    let mut c = sh("c", "env | sort; echo args $(PLAIN) $$(PLAIN) $(NONE)");
    c["image"] = json!(image::ENTRYPOINT);
    c["resources"] = json!({"limits": {"cpu": "250m", "memory": "64Mi"}, "requests": {"memory": "32Mi"}});
    c["env"] = json!([
        {"name": "PLAIN", "value": "plain"},
        field("POD_IP", "status.podIP"),
        field("HOST_IP", "status.hostIP"),
        field("NODE", "spec.nodeName"),
        field("NAME", "metadata.name"),
        field("NAMESPACE", "metadata.namespace"),
        field("POD_UID", "metadata.uid"),
        field("LABEL", "metadata.labels['app']"),
        resource("CPU_MILLIS", "limits.cpu", "1m"),
        resource("MEMORY_MI", "requests.memory", "1Mi"),
        {"name": "JOINED", "value": "$(PLAIN)/$(NODE)"},
        {"name": "ESCAPED", "value": "$$(PLAIN)"},
        {"name": "EARLY", "value": "$(LATE)"},
        {"name": "LATE", "value": "late"},
        {"name": "EMPTY"},
    ]);
    with(c, json!({}))
}

fn env_is_right(node: &TestNode, pod: &Value) -> Result<()> {
    let text = read_output(node, pod)?;
    let status = &pod["status"];
    let field = |value: &Value| value.as_str().unwrap_or("missing").to_owned();
    for (name, value) in [
        ("PLAIN", "plain".into()),
        ("POD_IP", field(&status["podIP"])),
        ("HOST_IP", field(&status["hostIP"])),
        ("NODE", "node".into()),
        ("NAME", "env-node".into()),
        ("NAMESPACE", "default".into()),
        ("POD_UID", field(&pod["metadata"]["uid"])),
        ("LABEL", "env".into()),
        ("CPU_MILLIS", "250".into()),
        ("MEMORY_MI", "32".into()),
        ("JOINED", "plain/node".into()),
        ("ESCAPED", "$(PLAIN)".into()),
        ("EARLY", "$(LATE)".into()),
        ("LATE", "late".into()),
        ("EMPTY", String::new()),
        ("IMAGE_ENV", "image".into()),
    ] {
        let line = format!("{name}={value}");
        ensure!(text.lines().any(|l| l == line), "no line {line:?} in:\n{text}");
    }
    // The shell runs `$(PLAIN)` and `$(NONE)` as commands: both print an error to stderr.
    ensure!(text.lines().any(|l| l == "args plain"), "{text}");
    ensure!(!text.contains("KUBERNETES_"), "a static pod knows of no services:\n{text}");
    ensure!(pod["status"]["podIP"].is_string() && pod["status"]["hostIP"].is_string(), "no addresses");
    Ok(())
}

fn commands() -> Value {
    let container = |name: &str, command: Value, args: Value| json!({"name": name, "image": image::ENTRYPOINT, "command": command, "args": args});
    let mut moved = container("moved", json!(["pwd"]), json!([]));
    moved["workingDir"] = json!("/var/www");
    json!({"restartPolicy": "Never", "containers": [
        container("neither", json!([]), json!([])),
        container("args", json!([]), json!(["a", "b"])),
        container("command", json!(["/bin/echo", "mine"]), json!([])),
        container("both", json!(["/bin/echo", "mine"]), json!(["a"])),
        container("stayed", json!(["pwd"]), json!([])),
        moved,
    ]})
}

fn commands_are_right(node: &TestNode, pod: &Value) -> Result<()> {
    for (name, words) in [
        ("neither", "entrypoint default command"),
        ("args", "entrypoint a b"),
        ("command", "mine"),
        ("both", "mine a"),
        ("stayed", "/tmp"),
        ("moved", "/var/www"),
    ] {
        let text = read_output_of(node, pod, name, 0)?;
        ensure!(text.trim() == words, "{name} output {text:?}");
    }
    Ok(())
}

fn names() -> Value {
    let c = sh("c", "hostname; cat /etc/hosts; echo --; cat /etc/resolv.conf");
    with(
        c,
        json!({"hostname": "host", "subdomain": "sub", "setHostnameAsFQDN": true,
            "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["seven.test", "seven"]}]}),
    )
}

fn names_are_right(node: &TestNode, pod: &Value) -> Result<()> {
    let text = read_output(node, pod)?;
    let full = "host.sub.default.svc.cluster.test";
    ensure!(text.lines().next() == Some(full), "{text}");
    let ip = pod["status"]["podIP"].as_str().context("no address")?;
    for line in [&format!("{ip}\t{full}\thost"), "192.0.2.7\tseven.test\tseven", "# Kubernetes-managed hosts file."] {
        ensure!(text.lines().any(|l| l == line), "no line {line:?} in:\n{text}");
    }
    // ClusterFirst is the default.
    let search = "search default.svc.cluster.test svc.cluster.test cluster.test node.test";
    for line in ["nameserver 10.96.0.10", search, "options ndots:5"] {
        ensure!(text.lines().any(|l| l == line), "no line {line:?} in:\n{text}");
    }
    Ok(())
}

fn dns_none() -> Value {
    with(
        sh("c", "hostname; cat /etc/resolv.conf"),
        json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["own.test"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}}),
    )
}

fn dns_none_is_right(node: &TestNode, pod: &Value) -> Result<()> {
    let text = read_output(node, pod)?;
    let lines: Vec<&str> = text.lines().collect();
    let wanted = ["dns-none-node", "search own.test", "nameserver 192.0.2.53", "options ndots:2 edns0"];
    ensure!(lines == wanted, "{text}");
    Ok(())
}

fn dns_default_is_right(node: &TestNode, pod: &Value) -> Result<()> {
    let text = read_output(node, pod)?;
    ensure!(text.contains("nameserver 127.0.0.1") && text.contains("search node.test"), "{text}");
    ensure!(!text.contains("cluster.test"), "{text}");
    Ok(())
}

const NAMESPACES: &str = "for ns in net pid ipc uts; do echo $ns $(readlink /proc/self/ns/$ns); done; hostname";

fn on_host() -> Value {
    with(sh("c", NAMESPACES), json!({"hostNetwork": true, "hostPID": true, "hostIPC": true}))
}

fn on_host_is_right(node: &TestNode, pod: &Value) -> Result<()> {
    let text = read_output(node, pod)?;
    for ns in ["net", "pid", "ipc"] {
        let own = fs::read_link(format!("/proc/self/ns/{ns}"))?;
        let line = format!("{ns} {}", own.display());
        ensure!(text.lines().any(|l| l == line), "no line {line:?} in:\n{text}");
    }
    ensure!(pod["status"]["podIP"] == pod["status"]["hostIP"], "{:#}", pod["status"]);
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname")?;
    ensure!(text.lines().last() == Some(hostname.trim()), "{text}");
    Ok(())
}

fn shared_pids() -> Value {
    let mut spec = with(sh("c", &format!("{NAMESPACES}; cat /proc/1/comm")), json!({"shareProcessNamespace": true}));
    spec["containers"].as_array_mut().expect("a list").push(sh("d", NAMESPACES));
    spec
}

fn shared_pids_are_right(node: &TestNode, pod: &Value) -> Result<()> {
    let (c, d) = (read_output_of(node, pod, "c", 0)?, read_output_of(node, pod, "d", 0)?);
    let line = |text: &str, ns: &str| text.lines().find(|l| l.starts_with(ns)).unwrap_or_default().to_owned();
    for ns in ["pid", "net", "ipc"] {
        let own = fs::read_link(format!("/proc/self/ns/{ns}"))?;
        ensure!(line(&c, ns) == line(&d, ns) && !line(&c, ns).is_empty(), "{ns} is not shared:\n{c}\n{d}");
        ensure!(!line(&c, ns).contains(&own.display().to_string()), "{ns} is the host's:\n{c}");
    }
    ensure!(c.lines().last() == Some("pause"), "{c}");
    Ok(())
}

fn web(port: u16) -> Value {
    let mut c = sh("c", "echo the page > /var/www/index.html; exec httpd -f -p 8080 -h /var/www");
    c["ports"] = json!([{"containerPort": 8080, "hostPort": port}]);
    one(&c)
}

fn termination_messages() -> Value {
    let mut elsewhere = sh("elsewhere", "echo from a file > /tmp/words; exit 3");
    elsewhere["terminationMessagePath"] = json!("/tmp/words");
    let mut fallback = sh("fallback", "echo first; echo from the log; exit 4");
    fallback["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    let mut well = sh("well", "echo no error, no words; exit 0");
    well["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    json!({"restartPolicy": "Never", "containers": [elsewhere, fallback, well]})
}

fn termination_messages_are_right(_: &TestNode, pod: &Value) -> Result<()> {
    for (name, words) in
        [("elsewhere", json!("from a file\n")), ("fallback", json!("first\nfrom the log\n")), ("well", Value::Null)]
    {
        let ended = &container(pod, name)["state"]["terminated"];
        ensure!(ended["message"] == words, "{name}: {ended:#}");
    }
    Ok(())
}

/// A line that the runtime has to split, one on stderr, one without a line feed.
const LOUD: &str = "head -c 20000 /dev/zero | tr '\\0' x; echo; echo to the other >&2; printf unfinished";

fn logs_are_right(node: &TestNode, pod: &Value) -> Result<()> {
    let text = |at: &Value| at.as_str().unwrap_or("missing").to_owned();
    let (name, uid) = (text(&pod["metadata"]["name"]), text(&pod["metadata"]["uid"]));
    let file = node.scratch.pod_logs()?.join(format!("default_{name}_{uid}/c/0.log"));
    let id = container_id(container(pod, "c"));
    let link = node.scratch.log_links()?.join(format!("{name}_default_c-{id}.log"));
    ensure!(fs::read_link(&link).with_context(|| link.display().to_string())? == file, "the link leads elsewhere");
    let raw = fs::read_to_string(&file)?;
    let mut tags = vec![];
    for line in raw.lines() {
        let mut words = line.splitn(4, ' ');
        let (time, stream, tag, _) = (words.next(), words.next(), words.next(), words.next());
        let time = time.context("no time")?;
        ensure!(time.len() > 20 && time.contains('T'), "{time}");
        tags.push(format!("{} {}", stream.unwrap_or_default(), tag.unwrap_or_default()));
    }
    tags.sort();
    ensure!(
        tags == ["stderr F", "stdout F", "stdout F", "stdout P"]
            || tags == ["stderr F", "stdout F", "stdout P", "stdout P"],
        "{tags:?}"
    );
    let whole = read_output(node, pod)?;
    let longest = whole.lines().map(str::len).max();
    ensure!(longest == Some(20000) && whole.contains("to the other") && whole.contains("unfinished"), "{longest:?}");
    Ok(())
}

fn known() -> Value {
    let mut c = sleeper("c");
    c["lifecycle"] = json!({"preStop": {"exec": {"command": ["true"]}}});
    c["ports"] = json!([{"name": "web", "containerPort": 80}]);
    one(&c)
}

fn runtime_objects_have_the_kubelets_names(node: &TestNode, pod: &Value) {
    let uid = pod["metadata"]["uid"].as_str().expect("a uid");
    let (sandboxes, containers) = cri::of_pod(node, uid);
    let (sandbox, c) = (sandboxes.first().expect("a sandbox"), containers.first().expect("a container"));
    assert_eq!((sandboxes.len(), containers.len()), (1, 1));
    for (key, value) in [(labels::POD_NAME, "known-node"), (labels::POD_NAMESPACE, "default"), (labels::POD_UID, uid)] {
        assert_eq!(sandbox.labels.get(key).map(String::as_str), Some(value), "{key}");
        assert_eq!(c.labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert_eq!(sandbox.labels.get("app").map(String::as_str), Some("known"), "the pod's own labels");
    assert_eq!(c.labels.get(labels::CONTAINER_NAME).map(String::as_str), Some("c"));
    assert_eq!(sandbox.annotations.get("kubernetes.io/config.source").map(String::as_str), Some("file"));
    assert!(sandbox.annotations.contains_key("kubernetes.io/config.hash"), "{:?}", sandbox.annotations);
    assert!(sandbox.annotations.contains_key("kubernetes.io/config.seen"), "{:?}", sandbox.annotations);
    let spec = serde_json::from_value(pod["spec"]["containers"][0].clone()).expect("a container");
    assert_eq!(annotation(c, labels::CONTAINER_HASH), podwright_core::hash::container_hash(&spec));
    assert_eq!(annotation(c, labels::RESTART_COUNT), "0");
    assert_eq!(annotation(c, labels::TERMINATION_MESSAGE_PATH), "/dev/termination-log");
    assert_eq!(annotation(c, labels::TERMINATION_MESSAGE_POLICY), "File");
    assert_eq!(annotation(c, labels::POD_TERMINATION_GRACE_PERIOD), "2");
    let json: Value = serde_json::from_str(&annotation(c, labels::PRE_STOP_HANDLER)).expect("JSON");
    assert_eq!(json, json!({"exec": {"command": ["true"]}}));
    let json: Value = serde_json::from_str(&annotation(c, labels::CONTAINER_PORTS)).expect("JSON");
    assert_eq!(json, json!([{"name": "web", "containerPort": 80, "protocol": "TCP"}]));
    assert_eq!(condition(pod, "PodReadyToStartContainers")["status"], "True");
    let described = cri::described(&node.runtime.socket(), uid);
    assert_eq!(described.sandbox.labels[labels::POD_UID], uid);
    let logs = node.scratch.pod_logs().expect("there").join(format!("default_known-node_{uid}"));
    assert_eq!(described.config["log_directory"], logs.display().to_string());
    assert_eq!(described.containers[0].log_path, logs.join("c/0.log").display().to_string());
    let cgroup = described.config["linux"]["cgroup_parent"].as_str().expect("a cgroup");
    assert!(cgroup.ends_with(&format!("/kubepods/besteffort/pod{uid}")), "{cgroup}");
}

fn unknown_fields_are_named(node: &TestNode) {
    let mut spec = one(&sleeper("c"));
    spec["containers"][0]["livenessprobe"] = json!({});
    spec["nodeNam"] = json!("x");
    node.put("unknown", &spec);
    node.wait_phase("unknown", "Running");
    let log = node.agent.log();
    for field in ["spec.containers[0].livenessprobe", "spec.nodeNam"] {
        assert!(log.lines().any(|l| l.contains("unknown.json") && l.contains(field)), "{field} is not named");
    }
}
