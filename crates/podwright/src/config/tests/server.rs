//! The kubelet's API.

use podwright_server::kubelet::{AuthorizationMode, ServingSource};

use super::*;

fn joined() -> RunFlags {
    RunFlags { kubeconfig: Some("/none".into()), ..RunFlags::default() }
}

/// The configuration of a node with a kubeconfig, which does not exist: only its own error is ignored.
fn server(yaml: &str) -> Result<Option<ServerConfig>, Vec<String>> {
    let (file, _) = KubeletFile::decode(file::document(format!("{HEAD}{yaml}").as_bytes())?)?;
    let (flags, mut diagnostics) = (joined(), Diagnostics::default());
    let configz = serde_json::Value::Null;
    let inputs = ConfigInputs { flags: &flags, file, facts: facts(), configz, base: "/etc/podwright".into() };
    let config = super::super::server::read(&inputs, &mut diagnostics);
    if diagnostics.errors.is_empty() { Ok(config) } else { Err(diagnostics.errors) }
}

#[test]
fn the_server_has_the_defaults_of_the_kubelet() {
    let config = server("").unwrap().expect("a node of a cluster is served");
    assert_eq!(config.address.to_string(), "0.0.0.0:10250");
    assert_eq!((config.access.anonymous, config.access.tokens), (false, Some(Duration::from_secs(120))));
    let webhook = AuthorizationMode::Webhook { allowed: Duration::from_secs(300), denied: Duration::from_secs(30) };
    assert_eq!(config.access.authorization, webhook);
    assert_eq!((config.files.client_ca, config.files.serving), (None, ServingSource::SelfSigned));
    assert_eq!(config.files.cert_dir, Path::new("/var/lib/podwright/pki"));
    assert_eq!(config.stream_idle, Some(Duration::from_secs(4 * 3600)));
    let standalone = load("").unwrap();
    assert!(standalone.server.is_none(), "a standalone node is not served");
    assert_eq!(standalone.healthz, Some("127.0.0.1:10248".parse().unwrap()));
}

#[test]
fn fields_change_the_server() {
    let yaml = "address: 127.0.0.1\nport: 1234\nstreamingConnectionIdleTimeout: 0s\nenableSystemLogHandler: false\n\
                tlsCertFile: a.crt\ntlsPrivateKeyFile: /k/a.key\ntlsMinVersion: VersionTLS13\n\
                tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]\n\
                authentication: {anonymous: {enabled: true}, webhook: {cacheTTL: 7s}, x509: {clientCAFile: ca.crt}}\n\
                authorization: {mode: AlwaysAllow}\n";
    let config = server(yaml).unwrap().unwrap();
    assert_eq!((config.address.to_string().as_str(), config.stream_idle), ("127.0.0.1:1234", None));
    let files = ServingSource::Files { certificate: "/etc/podwright/a.crt".into(), key: "/k/a.key".into() };
    assert_eq!(config.files.serving, files);
    assert_eq!(config.files.client_ca, Some("/etc/podwright/ca.crt".into()));
    assert!(config.policy.only_tls13 && config.access.anonymous && !config.handlers.system_logs);
    assert_eq!(config.access.tokens, Some(Duration::from_secs(7)));
    assert_eq!(config.access.authorization, AuthorizationMode::AlwaysAllow);
    assert_eq!(server("enableServer: false\n"), Ok(None));
    assert_eq!(load("healthzPort: 0\n").unwrap().healthz, None);
}

#[test]
fn impossible_servers_are_refused() {
    for (yaml, field) in [
        ("tlsCertFile: a\n", "tlsPrivateKeyFile"),
        ("tlsPrivateKeyFile: a\n", "tlsCertFile"),
        ("tlsMinVersion: VersionTLS10\n", "tlsMinVersion"),
        ("tlsCipherSuites: [TLS_RSA_WITH_AES_128_CBC_SHA]\n", "tlsCipherSuites"),
        ("port: 0\n", "port"),
        ("authorization: {mode: RBAC}\n", "authorization.mode"),
    ] {
        let errors = server(yaml).unwrap_err();
        assert!(errors.len() == 1 && errors[0].starts_with(field), "{yaml}: {errors:?}");
    }
    let errors = load("enableServer: true\n").unwrap_err();
    assert!(errors.iter().all(|error| error.contains("--kubeconfig")) && errors.len() == 2, "{errors:?}");
    let open = "enableServer: true\nauthentication: {webhook: {enabled: false}}\nauthorization: {mode: AlwaysAllow}\n";
    assert!(load(open).unwrap().server.is_some());
}

#[test]
fn certificates_are_requested_if_the_configuration_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = "clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}]\ncurrent-context: c\n\
                   contexts: [{name: c, context: {cluster: k, user: u}}]\n";
    let file = |name: &str, user: &str| {
        let path = dir.path().join(name);
        fs::write(&path, format!("{cluster}users: [{{name: u, user: {user}}}]\n")).unwrap();
        path
    };
    let token = file("token", "{token: abc}");
    let named = file("named", "{client-certificate: none.pem, client-key: none.pem}");
    let missing = dir.path().join("missing");
    let flags = |kubeconfig: &Path, bootstrap: Option<&Path>| RunFlags {
        kubeconfig: Some(kubeconfig.into()),
        bootstrap_kubeconfig: bootstrap.map(Into::into),
        ..RunFlags::default()
    };
    let rotate = "rotateCertificates: true\n";
    let rows: [(&Path, Option<&Path>, &str, Option<&str>); 9] = [
        (&token, None, "", None),
        (&named, None, "", Some("--kubeconfig")),
        (&named, None, rotate, None),
        (&missing, None, rotate, Some("--kubeconfig")),
        (&missing, Some(&token), "", None),
        (&missing, Some(&missing), "", Some("--bootstrap-kubeconfig")),
        (&missing, Some(&named), rotate, Some("--bootstrap-kubeconfig")),
        // Deleted when the node had joined.
        (&named, Some(&missing), rotate, None),
        (&token, Some(&missing), "", None),
    ];
    for (kubeconfig, bootstrap, yaml, error) in rows {
        let errors = load_with(&flags(kubeconfig, bootstrap), facts(), yaml).err().unwrap_or_default();
        let found = errors.first().map(|found| found.split(':').next().unwrap());
        assert_eq!(
            (found, errors.len()),
            (error, usize::from(error.is_some())),
            "{kubeconfig:?} {bootstrap:?} {errors:?}"
        );
    }
    let yaml = "rotateCertificates: true\nserverTLSBootstrap: true\ntlsCertFile: a.crt\ntlsPrivateKeyFile: a.key\n";
    let config = load_with(&flags(&token, None), facts(), yaml).unwrap();
    assert_eq!(config.server.unwrap().files.serving, ServingSource::Issued);
    let certificates = config.cluster.unwrap().certificates;
    assert!(certificates.rotate_client && certificates.request_serving);
    assert_eq!(certificates.serving_files, Some(("/etc/podwright/a.crt".into(), "/etc/podwright/a.key".into())));
    let standalone = RunFlags { bootstrap_kubeconfig: Some(token), ..RunFlags::default() };
    let errors = load_with(&standalone, facts(), "serverTLSBootstrap: true\n").unwrap_err();
    assert!(errors.len() == 2 && errors.iter().all(|error| error.contains("give --kubeconfig")), "{errors:?}");
}
