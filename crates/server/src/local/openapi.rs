//! The OpenAPI v3 documents that kubectl reads before it writes: which kinds may be written, with which parameters. They have no
//! schemas of objects; fields are validated by the server.

use serde_json::{Value, json};

/// `/openapi/v3`
pub(super) fn root() -> Value {
    json!({"paths": {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}}})
}

/// `/openapi/v3/api/v1`
pub(super) fn core_v1() -> Value {
    let parameter = |name: &str, place: &str| json!({"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}});
    let operation = |action: &str, parameters: &[&str]| {
        let parameters: Vec<Value> = parameters.iter().map(|name| parameter(name, "query")).collect();
        json!({"parameters": parameters, "responses": {"200": {"description": "OK"}}, "x-kubernetes-action": action,
               "x-kubernetes-group-version-kind": {"group": "", "version": "v1", "kind": "Pod"}})
    };
    let write = ["dryRun", "fieldManager", "fieldValidation"];
    let path_parameters = json!([parameter("namespace", "path"), parameter("name", "path")]);
    json!({
        "openapi": "3.0.0",
        "info": {"title": "podwright", "version": env!("CARGO_PKG_VERSION")},
        "paths": {
            "/api/v1/namespaces/{namespace}/pods": {
                "parameters": [parameter("namespace", "path")],
                "get": operation("list", &["labelSelector", "fieldSelector"]),
                "post": operation("post", &write),
            },
            "/api/v1/namespaces/{namespace}/pods/{name}": {
                "parameters": path_parameters,
                "get": operation("get", &[]),
                "put": operation("put", &write),
                "patch": operation("patch", &write),
                "delete": operation("delete", &["dryRun", "gracePeriodSeconds"]),
            },
        },
        "components": {"schemas": {}},
    })
}
