//! `podwright proxy`: serves the local API on a loopback port for kubectl, and gives out the kubeconfig for it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use podwright_server::loopback_proxy::LoopbackProxy;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::{Client, ClientError, print};
use crate::cli::ProxyFlags;

/// Serves until it is interrupted.
pub(super) async fn proxy(flags: &ProxyFlags) -> Result<ExitCode, ClientError> {
    let client = Client::new(&flags.socket.run_dir);
    // Fails now, and not with the first request, if there is no agent or no permission.
    let _: Value = client.get("/version").await?;
    let failed = |message: String| ClientError::Refused { code: 500, message };
    let proxy =
        LoopbackProxy::open(flags.port, client.socket.clone()).await.map_err(|error| failed(error.to_string()))?;
    let config = kubeconfig(&proxy);
    let mut terminated = signal(SignalKind::terminate()).map_err(|error| failed(error.to_string()))?;
    let create = |path: &PathBuf| {
        let owner = sudo_owner(|name| std::env::var(name).ok()).filter(|_| rustix::process::geteuid().is_root());
        let written = KubeconfigFile::create(path, &config, owner);
        written.map_err(|e| failed(format!("write {}: {}", path.display(), explain(&e))))
    };
    let _file = flags.kubeconfig.as_ref().map(create).transpose()?;
    eprintln!("Serving on https://{}, for requests with the token of the kubeconfig", proxy.address());
    // Last: a script that reads it may use the proxy, or end it.
    match &flags.kubeconfig {
        Some(path) => print(&format!("export KUBECONFIG={}\n", path.display())),
        None => print(&config),
    };
    tokio::select! {
        () = proxy.serve() => {}
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// JSON is YAML.
fn kubeconfig(proxy: &LoopbackProxy) -> String {
    let certificate = BASE64_STANDARD.encode(proxy.certificate());
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "podwright",
        "clusters": [{"name": "podwright", "cluster":
            {"server": format!("https://{}", proxy.address()), "certificate-authority-data": certificate}}],
        "users": [{"name": "podwright", "user": {"token": proxy.token()}}],
        "contexts": [{"name": "podwright", "context": {"cluster": "podwright", "user": "podwright"}}],
    });
    format!("{config:#}\n")
}

/// A new file, which is removed on drop; what another process put in its place is not.
#[derive(Debug)]
struct KubeconfigFile {
    path: PathBuf,
    /// Open for as long as it exists, so that no other file gets its inode number.
    file: File,
}

impl KubeconfigFile {
    /// No user but the owner can read it at any time. An existing file, or a link, is an error.
    fn create(path: &Path, text: &str, owner: Option<(u32, u32)>) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let mut created = Self { path: path.to_owned(), file };
        created.file.write_all(text.as_bytes())?;
        if let Some((uid, gid)) = owner {
            fchown(&created.file, Some(uid), Some(gid))?;
        }
        Ok(created)
    }

    fn is_in_place(&self) -> io::Result<bool> {
        let (own, found) = (self.file.metadata()?, fs::symlink_metadata(&self.path)?);
        Ok((own.dev(), own.ino()) == (found.dev(), found.ino()))
    }
}

impl Drop for KubeconfigFile {
    fn drop(&mut self) {
        if matches!(self.is_in_place(), Ok(true)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The user who called sudo, and runs kubectl: user and group ID.
fn sudo_owner(variable: impl Fn(&str) -> Option<String>) -> Option<(u32, u32)> {
    let id = |name| variable(name)?.parse().ok();
    Some((id("SUDO_UID")?, id("SUDO_GID")?))
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AlreadyExists => {
            "the file exists. Give the path of a new file: it is removed when the proxy ends; one that an earlier proxy left \
             behind can be removed"
                .into()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_kubeconfig_is_private_belongs_to_the_caller_of_sudo_and_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let written = KubeconfigFile::create(&path, "text", Some((1234, 2345))).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid(), found.permissions().mode() & 0o7777), (1234, 2345, 0o600));
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        drop(written);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let set = |name: &str| Some(if name == "SUDO_UID" { "1000" } else { "100" }.to_owned());
        assert_eq!(sudo_owner(set), Some((1000, 100)));
        assert_eq!(sudo_owner(|_| None), None);
        assert_eq!(sudo_owner(|_| Some("-1".into())), None);
    }

    #[test]
    fn an_existing_file_is_refused_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let [path, link, missing] = ["config", "link", "missing"].map(|name| dir.path().join(name));
        fs::write(&path, "of the user").unwrap();
        symlink(&missing, &link).unwrap();
        for existing in [&path, &link] {
            let error = KubeconfigFile::create(existing, "text", None).unwrap_err();
            assert!(explain(&error).contains("the file exists"), "{error}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "of the user");
        assert!(!missing.exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_file_that_replaced_the_kubeconfig_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["config", "other"].map(|name| dir.path().join(name));
        let written = KubeconfigFile::create(&path, "text", None).unwrap();
        fs::write(&other, "of the user").unwrap();
        fs::rename(&other, &path).unwrap();
        drop(written);
        assert_eq!(fs::read_to_string(&path).unwrap(), "of the user");
        // It was removed meanwhile: nothing happens.
        let written = KubeconfigFile::create(&other, "text", None).unwrap();
        fs::remove_file(&other).unwrap();
        drop(written);
    }
}
