//! `podwright cp` with the `tar` of this host in place of that of a container.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use serde_json::json;

use crate::harness::{Api, Outcome};
use crate::host_processes::WITHOUT_TAR;

/// Two pods with a running container; the image of `bare` has no tar.
struct Copies {
    api: Api,
    /// `remote` stands for a directory of the container, `local` for one of the host.
    dir: tempfile::TempDir,
}

impl Copies {
    fn start() -> Self {
        let api = Api::start();
        for (pod, id) in [("web", "abc"), ("bare", WITHOUT_TAR)] {
            let status = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                                "state": {"running": {}}, "containerID": format!("containerd://{id}")});
            let containers = json!([{"name": "c", "image": "busybox:1"}]);
            api.publish("default", pod, &containers, &json!({"phase": "Running", "containerStatuses": [status]}));
        }
        api.publish_static("default", "starting", &json!({"phase": "Pending"}));
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["remote/tree/deep", "local"] {
            fs::create_dir_all(dir.path().join(name)).expect("created");
        }
        fs::write(dir.path().join("remote/tree/deep/file"), "content").expect("written");
        fs::write(dir.path().join("remote/tree/run"), "#!/bin/sh").expect("written");
        fs::set_permissions(dir.path().join("remote/tree/run"), fs::Permissions::from_mode(0o755)).expect("changed");
        symlink("deep/file", dir.path().join("remote/tree/inner")).expect("linked");
        symlink("/etc/passwd", dir.path().join("remote/tree/outer")).expect("linked");
        Self { api, dir }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn read(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).unwrap_or_else(|error| panic!("{below}: {error}"))
    }

    /// `POD:` and `@` in the arguments stand for the pod and for the directory of this test.
    fn cp(&self, source: &str, destination: &str) -> Outcome {
        let full = |text: &str| text.replace('@', &self.dir.path().display().to_string());
        self.api.run_with("cp", &[&full(source), &full(destination)])
    }
}

#[test]
fn files_and_directories_are_copied_from_a_container() {
    let copies = Copies::start();
    for (destination, copied) in
        [("@/local", "local/tree"), ("@/local/new", "local/new"), ("@/local/a/b/", "local/a/b/tree")]
    {
        let outcome = copies.cp("web:@/remote/tree", destination);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (0, ""), "{outcome:?}");
        assert_eq!(copies.read(&format!("{copied}/deep/file")), "content");
        assert_eq!(copies.read(&format!("{copied}/inner")), "content", "a link within the copy");
        let mode = fs::metadata(copies.path(&format!("{copied}/run"))).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        assert!(fs::symlink_metadata(copies.path(&format!("{copied}/outer"))).is_err(), "a link that leads out");
        assert!(outcome.stderr.contains("outer was not copied: it is a symbolic link to /etc/passwd"), "{outcome:?}");
    }
    let outcome = copies.cp("default/web:@/remote/tree/run", "@/local/program");
    assert_eq!((outcome.code, copies.read("local/program")), (0, "#!/bin/sh".into()), "{outcome:?}");
    let outcome = copies.cp("pod/web:@/remote/tree/.", "@/local/content");
    assert_eq!((outcome.code, copies.read("local/content/deep/file")), (0, "content".into()), "{outcome:?}");
}

#[test]
fn files_and_directories_are_copied_to_a_container() {
    let copies = Copies::start();
    let large = "0123456789abcdef".repeat(1 << 18);
    fs::write(copies.path("local/large"), &large).expect("written");
    for (destination, copied) in [("web:@/remote", "remote/large"), ("web:@/remote/renamed", "remote/renamed")] {
        let outcome = copies.cp("@/local/large", destination);
        assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()), (0, "", ""));
        assert!(copies.read(copied) == large, "{copied} differs");
    }
    fs::create_dir_all(copies.path("local/tree/empty")).expect("created");
    fs::write(copies.path("local/tree/file"), "there").expect("written");
    symlink("file", copies.path("local/tree/link")).expect("linked");
    let outcome = copies.cp("@/local/tree", "web:@/remote/other");
    assert_eq!((outcome.code, copies.read("remote/other/link")), (0, "there".into()), "{outcome:?}");
    assert!(copies.path("remote/other/empty").is_dir());
}

#[test]
fn copies_that_fail_say_why() {
    let copies = Copies::start();
    fs::write(copies.path("local/file"), "x").expect("written");
    for (source, destination, code, message) in [
        ("bare:@/remote/tree", "@/local", 1, "has no program `tar`, which cp needs"),
        ("@/local/file", "bare:@/remote/", 1, "has no program `tar`, which cp needs"),
        ("web:@/nothing", "@/local", 1, "tar in container \"c\" failed with exit code 2"),
        ("@/nothing", "web:@/remote", 1, "nothing: No such file or directory"),
        ("@/local/file", "web:@/nothing/deep", 1, "tar in container \"c\" failed with exit code 2"),
        ("web:@/remote/tree/outer", "@/local", 1, "it is a symbolic link to /etc/passwd: copy that path"),
        ("starting:@/remote", "@/local", 1, "container c of pod starting-node is not running"),
        ("@/local", "@/remote", 2, "one of both paths must be in a pod"),
        ("web:@/remote", "bare:@/remote", 2, "one of both paths must be in a pod"),
        ("web:", "@/local", 2, "the path is empty"),
    ] {
        let outcome = copies.cp(source, destination);
        assert!(outcome.code == code && outcome.stderr.contains(message), "{source} {destination}: {outcome:?}");
    }
    let outcome = copies.api.run("cp other/web:/x . -n default");
    assert!(outcome.code == 2 && outcome.stderr.contains("is not that of -n"), "{outcome:?}");
    assert!(!copies.path("local/tree").exists() && !copies.path("local/outer").exists());
}
