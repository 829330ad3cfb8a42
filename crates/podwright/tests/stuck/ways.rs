//! Pods that can't run, each for another reason, and the texts that `explain` must begin with.

use podwright_testbed::image;
use serde_json::{Value, json};

use super::registry::FailingRegistry;

/// A pod that is stuck.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) spec: Value,
    /// Parts of the first line.
    pub(crate) cause: &'static [&'static str],
    /// A part of the second and third line.
    pub(crate) remedy: &'static str,
    /// Its container is started again and again: each moment of the loop must name the cause.
    pub(crate) is_loop: bool,
}

pub(crate) fn sh(name: &str, script: &str) -> Value {
    json!({"name": name, "image": image::BUSYBOX, "command": ["sh", "-c", script]})
}

/// A container that runs until SIGTERM, with changed fields.
fn changed(fields: &Value) -> Value {
    let mut container = sh("c", "trap 'exit 0' TERM; while :; do sleep 0.1; done");
    fields.as_object().into_iter().flatten().for_each(|(field, value)| container[field] = value.clone());
    container
}

fn one(container: &Value) -> Value {
    json!({"terminationGracePeriodSeconds": 1, "containers": [container]})
}

/// A pod with one container that has these fields.
pub(crate) fn pod_of(fields: &Value) -> Value {
    one(&changed(fields))
}

/// A pod with more fields.
fn with(mut spec: Value, fields: &Value) -> Value {
    fields.as_object().into_iter().flatten().for_each(|(field, value)| spec[field] = value.clone());
    spec
}

fn way(name: &'static str, spec: Value, cause: &'static [&'static str], remedy: &'static str) -> Way {
    Way { name, spec, cause, remedy, is_loop: false }
}

fn looping(name: &'static str, spec: Value, cause: &'static [&'static str], remedy: &'static str) -> Way {
    Way { is_loop: true, ..way(name, spec, cause, remedy) }
}

/// Images.
pub(crate) fn images(registry: &FailingRegistry) -> Vec<Way> {
    let of = |image: &str| pod_of(&json!({"image": image}));
    vec![
        way(
            "pull-refused",
            of("127.0.0.1:1/no/such:1"),
            &["cannot start c: the image 127.0.0.1:1/no/such:1 cannot be pulled: Connection refused"],
            "This node cannot reach the registry",
        ),
        way(
            "pull-404",
            of(&registry.image("missing")),
            &["/missing/app:1 cannot be pulled", "404"],
            "no such image or tag",
        ),
        way(
            "pull-401",
            of(&registry.image("private")),
            &["/private/app:1 cannot be pulled", "401"],
            "refuses the credentials",
        ),
        way("pull-503", of(&registry.image("broken")), &["/broken/app:1 cannot be pulled", "503"], "registry"),
        way(
            "pull-hangs",
            of(&registry.image("silent")),
            &["is starting: the image", "/silent/app:1 is being pulled, for"],
            "Wait for the image pull",
        ),
        way(
            "never",
            pod_of(&json!({"image": "127.0.0.1:1/no/such:1", "imagePullPolicy": "Never"})),
            &["127.0.0.1:1/no/such:1 is not on this node, and imagePullPolicy is Never"],
            "set imagePullPolicy: IfNotPresent",
        ),
        way(
            "bad-reference",
            of("busybox:1:2"),
            &["\"busybox:1:2\" is not the name of an image"],
            "must look like registry/name:tag",
        ),
    ]
}

/// Commands, users and what runs when a container starts.
pub(crate) fn starts() -> Vec<Way> {
    let hook = |kind: &str, command: &[&str]| pod_of(&json!({"lifecycle": {kind: {"exec": {"command": command}}}}));
    vec![
        way(
            "missing-command",
            pod_of(&json!({"command": ["/no/such/command"]})),
            &["cannot start c", "/no/such/command"],
            "check that its command exists in the image",
        ),
        way(
            "not-executable",
            pod_of(&json!({"command": ["/etc/passwd"]})),
            &["cannot start c", "ermission denied"],
            "and is executable",
        ),
        way(
            "as-root",
            pod_of(&json!({"securityContext": {"runAsNonRoot": true}})),
            &["cannot start c", "runAsNonRoot"],
            "set runAsUser to another user",
        ),
        way(
            "seccomp-profile",
            pod_of(
                &json!({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "none.json"}}}),
            ),
            &["cannot start c", "none.json"],
            "security settings",
        ),
        looping(
            "post-start",
            hook("postStart", &["false"]),
            &["c is killed because its postStart hook fails"],
            "The postStart hook failed",
        ),
        way(
            "post-start-hangs",
            hook("postStart", &["sleep", "3600"]),
            &["is starting: c: its postStart hook runs"],
            "check that the hook terminates",
        ),
    ]
}

/// Probes.
pub(crate) fn probes() -> Vec<Way> {
    let refused = json!({"tcpSocket": {"port": 1}, "periodSeconds": 1, "failureThreshold": 1});
    let patient = json!({"tcpSocket": {"port": 1}, "periodSeconds": 1, "failureThreshold": 1000});
    let server = "httpd -f -p 8080 -h /tmp & wait";
    let page = json!({"httpGet": {"port": 8080, "path": "/none"}, "periodSeconds": 1});
    let mut missing = sh("c", server);
    missing["readinessProbe"] = page;
    let gated = with(pod_of(&json!({})), &json!({"readinessGates": [{"conditionType": "example.com/ready"}]}));
    vec![
        way(
            "readiness",
            pod_of(&json!({"readinessProbe": refused})),
            &["is running but not ready: c: Readiness probe failed", "onnection refused"],
            "Nothing listens where the probe connects",
        ),
        way(
            "readiness-404",
            one(&missing),
            &["is running but not ready: c: Readiness probe failed", "404"],
            "The server has no such path",
        ),
        way(
            "startup",
            pod_of(&json!({"startupProbe": patient})),
            &["is running but not ready: c: Startup probe failed"],
            "Nothing listens where the probe connects",
        ),
        looping(
            "startup-kills",
            pod_of(&json!({"startupProbe": refused})),
            &["c is killed by its startup probe", "onnection refused"],
            "Nothing listens where the probe connects",
        ),
        looping(
            "liveness",
            pod_of(&json!({"livenessProbe": refused})),
            &["c is killed by its liveness probe", "onnection refused"],
            "Nothing listens where the probe connects",
        ),
        way(
            "readiness-gate",
            gated,
            &["is running but not ready", "\"example.com/ready\" of its readiness gate"],
            "Another program must set this condition",
        ),
    ]
}

/// Containers that end.
pub(crate) fn ends() -> Vec<Way> {
    let memory = json!({"limits": {"memory": "16Mi"}});
    let mut greedy = sh("c", "sleep 1; tail /dev/zero");
    greedy["resources"] = memory;
    let init = |script: &str| json!({"terminationGracePeriodSeconds": 1, "initContainers": [sh("setup", script)], "containers": [sh("c", "true")]});
    let mut sidecar = init("sleep 1; exit 5");
    sidecar["initContainers"][0]["restartPolicy"] = json!("Always");
    sidecar["containers"] = json!([changed(&json!({}))]);
    let mut probed = sidecar.clone();
    probed["initContainers"][0]["command"] = json!(["sleep", "3600"]);
    probed["initContainers"][0]["livenessProbe"] =
        json!({"tcpSocket": {"port": 1}, "periodSeconds": 1, "failureThreshold": 1});
    let never = with(one(&sh("c", "exit 3")), &json!({"restartPolicy": "Never"}));
    let deadline = with(pod_of(&json!({})), &json!({"activeDeadlineSeconds": 1}));
    vec![
        looping(
            "crash",
            one(&sh("c", "echo no config; sleep 0.5; exit 7")),
            &["keeps crashing: c exited with 7"],
            "Check its log",
        ),
        looping("exits", one(&sh("c", "sleep 0.5")), &["keeps exiting: c exited with 0"], "stay in the foreground"),
        looping(
            "killed",
            one(&sh("c", "sleep 0.5; sh -c 'kill -9 $$$$'; exit $?")),
            &["keeps crashing: c exited with 137"],
            "Check its log",
        ),
        looping(
            "oom",
            one(&greedy),
            &["keeps crashing: c was killed because it used more memory than its limit (OOMKilled)"],
            "raise limits.memory",
        ),
        looping(
            "init-crash",
            init("echo no database; sleep 0.5; exit 3"),
            &["cannot initialize: init container setup exited with 3"],
            "Check the log of the init container",
        ),
        looping("sidecar-crash", sidecar, &["keeps crashing: sidecar setup exited with 5"], "Check its log"),
        looping(
            "sidecar-liveness",
            probed,
            &["keeps restarting: sidecar setup is killed by its liveness probe", "onnection refused"],
            "Nothing listens",
        ),
        way(
            "init-hangs",
            init("sleep 3600"),
            &["is starting: setup: init container 1 of 1 is running"],
            "Wait for the init container to complete",
        ),
        way(
            "fails-once",
            never,
            &["has failed: c exited with 3, and restartPolicy does not allow a restart"],
            "`podwright start` runs the pod once more",
        ),
        way("deadline", deadline, &["has failed: DeadlineExceeded"], "activeDeadlineSeconds"),
    ]
}

/// What the node has not, or not for this pod.
pub(crate) fn rejections() -> Vec<Way> {
    let requests = |resource: &str, amount: &str| {
        pod_of(&json!({"resources": {"requests": {resource: amount}, "limits": {resource: amount}}}))
    };
    let affinity = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]}}}});
    let pod = |fields: Value| with(pod_of(&json!({})), &fields);
    vec![
        way(
            "port-taken",
            pod_of(&json!({"ports": [{"containerPort": 80, "hostPort": 38081}]})),
            &["is rejected: NodePorts: host port 38081/TCP is used by pod default/port-owner-node"],
            "Another pod uses the same hostPort",
        ),
        way(
            "cpu",
            requests("cpu", "1000"),
            &["is rejected: OutOfcpu: it requests 1000 CPUs, and this node has only "],
            "Lower the request: the pod would not fit if it were the only one",
        ),
        way(
            "memory",
            requests("memory", "900Ti"),
            &["is rejected: OutOfmemory: it requests 900Ti memory, and this node has only "],
            "Lower the request: the pod would not fit if it were the only one",
        ),
        way(
            "node-selector",
            pod(json!({"nodeSelector": {"disk": "ssd"}})),
            &["is rejected: NodeAffinity: this node does not match the node selector disk=ssd"],
            "--node-labels",
        ),
        way("node-affinity", pod(affinity), &["is rejected: NodeAffinity"], "--node-labels"),
        way("windows", pod(json!({"os": {"name": "windows"}})), &["rejected: PodOSNotSupported"], "change"),
        way(
            "sysctl",
            pod(json!({"securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1024"}]}})),
            &["is rejected: SysctlForbidden", "net.core.somaxconn"],
            "allowedUnsafeSysctls",
        ),
        way(
            "gpu",
            requests("example.com/gpu", "1"),
            &["is rejected", "example.com/gpu"],
            "Nothing on this node provides this extended resource",
        ),
        way("runtime-class", pod(json!({"runtimeClassName": "no-such-class"})), &["no-such-class"], "runtimeClassName"),
    ]
}

/// Volumes. `hung`: a directory of a file system that hangs.
pub(crate) fn volumes(hung: &std::path::Path) -> Vec<Way> {
    let volume = |volume: Value| {
        let mut volume = volume;
        volume["name"] = json!("data");
        with(pod_of(&json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]})), &json!({"volumes": [volume]}))
    };
    let host = |path: &str, kind: &str| volume(json!({"hostPath": {"path": path, "type": kind}}));
    vec![
        way(
            "host-path",
            host("/no/such/place", "Directory"),
            &["cannot start: volume \"data\"", "/no/such/place"],
            "Check that the path exists",
        ),
        way(
            "host-path-type",
            host("/etc/passwd", "Directory"),
            &["cannot start: volume \"data\"", "/etc/passwd is not a directory"],
            "has the requested type",
        ),
        way(
            "nfs",
            volume(json!({"nfs": {"server": "nfs.example.com", "path": "/"}})),
            &["cannot start: volume \"data\"", "nfs is not supported"],
            "cannot mount volumes of this type, now or later",
        ),
        way(
            "hung-mount",
            host(&hung.display().to_string(), "Directory"),
            &["cannot start: volume \"data\": mount ", " hangs: "],
            "check its server or device",
        ),
    ]
}
