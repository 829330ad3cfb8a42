use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn a_pod_is_taken_changed_and_deleted() {
    let mut bed = start();
    let (code, made) = bed.json(&format!("POST {PODS}"), &pod("web")).await;
    assert_eq!((code, &made["metadata"]["name"]), (201, &json!("web")), "{made}");
    assert_eq!(bed.get(&format!("{PODS}/web")).await.1, made, "who writes reads it at once");
    let mut new = made.clone();
    new["spec"]["containers"][0]["image"] = json!("busybox:2");
    let (code, changed) = bed.json(&format!("PUT {PODS}/web"), &new).await;
    assert_eq!((code, &changed["metadata"]["generation"]), (200, &json!(2)), "{changed}");
    let (code, conflict) = bed.json(&format!("PUT {PODS}/web"), &new).await;
    assert_eq!((code, &conflict["reason"], &conflict["details"]["name"]), (409, &json!("Conflict"), &json!("web")));
    let stale = json!({"preconditions": {"uid": "other"}});
    assert_eq!(bed.json(&format!("DELETE {PODS}/web"), &stale).await.0, 409);
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 3});
    let (code, going) = bed.json(&format!("DELETE {PODS}/web?gracePeriodSeconds=9"), &options).await;
    assert_eq!((code, &going["metadata"]["deletionGracePeriodSeconds"]), (200, &json!(3)), "the body counts");
    let heard: Vec<bool> = std::iter::from_fn(|| bed.changes.try_recv().ok())
        .map(|(_, change)| matches!(change, SourceChange::Put(_)))
        .collect();
    assert_eq!(heard, [true, true, true]);
}

#[tokio::test]
async fn what_is_wrong_is_told_by_field_and_nothing_is_taken() {
    let bed = start();
    let mut wrong = pod("web");
    wrong["spec"]["containers"][0]["image"] = json!("");
    wrong["spec"]["restartPolicy"] = json!("Sometimes");
    let (code, status) = bed.json(&format!("POST {PODS}"), &wrong).await;
    assert_eq!((code, &status["reason"]), (422, &json!("Invalid")));
    let fields: Vec<&Value> = status["details"]["causes"].as_array().unwrap().iter().map(|c| &c["field"]).collect();
    assert!(fields.contains(&&json!("spec.containers[0].image")) && fields.contains(&&json!("spec.restartPolicy")));
    let mut typo = pod("web");
    typo["spec"]["replicas"] = json!(3);
    let (code, status) = bed.json(&format!("POST {PODS}?fieldValidation=Strict"), &typo).await;
    assert!(code == 400 && status["message"].as_str().unwrap().contains("spec.replicas"), "{status}");
    for (body, word) in [
        ("{", "line 1"),
        ("kind: Service\napiVersion: v1\n", "Service"),
        ("kind: Pod\napiVersion: v1\nspec: {containers: 3}\n", "spec.containers"),
        ("", "can't be taken"),
        ("kind: Pod\n---\nkind: Pod\n", "one object"),
    ] {
        let (code, said) = bed.send(&format!("POST {PODS}"), body).await;
        assert!(code == 400 && said.contains(word), "{body:?}: {said}");
    }
    assert_eq!(bed.json(&format!("POST {PODS}?dryRun=All"), &pod("dry")).await.0, 201);
    assert_eq!(bed.get("/api/v1/pods").await.1["items"], json!([]));
    let yaml = "kind: Pod\napiVersion: v1\nmetadata: {name: yaml}\nspec: {containers: [{name: c, image: i}]}\n";
    assert_eq!(bed.send(&format!("POST {PODS}"), yaml).await.0, 201, "YAML is as good");
}

#[tokio::test]
async fn pods_of_files_are_not_changed_here() {
    let bed = start();
    bed.show("default", "web", "1", json!({}));
    let (code, status) = bed.json(&format!("DELETE {PODS}/web"), &Value::Null).await;
    assert_eq!((code, &status["reason"]), (403, &json!("Forbidden")));
    assert!(status["message"].as_str().unwrap().contains("remove /m/x.yaml"), "{status}");
    let (code, status) = bed.json(&format!("POST {PODS}"), &pod("web")).await;
    assert_eq!((code, &status["reason"]), (409, &json!("AlreadyExists")));
}

#[tokio::test]
async fn restarts_and_stops_go_to_the_agent() {
    let mut bed = start();
    bed.show("default", "web", "1", json!({"phase": "Running"}));
    bed.show("default", "done", "2", json!({"phase": "Succeeded"}));
    assert_eq!(bed.json(&format!("POST {PODS}/web/restart?container=c"), &Value::Null).await.1["status"], "Success");
    assert_eq!(bed.json(&format!("POST {PODS}/web/restart?container=x"), &Value::Null).await.0, 400);
    // An object that has ended stays so: another takes its place.
    let ended =
        Pod { status: bed.feed.get(&"2".into()).unwrap().pod().status, ..serde_json::from_value(pod("over")).unwrap() };
    let (code, taken) = bed.json(&format!("POST {PODS}"), &pod("over")).await;
    assert_eq!(code, 201);
    let metadata = serde_json::from_value(taken["metadata"].clone()).unwrap();
    bed.feed.put_object(Arc::new(Pod { metadata, ..ended }), Source::Local, None);
    assert_eq!(bed.json(&format!("POST {PODS}/over/restart"), &Value::Null).await.0, 200);
    let anew = bed.get(&format!("{PODS}/over")).await.1;
    assert_eq!(anew["status"]["phase"], "Pending");
    assert_ne!(anew["metadata"]["uid"], taken["metadata"]["uid"]);
    let stop = "POST /podwright/v1/stop";
    let (code, said) = bed.json(&format!("{stop}?all=true&gracePeriodSeconds=4"), &Value::Null).await;
    assert_eq!((code, said["pods"].as_array().unwrap().len()), (200, 2), "{said}");
    assert_eq!(bed.json(&format!("{stop}?pod=default/no"), &Value::Null).await.0, 404);
    assert_eq!(bed.json(stop, &Value::Null).await.0, 400);
    assert!(matches!(bed.told.try_recv(), Ok(Event::Restart { container: Some(c), .. }) if c.as_str() == "c"));
    for _ in 0..2 {
        assert!(matches!(bed.told.try_recv(), Ok(Event::Kill { grace: Some(g), .. }) if g.as_secs() == 4));
    }
    assert!(bed.told.try_recv().is_err());
}
