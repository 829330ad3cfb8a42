use super::*;

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap().iter();
    items.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn responses_have_the_format_of_an_api_server() {
    let server = start_with("", vec![("/m/x.yaml".into(), "line 3".into())], false);
    server.publish("other", "b", "1", json!({"phase": "Running"}));
    server.publish("default", "web", "2", json!({"phase": "Failed"}));
    server.publish("default", "web", "3", json!({"phase": "Pending"}));
    let (code, all) = server.get("/api/v1/pods").await;
    assert_eq!((code, &all["kind"], &all["apiVersion"]), (200, &json!("PodList"), &json!("v1")));
    assert_eq!(all["metadata"]["resourceVersion"], server.feed.version().to_string());
    assert_eq!(names(&all), ["web", "web", "b"]);
    assert_eq!(names(&server.get("/api/v1/namespaces/other/pods").await.1), ["b"]);
    assert_eq!(names(&server.get("/api/v1/pods?labelSelector=app%3Db&limit=500").await.1), ["b"]);
    assert_eq!(
        names(&server.get("/api/v1/pods?fieldSelector=status.phase!%3DPending,spec.nodeName%3Dnode").await.1),
        ["web", "b"]
    );
    let (code, one) = server.get("/api/v1/namespaces/default/pods/web").await;
    assert_eq!((code, &one["kind"], &one["metadata"]["uid"]), (200, &json!("Pod"), &json!("3")), "the newest instance");
    let (_, events) = server.get("/api/v1/namespaces/other/events").await;
    assert_eq!((&events["kind"], events["items"].as_array().unwrap().len()), (&json!("EventList"), 1));
    let none = server.get("/api/v1/events?fieldSelector=involvedObject.name%3Dno").await.1;
    assert_eq!(none["items"], json!([]));
    let (_, manifests) = server.get("/podwright/v1/manifests").await;
    assert_eq!(manifests, json!({"broken": [{"origin": "/m/x.yaml", "message": "line 3"}], "runtimeUp": true}));
    let (code, explanation) = server.send("GET /podwright/v1/explain?pod=default%2Fweb", "").await;
    assert_eq!((code, explanation.as_str()), (200, "Pod default/web has 1 instances"));
}

#[tokio::test]
async fn discovery_lists_versions_and_resources() {
    let server = start();
    assert_eq!(server.get("/version").await.1["major"], "1");
    assert_eq!(server.get("/api").await.1["versions"], json!(["v1"]));
    assert_eq!(server.get("/apis").await.1["groups"][0]["name"], "metrics.k8s.io");
    let metrics = server.get("/apis/metrics.k8s.io/v1beta1").await.1;
    assert_eq!(
        (&metrics["groupVersion"], &metrics["resources"][1]["kind"]),
        (&json!("metrics.k8s.io/v1beta1"), &json!("PodMetrics"))
    );
    let resources = server.get("/api/v1?timeout=32s").await.1;
    let pods = resources["resources"].as_array().unwrap().iter().find(|r| r["name"] == "pods").unwrap().clone();
    assert_eq!(pods["verbs"], json!(["create", "delete", "get", "list", "patch", "update", "watch"]));
}

#[tokio::test]
async fn errors_are_status_objects() {
    let server = start_with("", vec![("/m/x.yaml".into(), "line 3".into())], false);
    for (line, code, reason) in [
        ("GET /api/v1/namespaces/default/pods/no", 404, "NotFound"),
        ("GET /api/v1/services", 404, "NotFound"),
        ("GET /api/v1/pods?unknown=1", 400, "BadRequest"),
        ("GET /api/v1/pods?fieldSelector=spec.x=1", 400, "BadRequest"),
        ("GET /podwright/v1/explain?pod=no", 404, "NotFound"),
        ("GET /podwright/v1/explain", 400, "BadRequest"),
        ("PATCH /api/v1/namespaces/default/pods/no", 415, "UnsupportedMediaType"),
        ("GET /api/v1/events?watch=1&resourceVersion=x", 400, "BadRequest"),
    ] {
        let (got, status) = server.json(line, &Value::Null).await;
        assert_eq!((got, &status["kind"], &status["reason"]), (code, &json!("Status"), &json!(reason)), "{line}");
        assert_eq!((&status["code"], &status["status"]), (&json!(code), &json!("Failure")), "{line}");
    }
    let message = server.get("/podwright/v1/explain?pod=no").await.1["message"].to_string();
    assert!(message.contains("/m/x.yaml: line 3"), "the broken manifest is missing: {message}");
    assert_eq!(server.send("\x16\x03\x01 nonsense", "").await.0, 400);
}

#[tokio::test]
async fn an_agent_that_hangs_results_in_a_503() {
    tokio::time::pause();
    let server = start_with("", vec![], true);
    let (code, status) = server.get("/podwright/v1/manifests").await;
    assert_eq!((code, &status["reason"]), (503, &json!("ServiceUnavailable")));
}

#[tokio::test]
async fn the_usage_of_pods_and_of_the_node_has_the_form_of_metrics_server() {
    let server = start();
    server.publish("default", "web", "1", json!({"phase": "Running"}));
    let metrics = |rest: &str| format!("/apis/metrics.k8s.io/v1beta1/{rest}");
    let (_, pod) = server.get(&metrics("namespaces/default/pods/web")).await;
    let expected = json!({"kind": "PodMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {"namespace": "default", "name": "web", "labels": {"app": "web"}},
        "timestamp": "1970-01-01T00:00:01Z", "window": "1.050s",
        "containers": [{"name": "c", "usage": {"cpu": "1500000n", "memory": "4096Ki"}}]});
    assert_eq!(pod, expected);
    assert_eq!(names(&server.get(&metrics("pods")).await.1), ["web", "db"]);
    for (path, expected) in [
        ("namespaces/other/pods", vec!["db"]),
        ("pods?labelSelector=app%3Dweb", vec!["web"]),
        ("pods?fieldSelector=metadata.name%3Ddb", vec!["db"]),
        ("nodes", vec!["node"]),
        ("nodes?labelSelector=a%3Db", vec![]),
    ] {
        assert_eq!(names(&server.get(&metrics(path)).await.1), expected, "{path}");
    }
    let (_, node) = server.get(&metrics("nodes/node")).await;
    assert_eq!(node["usage"], json!({"cpu": "500000000n", "memory": "1048576Ki"}));
    let (_, node) = server.get("/api/v1/nodes/node").await;
    assert_eq!(node["status"]["capacity"], json!({"cpu": "4000m", "memory": "8388608Ki"}));
    assert_eq!(node["status"]["allocatable"], json!({"cpu": "3500m", "memory": "7340032Ki"}));
    assert_eq!(node["status"]["conditions"][0]["status"], "True");
    for missing in ["/api/v1/nodes/other", &metrics("nodes/other"), &metrics("namespaces/default/pods/db")] {
        assert_eq!(server.get(missing).await.0, 404, "{missing}");
    }
}

#[tokio::test]
async fn clients_that_ask_for_tables_get_tables() {
    let server = start();
    server.publish("default", "web", "1", json!({"phase": "Running"}));
    let get = async |path: &str| {
        let mut stream = UnixStream::connect(&server.path).await.unwrap();
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\nAccept: {accept}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let body = text.split_once("\r\n\r\n").unwrap().1;
        serde_json::from_str::<Value>(body.lines().next().unwrap()).unwrap()
    };
    for path in ["/api/v1/pods", "/api/v1/namespaces/default/pods/web"] {
        let table = get(path).await;
        assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")), "{path}");
        let cells = json!(["web", "1/1", "Running", "0", "5s", "ip", "n", "<none>", "<none>", "<none>"]);
        assert_eq!(table["rows"][0]["cells"], cells, "{path}");
        assert_eq!(table["columnDefinitions"].as_array().unwrap().len(), 10, "{path}");
        let object = &table["rows"][0]["object"];
        assert_eq!((&object["kind"], &object["metadata"]["name"]), (&json!("PartialObjectMetadata"), &json!("web")));
        assert_eq!(object.get("spec"), None, "{path}");
    }
    let whole = get("/api/v1/pods?includeObject=Object").await;
    assert_eq!(whole["rows"][0]["object"]["spec"]["nodeName"], "node");
    let first = get("/api/v1/pods?watch=true&timeoutSeconds=1").await;
    assert_eq!((&first["type"], &first["object"]["rows"][0]["cells"][0]), (&json!("ADDED"), &json!("web")));
    let events = get("/api/v1/namespaces/default/events").await;
    let cells = &events["rows"][0]["cells"];
    assert_eq!((&cells[2], &cells[3], &cells[6]), (&json!("Pulled"), &json!("pod/web"), &json!("m")), "{events}");
}
