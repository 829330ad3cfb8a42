//! `podwright image` with a running agent, whose embedded engine has the images; and how far the pulls of its pods are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, ensure};
use podwright_testbed::{Agent, Registry, image, wait_until};
use serde_json::{Value, json};

use crate::fixture::{LIMIT, LocalNode, pod};
use crate::suite::blocking_proxy::BlockingProxy;

/// Exit code, stdout and stderr.
type Outcome = (i32, String, String);

fn run(command: &mut Command) -> Outcome {
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn podwright(run_dir: &Path) -> Command {
    let mut command = Command::new(Agent::program().expect("built"));
    command.env("PODWRIGHT_RUN_DIR", run_dir);
    command
}

impl LocalNode {
    fn asked(&self, line: &str) -> Command {
        let mut command = podwright(&self.scratch.run_dir().expect("there"));
        command.args(line.split_whitespace());
        command
    }

    fn succeeds(&self, line: &str) -> String {
        let (code, out, error) = run(&mut self.asked(line));
        assert_eq!(code, 0, "{line}: {error}");
        out
    }

    fn fails(&self, line: &str, message: &str) -> Outcome {
        let outcome = run(&mut self.asked(line));
        assert!(outcome.0 == 1 && outcome.2.contains(message), "{line}: {outcome:?}");
        outcome
    }

    fn submit(&self, name: &str, spec: &Value) {
        self.scratch.put_manifest(&format!("{name}.json"), &pod(name, spec)).expect("written");
    }

    fn wait_running(&self, name: &str) {
        wait_until(LIMIT, &format!("{name} to run"), || {
            let shown = run(&mut self.asked(&format!("get pods {name} --no-headers")));
            ensure!(shown.1.contains(" Running "), "{shown:?}");
            Ok(())
        });
    }

    fn engine_dir(&self, name: &str) -> PathBuf {
        self.scratch.root_dir().expect("there").join("engine/images").join(name)
    }
}

/// A pod that sleeps.
fn sleeper(image: &str) -> Value {
    let container = json!({"name": "c", "image": image, "imagePullPolicy": "IfNotPresent",
                           "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"]});
    json!({"terminationGracePeriodSeconds": 1, "containers": [container]})
}

#[test]
fn the_images_of_a_running_agent_are_pulled_saved_loaded_and_removed() {
    let node = LocalNode::start();
    let registry = Registry::start(&node.scratch).expect("started");
    registry.push(image::ENTRYPOINT, "team/app:1").expect("pushed");
    let name = format!("{}/team/app:1", registry.address());
    // The layers must come from the registry.
    node.succeeds(&format!("image rm {}", image::ALL.join(" ")));
    let id = node.succeeds(&format!("image pull -q {name}"));
    let id = id.trim();
    let listed = node.succeeds("image ls");
    assert!(listed.starts_with("IMAGE") && listed.contains(&name), "{listed}");
    let shown: Value = serde_json::from_str(&node.succeeds(&format!("image inspect {name}"))).expect("JSON");
    assert_eq!((&shown[0]["id"], &shown[0]["configuration"]["config"]["WorkingDir"]), (&json!(id), &json!("/tmp")));

    let archive = node.scratch.path().join("saved.tar");
    node.succeeds(&format!("image save {name} -o {}", archive.display()));
    let redirected = node.asked(&format!("image save {name}")).output().expect("it runs");
    assert_eq!(fs::read(&archive).expect("written"), redirected.stdout, "the same archive on stdout");
    assert_eq!(node.succeeds(&format!("image rm {id}")), format!("{id}\n"));
    assert!(!node.succeeds("image ls -q").contains(id));
    assert_eq!(node.succeeds(&format!("image load {}", archive.display())), format!("{id} {name}\n"));

    let all = node.succeeds(&format!("image load {}", image::archive().expect("test images").display()));
    assert_eq!(all.lines().count(), image::ALL.len(), "{all}");
    the_same_errors_without_an_agent(&node, &registry);
    images_in_use_are_kept(&node);
    the_store_of_an_agent_is_reached_through_it(&node);
}

/// The texts and exit codes of the agent are those of the command itself.
fn the_same_errors_without_an_agent(node: &LocalNode, registry: &Registry) {
    let (root, nobody) = (node.scratch.dir("direct").expect("made"), node.scratch.dir("nobody").expect("made"));
    let text = node.scratch.path().join("text");
    fs::write(&text, "hello").expect("written");
    for line in [
        format!("image pull {}/team/none:1", registry.address()),
        "image pull Not/An:Image:Name".to_owned(),
        "image pull 127.0.0.1:1/a:1".to_owned(),
        format!("image load {}", text.display()),
        "image load /does/not/exist".to_owned(),
        "image save absent:1".to_owned(),
        "image rm absent:1".to_owned(),
        "image inspect absent:1".to_owned(),
    ] {
        let asked = run(node.asked(&line).stdout(Stdio::null()));
        let mut direct = podwright(&nobody);
        let direct = run(direct.args(line.split_whitespace()).arg("--root-dir").arg(&root).stdout(Stdio::null()));
        assert_eq!(asked, direct, "{line}");
        assert!(asked.0 == 1 && asked.2.lines().count() == 1, "{line}: {asked:?}");
    }
}

fn images_in_use_are_kept(node: &LocalNode) {
    node.submit("web", &sleeper(image::BUSYBOX));
    node.wait_running("web");
    let refused = format!("image {} is in use by pod default/web-node (container c)", image::BUSYBOX);
    node.fails(&format!("image rm {}", image::BUSYBOX), &refused);
    node.succeeds(&format!("image rm --force {}", image::BUSYBOX));
    assert_eq!(node.succeeds("exec web -- sh -c pwd").trim(), "/", "the container keeps its files");
    let (code, _, freed) = run(&mut node.asked("image prune"));
    assert!(code == 0 && freed.contains(" freed: "), "{freed}");
    node.scratch.remove_manifest("web.json").expect("removed");
}

fn the_store_of_an_agent_is_reached_through_it(node: &LocalNode) {
    let root = node.scratch.root_dir().expect("there");
    let by_root = format!("image ls -q --root-dir {}", root.display());
    assert_eq!(node.succeeds(&by_root), node.succeeds("image ls -q"));
    let nobody = node.scratch.dir("nobody").expect("made");
    let (code, _, message) = run(podwright(&nobody).args(by_root.split_whitespace()));
    let holder = format!("in use by process {} (", node.agent.pid());
    assert!(code == 1 && message.contains(&holder) && message.contains("give its --run-dir"), "{message}");
    node.fails("image pull a:1 --hosts-dir /tmp", "--engine-registries");
}

#[test]
fn slow_pulls_show_how_far_they_are_and_end_with_their_client() {
    let node = LocalNode::start();
    let registry = Registry::start(&node.scratch).expect("started");
    registry.push(image::BUSYBOX, "app:1").expect("pushed");
    // The layers must come from the registry.
    node.succeeds(&format!("image rm {}", image::ALL.join(" ")));

    let ingest = node.engine_dir("content/ingest");
    let transfers = || fs::read_dir(&ingest).expect("readable").count();
    let held = BlockingProxy::after(&registry.address(), HELD_AFTER);
    let mut client =
        node.asked(&format!("image pull {}/app:1", held.address())).stdout(Stdio::null()).spawn().expect("started");
    wait_until(LIMIT, "the pull to hang", || {
        ensure!(transfers() > 0 && held.is_exhausted(), "{} transfers", transfers());
        Ok(())
    });
    client.kill().and_then(|()| client.wait()).expect("killed");
    wait_until(LIMIT, "the transfer to end", || {
        ensure!(transfers() == 0, "{} transfers", transfers());
        Ok(())
    });

    let slow = BlockingProxy::after(&registry.address(), HELD_AFTER);
    let watched = node.scratch.path().join("watched");
    let output = fs::File::create(&watched).expect("created");
    let mut watch = node.asked("get pods -w").stdout(output).spawn().expect("started");
    node.submit("web", &sleeper(&format!("{}/app:1", slow.address())));
    let (progress, table) = wait_until(LIMIT, "the progress to be shown", || {
        let (_, table, _) = run(&mut node.asked("get pods web --no-headers"));
        let amount = table.split_once("Pulling 0 of ").and_then(|(_, rest)| rest.split_once(" MB "));
        let Some((amount, _)) = amount else { bail!("{table}") };
        Ok((format!("Pulling 0 of {amount} MB"), table.clone()))
    });
    println!("{table}");
    // Calls are listed after a second.
    wait_until(LIMIT, "the pull to be explained", || {
        let explained = node.succeeds("explain web");
        ensure!(explained.contains(&format!("c: {progress}: image ")), "{explained}");
        Ok(())
    });
    let described = node.succeeds("describe pod web");
    assert!(
        described.lines().any(|line| line.trim_start().starts_with("Message") && line.ends_with(&progress)),
        "{described}"
    );
    assert!(node.succeeds("get pods web -o wide").contains(&format!(" {progress} ")));
    assert!(!node.succeeds("get pods web -o json").contains(&progress), "it is no part of the object");
    // The object does not change meanwhile.
    wait_until(LIMIT, "the watch to show it", || {
        let shown = fs::read_to_string(&watched)?;
        ensure!(shown.contains(&format!(" {progress} ")), "{shown}");
        Ok(())
    });
    watch.kill().and_then(|()| watch.wait()).expect("killed");
    slow.unblock();
    node.wait_running("web");
    assert!(!node.succeeds("get pods web").contains("Pulling"));
}

/// Enough for the documents of an image, and a part of its layer.
const HELD_AFTER: usize = 200_000;
