//! Kubeconfig files as users write them, valid and invalid.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

const CLUSTER: &str = "apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: 'https://127.0.0.1:6443'}}]
";

/// A directory with a certificate, its key, a token file and a kubeconfig.
struct Dir {
    dir: tempfile::TempDir,
}

impl Dir {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["node".into()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2031, 2, 3);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(dir.path().join("cert.pem"), certificate.pem()).unwrap();
        fs::write(dir.path().join("key.pem"), key.serialize_pem()).unwrap();
        fs::write(dir.path().join("token"), "from-a-file\n").unwrap();
        Self { dir }
    }

    fn write(&self, text: &str) -> PathBuf {
        let path = self.dir.path().join("kubeconfig");
        fs::write(&path, text).unwrap();
        path
    }

    fn read(&self, text: &str) -> Result<Kubeconfig, KubeconfigError> {
        Kubeconfig::read(&self.write(text))
    }

    fn with_user(&self, user: &str) -> Result<Kubeconfig, KubeconfigError> {
        self.read(&format!("{CLUSTER}users: [{{name: u, user: {user}}}]\n"))
    }

    /// Writes a credential plugin with this script; returns the kubeconfig user that runs it.
    fn plugin(&self, script: &str) -> String {
        let path = self.dir.path().join("plugin");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never, \
          env: [{name: WHO, value: me}]}}"
            .into()
    }
}

fn header(access: &Access) -> &str {
    access.authorization.as_ref().unwrap().to_str().unwrap()
}

#[tokio::test]
async fn certificates_and_tokens_are_read_inline_and_from_files() {
    let dir = Dir::new();
    let access = dir.with_user("{token: abc}").unwrap().access(&Pool::default()).await.unwrap();
    assert_eq!(header(&access), "Bearer abc");
    let both = dir.with_user("{token: abc, tokenFile: token}").unwrap().access(&Pool::default()).await.unwrap();
    assert_eq!(header(&both), "Bearer from-a-file");
    let config = dir.with_user("{tokenFile: token}").unwrap();
    assert_eq!(header(&config.access(&Pool::default()).await.unwrap()), "Bearer from-a-file");
    // A token that was replaced in the file is read by the next call.
    fs::write(dir.dir.path().join("token"), "newer").unwrap();
    assert_eq!(header(&config.access(&Pool::default()).await.unwrap()), "Bearer newer");

    let config = dir.with_user("{client-certificate: cert.pem, client-key: key.pem}").unwrap();
    assert_eq!(config.expires().unwrap().to_string(), "2031-02-03T00:00:00Z");
    let from_files = config.access(&Pool::default()).await.unwrap();
    let base64 =
        |name: &str| base64::engine::general_purpose::STANDARD.encode(fs::read(dir.dir.path().join(name)).unwrap());
    let (cert, key) = (base64("cert.pem"), base64("key.pem"));
    let inline = dir.with_user(&format!("{{client-certificate-data: {cert}, client-key-data: {key}}}")).unwrap();
    assert!(from_files.identity == inline.access(&Pool::default()).await.unwrap().identity);
    assert!(from_files.authorization.is_none());
    crate::connect::http(&from_files, Default::default(), Pool::default()).unwrap();
}

#[tokio::test]
async fn a_plugin_returns_a_token_with_an_expiry_and_its_output_stays_secret() {
    let dir = Dir::new();
    let user = dir.plugin(
        r#"case "$KUBERNETES_EXEC_INFO" in *'"interactive":false'*) ;; *) exit 3;; esac
echo "{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"of-$WHO\",\"expirationTimestamp\":\"2040-01-01T00:00:00Z\"}}""#,
    );
    let access = dir.with_user(&user).unwrap().access(&Pool::default()).await.unwrap();
    assert_eq!(header(&access), "Bearer of-me");
    assert_eq!(access.renew_at.to_string(), "2039-12-31T23:59:00Z");

    let failed = |script: &str| {
        let user = dir.plugin(script);
        dir.with_user(&user).unwrap()
    };
    let error = failed("echo s3cret; exit 4").access(&Pool::default()).await.err().unwrap().to_string();
    assert!(error.contains("users[u].user.exec") && error.contains("exit status: 4"), "{error}");
    assert!(!error.contains("s3cret"), "{error}");
    let error = failed("echo '{\"status\": s3cret'").access(&Pool::default()).await.err().unwrap().to_string();
    assert!(error.contains("no ExecCredential") && !error.contains("s3cret"), "{error}");
    let error = failed("echo '{\"status\": {}}'").access(&Pool::default()).await.err().unwrap().to_string();
    assert!(error.contains("neither token nor certificate"), "{error}");
}

#[tokio::test]
async fn a_plugin_with_provide_cluster_info_gets_the_cluster() {
    let dir = Dir::new();
    dir.plugin("printf %s \"$KUBERNETES_EXEC_INFO\" > info; echo '{\"status\": {\"token\": \"t\"}}'");
    let plugin = dir.dir.path().join("plugin");
    let info = dir.dir.path().join("info");
    let script = fs::read_to_string(&plugin).unwrap().replace("> info", &format!("> {}", info.display()));
    fs::write(&plugin, script).unwrap();
    let extension = "{name: client.authentication.k8s.io/exec, extension: {audience: a}}";
    let cluster = format!(
        "{{server: 'https://127.0.0.1:1', certificate-authority: cert.pem, extensions: [{{name: x, extension: 1}}, {extension}]}}"
    );
    let user = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never, provideClusterInfo: true}}";
    let text = format!(
        "{{clusters: [{{name: c, cluster: {cluster}}}], users: [{{name: u, user: {user}}}], \
         contexts: [{{name: x, context: {{cluster: c, user: u}}}}], current-context: x}}"
    );
    dir.read(&text).unwrap().access(&Pool::default()).await.unwrap();
    let info: serde_json::Value = serde_json::from_str(&fs::read_to_string(info).unwrap()).unwrap();
    let certificate = fs::read(dir.dir.path().join("cert.pem")).unwrap();
    let wanted = serde_json::json!({"server": "https://127.0.0.1:1", "config": {"audience": "a"},
        "certificate-authority-data": base64::engine::general_purpose::STANDARD.encode(certificate)});
    assert_eq!(info["spec"]["cluster"], wanted);
}

#[test]
fn a_file_in_utf16_that_ends_within_a_character_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    for content in [[0xff, 0xfe, b'a'], [0xfe, 0xff, b'a']] {
        std::fs::write(&path, content).unwrap();
        let error = Kubeconfig::read(&path).err().unwrap().to_string();
        assert!(error.contains("UTF-16"), "{error}");
    }
}

#[test]
fn errors_name_the_file_and_the_field() {
    let dir = Dir::new();
    let user = |user: &str| dir.with_user(user).err().map(|error| error.to_string()).unwrap_or_default();
    let file = |text: &str| dir.read(text).err().map(|error| error.to_string()).unwrap_or_default();
    let cases = [
        (file("current-context: c\ncontexts: ["), "the document: can't be parsed as a kubeconfig: line 2 column 11"),
        (file(""), "current-context: is not set"),
        (file("current-context: x\n"), "there is no context \"x\""),
        (file(&CLUSTER.replace("name: k", "name: j")), "contexts[c].context.cluster: there is no cluster \"k\""),
        (file(CLUSTER), "contexts[c].context.user: there is no user \"u\""),
        (file(&CLUSTER.replace("https://", "ftp://")), "user: there is no user"),
        (user("{client-certificate: cert.pem}"), "users[u].user.client-key: is missing"),
        (user("{client-certificate: none.pem, client-key: key.pem}"), "none.pem: No such file"),
        (user("{client-certificate: key.pem, client-key: key.pem}"), "client-certificate: holds no certificate"),
        (user("{client-certificate-data: '%%', client-key: key.pem}"), "client-certificate-data: is not base64"),
        (user("{tokenFile: none}"), "none: No such file"),
        (user("{username: me, password: s3cret}"), "users[u].user.username"),
        (user("{exec: {apiVersion: client.authentication.k8s.io/v1}}"), "exec.command: is missing"),
        (user("{auth-provider: {name: gcp, config: {}}}"), "auth-provider"),
    ];
    for (error, wanted) in cases {
        assert!(error.contains(wanted) && error.contains("kubeconfig"), "{wanted}: {error:?}");
    }
    let with_user = format!("{CLUSTER}users: [{{name: u, user: {{token: x}}}}]\n");
    for (from, to, wanted) in [
        ("'https://127.0.0.1:6443'", "'ftp://x'", "clusters[k].cluster.server: \"ftp://x\" must be https"),
        ("'https://127.0.0.1:6443'", "''", "clusters[k].cluster.server: is not set"),
        ("{server:", "{certificate-authority: key.pem, server:", "certificate-authority: holds no certificate"),
        ("{server:", "{proxy-url: 'http://p', server:", "proxy-url"),
    ] {
        let error = file(&with_user.replace(from, to));
        assert!(error.contains(wanted), "{wanted}: {error:?}");
    }
    for secret in ["users: [{name: u, user: {token: s3cret}", "clusters: s3cret", "users: [s3cret: s3cret]"] {
        let error = file(secret);
        assert!(!error.is_empty() && !error.contains("s3cret"), "{error}");
    }
    let error = Kubeconfig::read(Path::new("/no/such/kubeconfig")).unwrap_err().to_string();
    assert!(error.contains("/no/such/kubeconfig: No such file"), "{error}");
}
