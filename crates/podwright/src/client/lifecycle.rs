//! `podwright delete`, `restart`, `stop` and `start`. All pods are found before anything happens to one of them.

use std::process::ExitCode;

use http::Method;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::select::{Selected, lookup, none_selected, select};
use super::{Client, ClientError, apply, encode, pod_path, wait};
use crate::cli::{DeleteFlags, PodSelection, RestartFlags, StartFlags, StopFlags};

/// `podwright delete`: deletes all pods first, then waits for each.
pub(super) async fn delete(flags: &DeleteFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let (pods, mut code) = (to_delete(&client, flags).await?, ExitCode::SUCCESS);
    let mut deleted = vec![];
    for pod in pods {
        match delete_one(&client, flags, &pod).await {
            Ok(()) => deleted.push(pod),
            Err(error) if error.is_not_found() && flags.ignore_not_found => {}
            Err(error) => code = report(&error),
        }
    }
    for pod in deleted {
        if flags.wait
            && let Err(error) = wait::gone(&client, &pod, flags.timeout).await
        {
            code = report(&error);
            continue;
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        println!("pod {:?} deleted from {namespace} namespace", name_of(&pod));
    }
    Ok(code)
}

/// The pods of the arguments and of the files.
async fn to_delete(client: &Client, flags: &DeleteFlags) -> Result<Vec<Pod>, ClientError> {
    let (mut pods, mut missing) = (vec![], vec![]);
    if flags.files.is_empty() || !flags.selection.is_empty() {
        let selected: Selected = lookup(client, &flags.selection).await?;
        (pods, missing) = (selected.pods, selected.missing);
        if pods.is_empty() && missing.is_empty() {
            eprintln!("{}", none_selected(&flags.selection));
        }
    }
    // `delete certificate db` means the resource type, even if it is unknown here: the pod `db` must not be deleted instead.
    let may_be_kind = |name: &String| flags.selection.may_be_kind(name);
    if !missing.is_empty() && (!flags.ignore_not_found || missing.iter().any(may_be_kind)) {
        let missing: Vec<&str> = missing.iter().map(String::as_str).collect();
        return Err(ClientError::no_pods(&missing, flags.selection.scope.namespace()));
    }
    for document in apply::documents(&apply::texts(&flags.files)?)? {
        let namespace = document.namespace(flags.selection.scope.namespace.as_deref())?;
        // By its exact name: the static pod of the same file is another pod.
        match client
            .get::<Pod>(&format!("{}/{}", super::path("pods", Some(&namespace)), encode(&document.name()?)))
            .await
        {
            Err(error) if error.is_not_found() && flags.ignore_not_found => {}
            Err(error) if error.is_not_found() => {
                return Err(ClientError::no_pods(&[&document.name()?], Some(&namespace)));
            }
            pod => pods.push(pod?),
        }
    }
    Ok(pods)
}

async fn delete_one(client: &Client, flags: &DeleteFlags, pod: &Pod) -> Result<(), ClientError> {
    let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": pod.metadata.uid}});
    if let Some(grace) = flags.grace() {
        options["gracePeriodSeconds"] = json!(grace);
    }
    client.send::<Value>(Method::DELETE, &pod_path(pod), Some(&options)).await?;
    Ok(())
}

/// `podwright restart`
pub(super) async fn restart(flags: &RestartFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let query = flags.container.as_deref().map(|name| format!("?container={}", encode(name))).unwrap_or_default();
    let pods = selected(&client, &flags.selection).await?;
    Ok(request_restarts(&client, &pods, &query, "restart").await)
}

/// Requests the restarts one after the other, then waits for all at once. A pod that has terminated is replaced by a new instance: the
/// next command must find it.
async fn request_restarts(client: &Client, pods: &[Pod], query: &str, verb: &str) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let mut requested = vec![];
    for pod in pods {
        match client.send::<Value>(Method::POST, &format!("{}/restart{query}", pod_path(pod)), None).await {
            Ok(_) => requested.push(pod),
            Err(error) => code = report(&error),
        }
    }
    let terminated: Vec<&Pod> = requested.iter().copied().filter(|pod| wait::has_terminated(pod)).collect();
    for error in wait::replaced(client, &terminated).await {
        code = report(&error);
    }
    requested.iter().for_each(|pod| println!("pod/{} {verb} requested", name_of(pod)));
    code
}

/// `podwright start`: pods that have not terminated are left alone.
pub(super) async fn start(flags: &StartFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let (terminated, others): (Vec<Pod>, Vec<Pod>) =
        selected(&client, &flags.selection).await?.into_iter().partition(wait::has_terminated);
    for pod in &others {
        match wait::held_reason(pod) {
            Some(reason) => {
                println!("pod/{} waits ({reason}), and starts by itself: see podwright explain", name_of(pod))
            }
            None => println!("pod/{} has not terminated, nothing to start", name_of(pod)),
        }
    }
    Ok(request_restarts(&client, &terminated, "", "start").await)
}

/// `podwright stop`: requests the stop of all pods, then waits for each.
pub(super) async fn stop(flags: &StopFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let grace = flags.grace_period.map(|grace| format!("&gracePeriodSeconds={grace}")).unwrap_or_default();
    let (mut stopping, mut code) = (vec![], ExitCode::SUCCESS);
    for pod in selected(&client, &flags.selection).await? {
        let path = format!("/podwright/v1/stop?pod={}{grace}", encode(&full_name(&pod)));
        match client.send::<Value>(Method::POST, &path, None).await {
            Ok(_) => stopping.push(pod),
            Err(error) => code = report(&error),
        }
    }
    let until = flags.timeout.map(|limit| Instant::now() + limit);
    for pod in &stopping {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match wait::stopped(&client, pod, left).await {
            Ok(()) => println!("pod/{} stopped", name_of(pod)),
            Err(error) => code = report(&error),
        }
    }
    Ok(code)
}

/// The pods of a selection; if there are none, that is printed.
async fn selected(client: &Client, selection: &PodSelection) -> Result<Vec<Pod>, ClientError> {
    let pods = select(client, selection).await?;
    if pods.is_empty() {
        eprintln!("{}", none_selected(selection));
    }
    Ok(pods)
}

/// Prints an error; the command continues with the next pod, and fails in the end.
fn report(error: &ClientError) -> ExitCode {
    eprintln!("podwright: {error}");
    ExitCode::FAILURE
}

fn name_of(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.metadata.namespace.as_deref().unwrap_or("default"), name_of(pod))
}
