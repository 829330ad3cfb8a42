//! The verbs of the command line that ask a running agent.

use std::io::Write;
use std::process::ExitCode;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use serde::Deserialize;
use serde_json::Value;
use serde_json::ser::PrettyFormatter;

use super::{Client, ClientError};
use crate::cli::{Ask, Output, Resource, Scope};
use crate::print::{Paint, describe, events, pods};

/// Ask, print, and tell how it went: 0 if there was an answer, 1 if not.
pub(crate) fn run(ask: &Ask) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(answer(ask)),
        Err(error) => Err(ClientError::Refused(format!("start: {error}"))),
    };
    match result {
        Ok(text) => print(&text),
        Err(error) => {
            eprintln!("podwright: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whoever reads may stop reading; that is no failure of ours.
fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("podwright: write: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
}

#[derive(Deserialize)]
struct Manifests {
    broken: Vec<Broken>,
}

#[derive(Deserialize)]
struct Broken {
    origin: String,
    message: String,
}

async fn answer(ask: &Ask) -> Result<String, ClientError> {
    let (now, paint) = (Timestamp::now(), Paint::for_stdout());
    match ask {
        Ask::Get(get) => {
            let (client, scope) = (Client::new(&get.socket.run_dir), &get.scope);
            match (get.resource, get.output) {
                (Resource::Pods, None | Some(Output::Wide)) => {
                    show_pods(&client, scope, get.name.as_deref(), get.output.is_some(), now, paint).await
                }
                (Resource::Events, None | Some(Output::Wide)) => show_events(&client, scope, None, now, paint).await,
                (resource, Some(output)) => raw(&client, resource, scope, get.name.as_deref(), output).await,
            }
        }
        Ask::Events(flags) => {
            let client = Client::new(&flags.socket.run_dir);
            let of = flags.of.as_deref();
            show_events(&client, &flags.scope, of, now, paint).await
        }
        Ask::Describe(flags) => {
            let client = Client::new(&flags.socket.run_dir);
            let pod = find(&client, flags.namespace(), &flags.name).await?;
            let events = events_of(&client, flags.namespace(), &pod).await?;
            Ok(describe::pod(&pod, &events, now, paint))
        }
        Ask::Explain(flags) => {
            let client = Client::new(&flags.socket.run_dir);
            let pod = match (&flags.namespace, flags.pod.contains('/')) {
                (Some(namespace), false) => format!("{namespace}/{}", flags.pod),
                _ => flags.pod.clone(),
            };
            let told = client.get_bytes(&format!("/podwright/v1/explain?pod={}", encode(&pod))).await?;
            Ok(paint.headings(&String::from_utf8_lossy(&told)))
        }
    }
}

async fn show_pods(
    client: &Client,
    scope: &Scope,
    name: Option<&str>,
    wide: bool,
    now: Timestamp,
    paint: Paint,
) -> Result<String, ClientError> {
    let pods = match name {
        Some(name) => vec![find(client, scope.one(), name).await?],
        None => client.get::<List<Pod>>(&path("pods", scope.namespace())).await?.items,
    };
    if name.is_none() {
        // Beside the table, so that what reads the table finds pods only.
        for Broken { origin, message } in client.get::<Manifests>("/podwright/v1/manifests").await?.broken {
            eprintln!("Broken manifest {}: {}", crate::print::plain(&origin), crate::print::plain(&message));
        }
    }
    if pods.is_empty() {
        eprintln!("{}", nothing(scope));
        return Ok(String::new());
    }
    let columns = pods::Columns { namespace: scope.all_namespaces, wide };
    Ok(pods::table(&pods, columns, now, paint))
}

async fn show_events(
    client: &Client,
    scope: &Scope,
    of: Option<&str>,
    now: Timestamp,
    paint: Paint,
) -> Result<String, ClientError> {
    let mut list = client.get::<List<Event>>(&path("events", scope.namespace())).await?.items;
    if let Some(of) = of {
        let name = of.strip_prefix("pod/").unwrap_or(of);
        list.retain(|event| {
            event.involved_object.name.as_deref().is_some_and(|full| is_named(full, name, node_of(event)))
        });
    }
    if list.is_empty() {
        eprintln!("{}", nothing(scope));
        return Ok(String::new());
    }
    Ok(events::table(&list, scope.all_namespaces, now, paint))
}

/// Exactly what the API has.
async fn raw(
    client: &Client,
    resource: Resource,
    scope: &Scope,
    name: Option<&str>,
    output: Output,
) -> Result<String, ClientError> {
    let value: Value = match (resource, name) {
        (Resource::Pods, Some(name)) => {
            let found = find(client, scope.one(), name).await?;
            let name = found.metadata.name.unwrap_or_default();
            client.get(&format!("/api/v1/namespaces/{}/pods/{}", encode(scope.one()), encode(&name))).await?
        }
        (Resource::Pods, None) => client.get(&path("pods", scope.namespace())).await?,
        (Resource::Events, _) => client.get(&path("events", scope.namespace())).await?,
    };
    if output == Output::Yaml {
        return serde_saphyr::to_string(&value).map_err(|error| ClientError::Refused(error.to_string()));
    }
    let mut text = Vec::new();
    let mut json = serde_json::Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"    "));
    serde::Serialize::serialize(&value, &mut json).map_err(|error| ClientError::Refused(error.to_string()))?;
    text.push(b'\n');
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A pod by its name, or by its manifest's name: static pods have the node's behind it.
async fn find(client: &Client, namespace: &str, name: &str) -> Result<Pod, ClientError> {
    let pods = client.get::<List<Pod>>(&path("pods", Some(namespace))).await?.items;
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let named = |pod: &&Pod| pod.metadata.name.as_deref().is_some_and(|full| is_named(full, name, &node(pod)));
    let created = |pod: &&Pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let found = pods.iter().filter(named).max_by_key(created).cloned();
    found.ok_or_else(|| ClientError::Refused(format!("pods {name:?} not found in namespace {namespace:?}")))
}

async fn events_of(client: &Client, namespace: &str, pod: &Pod) -> Result<Vec<Event>, ClientError> {
    let mut events = client.get::<List<Event>>(&path("events", Some(namespace))).await?.items;
    events.retain(|event| event.involved_object.uid == pod.metadata.uid);
    Ok(events)
}

fn is_named(full: &str, name: &str, node: &str) -> bool {
    full == name || full.strip_suffix(node).and_then(|rest| rest.strip_suffix('-')) == Some(name)
}

fn node_of(event: &Event) -> &str {
    event.reporting_instance.as_deref().unwrap_or_default()
}

fn path(resource: &str, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("/api/v1/namespaces/{}/{resource}", encode(namespace)),
        None => format!("/api/v1/{resource}"),
    }
}

fn nothing(scope: &Scope) -> String {
    match scope.namespace() {
        Some(namespace) => format!("No resources found in {namespace} namespace."),
        None => "No resources found".into(),
    }
}

/// Whatever people type becomes a part of a path, and no more than that.
fn encode(text: &str) -> String {
    let harmless = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
    text.bytes().map(|b| if harmless(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_pods_go_by_their_manifests_name_too() {
        assert!(is_named("web-node", "web-node", "node") && is_named("web-node", "web", "node"));
        assert!(!is_named("web-node", "we", "node") && !is_named("webnode", "web", "node") && !is_named("web", "", ""));
    }

    #[test]
    fn what_people_type_stays_one_part_of_the_path() {
        assert_eq!(encode("a/../b?c d"), "a%2F..%2Fb%3Fc%20d");
        assert_eq!(path("pods", Some("x/y")), "/api/v1/namespaces/x%2Fy/pods");
    }
}
