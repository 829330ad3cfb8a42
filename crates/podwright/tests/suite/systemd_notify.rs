//! The agent as a systemd service: readiness and watchdog notifications, and a stop that leaves the pods running.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use podwright_testbed::{Agent, Flavor, Scratch, TestRuntime, wait_until};

use super::{LIMIT, TestNode, container, one, sh, sleeper};

/// The notification socket of a unit with `Type=notify` and `WatchdogSec=`.
struct Manager {
    socket: UnixDatagram,
    heard: String,
}

impl Manager {
    fn listen(&mut self) -> String {
        let mut words = [0; 4096];
        while let Ok(size) = self.socket.recv(&mut words) {
            self.heard.push_str(&String::from_utf8_lossy(&words[..size]));
            self.heard.push('\n');
        }
        self.heard.clone()
    }

    fn count(&mut self, word: &str) -> usize {
        self.listen().lines().filter(|line| *line == word).count()
    }

    fn wait_for(&mut self, word: &str, times: usize) {
        wait_until(LIMIT, word, || {
            let found = self.count(word);
            ensure!(found >= times, "heard {found} times: {}", self.heard);
            Ok(())
        });
    }
}

pub(crate) fn systemd_is_notified_and_pods_survive_the_stop_of_the_agent(flavor: Flavor) {
    let scratch = Scratch::new().expect("a scratch");
    let path = scratch.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bound");
    socket.set_nonblocking(true).expect("set");
    let mut manager = Manager { socket, heard: String::new() };
    let runtime = TestRuntime::start(&scratch, flavor).expect("the runtime starts");
    let agent = Agent::new(&scratch).runtime(&runtime);
    let agent = agent.env("NOTIFY_SOCKET", &path.display().to_string()).env("WATCHDOG_USEC", "1000000");
    let mut node = TestNode { agent: agent.start().expect("it starts"), scratch, runtime };
    manager.wait_for("READY=1", 1);
    node.put("stays", &one(&sleeper("c")));
    let stays = node.wait_phase("stays", "Running");
    manager.wait_for("STATUS=1 of 1 pods are running", 1);
    let fed = manager.count("WATCHDOG=1");
    manager.wait_for("WATCHDOG=1", fed + 2);
    assert_eq!(manager.count("READY=1"), 1, "{}", manager.heard);

    // A frozen agent sends no watchdog notification.
    node.agent.signal(rustix::process::Signal::STOP).expect("stopped");
    std::thread::sleep(Duration::from_millis(300));
    let fed = manager.count("WATCHDOG=1");
    std::thread::sleep(Duration::from_millis(2000));
    assert_eq!(manager.count("WATCHDOG=1"), fed);
    node.agent.signal(rustix::process::Signal::CONT).expect("goes on");

    stops_during_a_termination(&mut node, &mut manager);
    let id = |pod: &serde_json::Value| container(pod, "c")["containerID"].clone();
    let still = node.wait_phase("stays", "Running");
    assert_eq!((id(&still), &container(&still, "c")["restartCount"]), (id(&stays), &0.into()));
    node.remove_all();
    node.wait_nothing_left();
}

/// SIGTERM while a pod terminates slowly: the agent exits at once, and the next one continues the termination.
fn stops_during_a_termination(node: &mut TestNode, manager: &mut Manager) {
    let mut slow = one(&sh("c", "trap 'sleep 8; exit 0' TERM; while :; do sleep 0.1; done"));
    slow["terminationGracePeriodSeconds"] = 60.into();
    node.put("slow", &slow);
    node.wait_phase("slow", "Running");
    node.remove("slow");
    wait_until(LIMIT, "slow to be ending", || {
        ensure!(!node.pod("slow")?["metadata"]["deletionTimestamp"].is_null(), "it is not ending");
        Ok(())
    });
    std::thread::sleep(Duration::from_millis(500));
    let begin = Instant::now();
    assert!(node.agent.sigterm().expect("it ends").success());
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(manager.count("STOPPING=1"), 1, "{}", manager.heard);
    node.agent.start_again().expect("started again");
    let known = |node: &TestNode| -> Result<()> {
        ensure!(!node.pod("slow")?["metadata"]["deletionTimestamp"].is_null(), "it is not ending any more");
        Ok(())
    };
    if begin.elapsed() < Duration::from_secs(6) {
        wait_until(LIMIT, "the new agent to know", || known(node));
    }
    wait_until(LIMIT, "slow to be gone", || {
        ensure!(node.pod("slow").is_err(), "it is there");
        Ok(())
    });
    assert!(begin.elapsed() < Duration::from_secs(40), "it went on, and did not wait for its grace period again");
}
