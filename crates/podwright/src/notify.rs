//! The notification protocol of systemd (sd_notify).
//!
//! Sends READY when the event loop runs, STATUS, WATCHDOG as long as the task that owns core responds, and STOPPING at the end. If
//! core hangs, the watchdog notifications stop and systemd restarts the agent; containers are not affected.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use podwright_agent::event_loop::{Handle, PodsResponse};
use tokio_util::sync::CancellationToken;

/// Period of status notifications without a watchdog.
const PERIOD: Duration = Duration::from_secs(15);

/// Sends notifications until the agent stops. Does nothing without `NOTIFY_SOCKET`.
pub(crate) async fn run(handle: Handle, stop: CancellationToken) {
    let notifier = Notifier::from_environment();
    notifier.send_while_alive(&handle, &stop).await;
    stop.cancelled().await;
    notifier.send("STOPPING=1\nSTATUS=stopping; containers keep running");
}

#[derive(Debug)]
struct Notifier {
    /// `None`: the agent was not started by systemd.
    socket: Option<UnixDatagram>,
    /// `WATCHDOG_USEC`: maximum time between two watchdog notifications.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// From `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    fn from_environment() -> Self {
        let path = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty());
        let socket = path.and_then(|path| {
            let failed = |error: &io::Error| tracing::warn!(?path, %error, "cannot connect to NOTIFY_SOCKET");
            connect(&path).inspect_err(failed).ok()
        });
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| ours && *usec > 0).map(Duration::from_micros);
        Self { socket, watchdog }
    }

    /// Sends READY, then STATUS and WATCHDOG as long as the event loop responds.
    async fn send_while_alive(&self, handle: &Handle, stop: &CancellationToken) {
        if self.socket.is_none() {
            return;
        }
        // Twice per watchdog interval, as sd_watchdog_enabled(3) recommends.
        let period = self.watchdog.map_or(PERIOD, |watchdog| (watchdog / 2).min(PERIOD));
        let mut ready = "READY=1\n";
        loop {
            // The task that owns core responds to this; if it hangs, no watchdog notification is sent.
            match tokio::time::timeout(period, handle.pods()).await {
                Ok(Some(shown)) => {
                    self.send(&format!("{ready}WATCHDOG=1\nSTATUS={}", status(&shown)));
                    ready = "";
                }
                Ok(None) => return,
                Err(_) => tracing::warn!("event loop does not respond, watchdog notification skipped"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(period) => {}
            }
        }
    }

    fn send(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        // Non-blocking: if the receiver's queue is full, this notification is lost and the next follows soon.
        if let Err(error) = socket.send(message.as_bytes()) {
            tracing::debug!(%error, "notification failed");
        }
    }
}

fn connect(path: &OsString) -> io::Result<UnixDatagram> {
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

/// The status line of `systemctl status`.
fn status(shown: &PodsResponse) -> String {
    let running = |pod: &&podwright_core::model::Pod| {
        pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    let mut text = format!("{} of {} pods are running", shown.pods.iter().filter(running).count(), shown.pods.len());
    if !shown.broken.is_empty() {
        text.push_str(&format!("; {} invalid manifests", shown.broken.len()));
    }
    if !shown.runtime_up && !shown.runtime_pending {
        text.push_str("; the container runtime does not respond");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_arrive_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).expect("bound");
        let name = format!("podwright-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).expect("a name");
        let by_name = UnixDatagram::bind_addr(&abstract_address).expect("bound");
        for (address, listener) in [(path.into_os_string(), by_path), (format!("@{name}").into(), by_name)] {
            let notifier = Notifier { socket: Some(connect(&address).expect("connected")), watchdog: None };
            notifier.send("STOPPING=1\n");
            listener.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
            let mut message = [0; 200];
            let size = listener.recv(&mut message).expect("a message");
            assert!(message[..size].starts_with(b"STOPPING=1\n"), "{address:?}");
        }
        assert!(connect(&"/no/such/socket".into()).is_err());
    }

    #[test]
    fn the_status_names_problems() {
        let shown = PodsResponse { broken: vec![("f".into(), "w".into())], ..PodsResponse::default() };
        assert_eq!(
            status(&shown),
            "0 of 0 pods are running; 1 invalid manifests; the container runtime does not respond"
        );
    }
}
