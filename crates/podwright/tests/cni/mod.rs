//! An agent whose engine connects pods by CNI plugins.

use std::net::IpAddr;
use std::process::Command;

use anyhow::{Context, ensure};
use podwright_testbed::{Agent, CniConfig, EngineBed, NodeRuntime, Scratch, TestRuntime, wait_until};

use crate::suite::container_output::read_output;
use crate::suite::{LIMIT, TestNode, container, container_id, one, sh};

#[test]
fn a_pod_gets_its_address_from_cni_plugins_and_leaves_nothing() {
    let scratch = Scratch::new().expect("a scratch");
    let cni = CniConfig::new(&scratch).expect("the plugins are there");
    let runtime = TestRuntime::Engine(EngineBed::prepare(&scratch).expect("prepared").with_cni(&cni));
    let agent = Agent::new(&scratch).runtime(&runtime).start().expect("the agent starts");
    let mut node = TestNode { scratch, runtime, agent };
    let script = "ip -4 addr show eth0; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    node.put("web", &one(&sh("c", script)));
    wait_until(LIMIT, "the missing configuration to be named", || {
        let mut status = Command::new(Agent::program()?);
        let status = status.arg("status").env("PODWRIGHT_RUN_DIR", node.scratch.run_dir()?).output()?;
        let shown = String::from_utf8_lossy(&status.stdout).into_owned();
        let reason = format!("NetworkPluginNotReady message:no CNI configuration in {}", cni.conf_dir.display());
        ensure!(shown.contains("Pod network\n  not ready: ") && shown.contains(&reason), "{shown}");
        node.phase("web", "Pending")
    });
    assert_eq!(cni.leases(), [] as [IpAddr; 0]);

    cni.write(&[]).expect("written");
    let pod = node.wait_phase("web", "Running");
    let address: IpAddr = pod["status"]["podIP"].as_str().and_then(|text| text.parse().ok()).expect("an address");
    assert_eq!(cni.leases(), [address]);
    assert!(address.to_string().starts_with(node.scratch.subnet().trim_end_matches("0/24")), "{address}");
    wait_until(LIMIT, "the container to print its address", || {
        let output = read_output(&node, &pod)?;
        ensure!(output.contains(&format!("inet {address}/24")), "{output}");
        Ok(())
    });

    // Another agent knows what connected the pod.
    let before = container_id(container(&pod, "c"));
    node.kill_agent();
    node.agent.start_again().expect("started again");
    wait_until(LIMIT, "the pod to be taken over", || {
        let pod = node.phase("web", "Running")?;
        let now = pod["status"]["podIP"].as_str().context("no address")?;
        ensure!(now == address.to_string() && container_id(container(&pod, "c")) == before, "{:#}", pod["status"]);
        Ok(())
    });
    let objects = node.runtime.objects().expect("listed");
    for kind in ["cni result ", "address ", "link "] {
        assert!(objects.iter().any(|object| object.starts_with(kind)), "no {kind}in {objects:#?}");
    }
    node.remove("web");
    node.wait_nothing_left();
}
