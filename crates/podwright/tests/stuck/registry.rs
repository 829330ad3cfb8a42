//! A registry that has no image: it refuses, fails or does not respond, by the first part of the name.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Serves on loopback until the process ends.
pub(crate) struct FailingRegistry {
    address: String,
}

impl FailingRegistry {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address").to_string();
        // Ends with the test's process: an accept can't be interrupted.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                thread::spawn(move || answer(&client));
            }
        });
        Self { address }
    }

    /// `127.0.0.1:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// An image reference. `kind`: `missing`, `private`, `broken` or `silent`.
    pub(crate) fn image(&self, kind: &str) -> String {
        format!("{}/{kind}/app:1", self.address)
    }
}

fn answer(mut client: &TcpStream) {
    let mut reader = BufReader::new(client);
    let mut request = String::new();
    if reader.read_line(&mut request).is_err() {
        return;
    }
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
        line.clear();
    }
    let status = match request.split('/').nth(2) {
        Some("missing") => "404 Not Found",
        Some("private") => "401 Unauthorized",
        Some("broken") => "503 Service Unavailable",
        // Longer than any test.
        _ => return thread::sleep(Duration::from_secs(3600)),
    };
    let _ = write!(client, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}
