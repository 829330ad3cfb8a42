//! The verbs that show: get, describe, events, explain.

use std::process::ExitCode;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use serde::Deserialize;
use serde_json::Value;
use serde_json::ser::PrettyFormatter;

use super::lines::Lines;
use super::{Client, ClientError, List, encode, find, is_named, path, pod_path, print};
use crate::cli::{DescribeFlags, EventFlags, ExplainFlags, GetFlags, Output, Resource, Scope};
use crate::print::{Paint, describe as description, events as event_table, plain, pods};

#[derive(Deserialize)]
struct Manifests {
    broken: Vec<Broken>,
}

#[derive(Deserialize)]
struct Broken {
    origin: String,
    message: String,
}

/// `podwright get`
pub(super) async fn get(flags: &GetFlags) -> Result<ExitCode, ClientError> {
    let (client, scope) = (Client::new(&flags.socket.run_dir), &flags.scope);
    match (flags.resource, flags.output) {
        (Resource::Pods, output) if flags.watch => watch(&client, flags, output).await,
        (Resource::Pods, None | Some(Output::Wide)) => show_pods(&client, flags).await,
        (Resource::Events, None | Some(Output::Wide)) => show_events(&client, scope, None).await,
        (resource, Some(output)) => raw(&client, resource, flags, output).await,
    }
}

/// `podwright describe`
pub(super) async fn describe(flags: &DescribeFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let pod = find(&client, flags.namespace(), &flags.name).await?;
    let mut events = client.get::<List<Event>>(&path("events", Some(flags.namespace()))).await?.items;
    events.retain(|event| event.involved_object.uid == pod.metadata.uid);
    Ok(print(&description::pod(&pod, &events, Timestamp::now(), Paint::for_stdout())))
}

/// `podwright events`
pub(super) async fn events(flags: &EventFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    show_events(&client, &flags.scope, flags.of.as_deref()).await
}

/// `podwright explain`
pub(super) async fn explain(flags: &ExplainFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let pod = match (&flags.namespace, flags.pod.contains('/')) {
        (Some(namespace), false) => format!("{namespace}/{}", flags.pod),
        _ => flags.pod.clone(),
    };
    let told = client.get_bytes(&format!("/podwright/v1/explain?pod={}", encode(&pod))).await?;
    Ok(print(&Paint::for_stdout().headings(&String::from_utf8_lossy(&told))))
}

async fn show_pods(client: &Client, flags: &GetFlags) -> Result<ExitCode, ClientError> {
    let pods = match &flags.name {
        Some(name) => vec![find(client, flags.scope.one(), name).await?],
        None => client.get::<List<Pod>>(&listed(flags)).await?.items,
    };
    if flags.name.is_none() {
        // Beside the table, so that what reads the table finds pods only.
        for Broken { origin, message } in client.get::<Manifests>("/podwright/v1/manifests").await?.broken {
            eprintln!("Broken manifest {}: {}", plain(&origin), plain(&message));
        }
    }
    if pods.is_empty() {
        eprintln!("{}", nothing(&flags.scope));
        return Ok(ExitCode::SUCCESS);
    }
    Ok(print(&pods::table(&pods, columns(flags), Timestamp::now(), Paint::for_stdout())))
}

/// The pods as they are, then every change, until nobody reads any more.
async fn watch(client: &Client, flags: &GetFlags, output: Option<Output>) -> Result<ExitCode, ClientError> {
    let mut sheet = pods::Sheet::new(columns(flags), Paint::for_stdout());
    let base = match &flags.name {
        Some(name) => {
            let name = find(client, flags.scope.one(), name).await?.metadata.name.unwrap_or_default();
            with_query(
                &path("pods", Some(flags.scope.one())),
                &format!("fieldSelector=metadata.name%3D{}", encode(&name)),
            )
        }
        None => listed(flags),
    };
    let mut shown = |pods: Vec<Pod>| match output {
        None | Some(Output::Wide) => Ok(sheet.more(&pods, Timestamp::now())),
        Some(output) => pods.iter().map(|pod| text(&serde_json::to_value(pod).unwrap_or_default(), output)).collect(),
    };
    let list: Value = client.get(&base).await?;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned();
    let items: Vec<Pod> = serde_json::from_value(list["items"].clone()).map_err(|error| client.broken(error))?;
    let mut written = print(&shown(items)?);
    let follow = with_query(&base, &format!("watch=true&resourceVersion={}", encode(&version)));
    let mut lines = Lines::new(client.follow(&follow).await?);
    while written == ExitCode::SUCCESS
        && let Some((_, pod)) = lines.change(client).await?
    {
        written = print(&shown(vec![pod])?);
    }
    Ok(written)
}

async fn show_events(client: &Client, scope: &Scope, of: Option<&str>) -> Result<ExitCode, ClientError> {
    let mut list = client.get::<List<Event>>(&path("events", scope.namespace())).await?.items;
    if let Some(of) = of {
        let name = of.strip_prefix("pod/").unwrap_or(of);
        let node = |event: &Event| event.reporting_instance.clone().unwrap_or_default();
        list.retain(|event| {
            event.involved_object.name.as_deref().is_some_and(|full| is_named(full, name, &node(event)))
        });
    }
    if list.is_empty() {
        eprintln!("{}", nothing(scope));
        return Ok(ExitCode::SUCCESS);
    }
    Ok(print(&event_table::table(&list, scope.all_namespaces, Timestamp::now(), Paint::for_stdout())))
}

/// Exactly what the API has.
async fn raw(client: &Client, resource: Resource, flags: &GetFlags, output: Output) -> Result<ExitCode, ClientError> {
    let value: Value = match (resource, &flags.name) {
        (Resource::Pods, Some(name)) => client.get(&pod_path(&find(client, flags.scope.one(), name).await?)).await?,
        (Resource::Pods, None) => client.get(&listed(flags)).await?,
        (Resource::Events, _) => client.get(&path("events", flags.scope.namespace())).await?,
    };
    Ok(print(&text(&value, output)?))
}

fn text(value: &Value, output: Output) -> Result<String, ClientError> {
    let failed = |error: &dyn std::fmt::Display| ClientError::Usage(error.to_string());
    if output == Output::Yaml {
        return serde_saphyr::to_string(value).map_err(|error| failed(&error));
    }
    let mut text = Vec::new();
    let mut json = serde_json::Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"    "));
    serde::Serialize::serialize(value, &mut json).map_err(|error| failed(&error))?;
    text.push(b'\n');
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn columns(flags: &GetFlags) -> pods::Columns {
    pods::Columns { namespace: flags.scope.all_namespaces, wide: flags.output == Some(Output::Wide) }
}

/// The list that is asked for.
fn listed(flags: &GetFlags) -> String {
    let path = path("pods", flags.scope.namespace());
    match &flags.selector {
        Some(selector) => with_query(&path, &format!("labelSelector={}", encode(selector))),
        None => path,
    }
}

fn with_query(path: &str, query: &str) -> String {
    format!("{path}{}{query}", if path.contains('?') { '&' } else { '?' })
}

fn nothing(scope: &Scope) -> String {
    match scope.namespace() {
        Some(namespace) => format!("No resources found in {namespace} namespace."),
        None => "No resources found".into(),
    }
}
