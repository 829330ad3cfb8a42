//! The test images, built locally because no registry may be reachable.
//!
//! One docker-archive holds them all, `manifest.json` names them; they share one layer, a static busybox with its applets as hard
//! links. It is built once and stored in the cache.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use crate::cache::Cache;
use crate::docker_archive::{self, DockerArchive, Layer};

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
const PASSWD: &str =
    "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home:/bin/sh\nguest:x:1001:1001::/home:/bin/sh\n";
const GROUP: &str = "root:x:0:\nuser:x:1000:\nguest:x:1001:\nextra:x:50000:user\n";

/// The path of the docker-archive with every image, built on first use.
pub fn archive() -> Result<PathBuf> {
    let busybox = fs::canonicalize(Cache::find().debian("busybox")?)?;
    let found = fs::metadata(&busybox)?;
    // Everything that the archive depends on: this file, the C source, and the busybox binary.
    let depends = format!("{}{PAUSE_SOURCE}{} {}", include_str!("image.rs"), found.len(), found.mtime());
    docker_archive::cached(&depends, || build(&busybox))
}

fn build(busybox: &Path) -> Result<DockerArchive> {
    let mut archive = DockerArchive::new();
    let userland = archive.layer("userland", docker_archive::userland(busybox, PASSWD, GROUP)?)?;
    let mut holder = Layer::new();
    holder.file("pause", 0o755, &fs::read(pause()?)?)?;
    let holder = archive.layer("pause", holder)?;

    archive.image(&[PAUSE], json!({"Entrypoint": ["/pause"]}), &[&holder])?;
    let shell = [
        (BUSYBOX, json!({"Cmd": ["sh"]})),
        (USER_1000, json!({"Cmd": ["sh"], "User": "1000"})),
        (USER_GUEST, json!({"Cmd": ["sh"], "User": "guest"})),
        (STOPSIGNAL, json!({"Cmd": ["sh"], "StopSignal": "SIGUSR1"})),
        (
            ENTRYPOINT,
            json!({
                "Entrypoint": ["/bin/echo", "entrypoint"], "Cmd": ["default", "command"],
                "Env": [docker_archive::PATH, "IMAGE_ENV=image"], "WorkingDir": "/tmp",
            }),
        ),
    ];
    for (reference, config) in shell {
        archive.image(&[reference], config, &[&userland])?;
    }
    Ok(archive)
}

/// The program of the sandbox image.
pub(crate) fn pause() -> Result<PathBuf> {
    docker_archive::compiled("pause", PAUSE_SOURCE)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

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
