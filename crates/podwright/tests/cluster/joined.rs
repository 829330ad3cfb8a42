//! An agent that has joined a cluster, and a namespace to play in.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Agent, AgentBuilder, Containerd, ControlPlane, Flavor, Scratch, leftovers, wait_until};
use serde_json::{Value, json};

use crate::suite::{LIMIT, condition};

/// A node of its own in a cluster, with a namespace of the same name.
pub(crate) struct Joined<'a> {
    pub(crate) plane: &'a ControlPlane,
    pub(crate) name: &'static str,
    pub(crate) agent: Agent,
    pub(crate) containerd: Containerd,
    pub(crate) scratch: Scratch,
    /// From the agent's start until the API server called the node Ready.
    pub(crate) ready_after: Duration,
}

impl<'a> Joined<'a> {
    pub(crate) fn start(plane: &'a ControlPlane, name: &'static str) -> Self {
        Self::configured(plane, name, |agent| agent)
    }

    /// With more arguments for the agent.
    pub(crate) fn configured(
        plane: &'a ControlPlane,
        name: &'static str,
        more: impl FnOnce(AgentBuilder) -> AgentBuilder,
    ) -> Self {
        plane.namespace(name).expect("a namespace");
        let scratch = Scratch::new().expect("a scratch");
        let containerd = Containerd::start(&scratch, Flavor::V2).expect("containerd starts");
        let kubeconfig = plane.node_kubeconfig(name).expect("a kubeconfig");
        let agent = Agent::new(&scratch).runtime(&containerd).hostname(name).kubeconfig(&kubeconfig);
        let began = Instant::now();
        let agent = more(agent).start().expect("the agent starts");
        let ready = || {
            let node = plane.api().get(&format!("/api/v1/nodes/{name}"))?;
            ensure!(condition(&node, "Ready")["status"] == "True", "{:#}", node["status"]["conditions"]);
            Ok(())
        };
        wait_until(LIMIT, "the node to be ready", ready);
        Self { plane, name, agent, containerd, scratch, ready_after: began.elapsed() }
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

    /// Everything of a kind in the namespace.
    pub(crate) fn list(&self, kind: &str) -> Result<Vec<Value>> {
        let list = self.plane.api().get(&self.path(kind))?;
        Ok(list["items"].as_array().context("a list")?.clone())
    }

    /// A spec for this node only.
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

    /// A pod whose Ready condition says so.
    pub(crate) fn wait_ready(&self, name: &str) -> Value {
        wait_until(LIMIT, &format!("{name} to be ready"), || {
            let pod = self.get("pods", name)?;
            ensure!(condition(&pod, "Ready")["status"] == "True", "{name}: {:#}", pod["status"]);
            Ok(pod)
        })
    }

    pub(crate) fn wait_gone(&self, name: &str) {
        wait_until(LIMIT, &format!("{name} to be gone"), || {
            let answer = self.plane.api().request("GET", &format!("{}/{name}", self.path("pods")), None)?;
            ensure!(answer.status == 404, "{}", answer.body);
            Ok(())
        });
    }

    /// No pod in the namespace, and nothing of any on the machine.
    pub(crate) fn wait_nothing_left(&self) {
        wait_until(LIMIT, "no pod to be left in the API", || {
            let pods = self.list("pods")?;
            ensure!(pods.is_empty(), "{} pods, the first: {:#}", pods.len(), pods[0]);
            Ok(())
        });
        wait_until(Duration::from_secs(30), "nothing to be left", || {
            let left = leftovers(&self.scratch, &self.containerd)?;
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        });
    }
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        // The cluster is shared: a node that is no more would be told of as lost.
        let _ = self.agent.kill9();
        let _ = self.plane.api().delete(&format!("/api/v1/nodes/{}", self.name), None);
    }
}
