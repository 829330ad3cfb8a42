//! The programs of a control plane and their command lines.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::cache::Cache;

/// One program of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// etcd.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

/// The directory and ports of one control plane.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) home: PathBuf,
    /// In the order of [`Component::ALL`], then etcd's peer port.
    pub(super) ports: [u16; 5],
    /// How long certificates are valid that the controller manager signs.
    pub(super) signing: Duration,
}

impl Settings {
    pub(super) fn port(&self) -> u16 {
        self.ports[Component::ApiServer as usize]
    }

    pub(super) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port())
    }

    pub(super) fn etcd_address(&self) -> String {
        format!("127.0.0.1:{}", self.ports[Component::Etcd as usize])
    }

    fn file(&self, name: &str) -> String {
        self.home.join(name).display().to_string()
    }
}

impl Component {
    /// All components in the order in which they are started.
    pub const ALL: [Self; 4] = [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler];

    /// The program's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
        }
    }

    pub(super) fn command(self, settings: &Settings) -> Result<Command> {
        let mut command = Command::new(Cache::find().peer(self.name())?);
        let arguments = match self {
            Self::Etcd => etcd(settings),
            Self::ApiServer => api_server(settings),
            Self::ControllerManager => {
                let mut arguments = client(self, settings);
                let sa_key = settings.file("sa.key");
                let signing = format!("{}s", settings.signing.as_secs());
                arguments.extend(pairs([
                    ("service-account-private-key-file", sa_key.as_str()),
                    ("root-ca-file", &settings.file("ca.crt")),
                    ("use-service-account-credentials", "true"),
                    ("cluster-signing-cert-file", &settings.file("ca.crt")),
                    ("cluster-signing-key-file", &settings.file("ca.key")),
                    ("cluster-signing-duration", &signing),
                ]));
                arguments
            }
            Self::Scheduler => client(self, settings),
        };
        command.args(arguments);
        Ok(command)
    }
}

fn etcd(settings: &Settings) -> Vec<String> {
    let (clients, peers) =
        (format!("http://{}", settings.etcd_address()), format!("http://127.0.0.1:{}", settings.ports[4]));
    let mut arguments = pairs([
        ("data-dir", settings.file("etcd").as_str()),
        ("listen-client-urls", &clients),
        ("advertise-client-urls", &clients),
        ("listen-peer-urls", &peers),
        ("initial-advertise-peer-urls", &peers),
        ("initial-cluster", &format!("default={peers}")),
        ("log-level", "warn"),
        ("logger", "zap"),
    ]);
    // The data need not survive a crash of the host.
    arguments.push("--unsafe-no-fsync".to_owned());
    arguments
}

fn api_server(settings: &Settings) -> Vec<String> {
    let file = |name: &str| settings.file(name);
    pairs([
        ("etcd-servers", format!("http://{}", settings.etcd_address()).as_str()),
        ("bind-address", "127.0.0.1"),
        ("advertise-address", "127.0.0.1"),
        ("secure-port", &settings.port().to_string()),
        ("tls-cert-file", &file("apiserver.crt")),
        ("tls-private-key-file", &file("apiserver.key")),
        ("client-ca-file", &file("ca.crt")),
        ("kubelet-client-certificate", &file("admin.crt")),
        ("kubelet-client-key", &file("admin.key")),
        ("kubelet-preferred-address-types", "InternalIP"),
        ("service-account-issuer", "https://testbed.invalid"),
        ("service-account-key-file", &file("sa.pub")),
        ("service-account-signing-key-file", &file("sa.key")),
        ("service-cluster-ip-range", "10.96.0.0/16"),
        ("authorization-mode", "Node,RBAC"),
        ("enable-admission-plugins", "NodeRestriction"),
        ("enable-bootstrap-token-auth", "true"),
        ("feature-gates", "ClusterTrustBundle=true,ClusterTrustBundleProjection=true"),
        ("runtime-config", "certificates.k8s.io/v1beta1/clustertrustbundles=true"),
        ("allow-privileged", "true"),
        ("endpoint-reconciler-type", "none"),
        // Exits at once when stopped.
        ("shutdown-delay-duration", "0"),
        ("v", "1"),
    ])
}

/// The arguments of both clients of the API server. Their rate limits are high, so that benchmarks measure the node.
fn client(component: Component, settings: &Settings) -> Vec<String> {
    let kubeconfig = settings.file(&format!("{}.kubeconfig", component.name()));
    let port = settings.ports[component as usize].to_string();
    pairs([
        ("kubeconfig", kubeconfig.as_str()),
        ("authentication-kubeconfig", &kubeconfig),
        ("authorization-kubeconfig", &kubeconfig),
        ("bind-address", "127.0.0.1"),
        ("secure-port", &port),
        ("leader-elect", "false"),
        ("kube-api-qps", "500"),
        ("kube-api-burst", "1000"),
        ("v", "1"),
    ])
}

fn pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    pairs.into_iter().map(|(flag, value)| format!("--{flag}={value}")).collect()
}
