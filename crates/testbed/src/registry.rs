//! A real registry on loopback, Debian's docker-registry, with the test images pushed by skopeo.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::cache::Cache;
use crate::command::run;
use crate::http::{free_port, get};
use crate::image;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::wait::wait_until;

/// The user of a private registry.
pub const USER: &str = "puller";
/// The password of [`USER`].
pub const PASSWORD: &str = "let-me-pull";
/// bcrypt of [`PASSWORD`]: the only scheme that the registry supports.
const HTPASSWD: &str = "puller:$2y$05$podwrightpodwrightpode3kkHbG/H1ALjaUGCozaMCoFdelB1lVe\n";

/// A running registry.
#[derive(Debug)]
pub struct Registry {
    port: u16,
    private: bool,
    process: Process,
}

impl Registry {
    /// Starts a registry without authentication.
    pub fn start(scratch: &Scratch) -> Result<Self> {
        Self::launch(scratch, false)
    }

    /// Starts a registry that requires [`USER`] and [`PASSWORD`].
    pub fn start_private(scratch: &Scratch) -> Result<Self> {
        Self::launch(scratch, true)
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its log, one line per request.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// SIGKILL, for tests of pulls from an unreachable registry.
    pub fn kill9(&mut self) -> Result<()> {
        self.process.kill9().map(|_| ())
    }

    /// Push one of the test images as `repository` (`name:tag`).
    pub fn push(&self, image: &str, repository: &str) -> Result<()> {
        self.push_archived(&image::archive()?, image, repository)
    }

    /// Pushes an image of a docker archive.
    pub(crate) fn push_archived(&self, archive: &Path, image: &str, repository: &str) -> Result<()> {
        let mut skopeo = Command::new(Cache::find().debian("skopeo")?);
        skopeo.args(["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]);
        if self.private {
            skopeo.args(["--dest-creds", &format!("{USER}:{PASSWORD}")]);
        }
        skopeo.arg(format!("docker-archive:{}:{image}", archive.display()));
        run(skopeo.arg(format!("docker://{}/{repository}", self.address()))).map(|_| ())
    }

    /// Push every test image under its own name without the host: `podwright/busybox:1` and so on.
    pub fn push_all(&self) -> Result<()> {
        image::ALL.iter().try_for_each(|name| self.push(name, name.trim_start_matches("localhost/")))
    }

    fn launch(scratch: &Scratch, private: bool) -> Result<Self> {
        let port = free_port()?;
        let home = scratch.dir(&format!("registry-{port}"))?;
        let mut config = json!({
            "version": 0.1,
            "log": {"level": "info", "accesslog": {"disabled": false}},
            "storage": {"filesystem": {"rootdirectory": home.join("data")}, "delete": {"enabled": true}},
            "http": {"addr": format!("127.0.0.1:{port}")},
        });
        if private {
            fs::write(home.join("htpasswd"), HTPASSWD)?;
            config["auth"] = json!({"htpasswd": {"realm": "testbed", "path": home.join("htpasswd")}});
        }
        let file = home.join("config.yml");
        fs::write(&file, config.to_string())?;
        let mut command = Command::new(Cache::find().debian("docker-registry")?);
        let process = Process::start(scratch, &format!("registry-{port}"), command.arg("serve").arg(file))?;
        let registry = Self { port, private, process };
        let open = if private { 401 } else { 200 };
        wait_until(Duration::from_secs(20), "the registry to respond", || {
            let status = get(&registry.address(), "/v2/")?.status;
            ensure!(status == open, "status {status}");
            Ok(())
        });
        Ok(registry)
    }
}
