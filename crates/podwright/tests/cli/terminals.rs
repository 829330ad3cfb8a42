//! `attach -it` on the terminal of a process.

use anyhow::ensure;
use podwright_testbed::{Agent, image, wait_until};
use serde_json::{Value, json};

use super::pty::Pty;
use super::{LIMIT, LocalNode};

#[test]
fn attach_uses_the_terminal_of_a_process_and_leaves_it_running() {
    let node = LocalNode::start();
    let shell = json!({"name": "c", "image": image::BUSYBOX, "command": ["sh"], "stdin": true, "tty": true});
    node.put("shell", &json!({"terminationGracePeriodSeconds": 1, "containers": [shell]}));
    node.wait_status("shell", "Running");
    let attach = || Pty::start(node.command(&Agent::program().expect("built"), "attach -it shell"));

    let mut first = attach();
    first.until("Ctrl-P Ctrl-Q detaches");
    first.press("echo sum-$((40 + 2)); cd /tmp\r");
    first.until("sum-42");
    // The size follows the connection: no runtime promises that it is there before the first line runs.
    first.press("while [ \"$(stty size)\" != \"40 100\" ]; do sleep 0.1; done; echo of-40-by-$((99 + 1))\r");
    first.until("of-40-by-100");
    // Ctrl-C reaches the process, not the command.
    first.press("echo begin-$((1 + 1)); sleep 3600\r");
    first.until("begin-2");
    first.press("\x03");
    first.press("echo after-$((1 + 1))\r");
    first.until("after-2");
    first.press("\x10\x11");
    assert_eq!(first.end().code(), Some(0), "Ctrl-P Ctrl-Q detaches");

    // The same process: its directory is the one that was entered before.
    let mut second = attach();
    second.until("Ctrl-P Ctrl-Q detaches");
    second.press("echo in-$(pwd)\r");
    second.until("in-/tmp");
    assert_eq!(restarts(&node), Some(0));
    second.press("exit 3\r");
    assert_eq!(second.end().code(), Some(0), "it ends with the process");
    wait_until(LIMIT, "the container to be restarted", || {
        ensure!(restarts(&node) == Some(1), "{}", node.masked_output("get pods shell"));
        Ok(())
    });
}

fn restarts(node: &LocalNode) -> Option<u64> {
    let pod: Value = serde_json::from_slice(&node.run("get pods shell -o json").stdout).ok()?;
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64()
}
