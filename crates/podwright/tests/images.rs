//! Images nobody uses go from a full disk; the one that sandboxes are made of stays, also where the runtime does not pin it.

use std::time::Duration;

use anyhow::ensure;
use podwright_testbed::{Agent, Containerd, Flavor, Scratch, image, wait_until};
use serde_json::json;

#[test]
fn unused_images_go_and_the_sandboxes_image_stays() {
    let scratch = Scratch::new().expect("a scratch");
    let containerd = Containerd::start(&scratch, Flavor::Debian16).expect("containerd starts");
    let images = || containerd.ctr(&["images", "ls", "-q"]);
    let before = images().expect("listed");
    assert!(before.contains(image::USER_1000) && before.contains(image::PAUSE), "{before}");
    // Every disk is fuller than one percent.
    let config = json!({
        "imageGCHighThresholdPercent": 1, "imageGCLowThresholdPercent": 0,
        "imageMinimumGCAge": "1ns", "imageMaximumGCAge": "0s",
    });
    // One image is in use.
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [
        {"name": "c", "image": image::USER_GUEST, "command": ["sleep", "1000"]},
    ]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"}, "spec": spec});
    scratch.put_manifest("user.json", &pod).expect("written");
    let mut agent = Agent::new(&scratch).runtime(&containerd).start().expect("the agent starts");
    wait_until(Duration::from_secs(60), "the pod to run", || {
        let pod = agent.pod("user-node")?.unwrap_or_default();
        ensure!(pod["status"]["phase"] == "Running", "{:#}", pod["status"]);
        Ok(())
    });
    agent.sigterm().expect("it ends");
    let _agent = Agent::new(&scratch).runtime(&containerd).config(config).start().expect("the agent starts");
    wait_until(Duration::from_secs(30), "unused images to go", || {
        let left = images()?;
        ensure!(!left.contains(image::USER_1000) && !left.contains(image::BUSYBOX), "{left}");
        Ok(())
    });
    let left = images().expect("listed");
    assert!(left.contains(image::PAUSE), "what sandboxes need stays: {left}");
    assert!(left.contains(image::USER_GUEST), "what a container uses stays: {left}");
}
