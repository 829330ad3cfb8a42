//! Objects that pods refer to: config maps and secrets, tokens, pull secrets, claims, runtime classes.

use std::time::{Duration, Instant};

use anyhow::ensure;
use podwright_testbed::image::BUSYBOX;
use podwright_testbed::{ControlPlane, Flavor, PASSWORD, Registry, USER, wait_until};
use serde_json::{Value, json};

use crate::cluster_node::ClusterNode;
use crate::suite::{LIMIT, condition, container, one, sh, sleeper};

/// Waits for an event with this reason whose message contains `part`.
fn wait_event(node: &ClusterNode<'_>, reason: &str, part: &str) {
    wait_until(LIMIT, &format!("an event {reason} with {part:?}"), || {
        let events = node.list("events")?;
        let matches = |event: &Value| event["message"].as_str().is_some_and(|text| text.contains(part));
        let found = events.iter().filter(|event| event["reason"] == reason).any(matches);
        ensure!(found, "{:#?}", events.iter().map(|e| (&e["reason"], &e["message"])).collect::<Vec<_>>());
        Ok(())
    });
}

#[test]
fn a_pod_gets_every_object_it_refers_to() {
    let node = ClusterNode::start(ControlPlane::shared(), "refers");
    node.create(
        "configmaps",
        &json!({"metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}, "binaryData": {"raw": "AAE="}}),
    );
    node.create("secrets", &json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}}));
    let ports = json!([{"port": 5432}]);
    node.create("services", &json!({"metadata": {"name": "my-db"}, "spec": {"selector": {"x": "y"}, "ports": ports}}));
    // The script prints the first failed check. With fsGroup, files of mode 0400 are readable by the group.
    let script = r#"
        n=0; is() { n=$((n+1)); [ "$1" = "$2" ] || { echo "$n: '$1' is not '$2'" > /dev/termination-log; exit 1; }; }
        is "$A" 1; is "$P_b" 2; is "$K" v; is "$NONE" ""; is "$MY_DB_SERVICE_PORT" 5432
        is "$KUBERNETES_SERVICE_PORT" 443; is "${KUBERNETES_SERVICE_HOST:+set}" set
        is "$(stat -Lc %a /s/deep/k)" 440; is "$(cat /s/deep/k)" v; is "$(grep -c '^tmpfs /s ' /proc/mounts)" 1
        is "$(stat -Lc %a:%g /all/a)" 640:2000; is "$(cat /all/a /all/k /all/name)" 1vreader
        is "$(wc -c < /all/raw)" 2; is "$(cat /part)" 2
        cd /var/run/secrets/kubernetes.io/serviceaccount
        is "$(cat namespace)" refers; is "$(head -n1 ca.crt)" "-----BEGIN CERTIFICATE-----"
        { cut -d. -f2 token | tr '_-' '/+' | tr -d '\n'; printf '=='; } | base64 -d > /dev/termination-log 2>/dev/null
        exit 0"#;
    let mut c = sh("c", script);
    let key = |kind: &str, name: &str, key: &str| json!({kind: {"name": name, "key": key, "optional": name == "none"}});
    c["env"] = json!([
        {"name": "A", "valueFrom": key("configMapKeyRef", "m", "a")},
        {"name": "K", "valueFrom": key("secretKeyRef", "s", "k")},
        {"name": "NONE", "valueFrom": key("secretKeyRef", "none", "k")},
    ]);
    c["envFrom"] = json!([{"prefix": "P_", "configMapRef": {"name": "m"}}]);
    c["volumeMounts"] = json!([
        {"name": "s", "mountPath": "/s"}, {"name": "all", "mountPath": "/all"},
        {"name": "m", "mountPath": "/part", "subPath": "b"},
    ]);
    let mut spec = one(&c);
    spec["restartPolicy"] = json!("Never");
    spec["automountServiceAccountToken"] = json!(true);
    spec["securityContext"] = json!({"fsGroup": 2000});
    let name = json!({"path": "name", "fieldRef": {"fieldPath": "metadata.name"}});
    let sources = json!([{"configMap": {"name": "m"}}, {"secret": {"name": "s"}}, {"downwardAPI": {"items": [name]}}]);
    spec["volumes"] = json!([
        {"name": "s", "secret": {"secretName": "s", "items": [{"key": "k", "path": "deep/k", "mode": 0o400}]}},
        {"name": "m", "configMap": {"name": "m"}},
        {"name": "all", "projected": {"defaultMode": 0o640, "sources": sources}},
    ]);
    node.put("reader", &spec);
    let pod = wait_until(LIMIT, "the reader to end", || {
        let pod = node.get("pods", "reader")?;
        ensure!(container(&pod, "c")["state"]["terminated"].is_object(), "{:#}", pod["status"]);
        Ok(pod)
    });
    let ended = &container(&pod, "c")["state"]["terminated"];
    let claims = ended["message"].as_str().unwrap_or_default();
    assert_eq!(ended["exitCode"], 0, "{claims}");
    let uid = pod["metadata"]["uid"].as_str().expect("a UID");
    for part in ["system:serviceaccount:refers:default", "\"name\":\"reader\"", uid] {
        assert!(claims.contains(part), "{part} is not in {claims}");
    }
    node.delete("pods", "reader");
    node.wait_nothing_left();
}

#[test]
fn missing_objects_are_reported_and_used_once_created() {
    let node = ClusterNode::start(ControlPlane::shared(), "missing");
    let mut by_env = one(&sleeper("c"));
    by_env["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "env"}}]);
    let mut by_volume = one(&sleeper("c"));
    by_volume["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    by_volume["volumes"] = json!([{"name": "v", "secret": {"secretName": "vol"}}]);
    node.put("by-env", &by_env);
    node.put("by-volume", &by_volume);
    wait_until(LIMIT, "the one to say what it lacks", || {
        let pod = node.get("pods", "by-env")?;
        let waiting = &container(&pod, "c")["state"]["waiting"];
        ensure!(waiting["reason"] == "CreateContainerConfigError", "{:#}", pod["status"]);
        ensure!(waiting["message"] == "configmap \"env\" not found", "{:#}", pod["status"]);
        Ok(())
    });
    wait_event(&node, "FailedMount", "secret \"vol\" not found");
    let began = Instant::now();
    node.create("configmaps", &json!({"metadata": {"name": "env"}, "data": {"a": "1"}}));
    node.create("secrets", &json!({"metadata": {"name": "vol"}, "stringData": {"a": "1"}}));
    node.wait_ready("by-env");
    node.wait_ready("by-volume");
    println!("both ready {:?} after what they lacked was there", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    for name in ["by-env", "by-volume"] {
        node.delete("pods", name);
    }
    node.wait_nothing_left();
}

#[test]
fn trust_bundles_are_updated_in_a_running_pod() {
    let node = ClusterNode::start(ControlPlane::shared(), "trusting");
    let out = node.scratch.dir("trusting").expect("a directory");
    let look = "[ -s /trust/ca.pem ] && echo yes > /out/is || echo no > /out/is";
    let mut reader = sh("c", &format!("while :; do {look}; sleep 0.05; done"));
    reader["volumeMounts"] = json!([{"name": "trust", "mountPath": "/trust"}, {"name": "out", "mountPath": "/out"}]);
    let mut spec = one(&reader);
    let bundle = json!({"name": "trusting", "path": "ca.pem", "optional": true});
    spec["volumes"] = json!([
        {"name": "trust", "projected": {"sources": [{"clusterTrustBundle": bundle}]}},
        {"name": "out", "hostPath": {"path": out}},
    ]);
    node.put("reader", &spec);
    let wait_for = |word: &str| {
        let began = Instant::now();
        wait_until(LIMIT, &format!("the pod to say {word}"), || {
            let is = std::fs::read_to_string(out.join("is"))?;
            ensure!(is.trim() == word, "{is:?}");
            Ok(())
        });
        began.elapsed()
    };
    wait_for("no");
    let authority = node.get("configmaps", "kube-root-ca.crt").expect("every namespace has it");
    let object = json!({"metadata": {"name": "trusting"}, "spec": {"trustBundle": authority["data"]["ca.crt"]}});
    let bundles = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
    let rounds = [(); 3].map(|()| {
        node.plane.api().create(bundles, &object).expect("created");
        let came = wait_for("yes");
        node.plane.api().delete(&format!("{bundles}/trusting"), None).expect("deleted");
        (came, wait_for("no"))
    });
    println!("seen and gone after {rounds:?}");
    // A busy host may be late once.
    let best = (rounds.iter().map(|round| round.0).min(), rounds.iter().map(|round| round.1).min());
    assert!(best.0.max(best.1) < Some(Duration::from_secs(3)), "{rounds:?}");
    node.delete("pods", "reader");
    node.wait_nothing_left();
}

#[test]
fn private_images_are_pulled_with_image_pull_secrets() {
    let node = ClusterNode::start(ControlPlane::shared(), "private");
    let registry = Registry::start_private(&node.scratch).expect("a registry");
    registry.push(BUSYBOX, "team/app:1").expect("pushed");
    node.runtime.use_registry("private.example", &registry).expect("known to the runtime");
    let logins = json!({"auths": {"private.example": {"username": USER, "password": PASSWORD}}}).to_string();
    node.create(
        "secrets",
        &json!({"metadata": {"name": "login"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": logins}}),
    );
    let mut spec = one(&sleeper("c"));
    spec["containers"][0]["image"] = json!("private.example/team/app:1");
    spec["containers"][0]["imagePullPolicy"] = json!("Always");
    spec["imagePullSecrets"] = json!([{"name": "nobody"}]);
    node.put("without", &spec);
    wait_event(&node, "FailedToRetrieveImagePullSecret", "(nobody)");
    wait_event(&node, "Failed", "Failed to pull image");
    spec["imagePullSecrets"] = json!([{"name": "nobody"}, {"name": "login"}]);
    node.put("with", &spec);
    node.wait_ready("with");
    assert!(!node.agent.log().contains(PASSWORD), "the log tells the password");
    for name in ["without", "with"] {
        node.delete("pods", name);
    }
    node.wait_nothing_left();
}

#[test]
fn local_claims_are_mounted_and_unsupported_volumes_reported() {
    let node = ClusterNode::start(ControlPlane::shared(), "claims");
    let disk = node.scratch.dir("disk").expect("a directory");
    let volume = |name: &str, source: Value| {
        let mut spec = json!({"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "claimRef": {"namespace": node.name, "name": name}, "persistentVolumeReclaimPolicy": "Retain"});
        spec.as_object_mut().expect("an object").extend(source.as_object().expect("an object").clone());
        let object = json!({"metadata": {"name": format!("claims-{name}")}, "spec": spec});
        node.plane.api().create("/api/v1/persistentvolumes", &object).expect("created");
        let claim = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "volumeName": format!("claims-{name}"), "resources": {"requests": {"storage": "1Mi"}}});
        node.create("persistentvolumeclaims", &json!({"metadata": {"name": name}, "spec": claim}));
    };
    volume("here", json!({"hostPath": {"path": disk}}));
    volume("far", json!({"nfs": {"path": "/x", "server": "nfs.invalid"}}));
    let user = |claim: Value, script: &str| {
        let mut c = sh("c", script);
        c["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        let mut spec = one(&c);
        spec["restartPolicy"] = json!("Never");
        spec["volumes"] = json!([{"name": "v", "persistentVolumeClaim": claim}]);
        spec
    };
    node.put("writer", &user(json!({"claimName": "here"}), "echo kept > /v/file"));
    node.wait_phase("writer", "Succeeded");
    assert_eq!(std::fs::read_to_string(disk.join("file")).expect("written"), "kept\n");
    let read_only = json!({"claimName": "here", "readOnly": true});
    node.put("reader", &user(read_only, "cat /v/file && ! touch /v/other 2>/dev/null"));
    node.wait_phase("reader", "Succeeded");
    node.put("far", &user(json!({"claimName": "far"}), "true"));
    wait_event(&node, "FailedMount", "is of type nfs, which is not supported");
    for name in ["writer", "reader", "far"] {
        node.delete("pods", name);
    }
    node.wait_nothing_left();
    assert!(disk.join("file").exists(), "what was claimed stays");
    for name in ["here", "far"] {
        node.delete("persistentvolumeclaims", name);
        let path = format!("/api/v1/persistentvolumes/claims-{name}");
        node.plane.api().delete(&path, None).expect("deleted");
    }
}

#[test]
fn a_runtime_class_selects_the_handler() {
    let node = ClusterNode::start(ControlPlane::shared(), "classes");
    let known = if crate::FLAVOR == Flavor::Engine { "podwright" } else { "runc" };
    for (name, handler) in [("known", known), ("unknown", "none-such")] {
        let class = json!({"metadata": {"name": format!("classes-{name}")}, "handler": handler});
        node.plane.api().create("/apis/node.k8s.io/v1/runtimeclasses", &class).expect("created");
        let mut spec = one(&sleeper("c"));
        spec["runtimeClassName"] = json!(format!("classes-{name}"));
        node.put(name, &spec);
    }
    node.wait_ready("known");
    wait_event(&node, "FailedCreatePodSandBox", "none-such");
    for name in ["known", "unknown"] {
        node.delete("pods", name);
        let path = format!("/apis/node.k8s.io/v1/runtimeclasses/classes-{name}");
        node.plane.api().delete(&path, None).expect("deleted");
    }
    node.wait_nothing_left();
}

#[test]
fn a_pod_is_evicted_when_its_empty_dir_exceeds_the_limit() {
    let node = ClusterNode::start(ControlPlane::shared(), "outgrown");
    for (name, mebibytes) in [("little", 1), ("much", 8)] {
        let mut spec = one(&sh("c", &format!("dd if=/dev/zero of=/v/file bs=1M count={mebibytes}; sleep 1000")));
        spec["volumes"] = json!([{"name": "v", "emptyDir": {"sizeLimit": "4Mi"}}]);
        spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        node.put(name, &spec);
    }
    let pod = node.wait_phase("much", "Failed");
    assert_eq!(pod["status"]["reason"], "Evicted", "{:#}", pod["status"]);
    assert_eq!(pod["status"]["message"], "Usage of EmptyDir volume \"v\" exceeds the limit \"4Mi\". ");
    // As in the Go kubelet: its own limit is no disruption.
    assert_eq!(*condition(&pod, "DisruptionTarget"), json!(null), "{:#}", pod["status"]);
    wait_event(&node, "Evicted", "exceeds the limit");
    node.phase("little", "Running").expect("it takes less");
    node.delete_all();
    node.wait_nothing_left();
}
