//! Lifecycle hooks by every means, asked of a server that writes down who came.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use podwright_testbed::{Flavor, wait_until};
use serde_json::json;

use super::{Bed, LIMIT, container, one, sleeper};

pub(crate) fn hooks_of_every_means_run_after_the_start_and_before_the_end(flavor: Flavor) {
    let bed = Bed::start(flavor);
    let book = GuestBook::open();
    let port = book.port;
    let dir = bed.scratch.dir("hooks").expect("made");
    // A guest that only connects is not known by name: each of the two has a book of its own.
    let (after, before) = (GuestBook::open(), GuestBook::open());
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
        bed.put(name, &spec);
    }
    let execs = || std::fs::read_to_string(dir.join("exec")).unwrap_or_default();
    for name in means {
        bed.wait_phase(name, "Running");
    }
    wait_until(LIMIT, "the hooks after the start", || {
        ensure!(execs() == "after\n" && book.guests() == ["GET /after HTTP/1.1 X-Hook: yes"], "{:?}", book.guests());
        ensure!(after.guests().len() == 1 && before.guests().is_empty(), "{:?}", after.guests());
        Ok(())
    });
    for name in means {
        let pod = bed.phase(name, "Running").expect("it runs");
        assert_eq!(container(&pod, "c")["restartCount"], 0, "{name}: {:#}", pod["status"]);
        bed.remove(name);
    }
    bed.wait_nothing_left();
    assert_eq!(execs(), "after\nbefore\n");
    assert_eq!(book.guests().last().map(String::as_str), Some("GET /before HTTP/1.1 X-Hook: yes"));
    assert_eq!((book.guests().len(), after.guests().len(), before.guests().len()), (2, 1, 1), "each once");
    let log = bed.agent.log();
    let failed: Vec<&str> = log.lines().filter(|line| line.contains("Hook failed")).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

pub(crate) fn a_hook_that_fails_after_the_start_ends_its_container_and_is_told(flavor: Flavor) {
    let bed = Bed::start(flavor);
    let nobody = podwright_testbed::free_port().expect("a port");
    let handlers = [
        ("exec", json!({"exec": {"command": ["sh", "-c", "echo so''rry; exit 7"]}}), "exited with 7"),
        ("http", json!({"httpGet": {"host": "127.0.0.1", "port": nobody, "path": "/x"}}), "refused"),
    ];
    for (name, handler, _) in &handlers {
        let mut c = sleeper("c");
        c["lifecycle"] = json!({"postStart": handler});
        bed.put(name, &one(&c));
    }
    for (name, _, words) in &handlers {
        wait_until(LIMIT, &format!("{name} to be ended"), || {
            let pod = bed.pod(name)?;
            ensure!(container(&pod, "c")["lastState"]["terminated"].is_object(), "{:#}", pod["status"]);
            let log = bed.agent.log();
            let event = |l: &&str| l.contains(&format!("{name}-node")) && l.contains("FailedPostStartHook");
            let line = log.lines().find(event).unwrap_or_default().to_owned();
            ensure!(line.contains(words), "{line:?}");
            ensure!(!log.contains("sorry"), "what a hook writes may be secret: {log}");
            Ok(())
        });
    }
    bed.remove_all();
    bed.wait_nothing_left();
}

/// As documented: until the hook has ended a container is not running, nor ready, nor probed.
pub(crate) fn a_container_runs_once_its_hook_after_the_start_has_ended(flavor: Flavor) {
    let bed = Bed::start(flavor);
    let dir = bed.scratch.dir("hooks").expect("made");
    let mut c = sleeper("c");
    let wait = "until [ -e /hooks/go ]; do sleep 0.1; done";
    c["lifecycle"] = json!({"postStart": {"exec": {"command": ["sh", "-c", format!("touch /hooks/began; {wait}")]}}});
    c["readinessProbe"] = json!({"exec": {"command": ["touch", "/hooks/probed"]}, "periodSeconds": 1});
    c["volumeMounts"] = json!([{"name": "hooks", "mountPath": "/hooks"}]);
    let mut spec = one(&c);
    spec["volumes"] = json!([{"name": "hooks", "hostPath": {"path": dir}}]);
    bed.put("waits", &spec);
    wait_until(LIMIT, "the hook to begin", || {
        ensure!(dir.join("began").exists(), "not yet");
        Ok(())
    });
    std::thread::sleep(Duration::from_secs(2));
    let pod = bed.phase("waits", "Pending").expect("its hook runs");
    assert_eq!(container(&pod, "c")["state"]["waiting"]["reason"], "ContainerCreating", "{:#}", pod["status"]);
    assert!(!dir.join("probed").exists(), "probed before its hook had ended");
    std::fs::write(dir.join("go"), "").expect("written");
    wait_until(LIMIT, "it to run and be ready", || {
        let pod = bed.phase("waits", "Running")?;
        ensure!(container(&pod, "c")["ready"] == true && dir.join("probed").exists(), "{:#}", pod["status"]);
        Ok(())
    });
    bed.remove_all();
    bed.wait_nothing_left();
}

/// A server on loopback that notes the first line and one header of who asks it, or only that someone came.
struct GuestBook {
    port: u16,
    guests: Arc<Mutex<Vec<String>>>,
}

impl GuestBook {
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let guests = Arc::<Mutex<Vec<String>>>::default();
        let book = Arc::clone(&guests);
        // Ends with the test's process: an accept can't be interrupted.
        std::thread::spawn(move || {
            for guest in listener.incoming().flatten() {
                let words = serve(guest);
                book.lock().unwrap_or_else(PoisonError::into_inner).push(words);
            }
        });
        Self { port, guests }
    }

    fn guests(&self) -> Vec<String> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(mut guest: TcpStream) -> String {
    let mut head = vec![];
    let mut part = [0; 1024];
    let _ = guest.set_read_timeout(Some(Duration::from_secs(5)));
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match guest.read(&mut part) {
            Ok(0) | Err(_) => return "came and went".into(),
            Ok(count) => head.extend_from_slice(&part[..count]),
        }
    }
    let _ = guest.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let text = String::from_utf8_lossy(&head).into_owned();
    let header = text.lines().find(|line| line.to_lowercase().starts_with("x-hook")).unwrap_or_default();
    let header = header.split_once(':').map_or(String::new(), |(_, value)| format!("X-Hook: {}", value.trim()));
    format!("{} {header}", text.lines().next().unwrap_or_default())
}
