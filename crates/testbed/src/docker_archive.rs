//! Docker archives, built in memory. Times and owners are fixed: the same input gives the same digests.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::cache::Cache;
use crate::command::run;

/// The `PATH` of images that have none.
pub(crate) const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Images and their layers; `manifest.json` names them.
pub(crate) struct DockerArchive {
    tar: Layer,
    manifest: Vec<Value>,
}

/// A layer of an archive.
pub(crate) struct ArchivedLayer {
    path: String,
    digest: String,
}

impl DockerArchive {
    pub(crate) fn new() -> Self {
        Self { tar: Layer::new(), manifest: vec![] }
    }

    /// Adds a layer that images refer to.
    pub(crate) fn layer(&mut self, name: &str, layer: Layer) -> Result<ArchivedLayer> {
        let (path, bytes) = (format!("{name}/layer.tar"), layer.finish()?);
        self.tar.file(&path, 0o644, &bytes)?;
        Ok(ArchivedLayer { path, digest: digest(&bytes) })
    }

    /// Adds an image with these names, of which the first makes it differ from others with the same configuration.
    pub(crate) fn image(&mut self, references: &[&str], config: Value, layers: &[&ArchivedLayer]) -> Result<()> {
        let mut config = config;
        if config.get("Env").is_none() {
            config["Env"] = json!([PATH]);
        }
        let digests: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", layer.digest)).collect();
        let config = json!({
            "architecture": architecture(), "os": "linux", "created": "1970-01-01T00:00:00Z", "config": config,
            "comment": references.first(),
            "rootfs": {"type": "layers", "diff_ids": digests},
        });
        let config = serde_json::to_vec(&config)?;
        let name = format!("{}.json", digest(&config));
        self.tar.file(&name, 0o644, &config)?;
        let paths: Vec<&str> = layers.iter().map(|layer| layer.path.as_str()).collect();
        self.manifest.push(json!({"Config": name, "RepoTags": references, "Layers": paths}));
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<u8>> {
        self.tar.file("manifest.json", 0o644, &serde_json::to_vec(&self.manifest)?)?;
        self.tar.finish()
    }
}

/// The path of an archive that is built once; `depends` is everything that it depends on.
pub(crate) fn cached(depends: &str, build: impl FnOnce() -> Result<DockerArchive>) -> Result<PathBuf> {
    let depends = format!("{}{depends}", include_str!("docker_archive.rs"));
    let kept = Cache::find().kept("images")?.join(format!("{}.tar", key(&depends)));
    if !kept.exists() {
        // Renamed when complete: two tests may build it concurrently.
        let aside = kept.with_extension(format!("{}.{:?}", std::process::id(), std::thread::current().id()));
        fs::write(&aside, build()?.finish()?)?;
        fs::rename(&aside, &kept)?;
    }
    Ok(kept)
}

/// Busybox with all its applets, and the few files that programs expect in a root file system.
pub(crate) fn userland(busybox: &Path, passwd: &str, group: &str) -> Result<Layer> {
    let mut layer = Layer::new();
    for dir in ["bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "usr", "usr/bin", "var", "var/www"] {
        layer.directory(dir, if dir == "tmp" { 0o1777 } else { 0o755 })?;
    }
    layer.file("etc/passwd", 0o644, passwd.as_bytes())?;
    layer.file("etc/group", 0o644, group.as_bytes())?;
    layer.file("bin/busybox", 0o755, &fs::read(busybox)?)?;
    for applet in run(Command::new(busybox).arg("--list"))?.lines().filter(|name| *name != "busybox") {
        layer.hard_link(&format!("bin/{applet}"), "bin/busybox")?;
    }
    layer.hard_link("usr/bin/env", "bin/busybox")?;
    Ok(layer)
}

/// The static program of a C source, compiled once.
pub(crate) fn compiled(name: &str, source: &str) -> Result<PathBuf> {
    let (dir, key) = (Cache::find().kept("images")?, key(source));
    let program = dir.join(format!("{name}-{key}"));
    if !program.exists() {
        // Named by thread: tests of one process compile it concurrently when the cache is empty.
        let aside = dir.join(format!("{name}-{key}.{}.{:?}", std::process::id(), std::thread::current().id()));
        let file = aside.with_added_extension("c");
        fs::write(&file, source)?;
        run(Command::new("cc").args(["-static", "-Os", "-s", "-o"]).arg(&aside).arg(&file))
            .with_context(|| format!("compile {name}; a C compiler comes with: apt-get install gcc libc6-dev"))?;
        fs::remove_file(&file)?;
        fs::rename(&aside, &program)?;
    }
    Ok(program)
}

fn key(depends: &str) -> String {
    digest(depends.as_bytes()).get(..16).unwrap_or_default().to_owned()
}

/// A tar under construction.
pub(crate) struct Layer {
    tar: tar::Builder<Vec<u8>>,
}

impl Layer {
    pub(crate) fn new() -> Self {
        Self { tar: tar::Builder::new(Vec::new()) }
    }

    fn header(kind: tar::EntryType, mode: u32, size: usize) -> Result<tar::Header> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(u64::try_from(size)?);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        Ok(header)
    }

    pub(crate) fn directory(&mut self, path: &str, mode: u32) -> Result<()> {
        let mut header = Self::header(tar::EntryType::Directory, mode, 0)?;
        Ok(self.tar.append_data(&mut header, format!("{path}/"), std::io::empty())?)
    }

    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let mut header = Self::header(tar::EntryType::Regular, mode, content.len())?;
        Ok(self.tar.append_data(&mut header, path, content)?)
    }

    fn hard_link(&mut self, path: &str, target: &str) -> Result<()> {
        let mut header = Self::header(tar::EntryType::Link, 0o755, 0)?;
        Ok(self.tar.append_link(&mut header, path, target)?)
    }

    fn finish(self) -> Result<Vec<u8>> {
        let mut bytes = self.tar.into_inner()?;
        bytes.flush()?;
        Ok(bytes)
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of this machine's architecture in images.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
