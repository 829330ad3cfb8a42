//! Our own agent as a process, started as a user starts it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::agent_config::{agent_config, write_config};
use crate::cache::Cache;
use crate::http::{HttpResponse, free_port, get};
use crate::node_runtime::NodeRuntime;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::wait::wait_until;

/// The arguments of an agent.
#[derive(Debug)]
pub struct AgentBuilder {
    scratch: Scratch,
    hostname: String,
    /// `None`: the agent's own engine.
    endpoint: Option<String>,
    changes: Value,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    covered: Vec<CoveredFile>,
}

/// A file of the host with another content for the agent.
#[derive(Debug)]
struct CoveredFile {
    path: PathBuf,
    content: String,
}

/// A running `podwright run`.
#[derive(Debug)]
pub struct Agent {
    scratch: Scratch,
    address: String,
    https: u16,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    covered: Vec<CoveredFile>,
    process: Process,
}

impl AgentBuilder {
    /// The runtime it uses.
    pub fn runtime(mut self, runtime: &impl NodeRuntime) -> Self {
        self.endpoint = runtime.endpoint();
        runtime.arguments().into_iter().fold(self, Self::arg)
    }

    /// The runtime's endpoint, for another runtime.
    pub fn endpoint(mut self, endpoint: &str) -> Self {
        self.endpoint = Some(endpoint.to_owned());
        self
    }

    /// The node's name; the default is `node`.
    pub fn hostname(mut self, name: &str) -> Self {
        name.clone_into(&mut self.hostname);
        self
    }

    /// Fields of KubeletConfiguration, merged into the testbed's.
    pub fn config(mut self, changes: Value) -> Self {
        self.changes = changes;
        self
    }

    /// Makes it a node of a cluster; see [`crate::ControlPlane::node_kubeconfig`].
    pub fn kubeconfig(self, path: &Path) -> Self {
        self.arg("--kubeconfig").arg(path)
    }

    /// One more argument.
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// One more variable of its environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The agent reads this content from a file of the host. It gets a mount namespace of its own for that: its mounts are not visible to the
    /// test, nor are later ones of the test to it.
    pub fn covered_file(mut self, path: impl Into<PathBuf>, content: &str) -> Self {
        self.covered.push(CoveredFile { path: path.into(), content: content.to_owned() });
        self
    }

    /// Starts it and waits for `/healthz`.
    pub fn start(self) -> Result<Agent> {
        let scratch = self.scratch;
        let https = free_port()?;
        let mut config = agent_config(&scratch, self.endpoint.as_deref(), &self.changes)?;
        // Agents of parallel tests must not share the default ports, nor be reachable from other hosts.
        for (key, value) in [("address", json!("127.0.0.1")), ("port", json!(https)), ("healthzPort", json!(0))] {
            if config.get(key).is_none() {
                config[key] = value;
            }
        }
        let https = config["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(https);
        let config = write_config(&scratch, "podwright.yaml", &config)?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let mut arguments: Vec<OsString> = vec!["run".into()];
        let pairs: [(&str, OsString); 6] = [
            ("--config", config.into()),
            ("--pod-manifest-path", scratch.manifests()?.into()),
            ("--root-dir", scratch.root_dir()?.into()),
            ("--run-dir", scratch.run_dir()?.into()),
            ("--hostname-override", self.hostname.into()),
            ("--listen", address.clone().into()),
        ];
        let endpoint = self.endpoint.map(|endpoint| ("--container-runtime-endpoint", endpoint.into()));
        arguments.extend(pairs.into_iter().chain(endpoint).flat_map(|(flag, value)| [flag.into(), value]));
        arguments.extend(self.arguments);
        let mut environment = vec![("PODWRIGHT_LOG_LINK_DIR".to_owned(), scratch.log_links()?.display().to_string())];
        environment.extend(self.environment);
        let covered = self.covered;
        let process = launch(&scratch, &arguments, &environment, &covered)?;
        let mut agent = Agent { scratch, address, https, arguments, environment, covered, process };
        agent.wait_healthy()?;
        Ok(agent)
    }
}

impl Agent {
    /// A builder for an agent of this scratch.
    #[expect(clippy::new_ret_no_self, reason = "an agent is first configured, then started")]
    pub fn new(scratch: &Scratch) -> AgentBuilder {
        AgentBuilder {
            scratch: scratch.clone(),
            hostname: "node".to_owned(),
            endpoint: None,
            changes: json!({}),
            arguments: Vec::new(),
            environment: Vec::new(),
            covered: Vec::new(),
        }
    }

    /// The path of the tested binary: `PODWRIGHT_BIN`, else next to the test in the target directory.
    pub fn program() -> Result<PathBuf> {
        if let Some(given) = env::var_os("PODWRIGHT_BIN") {
            return Ok(given.into());
        }
        program_next_to_tests("podwright")
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The address of `--listen`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The port of the kubelet's API on 127.0.0.1; served if the agent has a kubeconfig.
    pub fn https_port(&self) -> u16 {
        self.https
    }

    /// The file with its output.
    pub fn log_path(&self) -> &Path {
        self.process.log_path()
    }

    /// Its log, over all restarts.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// SIGKILL; containers keep running.
    pub fn kill9(&mut self) -> Result<()> {
        self.process.kill9().map(|_| ())
    }

    /// SIGTERM, and wait up to 10 s for its exit; containers keep running.
    pub fn sigterm(&mut self) -> Result<ExitStatus> {
        self.process.terminate(Duration::from_secs(10))
    }

    /// Any other signal.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Its exit status, if it has exited.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.process.exited()
    }

    /// Start again with the same arguments, after [`Self::kill9`] or [`Self::sigterm`], and wait for `/healthz`.
    pub fn start_again(&mut self) -> Result<()> {
        self.launch_again()?;
        self.wait_healthy()
    }

    /// As [`Self::start_again`], without waiting.
    pub fn launch_again(&mut self) -> Result<()> {
        self.process = launch(&self.scratch, &self.arguments, &self.environment, &self.covered)?;
        Ok(())
    }

    /// Stops it with SIGTERM and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        self.sigterm()?;
        self.start_again()
    }

    /// Set a variable for its next start.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// `GET path` on `--listen`.
    pub fn get(&self, path: &str) -> Result<HttpResponse> {
        get(&self.address, path)
    }

    /// The v1 PodList of `/pods`.
    pub fn pods(&self) -> Result<Value> {
        let response = self.get("/pods")?;
        ensure!(response.status == 200, "/pods: status {}: {}", response.status, response.body);
        serde_json::from_str(&response.body).context("/pods is not JSON")
    }

    /// One pod of `/pods`, by its name; names of static pods end with the node's name.
    pub fn pod(&self, name: &str) -> Result<Option<Value>> {
        Ok(find_pod(&self.pods()?, name))
    }

    fn wait_healthy(&mut self) -> Result<()> {
        wait_until(Duration::from_secs(30), "the agent to be healthy", || {
            if let Some(status) = self.process.exited()? {
                // Waiting is useless; the panic drops the process, which prints its log.
                panic!("the agent has exited with {status}");
            }
            let status = self.get("/healthz")?.status;
            ensure!(status == 200, "/healthz: status {status}");
            Ok(())
        });
        Ok(())
    }
}

/// The path of a program that cargo has built, by its name.
pub(crate) fn program_next_to_tests(name: &str) -> Result<PathBuf> {
    let test = env::current_exe()?;
    let found = test.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.with_context(|| {
        format!("no program {name} near {}: run `cargo build --workspace --bins`, or set PODWRIGHT_BIN", test.display())
    })
}

/// The pod of a PodList with this name.
pub(crate) fn find_pod(list: &Value, name: &str) -> Option<Value> {
    list["items"].as_array()?.iter().find(|pod| pod["metadata"]["name"] == name).cloned()
}

fn launch(
    scratch: &Scratch,
    arguments: &[OsString],
    environment: &[(String, String)],
    covered: &[CoveredFile],
) -> Result<Process> {
    let program = Agent::program()?;
    let mut command = match covered {
        [] => Command::new(program),
        covered => {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", COVER, "sh"]);
            for (number, file) in covered.iter().enumerate() {
                let source = scratch.dir("covered")?.join(number.to_string());
                fs::write(&source, &file.content)?;
                command.args([&source, &file.path]);
            }
            command.arg("--").arg(program);
            command
        }
    };
    command.args(arguments).env("PATH", Cache::find().search_path(false));
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    Process::start(scratch, "podwright", &mut command)
}

/// Mounts the first of each pair of arguments over the second, and becomes the program after them.
const COVER: &str = r#"while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 1; shift 2; done; shift; exec "$@""#;
