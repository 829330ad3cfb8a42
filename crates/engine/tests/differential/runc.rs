//! The same bundle by runc.

use std::process::{Command, Stdio};

use crate::bundle::{Bundle, cache};
use crate::{GROUP, eventually};

/// A container of runc; it ends with this.
pub(crate) struct RuncContainer<'a> {
    bundle: &'a Bundle,
    id: String,
}

impl<'a> RuncContainer<'a> {
    pub(crate) fn run(bundle: &'a Bundle) -> Self {
        let container = Self { bundle, id: format!("{GROUP}-{}", std::process::id()) };
        let mut config = bundle.config.clone();
        config["linux"]["cgroupsPath"] = format!("/{}", container.id).into();
        std::fs::write(bundle.path("config.json"), config.to_string()).unwrap();
        container.runc(&["run", "-d", "--bundle", &bundle.text(""), &container.id]);
        eventually("the probe of runc's init", || !bundle.printed("init").is_empty());
        container
    }

    pub(crate) fn exec(&self) {
        self.runc(&["exec", &self.id, "/bin/sh", "/probe.sh", "exec"]);
    }

    fn runc(&self, arguments: &[&str]) {
        let log = self.bundle.text("runc.log");
        let status = Command::new(cache().join("debian/exec/runc"))
            .args(["--root", &self.bundle.text("runc"), "--log", &log])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let text = || std::fs::read_to_string(&log).unwrap_or_default();
        assert!(status.unwrap().success(), "runc {arguments:?}: {}", text());
    }
}

impl Drop for RuncContainer<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.runc(&["delete", "-f", &self.id]);
        }
    }
}
