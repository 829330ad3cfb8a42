//! The configuration as `/configz` shows it: every field of `KubeletConfiguration`, with the Go kubelet's default where the file and
//! the flags say nothing.

use serde_json::{Map, Value, json};

use super::{Dirs, RuntimeEndpoints};

/// `{"kubeletconfig": …}`, with the values of HTTP headers masked: they are credentials.
pub(super) fn configz(document: &Value) -> Value {
    let mut config: Value = serde_json::from_str(DEFAULTS).expect("the file is part of the program");
    merge(&mut config, document);
    config["kind"] = json!("KubeletConfiguration");
    config["apiVersion"] = json!("kubelet.config.k8s.io/v1beta1");
    if let Some(headers) = config.get_mut("staticPodURLHeader").and_then(Value::as_object_mut) {
        headers.values_mut().for_each(|values| *values = json!(["<masked>"]));
    }
    json!({"kubeletconfig": config})
}

/// Shows the runtime that is used, whether a flag, the file or the default has selected it. Of the embedded engine it shows the
/// socket: clients connect to what they read here, and the upstream node suites write it to a file and start the agent with that.
pub(super) fn with_runtime(mut configz: Value, runtime: &RuntimeEndpoints, dirs: &Dirs) -> Value {
    let config = &mut configz["kubeletconfig"];
    let engine = runtime.is_embedded().then(|| dirs.engine_endpoint());
    config["containerRuntimeEndpoint"] = json!(engine.as_ref().unwrap_or(&runtime.endpoint));
    if runtime.image_endpoint != runtime.endpoint {
        config["imageServiceEndpoint"] = json!(runtime.image_endpoint);
    }
    configz
}

/// Objects that have defaults themselves are merged, everything else is replaced: the thresholds of eviction, for example.
fn merge(base: &mut Value, given: &Value) {
    let (Some(base), Some(given)) = (base.as_object_mut(), given.as_object()) else { return };
    for (key, value) in given.iter().filter(|(_, value)| !value.is_null()) {
        let nested = NESTED.contains(&key.as_str()) && value.is_object();
        match nested {
            true => merge(base.entry(key).or_insert_with(|| Value::Object(Map::new())), value),
            false => drop(base.insert(key.clone(), value.clone())),
        }
    }
}

const NESTED: [&str; 8] =
    ["authentication", "anonymous", "webhook", "x509", "authorization", "logging", "memorySwap", "crashLoopBackOff"];
/// The defaults of Kubernetes 1.36 (`SetDefaults_KubeletConfiguration`).
const DEFAULTS: &str = include_str!("kubelet_defaults.json");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_fields_replace_defaults_and_headers_are_masked() {
        let given = json!({
            "maxPods": 7, "authentication": {"anonymous": {"enabled": true}}, "evictionHard": {"memory.available": "1Mi"},
            "staticPodURLHeader": {"Authorization": ["Bearer secret"]}, "clusterDomain": null,
        });
        let all = configz(&given);
        let config = &all["kubeletconfig"];
        assert_eq!((&config["maxPods"], &config["podPidsLimit"]), (&json!(7), &json!(-1)));
        assert_eq!(config["authentication"]["anonymous"], json!({"enabled": true}));
        assert_eq!(config["authentication"]["webhook"], json!({"enabled": true, "cacheTTL": "2m0s"}));
        assert_eq!(config["evictionHard"], json!({"memory.available": "1Mi"}));
        assert_eq!((&config["kind"], &config["port"]), (&json!("KubeletConfiguration"), &json!(10250)));
        assert!(!all.to_string().contains("secret"));
    }
}
