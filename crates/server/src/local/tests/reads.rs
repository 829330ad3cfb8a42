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
    assert_eq!(manifests, json!({"broken": [{"origin": "/m/x.yaml", "message": "line 3"}]}));
    let (code, explanation) = server.send("GET /podwright/v1/explain?pod=default%2Fweb", "").await;
    assert_eq!((code, explanation.as_str()), (200, "Pod default/web has 1 instances"));
}

#[tokio::test]
async fn discovery_lists_versions_and_resources() {
    let server = start();
    assert_eq!(server.get("/version").await.1["major"], "1");
    assert_eq!(server.get("/api").await.1["versions"], json!(["v1"]));
    assert_eq!(server.get("/apis").await.1["groups"], json!([]));
    let resources = server.get("/api/v1?timeout=32s").await.1;
    let pods = resources["resources"].as_array().unwrap().iter().find(|r| r["name"] == "pods").unwrap().clone();
    assert_eq!(pods["verbs"], json!(["create", "delete", "get", "list", "update", "watch"]));
}

#[tokio::test]
async fn errors_are_status_objects() {
    let server = start_with("", vec![("/m/x.yaml".into(), "line 3".into())], false);
    for (line, code, reason) in [
        ("GET /api/v1/namespaces/default/pods/no", 404, "NotFound"),
        ("GET /api/v1/nodes", 404, "NotFound"),
        ("GET /api/v1/pods?unknown=1", 400, "BadRequest"),
        ("GET /api/v1/pods?fieldSelector=spec.x=1", 400, "BadRequest"),
        ("GET /podwright/v1/explain?pod=no", 404, "NotFound"),
        ("GET /podwright/v1/explain", 400, "BadRequest"),
        ("PATCH /api/v1/namespaces/default/pods/no", 405, "MethodNotAllowed"),
        ("GET /api/v1/events?watch=1&resourceVersion=x", 400, "BadRequest"),
    ] {
        let (got, status) = server.json(line, &Value::Null).await;
        assert_eq!((got, &status["kind"], &status["reason"]), (code, &json!("Status"), &json!(reason)), "{line}");
        assert_eq!(status["code"], code);
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
