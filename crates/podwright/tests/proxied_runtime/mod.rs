//! A runtime that the agent reaches through a socket, with a proxy in between. The embedded engine has none.

mod corrupting_proxy;

use std::time::Duration;

use podwright_testbed::{Agent, Scratch, TestRuntime};
use serde_json::Value;

use crate::suite::{TestNode, container, one, sleeper};
use corrupting_proxy::{CorruptingProxy, Corruption};

/// While the runtime sends garbage the agent waits: containers keep running, and work continues when responses are valid again.
#[test]
fn the_agent_survives_invalid_responses_of_the_runtime() {
    let scratch = Scratch::new().expect("a scratch");
    let runtime = TestRuntime::start(&scratch, crate::FLAVOR).expect("the runtime starts");
    let proxy = CorruptingProxy::new(scratch.path().join("proxy.sock"), runtime.socket());
    let agent = Agent::new(&scratch).endpoint(&proxy.endpoint()).start().expect("the agent starts");
    let mut node = TestNode { scratch, runtime, agent };
    node.put("before", &one(&sleeper("c")));
    let before = node.wait_phase("before", "Running");
    for (round, corruption) in [Corruption::Garbage, Corruption::FlippedBytes].into_iter().enumerate() {
        let lines = node.agent.log().lines().count();
        proxy.set(corruption);
        node.put(&format!("meanwhile{round}"), &one(&sleeper("c")));
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(node.agent.get("/healthz").expect("it answers").status, 200);
        let output = node.agent.log().lines().count() - lines;
        assert!(output < 500, "{output} lines of log in 3 s");
        proxy.set(Corruption::None);
        node.wait_phase(&format!("meanwhile{round}"), "Running");
    }
    // An agent that starts now waits, or exits with an error.
    node.agent.kill9().expect("killed");
    proxy.set(Corruption::Garbage);
    node.agent.launch_again().expect("launched");
    std::thread::sleep(Duration::from_secs(2));
    proxy.set(Corruption::None);
    if node.agent.exited().expect("asked").is_some() {
        node.agent.launch_again().expect("launched");
    }
    let after = node.wait_phase("before", "Running");
    let id = |pod: &Value| container(pod, "c")["containerID"].clone();
    assert_eq!(id(&after), id(&before), "a container was restarted");
    node.remove_all();
    node.wait_nothing_left();
}
