//! `podwright delete`, `restart` and `stop`.

use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{Client, ClientError, List, apply, encode, find, path, pod_path, wait};
use crate::cli::{DeleteFlags, RestartFlags, StopFlags};

/// `podwright delete`: deletes all pods first, then waits for each.
pub(super) async fn delete(flags: &DeleteFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let mut targets: Vec<(String, String)> = vec![];
    for name in flags.names() {
        targets.push((flags.namespace().to_owned(), name.to_owned()));
    }
    for document in apply::documents(&apply::texts(&flags.files)?)? {
        targets.push((document.namespace(flags.namespace.as_deref()), document.name()?));
    }
    if targets.is_empty() {
        return Err(ClientError::Usage("specify a pod, or a file with -f".into()));
    }
    let (mut deleted, mut code) = (vec![], ExitCode::SUCCESS);
    for (namespace, name) in targets {
        match delete_one(&client, flags, &namespace, &name).await {
            Ok(pod) => deleted.push(pod),
            Err(error) if error.is_not_found() && flags.ignore_not_found => {}
            Err(error) => {
                eprintln!("podwright: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    for pod in deleted {
        if flags.wait {
            wait::gone(&client, &pod, flags.timeout).await?;
        }
        let (name, namespace) = (pod.metadata.name.as_deref().unwrap_or_default(), pod.metadata.namespace.as_deref());
        println!("pod {name:?} deleted from {} namespace", namespace.unwrap_or("default"));
    }
    Ok(code)
}

async fn delete_one(client: &Client, flags: &DeleteFlags, namespace: &str, name: &str) -> Result<Pod, ClientError> {
    let pod = find(client, namespace, name).await?;
    let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": pod.metadata.uid}});
    if let Some(grace) = flags.grace() {
        options["gracePeriodSeconds"] = json!(grace);
    }
    client.send::<Value>(Method::DELETE, &pod_path(&pod), Some(&options)).await?;
    Ok(pod)
}

/// `podwright restart`
pub(super) async fn restart(flags: &RestartFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let pod = find(&client, flags.namespace(), &flags.pod).await?;
    let query = flags.container.as_deref().map(|name| format!("?container={}", encode(name))).unwrap_or_default();
    client.send::<Value>(Method::POST, &format!("{}/restart{query}", pod_path(&pod)), None).await?;
    println!("pod/{} restarted", pod.metadata.name.as_deref().unwrap_or_default());
    Ok(ExitCode::SUCCESS)
}

/// `podwright stop`: requests the stop of all pods, then waits for each.
pub(super) async fn stop(flags: &StopFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let pods = match flags.all {
        true => client.get::<List<Pod>>(&path("pods", None)).await?.items,
        false => {
            let mut pods = vec![];
            for name in &flags.pods {
                pods.push(find(&client, flags.namespace(), name).await?);
            }
            pods
        }
    };
    let grace = flags.grace_period.map(|grace| format!("&gracePeriodSeconds={grace}")).unwrap_or_default();
    let selectors: Vec<String> = match flags.all {
        true => vec!["all=true".into()],
        false => pods.iter().map(|pod| format!("pod={}", encode(&full_name(pod)))).collect(),
    };
    for selector in selectors {
        client.send::<Value>(Method::POST, &format!("/podwright/v1/stop?{selector}{grace}"), None).await?;
    }
    let until = tokio::time::Instant::now() + flags.timeout.unwrap_or(Duration::from_secs(u64::from(u32::MAX)));
    for pod in &pods {
        wait::stopped(&client, pod, until.saturating_duration_since(tokio::time::Instant::now())).await?;
        println!("pod/{} stopped", pod.metadata.name.as_deref().unwrap_or_default());
    }
    if pods.is_empty() {
        eprintln!("No pods found");
    }
    Ok(ExitCode::SUCCESS)
}

fn full_name(pod: &Pod) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    format!("{namespace}/{}", pod.metadata.name.as_deref().unwrap_or_default())
}
