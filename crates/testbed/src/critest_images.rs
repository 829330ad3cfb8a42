//! The images that critest pulls, built locally under the same names: it knows what each contains.
//!
//! What critest does in them is in its sources (`pkg/validate`): the default image has a shell with the usual tools, the web servers
//! answer with a page, one program shows its effective user, some images have a user or several tags.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::docker_archive::{self, ArchivedLayer, DockerArchive, Layer};
use crate::{image, registry::Registry};

const THIS: &str = include_str!("critest_images.rs");
const WEB_SERVER: &str = include_str!("critest_images/web_server.c");
const EFFECTIVE_UID: &str = include_str!("critest_images/effective_uid.c");
const SHELL: &str = include_str!("critest_images/sh.c");

const PASSWD: &str =
    "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n";
const GROUP: &str = "root:x:0:\nwww-data:x:33:\nnobody:x:65534:\n";
const MEMBER_PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\ndefault-user:x:1000:1000::/home:/bin/sh\n";
const MEMBER_GROUP: &str = "root:x:0:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n";

/// What `ipcs -m` and `pgrep NAME` print is enough; Debian's busybox has neither.
const IPCS: &str = "#!/bin/sh\nexec cat /proc/sysvipc/shm\n";
const PGREP: &str = "#!/bin/sh\nexec pidof \"$@\"\n";

/// The images in a docker archive, each with the names that critest has for it, without the registry.
#[derive(Debug)]
pub struct CritestImages {
    archive: PathBuf,
    references: Vec<String>,
}

impl CritestImages {
    /// Builds the archive, on first use.
    pub fn build() -> Result<Self> {
        let busybox = fs::canonicalize(Cache::find().debian("busybox")?)?;
        let found = fs::metadata(&busybox)?;
        let sources = [THIS, WEB_SERVER, EFFECTIVE_UID, SHELL].concat();
        let depends = format!("{sources}{} {}", found.len(), found.mtime());
        let archive = docker_archive::cached(&depends, || archive(&busybox))?;
        let references = images().into_iter().flat_map(|image| image.references).collect();
        Ok(Self { archive, references })
    }

    /// Pushes all of them, so that a mirror of every registry has them.
    pub fn push(&self, registry: &Registry) -> Result<()> {
        self.references.iter().try_for_each(|name| registry.push_archived(&self.archive, &local(name), name))
    }
}

/// A name in the archive.
fn local(reference: &str) -> String {
    format!("localhost/{reference}")
}

/// What an image contains.
#[derive(Clone, Copy)]
enum Content {
    Shell,
    /// A user that is a member of a group.
    Member,
    WebServers,
    EffectiveUid,
    Pause,
}

struct TestImage {
    references: Vec<String>,
    content: Content,
    config: Value,
}

fn images() -> Vec<TestImage> {
    let e2e = |name: &str| format!("e2e-test-images/{name}");
    let staging = |name: &str| format!("k8s-staging-cri-tools/{name}");
    let shell = json!({"Cmd": ["sh"]});
    let user = |user: &str| json!({"Cmd": ["sh"], "User": user});
    let serve = |name: &str, address: &str, port: &str| json!({"Cmd": [name, address, port]});
    let host_network = staging(&format!("hostnet-nginx-{}:latest", docker_archive::architecture()));
    let one =
        |reference: String, content: Content, config: Value| TestImage { references: vec![reference], content, config };
    let mut all = vec![
        one(e2e("busybox:1.29-2"), Content::Shell, shell.clone()),
        one(e2e("nginx:1.14-2"), Content::WebServers, serve("nginx", "0.0.0.0", "80")),
        one(e2e("httpd:2.4.39-4"), Content::WebServers, serve("httpd", "0.0.0.0", "80")),
        one(host_network, Content::WebServers, serve("nginx", "127.0.0.1", "12003")),
        one(e2e("nonewprivs:1.3"), Content::EffectiveUid, json!({"Cmd": ["/effective-uid"]})),
        one("pause:3.9".to_owned(), Content::Pause, json!({"Entrypoint": ["/pause"]})),
        one(staging("test-image-user-uid:latest"), Content::Shell, user("1002")),
        one(staging("test-image-user-username:latest"), Content::Shell, user("www-data")),
        one(staging("test-image-user-uid-group:latest"), Content::Shell, user("1003:1004")),
        one(staging("test-image-user-username-group:latest"), Content::Shell, user("www-data:1004")),
        one(staging("test-image-predefined-group:latest"), Content::Member, user("1000")),
    ];
    let plain = ["test-image-1:latest", "test-image-2:latest", "test-image-3:latest", "test-image-latest:latest"];
    let tagged = ["test-image-tag:test", "test-image-tag:all", "test-image-digest:latest"];
    all.extend(plain.iter().chain(&tagged).map(|name| one(staging(name), Content::Shell, shell.clone())));
    let references = ["1", "2", "3"].map(|tag| staging(&format!("test-image-tags:{tag}"))).to_vec();
    all.push(TestImage { references, content: Content::Shell, config: shell });
    all
}

fn archive(busybox: &Path) -> Result<DockerArchive> {
    let mut archive = DockerArchive::new();
    let userland = archive.layer("userland", docker_archive::userland(busybox, PASSWD, GROUP)?)?;
    let tools = archive.layer("tools", tools()?)?;
    let members = archive.layer("members", members()?)?;
    let web_servers = archive.layer("web-servers", web_servers()?)?;
    let effective_uid = archive.layer("effective-uid", program("effective-uid", 0o4755, EFFECTIVE_UID)?)?;
    let mut pause = Layer::new();
    pause.file("pause", 0o755, &fs::read(image::pause()?)?)?;
    let pause = archive.layer("pause", pause)?;
    for image in images() {
        let layers: &[&ArchivedLayer] = match image.content {
            Content::Shell => &[&userland, &tools],
            Content::Member => &[&userland, &tools, &members],
            Content::WebServers => &[&userland, &tools, &web_servers],
            Content::EffectiveUid => &[&effective_uid],
            Content::Pause => &[&pause],
        };
        let names: Vec<String> = image.references.iter().map(|name| local(name)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        archive.image(&names, image.config, layers)?;
    }
    Ok(archive)
}

/// Replaces files of the user land, and adds what it lacks.
fn tools() -> Result<Layer> {
    let mut layer = program("bin/sh", 0o755, SHELL)?;
    layer.file("bin/ipcs", 0o755, IPCS.as_bytes())?;
    layer.file("bin/pgrep", 0o755, PGREP.as_bytes())?;
    Ok(layer)
}

fn members() -> Result<Layer> {
    let mut layer = Layer::new();
    layer.file("etc/passwd", 0o644, MEMBER_PASSWD.as_bytes())?;
    layer.file("etc/group", 0o644, MEMBER_GROUP.as_bytes())?;
    Ok(layer)
}

fn web_servers() -> Result<Layer> {
    let mut layer = program("bin/nginx", 0o755, WEB_SERVER)?;
    layer.file("bin/httpd", 0o755, &fs::read(docker_archive::compiled("nginx", WEB_SERVER)?)?)?;
    layer.directory("var/run", 0o755)?;
    Ok(layer)
}

/// A layer with a compiled program.
fn program(path: &str, mode: u32, source: &str) -> Result<Layer> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let mut layer = Layer::new();
    layer.file(path, mode, &fs::read(docker_archive::compiled(name, source)?)?)?;
    Ok(layer)
}
