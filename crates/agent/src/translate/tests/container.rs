use futures::FutureExt;
use podwright_core::model::{ContainerId, ImageFacts};
use podwright_cri::v1::{ContainerConfig, MountPropagation, NamespaceMode};
use serde_json::{Value, json};

use super::*;
use crate::objects::fake::FakeObjects;
use crate::objects::{NoApiServer, ObjectClient};
use podwright_core::model::find_container;

mod security;

fn translate(spec: Value, image: &ImageFacts, situation: &Situation) -> Result<ContainerConfig, TranslateError> {
    translate_with(spec, image, situation, &NoApiServer)
}

fn translate_with(
    spec: Value,
    image: &ImageFacts,
    situation: &Situation,
    objects: &dyn ObjectClient,
) -> Result<ContainerConfig, TranslateError> {
    let (pod, ips) = (pod(spec), ["10.1.2.3".to_owned()]);
    let references = References::fetch(objects, &pod, "web").now_or_never();
    let references = &references.expect("the fake objects answer at once");
    let ask = ContainerRequest { name: "web", attempt: 3, image, ips: &ips, target: None, references };
    container_config(&pod, &ask, &settings(), situation, &TestHost)
}

fn image() -> ImageFacts {
    ImageFacts { id: "sha256:abc".into(), uid: Some(0), username: String::new() }
}

fn config(container: Value) -> ContainerConfig {
    config_in(container, json!({}))
}

/// The container `web` in a pod with this spec besides.
fn config_in(mut container: Value, mut spec: Value) -> ContainerConfig {
    container["name"] = json!("web");
    spec["containers"] = json!([container]);
    translate(spec, &image(), &Situation::default()).expect("translates")
}

fn refused(mut container: Value) -> String {
    container["name"] = json!("web");
    let error = translate(json!({"containers": [container]}), &image(), &Situation::default()).expect_err("is refused");
    assert_eq!(error.reason(), "CreateContainerConfigError");
    error.message()
}

#[test]
fn labels_and_annotations_are_the_kubelets() {
    let spec = json!({"terminationGracePeriodSeconds": 12, "containers": [{
        "name": "web", "image": "nginx",
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        "lifecycle": {"preStop": {"exec": {"command": ["sh"]}}},
        "ports": [{"containerPort": 80, "protocol": "TCP"}],
    }]});
    let config = translate(spec.clone(), &image(), &Situation::default()).unwrap();
    let labels: Vec<_> = config.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(
        labels,
        [
            "io.kubernetes.container.name=web",
            "io.kubernetes.pod.name=shop",
            "io.kubernetes.pod.namespace=default",
            "io.kubernetes.pod.uid=u-1"
        ]
    );
    let hash = podwright_core::hash::container_hash(&pod(spec).spec.unwrap().containers[0]);
    let annotations: Vec<_> = config.annotations.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(
        annotations,
        [
            format!("io.kubernetes.container.hash={hash}"),
            r#"io.kubernetes.container.ports=[{"containerPort":80,"protocol":"TCP"}]"#.into(),
            r#"io.kubernetes.container.preStopHandler={"exec":{"command":["sh"]}}"#.into(),
            "io.kubernetes.container.restartCount=3".into(),
            "io.kubernetes.container.terminationMessagePath=/dev/termination-log".into(),
            "io.kubernetes.container.terminationMessagePolicy=File".into(),
            "io.kubernetes.pod.terminationGracePeriod=12".into(),
        ]
    );
    let metadata = config.metadata.unwrap();
    assert_eq!((metadata.name.as_str(), metadata.attempt), ("web", 3));
    assert_eq!(config.log_path, "web/3.log");
    let spec = config.image.unwrap();
    assert_eq!((spec.image.as_str(), spec.user_specified_image.as_str()), ("sha256:abc", "nginx"));
}

#[test]
fn environment_and_command() {
    let config = config(json!({
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)-$(LATER)-$$(A)"},
            {"name": "LATER", "value": "x"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "OTHER", "valueFrom": {"resourceFieldRef": {"containerName": "db", "resource": "limits.cpu"}}},
            {"name": "EMPTY"},
            {"name": "A", "value": "2"},
        ],
        "command": ["run", "$(NAME)"], "args": ["$(A)", "$(NOPE)", "$$x"],
        "workingDir": "/srv", "stdin": true, "stdinOnce": true, "tty": true,
    }));
    let env: Vec<_> =
        config.envs.iter().map(|kv| format!("{}={}", kv.key, String::from_utf8_lossy(&kv.value))).collect();
    assert_eq!(
        env,
        [
            "A=2",
            "B=1-$(LATER)-$(A)",
            "LATER=x",
            "NAME=shop",
            "IP=10.1.2.3",
            "CPU=web:limits.cpu",
            "OTHER=db:limits.cpu",
            "EMPTY="
        ]
    );
    assert_eq!(config.command, ["run", "shop"]);
    assert_eq!(config.args, ["2", "$(NOPE)", "$x"]);
    assert_eq!(config.working_dir, "/srv");
    assert!(config.stdin && config.stdin_once && config.tty);
}

#[test]
fn an_environment_that_cannot_be_resolved_is_a_config_error() {
    let table = [
        (
            json!({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.nope"}}}]}),
            "X: unsupported fieldPath: metadata.nope",
        ),
        (
            json!({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
            "couldn't get secret default/s",
        ),
        (
            json!({"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": true}}}]}),
            "couldn't get configMap default/c",
        ),
        (json!({"envFrom": [{"secretRef": {"name": "s"}}]}), "couldn't get secret default/s"),
        (json!({"envFrom": [{"configMapRef": {"name": "c"}}]}), "couldn't get configMap default/c"),
        (json!({"env": [{"name": "X", "value": "a\u{0}b"}]}), "NUL"),
    ];
    for (container, expected) in table {
        let message = refused(container.clone());
        assert!(message.contains(expected), "{container}: {message}");
    }
}

fn objects() -> FakeObjects {
    let objects = FakeObjects::default();
    objects.put_config_map("c", json!({"data": {"A": "from c", "k": "v"}, "binaryData": {"raw": "AAE="}}));
    objects.put_secret("s", json!({"data": {"A": "ZnJvbSBz", "pass": "aHVudGVyMg==", "raw": "/w=="}}));
    let kubernetes = json!({"metadata": {"name": "kubernetes"},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "https", "port": 443}]}});
    objects.services.lock().unwrap().push(std::sync::Arc::new(serde_json::from_value(kubernetes).unwrap()));
    objects
}

fn environment(mut container: Value) -> Result<Vec<String>, String> {
    container["name"] = json!("web");
    let spec = json!({"containers": [container]});
    let config = translate_with(spec, &image(), &Situation::default(), &objects()).map_err(|error| {
        assert_eq!(error.reason(), "CreateContainerConfigError");
        error.message()
    })?;
    let all = config.envs.iter().map(|kv| format!("{}={}", kv.key, String::from_utf8_lossy(&kv.value)));
    Ok(all.filter(|var| !var.starts_with("KUBERNETES_PORT_443")).collect())
}

#[test]
fn objects_in_the_environment() {
    let env = environment(json!({
        "envFrom": [
            {"configMapRef": {"name": "c"}}, {"configMapRef": {"name": "none", "optional": true}},
            {"prefix": "P_", "configMapRef": {"name": "c"}},
        ],
        "env": [
            {"name": "PASS", "valueFrom": {"secretKeyRef": {"name": "s", "key": "pass"}}},
            {"name": "K", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {"name": "NO", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "no", "optional": true}}},
            {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "none", "key": "no", "optional": true}}},
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "A"}}},
            {"name": "URL", "value": "https://$(KUBERNETES_SERVICE_HOST)/$(k)"},
            {"name": "KUBERNETES_SERVICE_PORT", "value": "6443"},
        ],
    }));
    let expected = [
        "A=from s",
        "k=v",
        "P_A=from c",
        "P_k=v",
        "PASS=hunter2",
        "K=v",
        "URL=https://10.0.0.1/v",
        "KUBERNETES_SERVICE_PORT=6443",
        "KUBERNETES_SERVICE_HOST=10.0.0.1",
        "KUBERNETES_SERVICE_PORT_HTTPS=443",
        "KUBERNETES_PORT=tcp://10.0.0.1:443",
    ];
    assert_eq!(env.unwrap(), expected);
}

#[test]
fn missing_objects_and_keys_are_named_as_by_the_kubelet() {
    let key = |kind: &str, name: &str, key: &str| json!({"env": [{"name": "X", "valueFrom": {kind: {"name": name, "key": key}}}]});
    let table = [
        (key("configMapKeyRef", "none", "k"), "configmap \"none\" not found"),
        (key("secretKeyRef", "none", "k"), "secret \"none\" not found"),
        (key("configMapKeyRef", "c", "no"), "couldn't find key no in ConfigMap default/c"),
        (key("configMapKeyRef", "c", "raw"), "couldn't find key raw in ConfigMap default/c"),
        (key("secretKeyRef", "s", "no"), "couldn't find key no in Secret default/s"),
        (key("secretKeyRef", "s", "raw"), "the secret's key raw is not text"),
        (json!({"envFrom": [{"configMapRef": {"name": "none"}}]}), "configmap \"none\" not found"),
        (json!({"envFrom": [{"secretRef": {"name": "none"}}]}), "secret \"none\" not found"),
    ];
    for (container, expected) in table {
        assert_eq!(environment(container).unwrap_err(), expected);
    }
}

#[test]
fn mounts() {
    let spec = json!({"volumes": [{"name": "data", "emptyDir": {}}]});
    let config = config_in(
        json!({
            "terminationMessagePath": "dev/last",
            "env": [{"name": "DAY", "value": "mon"}],
            "volumeMounts": [
                {"name": "data", "mountPath": "/data"},
                {"name": "data", "mountPath": "ro", "readOnly": true, "mountPropagation": "HostToContainer"},
                {"name": "data", "mountPath": "/sub", "subPath": "a/b", "mountPropagation": "Bidirectional"},
                {"name": "data", "mountPath": "/day", "subPathExpr": "$(DAY)"},
                {"name": "data", "mountPath": "/deep", "readOnly": true, "recursiveReadOnly": "IfPossible"},
            ],
        }),
        spec.clone(),
    );
    let mounts: Vec<_> = config
        .mounts
        .iter()
        .map(|m| (m.container_path.as_str(), m.host_path.as_str(), m.readonly, m.propagation(), m.recursive_read_only))
        .collect();
    use MountPropagation::*;
    assert_eq!(
        mounts,
        [
            ("/data", "/host/volumes/data", false, PropagationPrivate, false),
            ("/ro", "/host/volumes/data", true, PropagationHostToContainer, false),
            ("/sub", "/host/subpaths/data/web/2/a/b", false, PropagationBidirectional, false),
            ("/day", "/host/subpaths/data/web/3/mon", false, PropagationPrivate, false),
            ("/deep", "/host/volumes/data", true, PropagationPrivate, false),
            ("/etc/hosts", "/host/etc-hosts", false, PropagationPrivate, false),
            ("/dev/last", "/host/containers/web/3", false, PropagationPrivate, false),
        ]
    );
    let own_hosts = config_in(json!({"volumeMounts": [{"name": "data", "mountPath": "/etc/hosts"}]}), spec);
    assert_eq!(own_hosts.mounts.len(), 1, "the pod's own /etc/hosts wins");
}

#[test]
fn invalid_mounts_are_refused() {
    let table = [
        (json!({"name": "nope", "mountPath": "/x"}), "the pod has no volume"),
        (json!({"name": "data", "mountPath": "/x", "subPath": "/abs"}), "must not be an absolute path"),
        (json!({"name": "data", "mountPath": "/x", "subPath": "a/../../b"}), "must not contain '..'"),
        (json!({"name": "data", "mountPath": "/x", "subPathExpr": "$(NOPE)"}), "missing value for NOPE"),
        (json!({"name": "data", "mountPath": "/x", "mountPropagation": "Odd"}), "invalid MountPropagation"),
        (json!({"name": "data", "mountPath": "/x", "recursiveReadOnly": "Enabled"}), "is not read-only"),
        (
            json!({"name": "data", "mountPath": "/x", "readOnly": true, "recursiveReadOnly": "Enabled"}),
            "not supported by the runtime",
        ),
    ];
    for (mount, expected) in table {
        let spec = json!({"volumes": [{"name": "data", "emptyDir": {}}],
            "containers": [{"name": "web", "volumeMounts": [mount]}]});
        let error = translate(spec, &image(), &Situation::default()).expect_err("is refused");
        assert!(error.message().contains(expected), "{mount}: {}", error.message());
    }
}

#[test]
fn recursive_read_only_where_the_runtime_has_it() {
    let features = RuntimeFeatures { recursive_read_only: true, ..Default::default() };
    let situation = Situation { features, ..Default::default() };
    for mode in ["IfPossible", "Enabled"] {
        let spec = json!({"volumes": [{"name": "data", "emptyDir": {}}], "containers": [{"name": "web",
            "volumeMounts": [{"name": "data", "mountPath": "/x", "readOnly": true, "recursiveReadOnly": mode}]}]});
        assert!(translate(spec, &image(), &situation).unwrap().mounts[0].recursive_read_only, "{mode}");
    }
}

#[test]
fn resources_of_a_container() {
    let resources = |container: Value| config(container).linux.unwrap().resources.unwrap();
    let limited = resources(json!({"resources":
        {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"cpu": "500m", "memory": "2Gi"}}}));
    assert_eq!((limited.cpu_shares, limited.cpu_quota, limited.cpu_period), (256, 50_000, 100_000));
    assert_eq!(limited.memory_limit_in_bytes, 2 << 30);
    assert_eq!(limited.oom_score_adj, 875);
    let free = resources(json!({}));
    assert_eq!((free.cpu_shares, free.cpu_quota, free.memory_limit_in_bytes, free.oom_score_adj), (2, 0, 0, 1000));
    assert!(free.unified.is_empty() && free.hugepage_limits.is_empty());
}

#[test]
fn only_our_own_files_get_a_label() {
    let mounts = ["e", "h", "c", "s", "d", "p"].map(|v| json!({"name": v, "mountPath": format!("/{v}")}));
    let spec = json!({
        "volumes": [{"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/h"}}, {"name": "c", "configMap": {"name": "c"}},
            {"name": "s", "secret": {"secretName": "s"}}, {"name": "d", "downwardAPI": {}}, {"name": "p", "projected": {}}],
        "containers": [{"name": "web", "terminationMessagePath": "/dev/termination-log",
            "volumeMounts": mounts}],
    });
    let (pod, image) = (pod(spec), image());
    let references = References::default();
    let ips = ["10.0.0.5".to_owned()];
    let ask =
        ContainerRequest { name: "web", attempt: 0, image: &image, ips: &ips, target: None, references: &references };
    let labelled = |selinux: bool| -> Vec<String> {
        let node = NodeSettings { selinux, ..settings() };
        let config = container_config(&pod, &ask, &node, &Situation::default(), &TestHost).unwrap();
        config.mounts.into_iter().filter(|m| m.selinux_relabel).map(|m| m.container_path).collect()
    };
    assert_eq!(labelled(true), ["/e", "/c", "/s", "/d", "/p", "/etc/hosts", "/dev/termination-log"]);
    assert!(labelled(false).is_empty());
}

#[test]
fn containers_get_no_swap_where_it_can_be_limited() {
    let pod = pod(json!({"containers": [{"name": "web", "resources": {"limits": {"memory": "64Mi"}}}]}));
    let container = &pod.spec.as_ref().unwrap().containers[0];
    for (v2, limits, both, max) in
        [(false, false, 0, None), (false, true, 64 << 20, None), (true, false, 0, None), (true, true, 0, Some("0"))]
    {
        let node = NodeSettings { cgroup_v2: v2, swap_limits: limits, ..settings() };
        let resources = crate::translate::resources::container_resources(&pod, container, &node);
        assert_eq!(resources.memory_swap_limit_in_bytes, both, "v2: {v2}, {limits}");
        assert_eq!(resources.unified.get("memory.swap.max").map(String::as_str), max, "v2: {v2}, {limits}");
    }
}

#[test]
fn resources_depend_on_the_node() {
    let node = NodeSettings {
        cgroup_v2: true,
        cpu_cfs_period_us: 50_000,
        hugepage_sizes: vec![2 << 20, 1 << 30],
        ..settings()
    };
    let pod = pod(json!({"containers": [{"name": "web", "resources": {
        "limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}, "requests": {"hugepages-2Mi": "4Mi"}}}]}));
    let image = image();
    let ask = ContainerRequest {
        name: "web",
        attempt: 0,
        image: &image,
        ips: &[],
        target: None,
        references: &References::default(),
    };
    let translated = |node: &NodeSettings| {
        let config = container_config(&pod, &ask, node, &Situation::default(), &TestHost).unwrap();
        config.linux.unwrap().resources.unwrap()
    };
    let resources = translated(&node);
    assert_eq!((resources.cpu_quota, resources.cpu_period), (50_000, 50_000));
    assert_eq!(resources.unified["memory.oom.group"], "1");
    let pages: Vec<_> = resources.hugepage_limits.iter().map(|l| (l.page_size.as_str(), l.limit)).collect();
    assert_eq!(pages, [("2MB", 4 << 20), ("1GB", 0)]);
    let unenforced = translated(&NodeSettings { cpu_cfs_quota: false, single_process_oom_kill: true, ..node });
    assert_eq!((unenforced.cpu_quota, unenforced.cpu_period, unenforced.unified.len()), (0, 0, 0));
}

#[test]
fn stop_signals() {
    let signal = |name: &str| config(json!({"lifecycle": {"stopSignal": name}})).stop_signal;
    assert_eq!((signal("SIGUSR1"), signal("SIGRTMIN+3"), signal("SIGRTMAX-2")), (29, 38, 63));
    assert_eq!(config(json!({})).stop_signal, 0);
    assert!(refused(json!({"lifecycle": {"stopSignal": "SIGNOPE"}})).contains("SIGNOPE"));
}

#[test]
fn init_and_ephemeral_containers_are_containers_too() {
    let spec = json!({
        "containers": [{"name": "app"}], "initContainers": [{"name": "setup", "image": "i"}],
        "ephemeralContainers": [{"name": "debug", "image": "e", "targetContainerName": "app", "command": ["sh"]}],
    });
    let pod = pod(spec);
    let image = image();
    let target = ContainerId::from("c-1");
    let ask = ContainerRequest {
        name: "debug",
        attempt: 0,
        image: &image,
        ips: &[],
        target: Some(&target),
        references: &References::default(),
    };
    let config = container_config(&pod, &ask, &settings(), &Situation::default(), &TestHost).unwrap();
    let namespaces = config.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
    assert_eq!((namespaces.pid(), namespaces.target_id.as_str()), (NamespaceMode::Target, "c-1"));
    assert_eq!(config.command, ["sh"]);
    assert_eq!(find_container(&pod, "debug").unwrap().target, Some("app"));
    assert_eq!(find_container(&pod, "setup").unwrap().container.image.as_deref(), Some("i"));
    let unknown = ContainerRequest { name: "nope", ..ask };
    assert!(container_config(&pod, &unknown, &settings(), &Situation::default(), &TestHost).is_err());
}

#[test]
fn an_environment_that_grows_exponentially_is_refused_with_the_name_of_the_variable() {
    let mut env = vec![json!({"name": "V0", "value": "x".repeat(10)})];
    for n in 1..=10 {
        env.push(json!({"name": format!("V{n}"), "value": format!("$(V{})", n - 1).repeat(10)}));
    }
    assert_eq!(
        refused(json!({"env": env})),
        "environment variable V5: the environment expands to more than 1048576 bytes"
    );
    let half = [json!({"name": "A", "value": "x".repeat(1 << 19)})];
    let twice = [&half[..], &[json!({"name": "B", "value": "$(A)"})]].concat();
    assert!(refused(json!({"env": twice})).starts_with("environment variable B: "));
    let message = refused(json!({"env": half, "command": ["run"], "args": ["$(A)", "$(A)", "$(A)"]}));
    assert_eq!(message, "args[1]: the command expands to more than 1048576 bytes");
    // A value that is replaced does not count.
    let again = vec![half[0].clone(); 5];
    assert_eq!(config(json!({"env": again, "args": ["$(A)"]})).envs.len(), 1);
}

#[test]
fn a_large_environment_takes_linear_time() {
    let began = std::time::Instant::now();
    let env: Vec<Value> = (0..80_000).map(|n| json!({"name": format!("V{n}"), "value": "$(V0)"})).collect();
    assert_eq!(config(json!({"env": env})).envs.len(), 80_000);
    assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
}
