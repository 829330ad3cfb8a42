//! Sessions of the client, without a server.

use super::*;

/// A kubeconfig of a server that does not exist, with this user.
fn kubeconfig(dir: &Path, user: &str) -> PathBuf {
    let path = dir.join("kubeconfig");
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:1'}}}}]\nusers: [{{name: u, user: {user}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn the_delay_after_a_failed_renewal_does_not_depend_on_the_wall_clock() {
    let dir = tempfile::tempdir().unwrap();
    let path = kubeconfig(dir.path(), "{token: t}");
    let client = ApiClient::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(client.inner.session().await.is_err());
    kubeconfig(dir.path(), "{token: t}");
    assert!(client.inner.session().await.is_err(), "during the delay");
    // Only this clock moves on, as if the wall clock had been set back.
    tokio::time::pause();
    tokio::time::advance(REREAD_AFTER_FAILURE).await;
    tokio::time::resume();
    assert!(client.inner.session().await.is_ok());
}

#[tokio::test]
async fn a_credential_plugin_does_not_end_with_the_request_that_started_it() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (plugin, starts) = (dir.path().join("plugin"), dir.path().join("starts"));
    let script = format!(
        "#!/bin/sh\necho start >> {}\nsleep 2\necho '{{\"status\": {{\"token\": \"t\"}}}}'\n",
        starts.display()
    );
    std::fs::write(&plugin, script).unwrap();
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let user = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}}";
    let client = ApiClient::open(&kubeconfig(dir.path(), user)).unwrap();
    for _ in 0..2 {
        let request = tokio::time::timeout(Duration::from_millis(500), client.inner.session()).await;
        assert!(request.is_err(), "the plugin takes longer than the request");
    }
    let session = tokio::time::timeout(Duration::from_secs(30), client.inner.session()).await.unwrap().unwrap();
    assert_eq!(session.access.authorization.as_ref().unwrap(), "Bearer t");
    assert_eq!(std::fs::read_to_string(&starts).unwrap(), "start\n");
}

#[test]
fn the_path_of_the_server_address_is_kept() {
    let uri = |text: &str| text.parse::<Uri>().unwrap();
    let whole = |server: &str| absolute(&uri(server), &uri("/api/v1/pods?limit=2")).unwrap().to_string();
    assert_eq!(whole("https://10.0.0.1:6443"), "https://10.0.0.1:6443/api/v1/pods?limit=2");
    assert_eq!(whole("https://rancher/k8s/clusters/c-1/"), "https://rancher/k8s/clusters/c-1/api/v1/pods?limit=2");
}
