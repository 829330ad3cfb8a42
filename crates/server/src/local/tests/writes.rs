use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn a_patch_is_merged_into_the_newest_pod() {
    let server = start();
    assert_eq!(server.json("POST /api/v1/namespaces/default/pods", &pod("web")).await.0, 201);
    let patch = async |kind: &str, query: &str, body: Value| {
        let mut stream = UnixStream::connect(&server.path).await.unwrap();
        let body = body.to_string();
        let head = format!(
            "PATCH /api/v1/namespaces/default/pods/web{query} HTTP/1.0\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let code: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, serde_json::from_str::<Value>(body).unwrap())
    };
    let strategic = "application/strategic-merge-patch+json";
    let image =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "busybox:2"}]}});
    let (code, patched) = patch(strategic, "?fieldManager=kubectl&fieldValidation=Strict", image).await;
    assert_eq!((code, &patched["spec"]["containers"][0]["image"]), (200, &json!("busybox:2")), "{patched}");
    let (code, patched) = patch("application/merge-patch+json", "", json!({"metadata": {"labels": {"a": null}}})).await;
    assert_eq!((code, &patched["metadata"]["labels"]["a"]), (200, &Value::Null), "{patched}");
    assert_eq!(
        server.get("/api/v1/namespaces/default/pods/web").await.1["spec"]["containers"][0]["image"],
        "busybox:2"
    );
    for (kind, query, body, code, message) in [
        ("application/apply-patch+yaml", "", json!({}), 415, "unknown format"),
        (strategic, "", json!([]), 400, "must be an object"),
        (strategic, "", json!({"spec": {"containers": [{"image": "x"}]}}), 400, "has no \"name\""),
        (strategic, "?fieldValidation=Strict", json!({"spec": {"hostNetwrk": true}}), 400, "unknown field"),
        (strategic, "", json!({"spec": {"hostNetwork": true}}), 422, "may not"),
        (strategic, "", json!({"metadata": {"resourceVersion": "1"}}), 409, "cannot be fulfilled"),
    ] {
        let (found, status) = patch(kind, query, body.clone()).await;
        let text = status["message"].as_str().unwrap_or_default();
        assert!(found == code && text.contains(message), "{body}: {found} {text}");
    }
}

#[tokio::test]
async fn a_pod_is_created_updated_and_deleted() {
    let mut server = start();
    let (code, created) = server.json(&format!("POST {PODS}"), &pod("web")).await;
    assert_eq!((code, &created["metadata"]["name"]), (201, &json!("web")), "{created}");
    assert_eq!(server.get(&format!("{PODS}/web")).await.1, created, "a created pod can be read at once");
    let mut new = created.clone();
    new["spec"]["containers"][0]["image"] = json!("busybox:2");
    let (code, changed) = server.json(&format!("PUT {PODS}/web"), &new).await;
    assert_eq!((code, &changed["metadata"]["generation"]), (200, &json!(2)), "{changed}");
    let (code, conflict) = server.json(&format!("PUT {PODS}/web"), &new).await;
    assert_eq!((code, &conflict["reason"], &conflict["details"]["name"]), (409, &json!("Conflict"), &json!("web")));
    let stale = json!({"preconditions": {"uid": "other"}});
    assert_eq!(server.json(&format!("DELETE {PODS}/web"), &stale).await.0, 409);
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 3});
    let (code, going) = server.json(&format!("DELETE {PODS}/web?gracePeriodSeconds=9"), &options).await;
    assert_eq!((code, &going["metadata"]["deletionGracePeriodSeconds"]), (200, &json!(3)), "the body takes precedence");
    let puts: Vec<bool> = std::iter::from_fn(|| server.changes.try_recv().ok())
        .map(|(_, change)| matches!(change, SourceChange::Put(_)))
        .collect();
    assert_eq!(puts, [true, true, true]);
}

#[tokio::test]
async fn an_invalid_pod_is_rejected_with_its_fields_and_not_stored() {
    let server = start();
    let mut wrong = pod("web");
    wrong["spec"]["containers"][0]["image"] = json!("");
    wrong["spec"]["restartPolicy"] = json!("Sometimes");
    let (code, status) = server.json(&format!("POST {PODS}"), &wrong).await;
    assert_eq!((code, &status["reason"]), (422, &json!("Invalid")));
    let fields: Vec<&Value> = status["details"]["causes"].as_array().unwrap().iter().map(|c| &c["field"]).collect();
    assert!(fields.contains(&&json!("spec.containers[0].image")) && fields.contains(&&json!("spec.restartPolicy")));
    let mut typo = pod("web");
    typo["spec"]["replicas"] = json!(3);
    let (code, status) = server.json(&format!("POST {PODS}?fieldValidation=Strict"), &typo).await;
    assert!(code == 400 && status["message"].as_str().unwrap().contains("spec.replicas"), "{status}");
    for (body, expected) in [
        ("{", "line 1"),
        ("kind: Service\napiVersion: v1\n", "Service"),
        ("kind: Pod\napiVersion: v1\nspec: {containers: 3}\n", "spec.containers"),
        ("", "is not supported"),
        ("kind: Pod\n---\nkind: Pod\n", "exactly one object"),
    ] {
        let (code, message) = server.send(&format!("POST {PODS}"), body).await;
        assert!(code == 400 && message.contains(expected), "{body:?}: {message}");
    }
    assert_eq!(server.json(&format!("POST {PODS}?dryRun=All"), &pod("dry")).await.0, 201);
    assert_eq!(server.get("/api/v1/pods").await.1["items"], json!([]));
    let yaml = "kind: Pod\napiVersion: v1\nmetadata: {name: yaml}\nspec: {containers: [{name: c, image: i}]}\n";
    assert_eq!(server.send(&format!("POST {PODS}"), yaml).await.0, 201, "YAML is accepted");
}

#[tokio::test]
async fn static_pods_can_not_be_changed() {
    let server = start();
    server.publish("default", "web", "1", json!({}));
    let (code, status) = server.json(&format!("DELETE {PODS}/web"), &Value::Null).await;
    assert_eq!((code, &status["reason"]), (403, &json!("Forbidden")));
    assert!(status["message"].as_str().unwrap().contains("remove /m/x.yaml"), "{status}");
    let (code, status) = server.json(&format!("POST {PODS}"), &pod("web")).await;
    assert_eq!((code, &status["reason"]), (409, &json!("AlreadyExists")));
}

#[tokio::test]
async fn restart_and_stop_are_sent_to_the_agent() {
    let mut server = start();
    server.publish("default", "web", "1", json!({"phase": "Running"}));
    server.publish("default", "done", "2", json!({"phase": "Succeeded"}));
    assert_eq!(server.json(&format!("POST {PODS}/web/restart?container=c"), &Value::Null).await.1["status"], "Success");
    assert_eq!(server.json(&format!("POST {PODS}/web/restart?container=x"), &Value::Null).await.0, 400);
    // A pod in a terminal phase is replaced by a new object.
    let ended = Pod {
        status: server.feed.get(&"2".into()).unwrap().pod().status,
        ..serde_json::from_value(pod("over")).unwrap()
    };
    let (code, created) = server.json(&format!("POST {PODS}"), &pod("over")).await;
    assert_eq!(code, 201);
    let metadata = serde_json::from_value(created["metadata"].clone()).unwrap();
    server.feed.put_object(Arc::new(Pod { metadata, ..ended }), Source::Local, None);
    assert_eq!(server.json(&format!("POST {PODS}/over/restart"), &Value::Null).await.0, 200);
    let restarted = server.get(&format!("{PODS}/over")).await.1;
    assert_eq!(restarted["status"]["phase"], "Pending");
    assert_ne!(restarted["metadata"]["uid"], created["metadata"]["uid"]);
    let stop = "POST /podwright/v1/stop";
    let (code, stopped) = server.json(&format!("{stop}?all=true&gracePeriodSeconds=4"), &Value::Null).await;
    assert_eq!((code, stopped["pods"].as_array().unwrap().len()), (200, 2), "{stopped}");
    assert_eq!(server.json(&format!("{stop}?pod=default/no"), &Value::Null).await.0, 404);
    assert_eq!(server.json(stop, &Value::Null).await.0, 400);
    assert!(matches!(server.sent.try_recv(), Ok(Event::Restart { container: Some(c), .. }) if c.as_str() == "c"));
    for _ in 0..2 {
        assert!(matches!(server.sent.try_recv(), Ok(Event::Kill { grace: Some(g), .. }) if g.as_secs() == 4));
    }
    assert!(server.sent.try_recv().is_err());
}
