//! An agent on a runtime of its own, for those who ask it over its socket.

use std::path::PathBuf;
use std::time::Duration;

use podwright_testbed::{Agent, Containerd, Flavor, Scratch};
use serde_json::{Value, json};

/// Generous: the machine is shared, and what is slow is not wrong here.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// See the module. What it said last is shown when a test fails.
pub(crate) struct Bed {
    pub(crate) scratch: Scratch,
    pub(crate) containerd: Containerd,
    pub(crate) agent: Agent,
}

impl Bed {
    pub(crate) fn start() -> Self {
        Self::configured(json!({}))
    }

    /// With fields of KubeletConfiguration laid over the testbed's.
    pub(crate) fn configured(changes: Value) -> Self {
        let scratch = Scratch::new().expect("a scratch");
        let containerd = Containerd::start(&scratch, Flavor::Debian16).expect("containerd starts");
        let agent = Agent::new(&scratch).runtime(&containerd).config(changes).start().expect("the agent starts");
        Self { scratch, containerd, agent }
    }

    /// Of the local API.
    pub(crate) fn socket(&self) -> PathBuf {
        self.scratch.run_dir().expect("there").join("api.sock")
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.agent.log();
            let tail: Vec<&str> = log.lines().rev().take(60).collect();
            eprintln!("--- the agent's last lines ---");
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// A pod, labelled with its name.
pub(crate) fn pod(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec})
}
