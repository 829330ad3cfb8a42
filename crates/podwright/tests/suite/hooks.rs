//! Lifecycle hooks with every handler, checked with a server that records its requests.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use podwright_testbed::{Flavor, wait_until};
use serde_json::json;

use super::{LIMIT, TestNode, container, one, sleeper};

pub(crate) fn hooks_of_every_kind_run_after_start_and_before_stop(flavor: Flavor) {
    let node = TestNode::start(flavor);
    let server = RecordingServer::open();
    let port = server.port;
    let dir = node.scratch.dir("hooks").expect("made");
    // A client that only connects can't be identified: each of the two hooks has its own server.
    let (after, before) = (RecordingServer::open(), RecordingServer::open());
    let hook = |means: &str, when: &str| match means {
        "exec" => json!({"exec": {"command": ["sh", "-c", format!("echo {when} >> /hooks/exec")]}}),
        "http" => json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": format!("/{when}"),
            "httpHeaders": [{"name": "X-Hook", "value": "yes"}]}}),
        "tcp" if when == "after" => json!({"tcpSocket": {"host": "127.0.0.1", "port": after.port}}),
        "tcp" => json!({"tcpSocket": {"host": "127.0.0.1", "port": before.port}}),
        _ => json!({"sleep": {"seconds": 1}}),
    };
    let means = ["exec", "http", "tcp", "sleep"];
    for name in means {
        let mut c = sleeper("c");
        c["lifecycle"] = json!({"postStart": hook(name, "after"), "preStop": hook(name, "before")});
        c["volumeMounts"] = json!([{"name": "hooks", "mountPath": "/hooks"}]);
        let mut spec = one(&c);
        spec["terminationGracePeriodSeconds"] = json!(30);
        spec["volumes"] = json!([{"name": "hooks", "hostPath": {"path": dir}}]);
        node.put(name, &spec);
    }
    let execs = || std::fs::read_to_string(dir.join("exec")).unwrap_or_default();
    for name in means {
        node.wait_phase(name, "Running");
    }
    wait_until(LIMIT, "the hooks after the start", || {
        ensure!(
            execs() == "after\n" && server.requests() == ["GET /after HTTP/1.1 X-Hook: yes"],
            "{:?}",
            server.requests()
        );
        ensure!(after.requests().len() == 1 && before.requests().is_empty(), "{:?}", after.requests());
        Ok(())
    });
    for name in means {
        let pod = node.phase(name, "Running").expect("it runs");
        assert_eq!(container(&pod, "c")["restartCount"], 0, "{name}: {:#}", pod["status"]);
        node.remove(name);
    }
    node.wait_nothing_left();
    assert_eq!(execs(), "after\nbefore\n");
    assert_eq!(server.requests().last().map(String::as_str), Some("GET /before HTTP/1.1 X-Hook: yes"));
    assert_eq!((server.requests().len(), after.requests().len(), before.requests().len()), (2, 1, 1), "each once");
    let log = node.agent.log();
    let failed: Vec<&str> = log.lines().filter(|line| line.contains("Hook failed")).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

pub(crate) fn a_failed_post_start_hook_kills_its_container_with_an_event(flavor: Flavor) {
    let node = TestNode::start(flavor);
    let nobody = podwright_testbed::free_port().expect("a port");
    let handlers = [
        ("exec", json!({"exec": {"command": ["sh", "-c", "echo so''rry; exit 7"]}}), "exited with 7"),
        ("http", json!({"httpGet": {"host": "127.0.0.1", "port": nobody, "path": "/x"}}), "refused"),
    ];
    for (name, handler, _) in &handlers {
        let mut c = sleeper("c");
        c["lifecycle"] = json!({"postStart": handler});
        node.put(name, &one(&c));
    }
    for (name, _, words) in &handlers {
        wait_until(LIMIT, &format!("{name} to be ended"), || {
            let pod = node.pod(name)?;
            ensure!(container(&pod, "c")["lastState"]["terminated"].is_object(), "{:#}", pod["status"]);
            let log = node.agent.log();
            let event = |l: &&str| l.contains(&format!("{name}-node")) && l.contains("FailedPostStartHook");
            let line = log.lines().find(event).unwrap_or_default().to_owned();
            ensure!(line.contains(words), "{line:?}");
            ensure!(!log.contains("sorry"), "what a hook writes may be secret: {log}");
            Ok(())
        });
    }
    node.remove_all();
    node.wait_nothing_left();
}

/// As documented: until its postStart hook has finished, a container is neither running nor ready nor probed.
pub(crate) fn a_container_is_running_only_after_its_post_start_hook(flavor: Flavor) {
    let node = TestNode::start(flavor);
    let dir = node.scratch.dir("hooks").expect("made");
    let mut c = sleeper("c");
    let wait = "until [ -e /hooks/go ]; do sleep 0.1; done";
    c["lifecycle"] = json!({"postStart": {"exec": {"command": ["sh", "-c", format!("touch /hooks/began; {wait}")]}}});
    c["readinessProbe"] = json!({"exec": {"command": ["touch", "/hooks/probed"]}, "periodSeconds": 1});
    c["volumeMounts"] = json!([{"name": "hooks", "mountPath": "/hooks"}]);
    let mut spec = one(&c);
    spec["volumes"] = json!([{"name": "hooks", "hostPath": {"path": dir}}]);
    node.put("waits", &spec);
    wait_until(LIMIT, "the hook to begin", || {
        ensure!(dir.join("began").exists(), "not yet");
        Ok(())
    });
    std::thread::sleep(Duration::from_secs(2));
    let pod = node.phase("waits", "Pending").expect("its hook runs");
    assert_eq!(container(&pod, "c")["state"]["waiting"]["reason"], "ContainerCreating", "{:#}", pod["status"]);
    assert!(!dir.join("probed").exists(), "probed before its hook had ended");
    std::fs::write(dir.join("go"), "").expect("written");
    wait_until(LIMIT, "it to run and be ready", || {
        let pod = node.phase("waits", "Running")?;
        ensure!(container(&pod, "c")["ready"] == true && dir.join("probed").exists(), "{:#}", pod["status"]);
        Ok(())
    });
    node.remove_all();
    node.wait_nothing_left();
}

/// A server on loopback that records the first line and one header of each request, or only the connection.
struct RecordingServer {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl RecordingServer {
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let server = Arc::clone(&requests);
        // Ends with the test's process: an accept can't be interrupted.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let words = serve(client);
                server.lock().unwrap_or_else(PoisonError::into_inner).push(words);
            }
        });
        Self { port, requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(mut client: TcpStream) -> String {
    let mut head = vec![];
    let mut part = [0; 1024];
    let _ = client.set_read_timeout(Some(Duration::from_secs(5)));
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match client.read(&mut part) {
            Ok(0) | Err(_) => return "came and went".into(),
            Ok(count) => head.extend_from_slice(&part[..count]),
        }
    }
    let _ = client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let text = String::from_utf8_lossy(&head).into_owned();
    let header = text.lines().find(|line| line.to_lowercase().starts_with("x-hook")).unwrap_or_default();
    let header = header.split_once(':').map_or(String::new(), |(_, value)| format!("X-Hook: {}", value.trim()));
    format!("{} {header}", text.lines().next().unwrap_or_default())
}
