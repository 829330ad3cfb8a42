//! `podwright image` with an agent on another container runtime.

use std::process::Command;

use podwright_testbed::Agent;

use crate::fixture::LocalNode;

#[test]
fn images_of_another_runtime_are_left_to_its_tools() {
    let node = LocalNode::start();
    let archive = podwright_testbed::image::archive().expect("test images");
    for line in ["ls", "pull a:1", "prune", "inspect a:1", &format!("load {}", archive.display())] {
        let mut command = Command::new(Agent::program().expect("built"));
        command
            .arg("image")
            .args(line.split_whitespace())
            .env("PODWRIGHT_RUN_DIR", node.scratch.run_dir().expect("there"));
        let output = command.output().expect("it runs");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{line}: {message}");
        let socket = node.runtime.socket();
        let tools = [
            format!("crictl --runtime-endpoint unix://{}", socket.display()),
            format!("ctr --address {} --namespace k8s.io images", socket.display()),
        ];
        assert!(tools.iter().all(|tool| message.contains(tool)) && message.lines().count() == 1, "{line}: {message}");
    }
}
