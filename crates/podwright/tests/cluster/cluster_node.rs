//! An agent that has joined a cluster, with its own namespace.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwright_testbed::{
    Agent, AgentBuilder, ControlPlane, Proxy, Scratch, TestRuntime, free_port, leftovers, wait_until,
};
use serde_json::{Value, json};

use crate::suite::{LIMIT, condition, journal, one, sleeper};

/// A node of the shared cluster, and a namespace of the same name.
pub(crate) struct ClusterNode<'a> {
    pub(crate) plane: &'a ControlPlane,
    pub(crate) name: &'static str,
    pub(crate) agent: Agent,
    pub(crate) runtime: TestRuntime,
    pub(crate) scratch: Scratch,
    began: Instant,
    /// Time from the agent's start until the node was Ready in the API server.
    pub(crate) ready_after: Duration,
}

impl<'a> ClusterNode<'a> {
    pub(crate) fn start(plane: &'a ControlPlane, name: &'static str) -> Self {
        Self::configured(plane, name, |agent| agent)
    }

    /// With additional arguments for the agent.
    pub(crate) fn configured(
        plane: &'a ControlPlane,
        name: &'static str,
        more: impl FnOnce(AgentBuilder) -> AgentBuilder,
    ) -> Self {
        let kubeconfig = plane.node_kubeconfig(name).expect("a kubeconfig");
        let mut joined = Self::launched(plane, name, &kubeconfig, more);
        joined.wait_joined();
        joined
    }

    /// With a proxy between the agent and the API server.
    pub(crate) fn through_a_proxy(plane: &'a ControlPlane, name: &'static str) -> (Self, Proxy) {
        let port = free_port().expect("a port");
        let proxy = plane.proxy(name, port).expect("a proxy");
        let kubeconfig = plane.proxied_kubeconfig(name, port).expect("a kubeconfig");
        let mut joined = Self::launched(plane, name, &kubeconfig, |agent| agent);
        joined.wait_joined();
        (joined, proxy)
    }

    /// With any kubeconfig; the agent runs, and may never join.
    pub(crate) fn launched(
        plane: &'a ControlPlane,
        name: &'static str,
        kubeconfig: &Path,
        more: impl FnOnce(AgentBuilder) -> AgentBuilder,
    ) -> Self {
        plane.namespace(name).expect("a namespace");
        let scratch = Scratch::new().expect("a scratch");
        let runtime = TestRuntime::start(&scratch, crate::FLAVOR).expect("the runtime starts");
        let agent = Agent::new(&scratch).runtime(&runtime).hostname(name).kubeconfig(kubeconfig);
        let began = Instant::now();
        let agent = more(agent).start().expect("the agent starts");
        Self { plane, name, agent, runtime, scratch, began, ready_after: Duration::MAX }
    }

    /// Waits until the node is Ready in the API server.
    pub(crate) fn wait_joined(&mut self) {
        wait_until(LIMIT, "the node to be ready", || self.joined());
        self.ready_after = self.began.elapsed();
    }

    pub(crate) fn get_node(&self) -> Result<Value> {
        self.plane.api().get(&format!("/api/v1/nodes/{}", self.name))
    }

    /// Fails unless the node is Ready in the API server.
    pub(crate) fn joined(&self) -> Result<()> {
        let node = self.get_node()?;
        ensure!(condition(&node, "Ready")["status"] == "True", "{:#}", node["status"]["conditions"]);
        Ok(())
    }

    /// Kills the agent, deletes its node, starts it again: the time from the start until `there`. A busy host
    /// may be late once, so a limit in seconds applies to the best of several starts.
    pub(crate) fn starts_anew<T>(&mut self, there: impl Fn(&Self) -> Result<T>) -> Duration {
        self.agent.kill9().expect("killed");
        self.plane.api().delete(&format!("/api/v1/nodes/{}", self.name), None).expect("deleted");
        let began = Instant::now();
        self.agent.start_again().expect("started again");
        wait_until(LIMIT, "the node to be there again", || there(self));
        began.elapsed()
    }

    /// The path of a collection of the namespace: `pods`, or `apps/v1/deployments`.
    pub(crate) fn path(&self, kind: &str) -> String {
        match kind.rsplit_once('/') {
            Some((group, kind)) => format!("/apis/{group}/namespaces/{}/{kind}", self.name),
            None => format!("/api/v1/namespaces/{}/{kind}", self.name),
        }
    }

    pub(crate) fn create(&self, kind: &str, object: &Value) -> Value {
        self.plane.api().create(&self.path(kind), object).expect("created")
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.plane.api().get(&format!("{}/{name}", self.path(kind)))
    }

    pub(crate) fn patch(&self, kind: &str, name: &str, patch: &Value) {
        self.plane.api().patch(&format!("{}/{name}", self.path(kind)), patch).expect("patched");
    }

    pub(crate) fn delete(&self, kind: &str, name: &str) {
        let options = json!({"propagationPolicy": "Background"});
        self.plane.api().delete(&format!("{}/{name}", self.path(kind)), Some(&options)).expect("deleted");
    }

    /// Deletes every pod of the namespace and waits until none is left in the API.
    pub(crate) fn delete_all(&self) {
        self.plane.kubectl(&["-n", self.name, "delete", "pods", "--all", "--wait=false"]).expect("deleted");
        self.wait_none_in_the_api();
    }

    /// All objects of a kind in the namespace.
    pub(crate) fn list(&self, kind: &str) -> Result<Vec<Value>> {
        let list = self.plane.api().get(&self.path(kind))?;
        Ok(list["items"].as_array().context("a list")?.clone())
    }

    /// The spec, bound to this node by a node selector.
    pub(crate) fn here(&self, spec: &Value) -> Value {
        let mut spec = spec.clone();
        spec["nodeSelector"] = json!({"kubernetes.io/hostname": self.name});
        spec
    }

    pub(crate) fn put(&self, name: &str, spec: &Value) {
        self.create("pods", &json!({"metadata": {"name": name}, "spec": self.here(spec)}));
    }

    pub(crate) fn phase(&self, name: &str, wanted: &str) -> Result<Value> {
        let pod = self.get("pods", name)?;
        ensure!(pod["status"]["phase"] == wanted, "{name}: {:#}", pod["status"]);
        Ok(pod)
    }

    pub(crate) fn wait_phase(&self, name: &str, wanted: &str) -> Value {
        wait_until(LIMIT, &format!("{name} to be {wanted}"), || self.phase(name, wanted))
    }

    /// Waits until the pod is Ready.
    pub(crate) fn wait_ready(&self, name: &str) -> Value {
        wait_until(LIMIT, &format!("{name} to be ready"), || {
            let pod = self.get("pods", name)?;
            ensure!(condition(&pod, "Ready")["status"] == "True", "{name}: {:#}", pod["status"]);
            Ok(pod)
        })
    }

    /// Writes a static pod with one container and this text.
    pub(crate) fn put_static(&self, name: &str, text: &str) {
        let mut spec = one(&sleeper("c"));
        spec["containers"][0]["env"] = json!([{"name": "TEXT", "value": text}]);
        // The agent's listener shows no values of variables.
        let metadata = json!({"name": name, "namespace": self.name, "annotations": {"text": text}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        self.scratch.put_manifest(&format!("{name}.json"), &pod).expect("written");
    }

    /// Waits until the agent reports the static pod as running with this text.
    pub(crate) fn wait_static(&self, name: &str, text: &str) {
        wait_until(LIMIT, &format!("{name} to run with {text:?}"), || {
            let pod = self.agent.pod(&format!("{name}-{}", self.name))?.context("not known")?;
            ensure!(pod["status"]["phase"] == "Running", "{:#}", pod["status"]);
            ensure!(pod["metadata"]["annotations"]["text"] == text, "{:#}", pod["metadata"]);
            Ok(())
        });
    }

    /// Waits until its mirror pod in the API server has the text.
    pub(crate) fn wait_mirror(&self, name: &str, text: &str) {
        wait_until(LIMIT, &format!("the mirror pod of {name} to have {text:?}"), || {
            let mirror = self.get("pods", &format!("{name}-{}", self.name))?;
            ensure!(mirror["spec"]["containers"][0]["env"][0]["value"] == text, "{:#}", mirror["spec"]);
            ensure!(condition(&mirror, "Ready")["status"] == "True", "{:#}", mirror["status"]);
            Ok(())
        });
    }

    pub(crate) fn wait_gone(&self, name: &str) {
        wait_until(LIMIT, &format!("{name} to be gone"), || {
            let answer = self.plane.api().request("GET", &format!("{}/{name}", self.path("pods")), None)?;
            ensure!(answer.status == 404, "{}", answer.body);
            Ok(())
        });
    }

    fn wait_none_in_the_api(&self) {
        wait_until(LIMIT, "no pod to be left in the API", || {
            let pods = self.list("pods")?;
            ensure!(pods.is_empty(), "{} pods, the first: {:#}", pods.len(), pods[0]);
            Ok(())
        });
    }

    /// Waits until the namespace has no pod and nothing of the pods is left on the host.
    pub(crate) fn wait_nothing_left(&self) {
        self.wait_none_in_the_api();
        wait_until(Duration::from_secs(30), "nothing to be left", || {
            let mut left = leftovers(&self.scratch, &self.runtime)?;
            left.extend(journal::pods(&self.scratch)?);
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        });
    }
}

impl Drop for ClusterNode<'_> {
    fn drop(&mut self) {
        // The cluster is shared: controllers would report a stopped node as lost.
        let _ = self.agent.kill9();
        let _ = self.plane.api().delete(&format!("/api/v1/nodes/{}", self.name), None);
    }
}
