//! `podwright get`, `describe` and `explain`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::core::v1::{Event, Pod};
use rustix::termios::tcgetwinsize;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::output::text;
use super::watch::ResumingWatch;
use super::{
    Client, ClientError, List, encode, events, explain_text, find, last_lines, path, pod_path, print, pulls, with_query,
};
use crate::cli::{DescribeFlags, ExplainFlags, GetFlags, JsonPath, Output, OutputArgument, Resource, Scope};
use crate::decode::decode;
use crate::print::{GrowingTable, Paint, TextTable, describe as description, plain, pods};

/// How often a watch asks how far pulls are, while pods wait for images.
const PULLS_EVERY: Duration = Duration::from_secs(1);

/// The response of `/podwright/v1/manifests`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifests {
    pub(super) broken: Vec<BrokenManifest>,
    /// The container runtime responds.
    pub(super) runtime_up: bool,
    /// The agent was just started: the first answer of the runtime is awaited.
    #[serde(default)]
    pub(super) runtime_pending: bool,
    /// Why the runtime has no network for pods.
    #[serde(default)]
    pub(super) network_error: Option<String>,
    /// Other problems that the runtime reports.
    #[serde(default)]
    pub(super) runtime_problems: Vec<String>,
    /// Pressure conditions of the node that hold.
    #[serde(default)]
    pub(super) pressures: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct BrokenManifest {
    pub(super) origin: String,
    pub(super) message: String,
}

/// `podwright get`
pub(super) async fn get(flags: &GetFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    let names = flags.names()?;
    if !names.is_empty() && flags.selector.is_some() {
        return Err(ClientError::Usage("a name and a selector cannot be combined".into()));
    }
    if let Some(OutputArgument::JsonPath(_) | OutputArgument::CustomColumns(_)) = flags.output {
        return match flags.target.kind {
            Resource::Pods => templated(&client, flags).await,
            Resource::Events => Err(ClientError::Usage("this output format is for pods only".into())),
        };
    }
    match (flags.target.kind, flags.format()) {
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
    let names = flags.names()?;
    let (mut pods, code) = match (&flags.selector, names.is_empty()) {
        (None, true) => return Err(ClientError::Usage("specify a pod: describe pod NAME".into())),
        (None, false) => find_all(&client, Some(flags.namespace()), &names).await?,
        (Some(_), false) => return Err(ClientError::Usage("a name and a selector cannot be combined".into())),
        (Some(selector), true) => {
            let query = format!("labelSelector={}", encode(selector));
            let list = with_query(&path("pods", Some(flags.namespace())), &query);
            (client.get::<List<Pod>>(&list).await?.items, ExitCode::SUCCESS)
        }
    };
    if pods.is_empty() && names.is_empty() {
        eprintln!("No resources found in {} namespace.", flags.namespace());
    }
    pulls::add_to(&client, &mut pods).await;
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
    let pod = flags.pod()?;
    let text = client.get_bytes(&format!("/podwright/v1/explain?pod={}", encode(&pod))).await?;
    let (namespace, name) =
        pod.split_once('/').map_or((None, pod.as_str()), |(namespace, name)| (Some(namespace), name));
    let zone = if flags.utc { TimeZone::UTC } else { TimeZone::system() };
    let mut text = explain_text::in_time_zone(&String::from_utf8_lossy(&text), &zone);
    if let Ok(pod) = find(&client, namespace, name).await {
        text.push_str(&last_lines::of_failed_containers(&client, &pod).await);
    }
    if let Some(size) = std::io::stdout().is_terminal().then(|| tcgetwinsize(std::io::stdout()).ok()).flatten() {
        text = explain_text::wrapped(&text, size.ws_col.into());
    }
    Ok(print(&Paint::for_stdout().headings(&text)))
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
    let names = flags.names()?;
    let (mut pods, code) = match names.is_empty() {
        false => find_all(client, flags.scope.namespace(), &names).await?,
        true => (client.get::<List<Pod>>(&list_path(flags)).await?.items, ExitCode::SUCCESS),
    };
    if let Some(path) = &flags.sort_by {
        pods.sort_by_cached_key(|pod| sort_key(path, &serde_json::to_value(pod).unwrap_or_default()));
    }
    if names.is_empty() {
        let manifests = client.get::<Manifests>("/podwright/v1/manifests").await?;
        // On stderr, so that programs that read the table find only pods.
        if manifests.runtime_pending {
            eprintln!("The agent was just started: the container runtime has not been queried for pods yet.");
        } else if !manifests.runtime_up {
            eprintln!("The container runtime does not respond: the status of pods may be out of date.");
        }
        for BrokenManifest { origin, message } in manifests.broken {
            eprintln!("Invalid manifest {}: {}", plain(&origin), plain(&message));
        }
        if pods.is_empty() {
            eprintln!("{}", not_found_message(&flags.scope));
        }
    }
    if pods.is_empty() {
        return Ok(code);
    }
    pulls::add_to(client, &mut pods).await;
    let table = pods::table(&pods, columns(flags), Timestamp::now()).render(Paint::for_stdout());
    let shown = match flags.no_headers {
        true => table.split_once('\n').map_or("", |(_, rows)| rows),
        false => &table,
    };
    Ok(first_failure(code, print(shown)))
}

/// Numbers by value, then text.
fn sort_key(path: &JsonPath, object: &Value) -> (i64, String) {
    let found = path.find(object);
    (found.first().and_then(|value| value.as_i64()).unwrap_or(i64::MIN), path.text(object))
}

/// `-o jsonpath` of a list or one object, and `-o custom-columns`.
async fn templated(client: &Client, flags: &GetFlags) -> Result<ExitCode, ClientError> {
    if flags.watch {
        return Err(ClientError::Usage("-w cannot be combined with this output format".into()));
    }
    let names = flags.names()?;
    let (pods, code) = match names.is_empty() {
        false => find_all(client, flags.scope.namespace(), &names).await?,
        true => (client.get::<List<Pod>>(&list_path(flags)).await?.items, ExitCode::SUCCESS),
    };
    let object = |pod: &Pod| {
        let mut object = serde_json::to_value(pod).unwrap_or_default();
        (object["kind"], object["apiVersion"]) = (json!("Pod"), json!("v1"));
        object
    };
    let mut objects: Vec<Value> = pods.iter().map(object).collect();
    if let Some(path) = &flags.sort_by {
        objects.sort_by_cached_key(|object| sort_key(path, object));
    }
    let text = match (&flags.output, names.len(), objects.as_slice()) {
        (Some(OutputArgument::JsonPath(_)), 1, []) => String::new(),
        (Some(OutputArgument::JsonPath(template)), 1, [only]) => template.render(only),
        (Some(OutputArgument::JsonPath(template)), _, items) => {
            template.render(&json!({"kind": "List", "items": items}))
        }
        (Some(OutputArgument::CustomColumns(columns)), _, items) => custom_table(columns, items, flags.no_headers),
        _ => String::new(),
    };
    Ok(first_failure(code, print(&text)))
}

fn custom_table(columns: &[(String, JsonPath)], items: &[Value], no_headers: bool) -> String {
    let head: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    let mut table = TextTable::new(&head);
    for item in items {
        let cell = |path: &JsonPath| match path.text(item) {
            text if text.is_empty() => ("<none>".to_owned(), None),
            text => (plain(&text), None),
        };
        table.row(columns.iter().map(|(_, path)| cell(path)).collect());
    }
    let text = table.render(Paint::for_stdout());
    if no_headers { text.split_once('\n').map(|(_, rows)| rows.to_owned()).unwrap_or_default() } else { text }
}

/// Lists the pods, then prints every change until stdout is closed.
async fn watch(client: &Client, flags: &GetFlags, output: Option<Output>) -> Result<ExitCode, ClientError> {
    let base = match flags.names()?.as_slice() {
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
    let mut items: Vec<Pod> = decode(&list["items"]).map_err(|error| client.failed(error))?;
    let mut pulls = pulls::WatchedPulls::default();
    let with_pulls = matches!(output, None | Some(Output::Wide));
    if with_pulls {
        pulls.update(client, &mut items).await;
    }
    let mut written = print(&shown(items)?);
    let mut watch = ResumingWatch::after(client, &base, &list);
    while written == ExitCode::SUCCESS {
        let changed = tokio::select! {
            changed = watch.next() => Some(changed?),
            // The progress of a pull is no change of an object.
            () = sleep(PULLS_EVERY), if !pulls.is_empty() => None,
        };
        let pods = match changed {
            Some(object) => {
                let mut pods: Vec<Pod> = vec![decode(&object).map_err(|error| client.failed(error))?];
                if with_pulls {
                    pulls.update(client, &mut pods).await;
                }
                pods
            }
            None => pulls.progress(client).await,
        };
        if !pods.is_empty() {
            written = print(&shown(pods)?);
        }
    }
    Ok(written)
}

/// Prints API objects: a list, one object, or a `List` of the named ones.
async fn raw(client: &Client, flags: &GetFlags, output: Output) -> Result<ExitCode, ClientError> {
    let names = flags.names()?;
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
    let wide = flags.format() == Some(Output::Wide);
    pods::Columns { namespace: flags.scope.all_namespaces, wide, labels: flags.show_labels }
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
