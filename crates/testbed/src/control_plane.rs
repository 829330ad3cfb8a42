//! A private control plane: etcd, API server, controller manager and scheduler on loopback.
//!
//! Nodes have the same permissions as in a real one: the Node authorizer, RBAC and NodeRestriction are enabled.

mod bootstrap;
mod certificates;
mod components;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::api_client::TestApiClient;
use crate::cache::Cache;
use crate::command::output_of;
use crate::http::{free_port, post};
use crate::process::Process;
use crate::proxy::Proxy;
use crate::scratch::Scratch;
use crate::wait::wait_until;
pub use bootstrap::{BootstrapToken, TokenGroup};
use certificates::{CertificateAuthority, service_account_keys};
pub use components::Component;
use components::Settings;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long a start may take on a busy host.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    scratch: Scratch,
    settings: Settings,
    authority: CertificateAuthority,
    admin: TestApiClient,
    admin_kubeconfig: PathBuf,
    running: Mutex<[Option<Process>; Component::ALL.len()]>,
}

impl ControlPlane {
    /// Starts it in the scratch and waits until it is ready and creates service accounts.
    pub fn start(scratch: &Scratch) -> Result<Self> {
        Self::start_signing(scratch, YEAR)
    }

    /// As [`Self::start`]; the certificates that the controller manager signs are valid for this long.
    pub fn start_signing(scratch: &Scratch, signing: Duration) -> Result<Self> {
        let home = scratch.dir("control-plane")?;
        let authority = CertificateAuthority::new(&home)?;
        service_account_keys(&home)?;
        authority.server("apiserver")?;
        let ports = [free_port()?, free_port()?, free_port()?, free_port()?, free_port()?];
        let settings = Settings { home, ports, signing };
        let (admin, identity) = authority.user("admin", "admin", "system:masters")?;
        let admin_kubeconfig = authority.kubeconfig("admin", &settings.url(), &admin)?;
        for component in [Component::ControllerManager, Component::Scheduler] {
            let (pair, _) =
                authority.user(component.name(), &format!("system:{}", component.name()), "system:testbed")?;
            authority.kubeconfig(component.name(), &settings.url(), &pair)?;
        }
        let admin = TestApiClient::new(settings.port(), &identity)?;
        let plane =
            Self { scratch: scratch.clone(), settings, authority, admin, admin_kubeconfig, running: Mutex::default() };
        plane.launch(Component::Etcd)?;
        plane.launch(Component::ApiServer)?;
        // Before the RBAC roles exist the others would be refused, and retry slowly.
        plane.wait_ready();
        plane.launch(Component::ControllerManager)?;
        plane.launch(Component::Scheduler)?;
        plane.wait_account("default");
        Ok(plane)
    }

    /// A client of the API server as its administrator.
    pub fn api(&self) -> &TestApiClient {
        &self.admin
    }

    /// `https://127.0.0.1:port`.
    pub fn url(&self) -> String {
        self.settings.url()
    }

    /// The administrator's kubeconfig.
    pub fn admin_kubeconfig(&self) -> &PathBuf {
        &self.admin_kubeconfig
    }

    /// The kubeconfig of a node: `system:node:<name>` in `system:nodes`.
    pub fn node_kubeconfig(&self, name: &str) -> Result<PathBuf> {
        let (pair, _) = self.authority.user(name, &format!("system:node:{name}"), "system:nodes")?;
        self.authority.kubeconfig(name, &self.settings.url(), &pair)
    }

    /// As [`Self::node_kubeconfig`], with an expired certificate.
    pub fn expired_kubeconfig(&self, name: &str) -> Result<PathBuf> {
        let pair = self.authority.expired(name, &format!("system:node:{name}"), "system:nodes")?;
        self.authority.kubeconfig(name, &self.settings.url(), &pair)
    }

    /// A kubeconfig with these credentials: the `user` of a kubeconfig's user.
    pub fn kubeconfig_of(&self, name: &str, user: &Value) -> Result<PathBuf> {
        self.authority.kubeconfig_of(name, &self.settings.url(), user)
    }

    /// As [`Self::node_kubeconfig`], for a [`Proxy`] on this port.
    pub fn proxied_kubeconfig(&self, name: &str, port: u16) -> Result<PathBuf> {
        let (pair, _) = self.authority.user(name, &format!("system:node:{name}"), "system:nodes")?;
        self.authority.kubeconfig(name, &format!("https://127.0.0.1:{port}"), &pair)
    }

    /// A proxy on this port that authenticates to the API server as the node.
    pub fn proxy(&self, name: &str, port: u16) -> Result<Proxy> {
        let (_, node) =
            self.authority.user(&format!("{name}-proxy"), &format!("system:node:{name}"), "system:nodes")?;
        let server = self.authority.server(&format!("{name}-proxy-server"))?;
        Proxy::start(port, &server, &node, self.settings.port())
    }

    /// The CA that signs all certificates of the cluster.
    pub fn certificate_authority(&self) -> PathBuf {
        self.authority.certificate()
    }

    /// A certificate and its key, as files, of a user in a group.
    pub fn user_certificate(&self, user: &str, group: &str) -> Result<(PathBuf, PathBuf)> {
        let (files, _) = self.authority.user(&format!("{}-user", user.replace(':', "-")), user, group)?;
        Ok((files.certificate, files.key))
    }

    /// A client of the API server as a node.
    pub fn node_api(&self, name: &str) -> Result<TestApiClient> {
        let file = format!("{name}-client");
        let (_, identity) = self.authority.user(&file, &format!("system:node:{name}"), "system:nodes")?;
        TestApiClient::new(self.settings.port(), &identity)
    }

    /// Creates a namespace and waits for its service account.
    pub fn namespace(&self, name: &str) -> Result<()> {
        self.admin.create("/api/v1/namespaces", &json!({"metadata": {"name": name}}))?;
        self.wait_account(name);
        Ok(())
    }

    /// Runs kubectl as the administrator and returns its stdout; an error if it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let output = self.kubectl_output(arguments)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ensure!(output.status.success(), "kubectl {arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
        Ok(text(&output.stdout))
    }

    /// Runs kubectl as the administrator until it exits with any status.
    pub fn kubectl_output(&self, arguments: &[&str]) -> Result<Output> {
        output_of(&mut self.kubectl_command(arguments)?)
    }

    /// kubectl as the administrator, not started yet.
    pub fn kubectl_command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(Cache::find().peer("kubectl")?);
        command.arg("--kubeconfig").arg(&self.admin_kubeconfig);
        command.arg("--cache-dir").arg(self.settings.home.join("kubectl-cache"));
        command.args(arguments).env_remove("KUBECONFIG");
        Ok(command)
    }

    /// SIGTERM to one component, and SIGKILL if it still runs 2 s later: an API server waits a minute for open watches.
    pub fn stop(&self, component: Component) -> Result<()> {
        let process = self.running()[component as usize].take();
        let mut process = process.context("the component is not running")?;
        process.terminate(Duration::from_secs(2)).or_else(|_| process.kill9()).map(|_| ())
    }

    /// SIGKILL to one component.
    pub fn kill9(&self, component: Component) -> Result<()> {
        let process = self.running()[component as usize].take();
        process.context("the component is not running")?.kill9().map(|_| ())
    }

    /// Starts a component again on the same port and data.
    pub fn start_again(&self, component: Component) -> Result<()> {
        self.launch(component)?;
        self.wait_ready();
        Ok(())
    }

    /// Compacts etcd to the last revision: a watch from an older one gets 410 Gone.
    pub fn compact(&self) -> Result<()> {
        let call = |path: &str, body: &Value| -> Result<Value> {
            let response = post(&self.settings.etcd_address(), path, &body.to_string())?;
            ensure!(response.status == 200, "etcd: {path}: {} {}", response.status, response.body);
            Ok(serde_json::from_str(&response.body)?)
        };
        let last = call("/v3/kv/range", &json!({"key": "AA=="}))?["header"]["revision"].clone();
        call("/v3/kv/compaction", &json!({"revision": last, "physical": true})).map(|_| ())
    }

    /// The log of one component.
    pub fn log(&self, component: Component) -> String {
        std::fs::read_to_string(self.scratch.path().join(format!("log/{}.log", component.name()))).unwrap_or_default()
    }

    fn running(&self) -> MutexGuard<'_, [Option<Process>; Component::ALL.len()]> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn launch(&self, component: Component) -> Result<()> {
        let mut command = component.command(&self.settings)?;
        let process = Process::start(&self.scratch, component.name(), &mut command)?;
        self.running()[component as usize] = Some(process);
        Ok(())
    }

    fn wait_ready(&self) {
        wait_until(START_LIMIT, "the API server to be ready", || {
            self.assert_running()?;
            let response = self.admin.request("GET", "/readyz", None)?;
            ensure!(response.status == 200, "{}", response.body);
            Ok(())
        });
    }

    /// Panics if a component has exited: waiting is useless. The panic drops the process, which prints its log.
    fn assert_running(&self) -> Result<()> {
        for (component, process) in Component::ALL.iter().zip(self.running().iter_mut()) {
            if let Some(status) = process.as_mut().map(Process::exited).transpose()?.flatten() {
                panic!("{} has exited with {status}", component.name());
            }
        }
        Ok(())
    }

    /// Pods are refused in a namespace without a service account.
    fn wait_account(&self, namespace: &str) {
        wait_until(START_LIMIT, "the service account of the namespace", || {
            self.assert_running()?;
            self.admin.get(&format!("/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt"))?;
            self.admin.get(&format!("/api/v1/namespaces/{namespace}/serviceaccounts/default"))
        });
    }
}
