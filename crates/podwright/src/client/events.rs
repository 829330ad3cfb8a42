//! Lists and watches events.

use std::process::ExitCode;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde_json::Value;

use super::get::not_found_message;
use super::output::text;
use super::watch::ResumingWatch;
use super::{Client, ClientError, is_named, path, print};
use crate::cli::{EventFlags, Output, Scope, pod_name};
use crate::decode::decode;
use crate::print::{GrowingTable, Paint, events as event_table};

/// `podwright events`
pub(super) async fn events(flags: &EventFlags) -> Result<ExitCode, ClientError> {
    let (of, watch) = (flags.of.as_deref().map(pod_name).transpose()?, flags.watch);
    EventQuery { scope: &flags.scope, of, names: vec![], output: None, watch }
        .show(&Client::new(&flags.socket.run_dir))
        .await
}

/// Which events to show, and how.
pub(super) struct EventQuery<'a> {
    pub(super) scope: &'a Scope,
    /// Only events of this pod.
    pub(super) of: Option<&'a str>,
    /// Names of the events; empty: all.
    pub(super) names: Vec<&'a str>,
    pub(super) output: Option<Output>,
    /// Also show new events.
    pub(super) watch: bool,
}

impl EventQuery<'_> {
    pub(super) async fn show(&self, client: &Client) -> Result<ExitCode, ClientError> {
        let base = path("events", self.scope.namespace());
        let mut list: Value = client.get(&base).await?;
        if let Some(items) = list["items"].as_array_mut() {
            items.retain(|item| self.matches(item));
        }
        let found = list["items"].as_array().map_or(0, Vec::len);
        if found < self.names.len() {
            let message = format!("events {} not found", self.names.join(", "));
            return Err(ClientError::Refused { code: 404, message });
        }
        let mut table = GrowingTable::new(Paint::for_stdout());
        let mut written = match (self.output, found) {
            (Some(Output::Json | Output::Yaml | Output::Name), _) if self.names.len() != 1 => {
                self.print(&mut table, &list)?
            }
            (_, 0) if !self.watch => {
                eprintln!("{}", not_found_message(self.scope));
                ExitCode::SUCCESS
            }
            _ => self.print(&mut table, if self.names.len() == 1 { &list["items"][0] } else { &list })?,
        };
        if !self.watch {
            return Ok(written);
        }
        let mut watch = ResumingWatch::after(client, &base, &list);
        while written == ExitCode::SUCCESS {
            let event = watch.next().await?;
            if self.matches(&event) {
                written = self.print(&mut table, &event)?;
            }
        }
        Ok(written)
    }

    /// Prints one event or a list of events.
    fn print(&self, table: &mut GrowingTable, value: &Value) -> Result<ExitCode, ClientError> {
        if let Some(output @ (Output::Json | Output::Yaml | Output::Name)) = self.output {
            return Ok(print(&text(value, output)?));
        }
        let values = value["items"].as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let events: Vec<Event> = values.iter().filter_map(|event| decode(event).ok()).collect();
        Ok(print(&table.more(&event_table::table(&events, self.scope.all_namespaces, Timestamp::now()))))
    }

    fn matches(&self, event: &Value) -> bool {
        let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let about =
            |of: &str| is_named(&string(&event["involvedObject"]["name"]), of, &string(&event["reportingInstance"]));
        (self.names.is_empty() || self.names.contains(&string(&event["metadata"]["name"]).as_str()))
            && self.of.is_none_or(about)
    }
}
