//! The test images, built locally because no registry may be reachable.
//!
//! One docker-archive holds them all, `manifest.json` names them; they share one layer, a static busybox with its applets as hard
//! links. It is built once and stored in the cache.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::cache::Cache;
use crate::command::run;

/// The sandbox image.
pub const PAUSE: &str = "localhost/podwright/pause:1";
/// A shell and its tools; the command is `sh`.
pub const BUSYBOX: &str = "localhost/podwright/busybox:1";
/// Runs as uid 1000.
pub const USER_1000: &str = "localhost/podwright/user-1000:1";
/// Runs as a user given by name (`guest`, uid 1001): only the image's `/etc/passwd` has the uid.
pub const USER_GUEST: &str = "localhost/podwright/user-guest:1";
/// Has the stop signal SIGUSR1.
pub const STOPSIGNAL: &str = "localhost/podwright/stopsignal:1";
/// Entrypoint `/bin/echo entrypoint`, command `default command`, `IMAGE_ENV=image`, working directory `/tmp`.
pub const ENTRYPOINT: &str = "localhost/podwright/entrypoint:1";

/// The references of all images in the archive.
pub const ALL: [&str; 6] = [PAUSE, BUSYBOX, USER_1000, USER_GUEST, STOPSIGNAL, ENTRYPOINT];

const PAUSE_SOURCE: &str = include_str!("pause.c");
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const PASSWD: &str =
    "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home:/bin/sh\nguest:x:1001:1001::/home:/bin/sh\n";
const GROUP: &str = "root:x:0:\nuser:x:1000:\nguest:x:1001:\nextra:x:50000:user\n";

/// The path of the docker-archive with every image, built on first use.
pub fn archive() -> Result<PathBuf> {
    let cache = Cache::find();
    let busybox = fs::canonicalize(cache.debian("busybox")?)?;
    let found = fs::metadata(&busybox)?;
    // Everything that the archive depends on: this file, the C source, and the busybox binary.
    let parts = format!("{}{PAUSE_SOURCE}{} {}", include_str!("image.rs"), found.len(), found.mtime());
    let key = digest(parts.as_bytes()).get(..16).unwrap_or_default().to_owned();
    let kept = cache.kept("images")?.join(format!("{key}.tar"));
    if !kept.exists() {
        // Renamed when complete: two tests may build it concurrently.
        let aside = kept.with_extension(format!("{}.{:?}", std::process::id(), std::thread::current().id()));
        fs::write(&aside, build(&busybox, &compile_pause(&cache, &key)?)?)?;
        fs::rename(&aside, &kept)?;
    }
    Ok(kept)
}

fn build(busybox: &Path, pause: &Path) -> Result<Vec<u8>> {
    let userland = userland(busybox)?;
    let mut holder = Layer::new();
    holder.file("pause", 0o755, &fs::read(pause)?)?;
    let holder = holder.finish()?;

    let shell = |config: Value| (config, &userland);
    let images = [
        (PAUSE, (json!({"Entrypoint": ["/pause"]}), &holder)),
        (BUSYBOX, shell(json!({"Cmd": ["sh"]}))),
        (USER_1000, shell(json!({"Cmd": ["sh"], "User": "1000"}))),
        (USER_GUEST, shell(json!({"Cmd": ["sh"], "User": "guest"}))),
        (STOPSIGNAL, shell(json!({"Cmd": ["sh"], "StopSignal": "SIGUSR1"}))),
        (
            ENTRYPOINT,
            shell(json!({
                "Entrypoint": ["/bin/echo", "entrypoint"], "Cmd": ["default", "command"],
                "Env": [PATH, "IMAGE_ENV=image"], "WorkingDir": "/tmp",
            })),
        ),
    ];

    let mut archive = Layer::new();
    archive.file("userland/layer.tar", 0o644, &userland)?;
    archive.file("pause/layer.tar", 0o644, &holder)?;
    let mut manifest = Vec::new();
    for (reference, (mut config, layer)) in images {
        if config.get("Env").is_none() {
            config["Env"] = json!([PATH]);
        }
        let config = json!({
            "architecture": architecture(), "os": "linux", "created": "1970-01-01T00:00:00Z", "config": config,
            // A label-like difference keeps images with equal configs apart.
            "comment": reference,
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(layer))]},
        });
        let config = serde_json::to_vec(&config)?;
        let name = format!("{}.json", digest(&config));
        archive.file(&name, 0o644, &config)?;
        let layer = if reference == PAUSE { "pause/layer.tar" } else { "userland/layer.tar" };
        manifest.push(json!({"Config": name, "RepoTags": [reference], "Layers": [layer]}));
    }
    archive.file("manifest.json", 0o644, &serde_json::to_vec(&manifest)?)?;
    archive.finish()
}

/// Busybox with all its applets, and the few files that programs expect in a root file system.
fn userland(busybox: &Path) -> Result<Vec<u8>> {
    let mut layer = Layer::new();
    for dir in ["bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "usr", "usr/bin", "var", "var/www"] {
        layer.directory(dir, if dir == "tmp" { 0o1777 } else { 0o755 })?;
    }
    layer.file("etc/passwd", 0o644, PASSWD.as_bytes())?;
    layer.file("etc/group", 0o644, GROUP.as_bytes())?;
    layer.file("bin/busybox", 0o755, &fs::read(busybox)?)?;
    for applet in run(Command::new(busybox).arg("--list"))?.lines().filter(|name| *name != "busybox") {
        layer.hard_link(&format!("bin/{applet}"), "bin/busybox")?;
    }
    layer.hard_link("usr/bin/env", "bin/busybox")?;
    layer.finish()
}

fn compile_pause(cache: &Cache, key: &str) -> Result<PathBuf> {
    let dir = cache.kept("images")?;
    let program = dir.join(format!("pause-{key}"));
    if !program.exists() {
        // Named by thread: tests of one process compile it concurrently when the cache is empty.
        let aside = dir.join(format!("pause-{key}.{}.{:?}", std::process::id(), std::thread::current().id()));
        let source = aside.with_added_extension("c");
        fs::write(&source, PAUSE_SOURCE)?;
        run(Command::new("cc").args(["-static", "-Os", "-s", "-o"]).arg(&aside).arg(&source))
            .context("compile the pause program; a C compiler comes with: apt-get install gcc libc6-dev")?;
        fs::remove_file(&source)?;
        fs::rename(&aside, &program)?;
    }
    Ok(program)
}

/// A tar under construction; times and owners are fixed, so that the same input gives the same digest.
struct Layer {
    tar: tar::Builder<Vec<u8>>,
}

impl Layer {
    fn new() -> Self {
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

    fn directory(&mut self, path: &str, mode: u32) -> Result<()> {
        let mut header = Self::header(tar::EntryType::Directory, mode, 0)?;
        Ok(self.tar.append_data(&mut header, format!("{path}/"), std::io::empty())?)
    }

    fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
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

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_names_every_image_and_holds_what_it_names() {
        let mut archive = tar::Archive::new(fs::File::open(archive().expect("built")).expect("exists"));
        let mut names = Vec::new();
        let mut manifest = Value::Null;
        for entry in archive.entries().expect("a tar") {
            let entry = entry.expect("an entry");
            let name = entry.path().expect("a path").display().to_string();
            if name == "manifest.json" {
                manifest = serde_json::from_reader(entry).expect("json");
            }
            names.push(name);
        }
        let images = manifest.as_array().expect("a list");
        assert_eq!(images.iter().map(|image| &image["RepoTags"][0]).collect::<Vec<_>>(), ALL);
        for part in images.iter().flat_map(|image| [&image["Config"], &image["Layers"][0]]) {
            assert!(names.iter().any(|name| part == name), "{part} is in the archive");
        }
    }
}
