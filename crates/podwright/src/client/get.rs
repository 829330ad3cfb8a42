//! `podwright get`, `describe` and `explain`.

use std::process::ExitCode;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use serde::Deserialize;
use serde_json::{Value, json};

use super::output::text;
use super::watch::ResumingWatch;
use super::{Client, ClientError, List, encode, events, find, path, pod_path, print, with_query};
use crate::cli::{DescribeFlags, ExplainFlags, GetFlags, Output, Resource, Scope};
use crate::print::{GrowingTable, Paint, describe as description, plain, pods};

#[derive(Deserialize)]
struct Manifests {
    broken: Vec<InvalidManifest>,
}

#[derive(Deserialize)]
struct InvalidManifest {
    origin: String,
    message: String,
}

/// `podwright get`
pub(super) async fn get(flags: &GetFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let names = flags.names();
    if !names.is_empty() && flags.selector.is_some() {
        return Err(ClientError::Usage("a name and a selector cannot be combined".into()));
    }
    match (flags.target.kind, flags.output) {
        (Resource::Events, output) => {
            let query = events::EventQuery { scope: &flags.scope, of: None, names, output, watch: flags.watch };
            query.show(&client).await
        }
        (Resource::Pods, output) if flags.watch => watch(&client, flags, output).await,
        (Resource::Pods, None | Some(Output::Wide)) => show_pods(&client, flags).await,
        (Resource::Pods, Some(output)) => raw(&client, flags, output).await,
    }
}

/// `podwright describe`
pub(super) async fn describe(flags: &DescribeFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    if flags.names().is_empty() {
        return Err(ClientError::Usage("specify a pod: describe pod NAME".into()));
    }
    let (pods, code) = find_all(&client, Some(flags.namespace()), &flags.names()).await?;
    let all = client.get::<List<Event>>(&path("events", Some(flags.namespace()))).await?.items;
    let mut parts = vec![];
    for pod in &pods {
        let own = |event: &&Event| event.involved_object.uid == pod.metadata.uid;
        let events: Vec<Event> = all.iter().filter(own).cloned().collect();
        parts.push(description::pod(pod, &events, Timestamp::now(), Paint::for_stdout()));
    }
    Ok(first_failure(code, print(&parts.join("\n\n"))))
}

/// `podwright explain`
pub(super) async fn explain(flags: &ExplainFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let pod = flags.pod.strip_prefix("pod/").unwrap_or(&flags.pod);
    let pod = match (&flags.namespace, pod.contains('/')) {
        (Some(namespace), false) => format!("{namespace}/{pod}"),
        _ => pod.to_owned(),
    };
    let text = client.get_bytes(&format!("/podwright/v1/explain?pod={}", encode(&pod))).await?;
    Ok(print(&Paint::for_stdout().headings(&String::from_utf8_lossy(&text))))
}

/// The pods of these names. Missing pods are reported on stderr, and make the exit code 1.
async fn find_all(
    client: &Client,
    namespace: Option<&str>,
    names: &[&str],
) -> Result<(Vec<Pod>, ExitCode), ClientError> {
    let (mut pods, mut code) = (vec![], ExitCode::SUCCESS);
    for name in names {
        match find(client, namespace, name).await {
            Ok(pod) => pods.push(pod),
            Err(error) if error.is_not_found() => {
                eprintln!("podwright: {error}");
                code = ExitCode::FAILURE;
            }
            Err(error) => return Err(error),
        }
    }
    Ok((pods, code))
}

fn first_failure(one: ExitCode, other: ExitCode) -> ExitCode {
    if one == ExitCode::SUCCESS { other } else { one }
}

async fn show_pods(client: &Client, flags: &GetFlags) -> Result<ExitCode, ClientError> {
    let names = flags.names();
    let (pods, code) = match names.is_empty() {
        false => find_all(client, flags.scope.namespace(), &names).await?,
        true => (client.get::<List<Pod>>(&list_path(flags)).await?.items, ExitCode::SUCCESS),
    };
    if names.is_empty() {
        // On stderr, so that programs that read the table find only pods.
        for InvalidManifest { origin, message } in client.get::<Manifests>("/podwright/v1/manifests").await?.broken {
            eprintln!("Invalid manifest {}: {}", plain(&origin), plain(&message));
        }
        if pods.is_empty() {
            eprintln!("{}", not_found_message(&flags.scope));
        }
    }
    if pods.is_empty() {
        return Ok(code);
    }
    Ok(first_failure(code, print(&pods::table(&pods, columns(flags), Timestamp::now()).render(Paint::for_stdout()))))
}

/// Lists the pods, then prints every change until stdout is closed.
async fn watch(client: &Client, flags: &GetFlags, output: Option<Output>) -> Result<ExitCode, ClientError> {
    let base = match flags.names().as_slice() {
        [] => list_path(flags),
        [name] => {
            let meta = find(client, flags.scope.namespace(), name).await?.metadata;
            let query = format!("fieldSelector=metadata.name%3D{}", encode(meta.name.as_deref().unwrap_or_default()));
            with_query(&path("pods", meta.namespace.as_deref()), &query)
        }
        _ => return Err(ClientError::Usage("only one pod, or all pods, can be watched".into())),
    };
    let mut table = GrowingTable::new(Paint::for_stdout());
    let mut shown = |pods: Vec<Pod>| match output {
        None | Some(Output::Wide) => Ok(table.more(&pods::table(&pods, columns(flags), Timestamp::now()))),
        Some(output) => pods.iter().map(|pod| text(&serde_json::to_value(pod).unwrap_or_default(), output)).collect(),
    };
    let list: Value = client.get(&base).await?;
    let items: Vec<Pod> = serde_json::from_value(list["items"].clone()).map_err(|error| client.failed(error))?;
    let mut written = print(&shown(items)?);
    let mut watch = ResumingWatch::after(client, &base, &list);
    while written == ExitCode::SUCCESS {
        let pod = serde_json::from_value(watch.next().await?).map_err(|error| client.failed(error))?;
        written = print(&shown(vec![pod])?);
    }
    Ok(written)
}

/// Prints API objects: a list, one object, or a `List` of the named ones.
async fn raw(client: &Client, flags: &GetFlags, output: Output) -> Result<ExitCode, ClientError> {
    let names = flags.names();
    if names.is_empty() {
        return Ok(print(&text(&client.get(&list_path(flags)).await?, output)?));
    }
    let (pods, code) = find_all(client, flags.scope.namespace(), &names).await?;
    let mut objects: Vec<Value> = vec![];
    for pod in &pods {
        objects.push(client.get(&pod_path(pod)).await?);
    }
    let value = match (names.len(), objects.len()) {
        (_, 0) => return Ok(code),
        (1, _) => objects.remove(0),
        _ => json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": ""}, "items": objects}),
    };
    Ok(first_failure(code, print(&text(&value, output)?)))
}

fn columns(flags: &GetFlags) -> pods::Columns {
    pods::Columns { namespace: flags.scope.all_namespaces, wide: flags.output == Some(Output::Wide) }
}

/// The API path of the list, with the label selector.
fn list_path(flags: &GetFlags) -> String {
    let path = path("pods", flags.scope.namespace());
    match &flags.selector {
        Some(selector) => with_query(&path, &format!("labelSelector={}", encode(selector))),
        None => path,
    }
}

pub(super) fn not_found_message(scope: &Scope) -> String {
    match scope.namespace() {
        Some(namespace) => format!("No resources found in {namespace} namespace."),
        None => "No resources found".into(),
    }
}
