//! `podwright image`, on a store of its own.

use std::path::Path;
use std::process::{Command, Stdio};

use podwright_cri::v1;
use podwright_engine::machine::{ContainerId, ContainerRecordState, SandboxId, SandboxRecordState, SandboxResources};
use podwright_engine::store::{ContainerRecord, EngineStore, SandboxRecord};
use podwright_image::{ImageLimits, ImageStore, Platform};
use podwright_testbed::{PASSWORD, Registry, Scratch, USER, image};
use serde_json::Value;

use crate::harness::Outcome;

fn image(root: &Path, arguments: &[&str], input: &str) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podwright"));
    command.arg("image").args(arguments).arg("--root-dir").arg(root);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    let written = std::io::Write::write_all(&mut child.stdin.take().expect("piped"), input.as_bytes());
    written.or_else(|e| if e.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(e) }).expect("written");
    let output = child.wait_with_output().expect("ended");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Outcome { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn succeeds(root: &Path, arguments: &[&str]) -> String {
    let outcome = image(root, arguments, "");
    assert_eq!(outcome.code, 0, "{arguments:?}: {outcome:?}");
    outcome.stdout
}

fn fails(root: &Path, arguments: &[&str], message: &str) {
    let outcome = image(root, arguments, "");
    assert_eq!(outcome.code, 1, "{arguments:?}: {outcome:?}");
    assert!(outcome.stderr.contains(message), "{arguments:?}: {outcome:?}");
}

#[test]
fn images_are_loaded_listed_saved_and_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (root, other) = (dir.path().join("root"), dir.path().join("other"));
    let archive = image::archive().expect("test images");
    let loaded = succeeds(&root, &["load", archive.to_str().expect("text")]);
    assert_eq!(loaded.lines().count(), image::ALL.len(), "{loaded}");
    let listed = succeeds(&root, &["ls"]);
    assert!(listed.starts_with("IMAGE"), "{listed}");
    assert!(image::ALL.iter().all(|name| listed.contains(name)), "{listed}");

    let shown: Value = serde_json::from_str(&succeeds(&root, &["inspect", image::ENTRYPOINT])).expect("JSON");
    assert_eq!(shown[0]["configuration"]["config"]["WorkingDir"], "/tmp");
    let id = shown[0]["id"].as_str().expect("an id").to_owned();
    assert!(succeeds(&root, &["ls", "-q"]).contains(&id));

    let saved = dir.path().join("saved.tar");
    succeeds(&root, &["save", image::ENTRYPOINT, "-o", saved.to_str().expect("text")]);
    let reloaded = succeeds(&other, &["load", saved.to_str().expect("text")]);
    assert_eq!(reloaded, format!("{id} {}\n", image::ENTRYPOINT), "the same image");
    let layout = dir.path().join("other/layout");
    std::fs::create_dir(&layout).expect("created");
    let unpacked = Command::new("tar").arg("-xf").arg(&saved).arg("-C").arg(&layout).status().expect("tar is there");
    assert!(unpacked.success());
    assert_eq!(succeeds(&other, &["load", layout.to_str().expect("text")]), reloaded, "the same image as a directory");
    std::fs::remove_file(layout.join("index.json")).expect("removed");
    fails(&other, &["load", layout.to_str().expect("text")], "layout: No such file");
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("readable").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left.len(), 3, "root, other and the archive: {left:?}");

    fails(&other, &["rm", image::ENTRYPOINT, "localhost/absent:1"], "localhost/absent:1 does not exist");
    assert!(succeeds(&other, &["ls", "-q"]).contains(&id), "nothing was removed");
    assert_eq!(succeeds(&other, &["rm", &id]), format!("{id}\n"));
    assert_eq!(succeeds(&other, &["ls", "-o", "json"]), "[]\n");
    let layers = std::fs::read_dir(other.join("engine/images/layers")).expect("readable");
    assert_eq!(layers.count(), 0, "its layers are gone");
}

#[test]
fn layers_stay_while_there_are_containers() {
    let dir = tempfile::tempdir().expect("a directory");
    let archive = image::archive().expect("test images");
    succeeds(dir.path(), &["load", archive.to_str().expect("text")]);
    std::fs::create_dir_all(dir.path().join("engine/containers/c1")).expect("created");
    let ids = succeeds(dir.path(), &["ls", "-q"]);
    let ids: Vec<&str> = ids.lines().collect();
    let outcome = image(dir.path(), &[&["rm"], &ids[..]].concat(), "");
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("1 containers may use it"), "{outcome:?}");
    let layers = || std::fs::read_dir(dir.path().join("engine/images/layers")).expect("readable").count();
    assert!(layers() > 0, "a container may use them");
    std::fs::remove_dir_all(dir.path().join("engine/containers")).expect("removed");
    let outcome = image(dir.path(), &["prune"], "");
    assert!(outcome.code == 0 && outcome.stderr.contains("freed"), "{outcome:?}");
    assert_eq!(layers(), 0);
}

/// Records as an engine leaves them that was stopped while a pod ran.
fn write_container(root: &Path, image_id: &str) {
    let store = EngineStore::open(root).expect("opened");
    let metadata = v1::PodSandboxMetadata { name: "web".into(), namespace: "default".into(), ..Default::default() };
    let sandbox = SandboxRecord {
        config: v1::PodSandboxConfig { metadata: Some(metadata), ..Default::default() },
        handler: String::new(),
        created_at_ns: 1,
        addresses: vec![],
        namespaces: vec![],
        state: SandboxRecordState::Ready(SandboxResources::default()),
    };
    store.write_sandbox(&SandboxId("s1".into()), &sandbox).expect("written");
    let metadata = Some(v1::ContainerMetadata { name: "c".into(), attempt: 0 });
    let container = ContainerRecord {
        config: v1::ContainerConfig { metadata, ..Default::default() },
        sandbox_id: "s1".into(),
        image_id: image_id.into(),
        layers: vec![],
        chain: vec![],
        created_at_ns: 2,
        started_at_ns: 3,
        stop_signal: 15,
        image_name: String::new(),
        image_ref: String::new(),
        user: None,
        state: ContainerRecordState::Running,
    };
    store.write_container(&ContainerId("c1".into()), &container).expect("written");
}

#[test]
fn an_image_that_a_container_uses_is_removed_by_force_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let archive = image::archive().expect("test images");
    succeeds(dir.path(), &["load", archive.to_str().expect("text")]);
    let shown: Value = serde_json::from_str(&succeeds(dir.path(), &["inspect", image::BUSYBOX])).expect("JSON");
    write_container(dir.path(), shown[0]["id"].as_str().expect("an id"));
    let refused = format!("image {} is in use by pod default/web (container c)", image::BUSYBOX);
    fails(dir.path(), &["rm", image::ENTRYPOINT, image::BUSYBOX], &refused);
    let listed = succeeds(dir.path(), &["ls"]);
    assert!(listed.contains(image::ENTRYPOINT) && listed.contains(image::BUSYBOX), "nothing was removed: {listed}");
    succeeds(dir.path(), &["rm", "--force", image::BUSYBOX]);
    assert!(!succeeds(dir.path(), &["ls"]).contains(image::BUSYBOX));
}

#[test]
fn what_cannot_be_done_is_explained() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = dir.path().join("text");
    std::fs::write(&text, "hello").expect("written");
    fails(dir.path(), &["load", text.to_str().expect("text")], "text: ");
    fails(dir.path(), &["load", "/does/not/exist"], "/does/not/exist: No such file");
    fails(dir.path(), &["pull", "Not/An:Image:Name"], "is not a valid image name");
    fails(dir.path(), &["save", "absent:1"], "image absent:1 does not exist");
    let store = ImageStore::open(&dir.path().join("engine/images"), ImageLimits::default(), Platform::host());
    let _store = store.expect("opened");
    let holder = format!("in use by process {} (", std::process::id());
    for advice in [&holder, "If it is an agent, give its --run-dir", "use crictl on its socket"] {
        fails(dir.path(), &["ls"], advice);
    }
}

#[test]
fn an_image_is_pulled_with_a_password_from_stdin() {
    let scratch = Scratch::new().expect("a directory");
    let registry = Registry::start_private(&scratch).expect("started");
    registry.push(image::BUSYBOX, "podwright/busybox:1").expect("pushed");
    let name = format!("{}/podwright/busybox:1", registry.address());
    let root = tempfile::tempdir().expect("a directory");
    let pull = ["pull", "--username", USER, "--password-stdin", &name];
    let refused = image(root.path(), &pull, "wrong\n");
    assert!(refused.code == 1 && refused.stderr.contains("401"), "{refused:?}");
    assert!(!refused.stderr.contains("wrong"), "{refused:?}");
    let pulled = image(root.path(), &pull, &format!("{PASSWORD}\n"));
    assert_eq!(pulled.code, 0, "{pulled:?}");
    assert_eq!(pulled.stdout, succeeds(root.path(), &["ls", "-q"]));
}
