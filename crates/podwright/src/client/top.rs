//! `podwright top`: CPU and memory of pods, containers and the node, in the form of `kubectl top`.

use std::cmp::Reverse;
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::Value;

use super::{Client, ClientError, List, encode, find, print, with_query};
use crate::cli::{MeasuredResource, TopFlags, TopOrder};
use crate::print::{Paint, TextTable, plain};

/// `podwright top`
pub(super) async fn top(flags: &TopFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    match flags.target.kind {
        MeasuredResource::Pod => pods(&client, flags).await,
        MeasuredResource::Node => nodes(&client, flags).await,
    }
}

#[derive(Deserialize)]
struct PodMetrics {
    metadata: MetricsName,
    containers: Vec<ContainerMetrics>,
}

#[derive(Deserialize)]
struct NodeMetrics {
    metadata: MetricsName,
    usage: Value,
}

#[derive(Deserialize)]
struct MetricsName {
    #[serde(default)]
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct ContainerMetrics {
    name: String,
    usage: Value,
}

/// What one line shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    /// Billionths of a core.
    cpu: u64,
    /// Bytes.
    memory: u64,
}

impl Used {
    fn of(usage: &Value) -> Self {
        let cpu = usage["cpu"].as_str().and_then(|text| text.strip_suffix('n')?.parse().ok());
        let memory = usage["memory"].as_str().and_then(|text| text.strip_suffix("Ki")?.parse::<u64>().ok());
        Self { cpu: cpu.unwrap_or_default(), memory: memory.unwrap_or_default().saturating_mul(1024) }
    }

    fn plus(self, other: Self) -> Self {
        Self { cpu: self.cpu.saturating_add(other.cpu), memory: self.memory.saturating_add(other.memory) }
    }

    /// kubectl: thousandths of a core, rounded up; whole mebibytes.
    fn cells(self) -> [String; 2] {
        [format!("{}m", self.cpu.div_ceil(1_000_000)), format!("{}Mi", self.memory >> 20)]
    }

    fn key(self, order: TopOrder) -> u64 {
        match order {
            TopOrder::Cpu => self.cpu,
            TopOrder::Memory => self.memory,
        }
    }
}

/// A line of the table: its first cells, and what it shows.
struct TopLine {
    names: Vec<String>,
    used: Used,
}

async fn pods(client: &Client, flags: &TopFlags) -> Result<ExitCode, ClientError> {
    let found = measured_pods(client, flags).await?;
    if found.is_empty() {
        eprintln!(
            "No running pods found{}",
            flags.scope.namespace().map_or(String::new(), |n| format!(" in {n} namespace."))
        );
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = vec![];
    for pod in found {
        let MetricsName { namespace, name } = pod.metadata;
        let of_namespace: Vec<String> = flags.scope.all_namespaces.then_some(namespace).into_iter().collect();
        let names =
            |more: &[&str]| of_namespace.iter().map(String::as_str).chain(more.iter().copied()).map(plain).collect();
        let used = |container: &ContainerMetrics| Used::of(&container.usage);
        match flags.containers {
            true => {
                lines.extend(pod.containers.iter().map(|c| TopLine { names: names(&[&name, &c.name]), used: used(c) }))
            }
            false => {
                let sum = pod.containers.iter().map(used).fold(Used::default(), Used::plus);
                lines.push(TopLine { names: names(&[&name]), used: sum });
            }
        }
    }
    let mut head: Vec<&str> = flags.scope.all_namespaces.then_some("NAMESPACE").into_iter().collect();
    head.extend(if flags.containers { &["POD", "NAME"][..] } else { &["NAME"] });
    head.extend(["CPU(cores)", "MEMORY(bytes)"]);
    sort(&mut lines, flags.sort_by);
    Ok(print(&table(&head, &lines, flags)))
}

/// The metrics of the pods that are named, or of all that match.
async fn measured_pods(client: &Client, flags: &TopFlags) -> Result<Vec<PodMetrics>, ClientError> {
    let names = flags.names()?;
    let namespace = flags.scope.namespace();
    if names.is_empty() {
        let list = metrics_path("pods", namespace);
        let list = match &flags.selector {
            Some(selector) => with_query(&list, &format!("labelSelector={}", encode(selector))),
            None => list,
        };
        return Ok(client.get::<List<PodMetrics>>(&list).await?.items);
    }
    let mut found = vec![];
    for name in names {
        let pod = find(client, namespace, name).await?;
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        match client.get(&format!("{}/{}", metrics_path("pods", namespace), encode(name))).await {
            Err(error) if ClientError::is_not_found(&error) => {
                let message = format!("the usage of pod {name:?} is not known: no container of it runs");
                return Err(ClientError::Refused { code: 404, message });
            }
            metrics => found.push(metrics?),
        }
    }
    Ok(found)
}

async fn nodes(client: &Client, flags: &TopFlags) -> Result<ExitCode, ClientError> {
    let names = flags.names()?;
    let measured = client.get::<List<NodeMetrics>>(&metrics_path("nodes", None)).await?.items;
    if let Some(name) = names.iter().find(|name| !measured.iter().any(|node| node.metadata.name == **name)) {
        return Err(ClientError::Refused { code: 404, message: format!("nodes {name:?} not found") });
    }
    let mut table = TextTable::new(&["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"]);
    for node in measured {
        let object: Value = client.get(&format!("/api/v1/nodes/{}", encode(&node.metadata.name))).await?;
        let has = |what: &str| object["status"]["allocatable"][what].as_str().unwrap_or_default().to_owned();
        let (cpu, memory) = (has("cpu"), has("memory"));
        let millis: u64 = cpu.strip_suffix('m').and_then(|text| text.parse().ok()).unwrap_or_default();
        let kib: u64 = memory.strip_suffix("Ki").and_then(|text| text.parse().ok()).unwrap_or_default();
        let used = Used::of(&node.usage);
        let [cpu, memory] = used.cells();
        let cells = [
            plain(&node.metadata.name),
            cpu,
            percent(used.cpu, millis.saturating_mul(1_000_000)),
            memory,
            percent(used.memory, kib.saturating_mul(1024)),
        ];
        table.row(cells.map(|text| (text, None)).to_vec());
    }
    Ok(print(&without_head(&table.render(Paint::for_stdout()), flags.no_headers)))
}

fn metrics_path(resource: &str, namespace: Option<&str>) -> String {
    let namespace = namespace.map(|namespace| format!("namespaces/{}/", encode(namespace))).unwrap_or_default();
    format!("/apis/metrics.k8s.io/v1beta1/{namespace}{resource}")
}

fn sort(lines: &mut [TopLine], order: Option<TopOrder>) {
    lines.sort_by(|a, b| a.names.cmp(&b.names));
    if let Some(order) = order {
        lines.sort_by_key(|line| Reverse(line.used.key(order)));
    }
}

fn table(head: &[&str], lines: &[TopLine], flags: &TopFlags) -> String {
    let mut table = TextTable::new(head);
    let mut row = |names: Vec<String>, used: Used| {
        table.row(names.into_iter().chain(used.cells()).map(|text| (text, None)).collect());
    };
    for line in lines {
        row(line.names.clone(), line.used);
    }
    if flags.sum {
        let sum = lines.iter().map(|line| line.used).fold(Used::default(), Used::plus);
        let mut names = vec![String::new(); head.len() - 2];
        if let Some(last) = names.last_mut() {
            *last = "SUM".into();
        }
        row(names, sum);
    }
    without_head(&table.render(Paint::for_stdout()), flags.no_headers)
}

fn without_head(table: &str, no_headers: bool) -> String {
    match no_headers {
        true => table.split_once('\n').map(|(_, rest)| rest.to_owned()).unwrap_or_default(),
        false => table.to_owned(),
    }
}

fn percent(used: u64, of: u64) -> String {
    match of {
        0 => "<unknown>".into(),
        of => format!("{}%", u128::from(used) * 100 / u128::from(of)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_rounded_as_by_kubectl() {
        let used = Used::of(&json!({"cpu": "1000001n", "memory": "2047Ki"}));
        assert_eq!(used.cells(), ["2m".to_owned(), "1Mi".to_owned()]);
        assert_eq!(Used::of(&json!({"cpu": "x"})), Used::default());
        assert_eq!((percent(1, 3), percent(1, 0)), ("33%".into(), "<unknown>".into()));
    }
}
