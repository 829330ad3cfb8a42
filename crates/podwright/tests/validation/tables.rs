//! Paths and values. The API server decides which of them are valid.

/// Paths and the values written there.
pub(crate) type Table = &'static [(&'static str, &'static str)];

/// All tables.
pub(crate) const ALL: &[Table] =
    &[METADATA, SPEC, CONTAINER, ENVIRONMENT, HANDLERS, RESOURCES, SECURITY, VOLUMES, SCHEDULING];

const METADATA: Table = &[
    (
        "meta/name",
        r#"["a", "a.b", "a-b.c-1", "0", "A", "a_b", "-a", "a-", "a..b", ".a", "", "ü", "a b",
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]"#,
    ),
    (
        "meta/labels",
        r#"[{"a": "b"}, {"a.b/c": "D_e.f-1"}, {"a": ""}, {"a/b/c": "x"}, {"": "x"}, {"-a": "x"}, {"a": "b c"}, {"a": "-b"},
        {"A.b/c": "x"}, {"a": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}, {"a": 1}]"#,
    ),
    (
        "meta/annotations",
        r#"[{"a": "any text, at all"}, {"A.B/c": "x"}, {"a/b/c": "x"}, {"": "x"}, {"a b": "x"}, {"a": true}]"#,
    ),
    ("meta/namespace", r#"["x", "X", "other"]"#),
    ("meta/finalizers", r#"[["a.b/c"], ["a"], ["a b/c"], ["/"]]"#),
    ("meta/generateName", r#"["p-"]"#),
];

const SPEC: Table = &[
    ("spec", "[{}]"),
    (
        "spec/containers",
        r#"[[], null, {}, [{"name": "c"}], [{"image": "i"}], [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]]"#,
    ),
    ("spec/restartPolicy", r#"["Always", "OnFailure", "Never", "", "always", "Sometimes", 1]"#),
    ("spec/terminationGracePeriodSeconds", r#"[0, 1, 30, 86400, -1, "1", 1.5, null]"#),
    ("spec/activeDeadlineSeconds", "[1, 100, 2147483647, 0, -1, 2147483648]"),
    ("spec/dnsPolicy", r#"["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None", "", "x"]"#),
    (
        "spec",
        r#"[{"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.1"]}}, {"dnsPolicy": "None", "dnsConfig": {"searches": ["a"]}}]"#,
    ),
    (
        "dns",
        r#"[{}, {"nameservers": ["10.0.0.1", "fd00::1"]}, {"nameservers": ["a"]}, {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]},
        {"nameservers": ["010.0.0.1"]}, {"nameservers": ["::ffff:10.0.0.1"]},
        {"searches": ["a.b", "a.b."]}, {"searches": ["."]}, {"searches": ["a_b.c"]}, {"searches": ["_a.b"]}, {"searches": ["A"]}, {"searches": [""]}, {"searches": ["-a"]},
        {"options": [{"name": "ndots", "value": "2"}]}, {"options": [{"name": "edns0"}]}, {"options": [{"value": "2"}]}, {"options": [{"name": ""}]}]"#,
    ),
    (
        "spec/hostname",
        r#"["h", "h-1", "H", "a.b", "-h", "", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]"#,
    ),
    ("spec/subdomain", r#"["s", "S", "a.b", "", "-"]"#),
    ("spec/hostnameOverride", r#"["h", "a.b", "A", ""]"#),
    (
        "spec",
        r#"[{"hostnameOverride": "h", "hostNetwork": true}, {"hostnameOverride": "h", "setHostnameAsFQDN": true}]"#,
    ),
    ("spec/setHostnameAsFQDN", "[true, false]"),
    ("spec/shareProcessNamespace", "[true, false]"),
    ("spec/hostPID", "[true, false]"),
    ("spec/hostIPC", "[true, \"true\"]"),
    ("spec/hostUsers", "[true, false]"),
    (
        "spec",
        r#"[{"hostPID": true, "shareProcessNamespace": true}, {"hostUsers": false, "hostNetwork": true}, {"hostUsers": false, "hostPID": true},
        {"hostUsers": false, "hostIPC": true}, {"hostUsers": true, "hostNetwork": true},
        {"hostUsers": false, "containers": [{"name": "c", "image": "i", "volumeDevices": [{"name": "v", "devicePath": "/d"}]}], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}]"#,
    ),
    ("spec/hostNetwork", "[true, false]"),
    (
        "spec",
        r#"[{"hostNetwork": true, "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]},
        {"hostNetwork": true, "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 81}]}]},
        {"hostNetwork": true, "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}, {"name": "d", "image": "i", "ports": [{"containerPort": 80}]}]}]"#,
    ),
    ("spec/nodeName", r#"["n", "a.b", "N", "a_b"]"#),
    ("spec/nodeSelector", r#"[{"a": "b"}, {"a b": "c"}, {"a": "b c"}, {"a/b": ""}]"#),
    ("spec/serviceAccountName", r#"["builder", "Builder", "a_b", "default"]"#),
    ("spec/serviceAccount", r#"["builder"]"#),
    ("spec/automountServiceAccountToken", "[true, false]"),
    ("spec/enableServiceLinks", "[true, false]"),
    ("spec/imagePullSecrets", r#"[[{"name": "s"}], [{}], [{"name": ""}], []]"#),
    ("spec/schedulerName", r#"["s", "", "S b"]"#),
    ("spec/priorityClassName", r#"["system-node-critical", "system-cluster-critical"]"#),
    ("spec/preemptionPolicy", r#"["PreemptLowerPriority", "Maybe"]"#),
    ("spec/runtimeClassName", r#"["rc", "R C"]"#),
    ("spec/overhead", r#"[{"cpu": "1"}]"#),
    ("spec/os", r#"[{"name": "linux"}, {"name": "windows"}, {"name": "plan9"}, {"name": ""}]"#),
    (
        "spec",
        r#"[{"os": {"name": "windows"}, "hostPID": true}, {"os": {"name": "windows"}, "securityContext": {"runAsUser": 1}}, {"os": {"name": "windows"}, "shareProcessNamespace": true}]"#,
    ),
    (
        "spec/readinessGates",
        r#"[[{"conditionType": "a.b/c"}], [{"conditionType": "x"}], [{"conditionType": "a b"}], [{}], [{"conditionType": ""}]]"#,
    ),
    (
        "spec/schedulingGates",
        r#"[[{"name": "a.b/c"}], [{"name": "a"}, {"name": "a"}], [{"name": "a b"}], [{"name": ""}]]"#,
    ),
    ("spec", r#"[{"schedulingGates": [{"name": "g"}], "nodeName": "n"}]"#),
    ("spec/ephemeralContainers", r#"[[{"name": "e", "image": "i"}], []]"#),
    (
        "alias",
        r#"[{}, {"ip": "fd00::1"}, {"ip": ""}, {"ip": "x"}, {"ip": "010.1.1.1"}, {"ip": "::ffff:10.0.0.1"}, {"hostnames": []}, {"hostnames": ["a.b", "c"]}, {"hostnames": ["A"]}, {"hostnames": ["a_b"]}, {"hostnames": [""]}]"#,
    ),
    (
        "spec/resourceClaims",
        r#"[[{"name": "r", "resourceClaimName": "c"}], [{"name": "r"}], [{"name": "r", "resourceClaimName": "c", "resourceClaimTemplateName": "t"}],
        [{"name": "R", "resourceClaimName": "c"}], [{"name": "r", "resourceClaimName": "C"}], [{"name": "r", "resourceClaimName": "c"}, {"name": "r", "resourceClaimName": "d"}]]"#,
    ),
    (
        "spec",
        r#"[{"resourceClaims": [{"name": "r", "resourceClaimName": "c"}], "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "r"}]}}]},
        {"containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "r"}]}}]},
        {"resourceClaims": [{"name": "r", "resourceClaimName": "c"}], "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "r"}, {"name": "r"}]}}]}]"#,
    ),
];

const CONTAINER: Table = &[
    (
        "c/name",
        r#"["c", "c-1", "C", "c_1", "a.b", "", "-c", null, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]"#,
    ),
    (
        "c/image",
        r#"["i", "i:latest", "i:1", "r.io/a/b:1", "r.io:5000/a/b", "i@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "i:1@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "I:1", "", " i", "i ", "i b", null]"#,
    ),
    ("c/imagePullPolicy", r#"["Always", "IfNotPresent", "Never", "", "always"]"#),
    ("c/command", r#"[["a", "b"], [], [""], "a"]"#),
    ("c/args", r#"[["a"], null]"#),
    ("c/workingDir", r#"["/w", "w", "../w", ""]"#),
    ("c/tty", "[true]"),
    ("c/stdin", "[true, 1]"),
    ("c/stdinOnce", "[true]"),
    ("c/terminationMessagePath", r#"["/t", "t", ""]"#),
    ("c/terminationMessagePolicy", r#"["File", "FallbackToLogsOnError", "", "x"]"#),
    ("c/restartPolicy", r#"["Always", "Never", "OnFailure", "x", ""]"#),
    (
        "c",
        r#"[{"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1, 2]}}]},
        {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [1]}}]},
        {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In"}}]},
        {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1, 1]}}]},
        {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "x", "values": [1]}}]},
        {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Stop", "exitCodes": {"operator": "In", "values": [1]}}]},
        {"restartPolicy": "Never", "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]},
        {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]},
        {"restartPolicy": "Never", "restartPolicyRules": [{"exitCodes": {"operator": "In", "values": [1]}}]},
        {"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}]"#,
    ),
    (
        "c/resizePolicy",
        r#"[[{"resourceName": "cpu", "restartPolicy": "NotRequired"}], [{"resourceName": "memory", "restartPolicy": "RestartContainer"}], [{"resourceName": "x", "restartPolicy": "NotRequired"}],
        [{"resourceName": "cpu", "restartPolicy": "x"}], [{"resourceName": "cpu"}], [{"resourceName": "cpu", "restartPolicy": "NotRequired"}, {"resourceName": "cpu", "restartPolicy": "NotRequired"}]]"#,
    ),
    ("second", r#"[{}, {"name": "c"}, {"name": "init"}]"#),
    (
        "init",
        r#"[{}, {"name": "c"}, {"image": ""}, {"restartPolicy": "Always"}, {"restartPolicy": "Never"}, {"restartPolicy": "OnFailure"}, {"restartPolicy": "x"}, {"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}},
        {"livenessProbe": {"tcpSocket": {"port": 1}}}, {"readinessProbe": {"tcpSocket": {"port": 1}}}, {"startupProbe": {"tcpSocket": {"port": 1}}}, {"ports": [{"containerPort": 80, "hostPort": 80}]},
        {"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}, {"volumeMounts": [{"name": "n", "mountPath": "/m"}]},
        {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}]"#,
    ),
    (
        "side",
        r#"[{}, {"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}, {"startupProbe": {"tcpSocket": {"port": 1}}}, {"livenessProbe": {}}, {"readinessProbe": {"exec": {"command": []}}},
        {"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}, {"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}]"#,
    ),
    ("port/containerPort", r#"[1, 65535, 0, -1, 65536, "80", null]"#),
    ("port/hostPort", "[1, 65535, 0, -1, 65536]"),
    ("port/protocol", r#"["TCP", "UDP", "SCTP", "", "tcp", "x"]"#),
    ("port/name", r#"["http", "h-1", "Http", "1", "a--b", "-a", "a-", "sixteencharacter", "fifteencharacte", ""]"#),
    ("port/hostIP", r#"["10.0.0.1", "", "fd00::1", "nowhere"]"#),
    (
        "c/ports",
        r#"[[{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}], [{"containerPort": 80}, {"containerPort": 80}], [{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 80}],
        [{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 80, "protocol": "UDP"}], [{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 80, "hostIP": "10.0.0.1"}]]"#,
    ),
];

const ENVIRONMENT: Table = &[
    ("env/name", r#"["E", "e", "_E1", "E.x", "E-x", "1E", "E x", "E=x", "", "ü", ".", "..", "E\u0000", null]"#),
    ("env/value", r#"["v", "", "$(X)", 1]"#),
    (
        "env/valueFrom",
        r#"[{}, {"fieldRef": {"fieldPath": "metadata.name"}}, {"fieldRef": {"fieldPath": "metadata.namespace"}}, {"fieldRef": {"fieldPath": "metadata.uid"}}, {"fieldRef": {"fieldPath": "spec.nodeName"}},
        {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}, {"fieldRef": {"fieldPath": "status.podIP"}}, {"fieldRef": {"fieldPath": "status.podIPs"}}, {"fieldRef": {"fieldPath": "status.hostIP"}}, {"fieldRef": {"fieldPath": "status.hostIPs"}},
        {"fieldRef": {"fieldPath": "metadata.labels['a']"}}, {"fieldRef": {"fieldPath": "metadata.annotations['a.b/c']"}}, {"fieldRef": {"fieldPath": "metadata.labels"}}, {"fieldRef": {"fieldPath": "metadata.labels['a b']"}},
        {"fieldRef": {"fieldPath": "status.phase"}}, {"fieldRef": {"fieldPath": ""}}, {"fieldRef": {}}, {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}, {"fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.name"}},
        {"resourceFieldRef": {"resource": "limits.cpu"}}, {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}, {"resourceFieldRef": {"resource": "limits.ephemeral-storage", "containerName": "c"}}, {"resourceFieldRef": {"resource": "limits.hugepages-2Mi"}},
        {"resourceFieldRef": {"resource": "limits.x"}}, {"resourceFieldRef": {"resource": ""}}, {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}}, {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}, {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1m"}},
        {"configMapKeyRef": {"name": "m", "key": "k"}}, {"configMapKeyRef": {"name": "m", "key": "k", "optional": true}}, {"configMapKeyRef": {"name": "", "key": "k"}}, {"configMapKeyRef": {"name": "m"}}, {"configMapKeyRef": {"name": "m", "key": "a b"}}, {"configMapKeyRef": {"name": "M", "key": "k"}},
        {"secretKeyRef": {"name": "s", "key": "k"}}, {"secretKeyRef": {"name": "s", "key": ".."}}, {"secretKeyRef": {"name": "s", "key": ""}}, {"secretKeyRef": {"name": "s", "key": ".k"}},
        {"secretKeyRef": {"name": "s", "key": "k"}, "configMapKeyRef": {"name": "m", "key": "k"}}, {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "K"}}]"#,
    ),
    (
        "spec",
        r#"[{"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "c", "image": "i", "env": [{"name": "E", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "K"}}}]}]},
        {"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "c", "image": "i", "env": [{"name": "E", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "../p", "key": "K"}}}]}]},
        {"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "c", "image": "i", "env": [{"name": "E", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "/p", "key": "K"}}}]}]},
        {"volumes": [{"name": "v", "hostPath": {"path": "/p"}}], "containers": [{"name": "c", "image": "i", "env": [{"name": "E", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "K"}}}]}]}]"#,
    ),
    ("env", r#"[{"value": "v", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]"#),
    ("c/env", r#"[[{"name": "E", "value": "1"}, {"name": "E", "value": "2"}], []]"#),
    (
        "from",
        r#"[{}, {"configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}, {"configMapRef": {"name": "m"}, "secretRef": {"name": "s"}}, {"prefix": "P_", "configMapRef": {"name": "m"}}, {"prefix": "1P", "configMapRef": {"name": "m"}},
        {"prefix": "a=b", "configMapRef": {"name": "m"}}, {"configMapRef": {"name": ""}}, {"configMapRef": {"name": "M"}}, {"secretRef": {"name": "s", "optional": true}}]"#,
    ),
];

const HANDLERS: Table = &[
    (
        "live/tcpSocket",
        r#"[{"port": 1}, {"port": "http"}, {"port": 0}, {"port": 65536}, {"port": "Http"}, {"port": ""}, {"port": 80, "host": "h"}, {"port": "1"}, {}]"#,
    ),
    (
        "live",
        r#"[{"initialDelaySeconds": 0}, {"initialDelaySeconds": -1}, {"timeoutSeconds": 0}, {"timeoutSeconds": -1}, {"periodSeconds": 0}, {"periodSeconds": -1}, {"successThreshold": 1}, {"successThreshold": 2}, {"successThreshold": -1}, {"failureThreshold": 0},
        {"failureThreshold": -1}, {"terminationGracePeriodSeconds": 1}, {"terminationGracePeriodSeconds": 0}, {"terminationGracePeriodSeconds": -1}, {"tcpSocket": null}, {"exec": {"command": ["a"]}},
        {"tcpSocket": null, "exec": {"command": ["a"]}}, {"tcpSocket": null, "exec": {"command": []}}, {"tcpSocket": null, "exec": {}}, {"tcpSocket": null, "grpc": {"port": 1}}, {"tcpSocket": null, "grpc": {"port": 1, "service": "s"}}, {"tcpSocket": null, "grpc": {"port": 0}}, {"tcpSocket": null, "grpc": {"port": 70000}}, {"tcpSocket": null, "grpc": {"port": "g"}}]"#,
    ),
    ("ready", r#"[{}, {"successThreshold": 3}, {"successThreshold": 0}, {"terminationGracePeriodSeconds": 1}]"#),
    (
        "start",
        r#"[{}, {"successThreshold": 2}, {"failureThreshold": 30, "periodSeconds": 1}, {"terminationGracePeriodSeconds": 5}]"#,
    ),
    (
        "http/httpGet",
        r#"[{"port": 80}, {"port": "web"}, {"port": 80, "path": "/x?y=z"}, {"port": 80, "path": "x"}, {"port": 80, "path": ""}, {"port": 80, "scheme": "HTTPS"}, {"port": 80, "scheme": "https"}, {"port": 80, "scheme": "FTP"}, {"port": 80, "host": "h"}, {"port": 0}, {},
        {"port": 80, "httpHeaders": [{"name": "X-A", "value": "b"}]}, {"port": 80, "httpHeaders": [{"name": "X A", "value": "b"}]}, {"port": 80, "httpHeaders": [{"name": "", "value": "b"}]}, {"port": 80, "httpHeaders": [{"name": "X_A", "value": ""}]}]"#,
    ),
    (
        "hooks/preStop",
        r#"[{"exec": {"command": ["a"]}}, {"exec": {}}, {"httpGet": {"port": 80}}, {"httpGet": {"port": 80, "path": "/x", "host": "h", "scheme": "HTTPS"}}, {"tcpSocket": {"port": 80}}, {"sleep": {"seconds": 1}}, {"sleep": {"seconds": 0}}, {"sleep": {"seconds": -1}}, {"sleep": {"seconds": 30}}, {"sleep": {"seconds": 31}}, {},
        {"exec": {"command": ["a"]}, "sleep": {"seconds": 1}}]"#,
    ),
    ("hooks/postStart", r#"[{"exec": {"command": ["a"]}}, {"sleep": {"seconds": 3}}, {}]"#),
    ("hooks/stopSignal", r#"["SIGTERM", "SIGUSR1", "TERM", ""]"#),
    (
        "spec",
        r#"[{"os": {"name": "linux"}, "containers": [{"name": "c", "image": "i", "lifecycle": {"stopSignal": "SIGUSR1"}}]}, {"os": {"name": "linux"}, "containers": [{"name": "c", "image": "i", "lifecycle": {"stopSignal": "SIGX"}}]},
        {"os": {"name": "linux"}, "containers": [{"name": "c", "image": "i", "lifecycle": {"stopSignal": "SIGRTMIN+1"}}]},
        {"terminationGracePeriodSeconds": 5, "containers": [{"name": "c", "image": "i", "lifecycle": {"preStop": {"sleep": {"seconds": 6}}}}]},
        {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}]}]"#,
    ),
];

const RESOURCES: Table = &[
    (
        "res",
        r#"[{}, {"limits": {"cpu": "1"}}, {"limits": {"cpu": 1}}, {"limits": {"cpu": "0.5", "memory": "1Gi"}}, {"requests": {"cpu": "100m"}}, {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}, {"limits": {"cpu": "1"}, "requests": {"cpu": "1000m"}},
        {"limits": {"cpu": "-1"}}, {"limits": {"cpu": "x"}}, {"limits": {"cpu": ""}}, {"limits": {"cpu": "0.0001"}}, {"limits": {"memory": "100m"}}, {"limits": {"memory": "1.5Gi"}}, {"limits": {"memory": "1e3"}}, {"limits": {"memory": "1Zi"}}, {"limits": {"memory": "0"}},
        {"limits": {"ephemeral-storage": "1Gi"}}, {"limits": {"storage": "1Gi"}}, {"limits": {"pods": "1"}}, {"limits": {"x": "1"}}, {"limits": {"a.b/c": "1"}}, {"limits": {"a.b/c": "0.5"}}, {"requests": {"a.b/c": "1"}}, {"limits": {"a.b/c": "2"}, "requests": {"a.b/c": "1"}}, {"limits": {"requests.a.b/c": "1"}},
        {"limits": {"kubernetes.io/x": "1"}}, {"limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}}, {"limits": {"hugepages-2Mi": "4Mi"}}, {"requests": {"hugepages-2Mi": "4Mi"}, "limits": {"cpu": "1"}}, {"limits": {"hugepages-2Mi": "3Mi", "cpu": "1"}}, {"limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}, "requests": {"hugepages-2Mi": "2Mi"}},
        {"limits": {"hugepages-x": "4Mi", "cpu": "1"}}, {"limits": {"A b": "1"}}, {"requests": {"memory": "64Mi"}, "limits": {"cpu": "2"}}, {"limits": {"memory": "128974848"}}, {"limits": {"memory": "123Mi", "cpu": "1500m"}}, {"limits": {"cpu": "2k"}}]"#,
    ),
    (
        "init/resources",
        r#"[{"limits": {"cpu": "1", "memory": "1Gi"}}, {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}]"#,
    ),
    (
        "whole",
        r#"[{"limits": {"cpu": "1"}}, {"requests": {"cpu": "1"}}, {"limits": {"cpu": "1", "memory": "1Gi"}}, {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}, {"limits": {"ephemeral-storage": "1"}}, {"limits": {"a.b/c": "1"}}, {"limits": {"cpu": "-1"}}, {"limits": {"hugepages-2Mi": "2Mi", "cpu": "1"}}, {}]"#,
    ),
    (
        "spec",
        r#"[{"resources": {"limits": {"cpu": "1"}}, "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "2"}}}]}, {"resources": {"requests": {"cpu": "1"}}, "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}}]},
        {"resources": {"limits": {"cpu": "2"}}, "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}, {"resources": {"limits": {"memory": "2Gi"}}, "containers": [{"name": "c", "image": "i", "resources": {"limits": {"memory": "1Gi", "cpu": "1"}}}]}]"#,
    ),
];

const SECURITY: Table = &[
    (
        "pod",
        r#"[{"runAsUser": 0}, {"runAsUser": 1000}, {"runAsUser": -1}, {"runAsUser": 2147483648}, {"runAsGroup": 1}, {"runAsGroup": -1}, {"runAsNonRoot": true}, {"fsGroup": 1}, {"fsGroup": -1}, {"fsGroup": 2147483648}, {"supplementalGroups": [1, 2]}, {"supplementalGroups": [-1]}, {"supplementalGroups": []},
        {"supplementalGroupsPolicy": "Merge"}, {"supplementalGroupsPolicy": "Strict"}, {"supplementalGroupsPolicy": "x"}, {"supplementalGroupsPolicy": ""}, {"fsGroupChangePolicy": "Always"}, {"fsGroupChangePolicy": "OnRootMismatch"}, {"fsGroupChangePolicy": "x"}, {"fsGroupChangePolicy": ""},
        {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}, {"sysctls": [{"name": "kernel/shm_rmid_forced", "value": "1"}]}, {"sysctls": [{"name": "", "value": "1"}]}, {"sysctls": [{"name": "a b", "value": "1"}]}, {"sysctls": [{"name": "a.b", "value": "1"}, {"name": "a/b", "value": "2"}]}, {"sysctls": [{"name": "A.b", "value": "1"}]},
        {"seccompProfile": {"type": "RuntimeDefault"}}, {"seccompProfile": {"type": "Unconfined"}}, {"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}}, {"seccompProfile": {"type": "Localhost"}}, {"seccompProfile": {"type": "Localhost", "localhostProfile": "../a"}}, {"seccompProfile": {"type": "Localhost", "localhostProfile": "/a"}},
        {"seccompProfile": {"type": "RuntimeDefault", "localhostProfile": "a"}}, {"seccompProfile": {"type": "x"}}, {"seccompProfile": {}}, {"appArmorProfile": {"type": "RuntimeDefault"}}, {"appArmorProfile": {"type": "Localhost", "localhostProfile": "a"}}, {"appArmorProfile": {"type": "Localhost"}}, {"appArmorProfile": {"type": "Localhost", "localhostProfile": " "}}, {"appArmorProfile": {"type": "Unconfined", "localhostProfile": "a"}}, {"appArmorProfile": {"type": "x"}},
        {"seLinuxOptions": {"level": "s0:c1,c2"}}, {"seLinuxChangePolicy": "MountOption"}, {"seLinuxChangePolicy": "Recursive"}, {"seLinuxChangePolicy": "x"}, {"windowsOptions": {"runAsUserName": "u"}}, {"windowsOptions": {"hostProcess": true}}]"#,
    ),
    (
        "sec",
        r#"[{"runAsUser": 0}, {"runAsUser": -1}, {"runAsGroup": -1}, {"runAsNonRoot": true}, {"privileged": true}, {"privileged": false}, {"allowPrivilegeEscalation": true}, {"allowPrivilegeEscalation": false}, {"privileged": true, "allowPrivilegeEscalation": false}, {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}},
        {"capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": false}, {"capabilities": {"add": ["SYS_ADMIN"]}, "allowPrivilegeEscalation": false}, {"capabilities": {"add": ["x"]}}, {"readOnlyRootFilesystem": true}, {"procMount": "Default"}, {"procMount": "Unmasked"}, {"procMount": "x"}, {"procMount": ""},
        {"seccompProfile": {"type": "Localhost", "localhostProfile": "a"}}, {"seccompProfile": {"type": "Localhost", "localhostProfile": ""}}, {"appArmorProfile": {"type": "Unconfined"}}, {"appArmorProfile": {"type": "y"}}, {"windowsOptions": {"hostProcess": true}}, {"seLinuxOptions": {"user": "u"}}]"#,
    ),
    (
        "spec",
        r#"[{"hostUsers": false, "containers": [{"name": "c", "image": "i", "securityContext": {"procMount": "Unmasked"}}]}, {"os": {"name": "linux"}, "securityContext": {"windowsOptions": {"runAsUserName": "u"}}}]"#,
    ),
    (
        "meta/annotations",
        r#"[{"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}, {"container.apparmor.security.beta.kubernetes.io/c": "x"}, {"container.apparmor.security.beta.kubernetes.io/other": "unconfined"}]"#,
    ),
];

const VOLUMES: Table = &[
    (
        "volume",
        r#"[{}, {"name": "V"}, {"name": ""}, {"name": "a.b"}, {"emptyDir": {}}, {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}, {"emptyDir": {"medium": "HugePages"}}, {"emptyDir": {"medium": "HugePages-2Mi"}}, {"emptyDir": {"medium": "x"}}, {"emptyDir": {"sizeLimit": "-1"}}, {"emptyDir": {"sizeLimit": "x"}}, {"emptyDir": {}, "hostPath": {"path": "/p"}},
        {"hostPath": {"path": "/p"}}, {"hostPath": {"path": ""}}, {"hostPath": {"path": "p"}}, {"hostPath": {"path": "/a/../b"}}, {"hostPath": {"path": "/p", "type": "Directory"}}, {"hostPath": {"path": "/p", "type": "DirectoryOrCreate"}}, {"hostPath": {"path": "/p", "type": "x"}}, {"hostPath": {"path": "/p", "type": ""}}, {"hostPath": {"path": "/p", "type": "Socket"}},
        {"configMap": {"name": "m"}}, {"configMap": {}}, {"configMap": {"name": "m", "defaultMode": 256}}, {"configMap": {"name": "m", "defaultMode": 512}}, {"configMap": {"name": "m", "defaultMode": -1}}, {"configMap": {"name": "m", "optional": true}}, {"configMap": {"name": "M"}}, {"secret": {"secretName": "s"}}, {"secret": {}}, {"secret": {"secretName": "s", "defaultMode": 1000}}, {"secret": {"secretName": "s", "items": [{"key": "k", "path": "p", "mode": 511}]}}, {"secret": {"secretName": "s", "items": [{"key": "k", "path": "../p"}]}},
        {"downwardAPI": {}}, {"downwardAPI": {"defaultMode": 384}}, {"downwardAPI": {"defaultMode": 1024}}, {"persistentVolumeClaim": {"claimName": "c"}}, {"persistentVolumeClaim": {"claimName": "c", "readOnly": true}}, {"persistentVolumeClaim": {"claimName": ""}}, {"persistentVolumeClaim": {"claimName": "C"}}, {"projected": {}}, {"projected": {"sources": []}}, {"projected": {"defaultMode": 600, "sources": []}},
        {"image": {"reference": "i:1"}}, {"image": {"reference": "i"}}, {"image": {"reference": "i", "pullPolicy": "Never"}}, {"image": {"reference": "i", "pullPolicy": "x"}}, {"image": {}}, {"image": {"reference": " "}}, {"nfs": {"server": "s", "path": "/p"}}, {"nfs": {"server": "", "path": "/p"}}, {"nfs": {"server": "s", "path": "p"}}, {"csi": {"driver": "d.e"}}, {"csi": {"driver": ""}}, {"iscsi": {"targetPortal": "1.1.1.1", "iqn": "iqn.2001-04.com.e:s", "lun": 0}}, {"iscsi": {"targetPortal": "", "iqn": "x", "lun": 0}},
        {"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}}, {"ephemeral": {}}, {"ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1Gi"}}}}}}, {"gitRepo": {"repository": "r"}}]"#,
    ),
    ("spec/volumes", r#"[[{"name": "v"}, {"name": "v"}], [{"name": "a"}, {"name": "b"}], [{}]]"#),
    (
        "item",
        r#"[{}, {"key": ""}, {"path": ""}, {"path": "/f"}, {"path": "a/../f"}, {"path": "..f"}, {"path": "..f/g"}, {"path": "a/b"}, {"mode": 511}, {"mode": 512}, {"mode": 0}, {"key": "a b"}, {"path": "./a"}]"#,
    ),
    (
        "down",
        r#"[{"fieldRef": {"fieldPath": "metadata.name"}}, {"fieldRef": {"fieldPath": "metadata.labels"}}, {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}, {"fieldRef": {"fieldPath": "status.podIP"}}, {"fieldRef": {"fieldPath": "spec.nodeName"}}, {"resourceFieldRef": {"resource": "limits.cpu", "containerName": "c"}}, {"resourceFieldRef": {"resource": "limits.cpu"}}, {"resourceFieldRef": {"resource": "limits.cpu", "containerName": "none"}}, {},
        {"fieldRef": {"fieldPath": "metadata.name"}, "resourceFieldRef": {"resource": "limits.cpu", "containerName": "c"}}, {"path": "", "fieldRef": {"fieldPath": "metadata.name"}}, {"path": "/a", "fieldRef": {"fieldPath": "metadata.name"}}, {"path": "..a", "fieldRef": {"fieldPath": "metadata.name"}}, {"mode": 256, "fieldRef": {"fieldPath": "metadata.name"}}, {"mode": 1000, "fieldRef": {"fieldPath": "metadata.name"}}]"#,
    ),
    (
        "source",
        r#"[{}, {"secret": {"name": "s"}}, {"secret": {}}, {"configMap": {"name": "m", "items": [{"key": "k", "path": "p"}]}}, {"configMap": {"name": ""}}, {"serviceAccountToken": {"path": "t"}}, {"serviceAccountToken": {"path": ""}}, {"serviceAccountToken": {"path": "t", "expirationSeconds": 600}}, {"serviceAccountToken": {"path": "t", "expirationSeconds": 599}}, {"serviceAccountToken": {"path": "t", "expirationSeconds": 4294967297}}, {"serviceAccountToken": {"path": "/t"}}, {"serviceAccountToken": {"path": "t", "audience": "a"}},
        {"downwardAPI": {"items": [{"path": "f", "fieldRef": {"fieldPath": "metadata.uid"}}]}}, {"secret": {"name": "s"}, "configMap": {"name": "m"}}, {"clusterTrustBundle": {"name": "b", "path": "p"}}, {"clusterTrustBundle": {"path": "p"}}, {"clusterTrustBundle": {"name": "b", "signerName": "a.b/c", "path": "p"}}, {"clusterTrustBundle": {"signerName": "a.b/c", "path": "p"}}, {"clusterTrustBundle": {"name": "b"}}]"#,
    ),
    (
        "spec/volumes",
        r#"[[{"name": "v", "projected": {"sources": [{"configMap": {"name": "m", "items": [{"key": "k", "path": "p"}]}}, {"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}}]}}]]"#,
    ),
    (
        "mount",
        r#"[{}, {"name": "other"}, {"mountPath": ""}, {"mountPath": "m"}, {"mountPath": "/a:b"}, {"mountPath": null}, {"readOnly": true}, {"subPath": "a/b"}, {"subPath": "/a"}, {"subPath": "../a"}, {"subPath": "a/.."}, {"subPath": "..a"}, {"subPathExpr": "$(E)"}, {"subPathExpr": "/a"}, {"subPath": "a", "subPathExpr": "b"}, {"mountPropagation": "None"}, {"mountPropagation": "HostToContainer"}, {"mountPropagation": "Bidirectional"}, {"mountPropagation": "x"}, {"mountPropagation": ""},
        {"recursiveReadOnly": "Disabled"}, {"recursiveReadOnly": "Enabled"}, {"recursiveReadOnly": "Enabled", "readOnly": true}, {"recursiveReadOnly": "IfPossible", "readOnly": true}, {"recursiveReadOnly": "x"}, {"recursiveReadOnly": "Enabled", "readOnly": true, "mountPropagation": "HostToContainer"}, {"recursiveReadOnly": ""}]"#,
    ),
    (
        "spec",
        r#"[{"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/m"}, {"name": "v", "mountPath": "/m"}]}]}, {"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/m"}, {"name": "v", "mountPath": "/m/"}]}]},
        {"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true}, "volumeMounts": [{"name": "v", "mountPath": "/m", "mountPropagation": "Bidirectional"}]}]}, {"volumes": [{"name": "v", "image": {"reference": "i"}}], "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/m", "subPath": "a"}]}]},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}], "containers": [{"name": "c", "image": "i", "volumeDevices": [{"name": "v", "devicePath": "/d"}]}]}, {"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "c", "image": "i", "volumeDevices": [{"name": "v", "devicePath": "/d"}]}]}, {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}], "containers": [{"name": "c", "image": "i", "volumeDevices": [{"name": "v", "devicePath": "/a/../d"}]}]},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}], "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/m"}], "volumeDevices": [{"name": "v", "devicePath": "/d"}]}]},
        {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "b", "persistentVolumeClaim": {"claimName": "c"}}]}]"#,
    ),
];

const SCHEDULING: Table = &[
    (
        "tol",
        r#"[{"operator": "Exists"}, {"key": "k", "operator": "Exists"}, {"key": "k", "value": "v"}, {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, {"key": "k", "operator": "Exists", "value": "v"}, {"value": "v"}, {}, {"key": "k k", "operator": "Exists"}, {"key": "k", "operator": "x"}, {"key": "k", "operator": "Exists", "effect": "x"}, {"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
        {"key": "k", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}, {"key": "k", "operator": "Equal", "value": "a b"}, {"key": "k", "operator": "Equal", "value": "v", "effect": "PreferNoSchedule"}]"#,
    ),
    (
        "spread",
        r#"[{}, {"maxSkew": 0}, {"topologyKey": ""}, {"topologyKey": "a b"}, {"whenUnsatisfiable": "ScheduleAnyway"}, {"whenUnsatisfiable": "x"}, {"minDomains": 2}, {"minDomains": 0}, {"whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}, {"labelSelector": {"matchLabels": {"a": "b"}}}, {"labelSelector": {"matchLabels": {"a b": "c"}}}, {"nodeAffinityPolicy": "Honor"}, {"nodeAffinityPolicy": "x"}, {"nodeTaintsPolicy": "x"}, {"matchLabelKeys": ["a"]}]"#,
    ),
    (
        "near",
        r#"[{}, {"matchExpressions": [{"key": "k", "operator": "In", "values": ["a"]}]}, {"matchExpressions": [{"key": "k", "operator": "In"}]}, {"matchExpressions": [{"key": "k", "operator": "x"}]}, {"matchExpressions": [{"key": "k", "operator": "Exists", "values": ["a"]}]}, {"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["1"]}]}, {"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["1", "2"]}]}, {"matchExpressions": [{"key": "k k", "operator": "Exists"}]}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}, {"matchFields": [{"key": "x", "operator": "In", "values": ["n"]}]}]"#,
    ),
    (
        "spec/affinity",
        r#"[{}, {"nodeAffinity": {}}, {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}, {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": [{"key": "k", "operator": "Exists"}]}}]}}, {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0, "preference": {}}]}}, {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 101, "preference": {}}]}},
        {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": {"topologyKey": "z"}}]}}, {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0, "podAffinityTerm": {"topologyKey": "z"}}]}}]"#,
    ),
    (
        "apart",
        r#"[{}, {"topologyKey": ""}, {"topologyKey": "a b"}, {"labelSelector": {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}}, {"labelSelector": {"matchExpressions": [{"key": "k", "operator": "In"}]}}, {"labelSelector": {"matchExpressions": [{"key": "k", "operator": "x"}]}}, {"namespaces": ["a"]}, {"namespaces": ["A b"]}, {"namespaceSelector": {"matchLabels": {"a": "b c"}}}]"#,
    ),
];
