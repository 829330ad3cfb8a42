//! Networks by CNI plugins (specification 0.3.1 to 1.1).
//!
//! The first valid configuration of the directory, by file name, is read for every pod, so that a change needs no restart. What a
//! pod was connected with is kept until it is disconnected: the plugins of a configuration that has changed meanwhile could not
//! undo it.

mod cache;
mod config;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz_inputs;
mod invoke;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use serde_json::{Map, Value, json};
use tracing::warn;

use crate::bridge;
use crate::cni::cache::{CachedAttachment, ResultCache};
use crate::cni::config::{CniVersion, NetworkList, PluginConfig};
use crate::cni::invoke::Invocation;
use crate::cni_error::CniError;
use crate::ipam::POD_INTERFACE;
use crate::model::{
    AttachRequest, Attachment, Network, NetworkError, OwnedPod, PodIdentity, PortForward, ReconcileSummary,
    ReleaseRequest,
};
use crate::netns::{self, NetnsPins};
use crate::ports;

/// Where plugins and configurations are.
#[derive(Clone, Debug)]
pub struct CniSettings {
    /// Directory of `*.conflist`, `*.conf` and `*.json`.
    pub conf_dir: PathBuf,
    /// Directories of plugins, searched in order.
    pub bin_dirs: Vec<PathBuf>,
    /// Directory of results, one file per sandbox.
    pub cache_dir: PathBuf,
    /// Ranges for plugins with the capability `ipRanges`.
    pub ip_ranges: Vec<IpNet>,
    /// For all plugins of one operation together; a plugin that runs longer is killed with its process group.
    pub timeout: Duration,
}

/// A network made by CNI plugins.
#[derive(Debug)]
pub struct CniNetwork {
    settings: CniSettings,
    pins: Arc<NetnsPins>,
    cache: ResultCache,
}

impl CniNetwork {
    /// Reads nothing yet.
    pub fn new(settings: CniSettings, pins: Arc<NetnsPins>) -> Self {
        let cache = ResultCache::new(settings.cache_dir.clone());
        CniNetwork { settings, pins, cache }
    }

    fn connect(&self, request: &AttachRequest<'_>, cached: &mut CachedAttachment) -> Result<Vec<IpAddr>, NetworkError> {
        let mut operation = self.operation("ADD", request.pod, request.netns.to_string_lossy().into_owned());
        let mut result = None;
        for plugin in &cached.list.plugins {
            let output = self.run(&cached.list, plugin, &cached.runtime, result.as_ref(), &mut operation)?;
            let parsed: Value = serde_json::from_slice(&output).map_err(|e| malformed(plugin, &e.to_string()))?;
            result = Some(parsed);
        }
        let last = cached.list.plugins.last().map(PluginConfig::kind).unwrap_or_default();
        let addresses = addresses_of(result.as_ref(), &last)?;
        cached.result = result;
        self.cache.store(&request.pod.sandbox_id, cached)?;
        Ok(addresses)
    }

    /// Runs DEL of all plugins, last first. All are tried; the first error is returned.
    fn disconnect(&self, pod: &PodIdentity, netns: Option<&Path>, cached: &CachedAttachment) -> Result<(), CniError> {
        let netns = netns.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let mut operation = self.operation("DEL", pod, netns);
        // Since 0.4.0 a plugin gets the final result at DEL.
        let result = cached.result.as_ref().filter(|_| cached.list.version >= CniVersion(0, 4, 0));
        let mut first_error = None;
        for plugin in cached.list.plugins.iter().rev() {
            if let Err(e) = self.run(&cached.list, plugin, &cached.runtime, result, &mut operation) {
                first_error.get_or_insert(e);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn run(
        &self,
        list: &NetworkList,
        plugin: &PluginConfig,
        runtime: &Map<String, Value>,
        previous: Option<&Value>,
        operation: &mut Invocation,
    ) -> Result<Vec<u8>, CniError> {
        let program = invoke::find(&plugin.kind(), &self.settings.bin_dirs)?;
        operation.run(&plugin.kind(), &program, &list.plugin_input(plugin, runtime, previous))
    }

    fn operation(&self, command: &'static str, pod: &PodIdentity, netns: String) -> Invocation {
        let dirs: Vec<_> = self.settings.bin_dirs.iter().map(|dir| dir.to_string_lossy().into_owned()).collect();
        Invocation {
            command,
            container_id: pod.sandbox_id.clone(),
            netns,
            interface: POD_INTERFACE.to_owned(),
            args: format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
                pod.namespace, pod.name, pod.sandbox_id, pod.uid
            ),
            path: dirs.join(":"),
            deadline: Instant::now() + self.settings.timeout,
        }
    }

    /// STATUS and GC concern no pod.
    fn run_for_network(
        &self,
        command: &'static str,
        list: &NetworkList,
        extra: &Map<String, Value>,
    ) -> Result<(), CniError> {
        let dirs: Vec<_> = self.settings.bin_dirs.iter().map(|dir| dir.to_string_lossy().into_owned()).collect();
        let operation = Invocation {
            command,
            container_id: String::new(),
            netns: String::new(),
            interface: String::new(),
            args: String::new(),
            path: dirs.join(":"),
            deadline: Instant::now() + self.settings.timeout,
        };
        for plugin in &list.plugins {
            let program = invoke::find(&plugin.kind(), &self.settings.bin_dirs)?;
            let mut input = list.plugin_input(plugin, &Map::new(), None);
            input.extend(extra.clone());
            operation.run(&plugin.kind(), &program, &input)?;
        }
        Ok(())
    }

    /// The values for plugins that declare a capability.
    fn runtime(&self, request: &AttachRequest<'_>) -> Map<String, Value> {
        let mut runtime = Map::new();
        if !request.ports.is_empty() {
            runtime.insert("portMappings".to_owned(), request.ports.iter().map(port_mapping).collect());
        }
        if let Some(bandwidth) = request.bandwidth {
            runtime.insert("bandwidth".to_owned(), bandwidth_limits(bandwidth.ingress, bandwidth.egress));
        }
        if !request.dns.is_empty() {
            let dns = request.dns;
            let value = json!({"servers": dns.servers, "searches": dns.searches, "options": dns.options});
            runtime.insert("dns".to_owned(), value);
        }
        if !self.settings.ip_ranges.is_empty() {
            let range = |range: &IpNet| json!([{ "subnet": range.to_string() }]);
            runtime.insert("ipRanges".to_owned(), self.settings.ip_ranges.iter().map(range).collect());
        }
        runtime
    }
}

impl CniNetwork {
    /// GC of the plugins that have it (1.1). Besides the owned sandboxes all cached ones are valid: those that are added now, and
    /// those whose DEL must be repeated.
    fn collect_garbage(&self, owned: BTreeSet<String>) -> Result<(), NetworkError> {
        let Ok(list) = config::load(&self.settings.conf_dir) else { return Ok(()) };
        if list.version < CniVersion(1, 1, 0) || list.disable_gc {
            return Ok(());
        }
        let mut valid = owned;
        valid.extend(self.cache.ids()?);
        let valid: Vec<Value> = valid.iter().map(|id| json!({"containerID": id, "ifname": POD_INTERFACE})).collect();
        let extra = Map::from_iter([("cni.dev/valid-attachments".to_owned(), Value::Array(valid))]);
        self.run_for_network("GC", &list, &extra)?;
        Ok(())
    }
}

impl Network for CniNetwork {
    fn add(&self, request: &AttachRequest<'_>) -> Result<Attachment, NetworkError> {
        ports::validate(request.ports)?;
        validate_arguments(request.pod)?;
        let list = config::load(&self.settings.conf_dir)?;
        let netns_error = |source| NetworkError::Netns { path: request.netns.to_owned(), source };
        let netns = netns::open(request.netns).map_err(netns_error)?;
        netns::inside(netns, bridge::loopback_up).map_err(netns_error)??;
        let mut cached = CachedAttachment { list, runtime: self.runtime(request), result: None };
        // Before the first plugin runs: after a crash, DEL needs the configuration.
        self.cache.store(&request.pod.sandbox_id, &cached)?;
        match self.connect(request, &mut cached) {
            Ok(addresses) => Ok(Attachment { pod: request.pod.clone(), addresses, ports: request.ports.to_vec() }),
            Err(error) => {
                match self.disconnect(request.pod, Some(request.netns), &cached) {
                    Ok(()) => self.cache.remove(&request.pod.sandbox_id)?,
                    Err(error) => {
                        warn!(pod = %request.pod, sandbox_id = request.pod.sandbox_id, %error, "DEL after a failed ADD failed")
                    }
                }
                Err(error)
            }
        }
    }

    fn release(&self, request: &ReleaseRequest<'_>) -> Result<(), NetworkError> {
        let id = &request.pod.sandbox_id;
        // Without a cached configuration no plugin has run.
        if let Some(cached) = self.cache.read(id)? {
            let netns = request.netns.filter(|path| netns::open(path).is_ok());
            self.disconnect(request.pod, netns, &cached)?;
            self.cache.remove(id)?;
        }
        if let Some(path) = request.netns {
            let unpinned = self.pins.unpin(id);
            unpinned.map_err(|source| NetworkError::Netns { path: path.to_owned(), source })?;
        }
        Ok(())
    }

    fn status(&self) -> Result<(), NetworkError> {
        let list = config::load(&self.settings.conf_dir)?;
        for plugin in &list.plugins {
            invoke::find(&plugin.kind(), &self.settings.bin_dirs)?;
        }
        if list.version >= CniVersion(1, 1, 0) {
            self.run_for_network("STATUS", &list, &Map::new())?;
        }
        Ok(())
    }

    /// Disconnects sandboxes that have a cached result but no owner, and lets plugins that can (1.1) collect theirs.
    fn reconcile(&self, owned: &[OwnedPod]) -> Result<ReconcileSummary, NetworkError> {
        let mut summary = ReconcileSummary::default();
        let ids = owned.iter().map(|pod| pod.sandbox_id.as_str()).collect();
        summary.netns_removed =
            self.pins.sweep(&ids).map_err(|source| NetworkError::Netns { path: self.pins.path(""), source })?;
        let mut first_error = None;
        for id in self.cache.ids()? {
            if ids.contains(id.as_str()) || self.pins.holds(&id) {
                continue;
            }
            let pod = PodIdentity { sandbox_id: id, namespace: String::new(), name: String::new(), uid: String::new() };
            // A failed release stays in the cache for the next time and does not prevent the release of the others.
            match self.release(&ReleaseRequest { pod: &pod, netns: None, attachment: None }) {
                Ok(()) => summary.leases_removed += 1,
                Err(error) => {
                    warn!(sandbox_id = pod.sandbox_id, %error, "DEL of a sandbox without an owner failed");
                    first_error.get_or_insert(error);
                }
            }
        }
        let collected = self.collect_garbage(ids.iter().map(|id| (*id).to_owned()).collect());
        match first_error {
            Some(error) => Err(error),
            None => collected.map(|()| summary),
        }
    }

    /// Resources that pods share belong to the plugins.
    fn remove_if_unused(&self) -> Result<bool, NetworkError> {
        Ok(true)
    }

    fn set_ranges(&self, _: &[IpNet]) -> Result<(), NetworkError> {
        Ok(())
    }
}

/// `CNI_ARGS` has no escapes: a separator in a name would add arguments, such as a fixed address.
fn validate_arguments(pod: &PodIdentity) -> Result<(), NetworkError> {
    let bad = |value: &&String| value.contains([';', '=', '\0']);
    match [&pod.namespace, &pod.name, &pod.uid, &pod.sandbox_id].into_iter().find(bad) {
        Some(value) => Err(NetworkError::Invalid(format!("{value:?} cannot be an argument of CNI plugins"))),
        None => Ok(()),
    }
}

fn port_mapping(port: &PortForward) -> Value {
    let mut value = json!({
        "hostPort": port.host_port,
        "containerPort": port.container_port,
        "protocol": port.protocol.name(),
    });
    if let Some(address) = port.host_ip {
        value["hostIP"] = json!(address.to_string());
    }
    value
}

/// The burst of a limit is as large as it may be, as containerd sets it.
fn bandwidth_limits(ingress: Option<u64>, egress: Option<u64>) -> Value {
    let mut limits = Map::new();
    for (name, rate) in [("ingress", ingress), ("egress", egress)] {
        if let Some(rate) = rate {
            limits.insert(format!("{name}Rate"), json!(rate));
            limits.insert(format!("{name}Burst"), json!(u32::MAX));
        }
    }
    Value::Object(limits)
}

fn malformed(plugin: &PluginConfig, reason: &str) -> CniError {
    CniError::Malformed { plugin: plugin.kind(), reason: reason.to_owned() }
}

/// The pod's addresses in the last plugin's result.
fn addresses_of(result: Option<&Value>, plugin: &str) -> Result<Vec<IpAddr>, CniError> {
    let error = |reason: String| CniError::Malformed { plugin: plugin.to_owned(), reason };
    let ips = result.and_then(|result| result.get("ips")).and_then(Value::as_array);
    let mut addresses = vec![];
    for ip in ips.into_iter().flatten() {
        let text = ip.get("address").and_then(Value::as_str).unwrap_or_default();
        let network: IpNet =
            text.parse().map_err(|_| error(format!("{text:?} is not an address with a prefix length")))?;
        addresses.push(network.addr());
    }
    if addresses.is_empty() {
        return Err(error("it has no address for the pod".to_owned()));
    }
    Ok(addresses)
}
