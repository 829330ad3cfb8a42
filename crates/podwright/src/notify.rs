//! A word to whoever started the agent: systemd's notification protocol, one datagram per word.
//!
//! READY once the loop runs, STATUS in a few words, WATCHDOG as long as the task that owns core answers, STOPPING at the end. An
//! agent whose core hangs is silent, and systemd starts it anew; the containers don't notice.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use podwright_agent::event_loop::{Handle, PodsResponse};
use tokio_util::sync::CancellationToken;

/// How often the status is told when nobody watches.
const PERIOD: Duration = Duration::from_secs(15);

/// Tell whoever listens, from the first answer of the loop to the end.
pub(crate) async fn tell(handle: Handle, stop: CancellationToken) {
    let notifier = Notifier::from_environment();
    notifier.watch(&handle, &stop).await;
    stop.cancelled().await;
    notifier.say("STOPPING=1\nSTATUS=ending; containers go on running");
}

/// The one who listens, if anyone does.
#[derive(Debug)]
struct Notifier {
    socket: Option<UnixDatagram>,
    /// A sign of life is due at least this often.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// As the environment says.
    fn from_environment() -> Self {
        let path = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty());
        let socket = path.and_then(|path| {
            let failed = |error: &io::Error| tracing::warn!(?path, %error, "NOTIFY_SOCKET can't be used");
            connect(&path).inspect_err(failed).ok()
        });
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| ours && *usec > 0).map(Duration::from_micros);
        Self { socket, watchdog }
    }

    /// Say that the loop runs, and go on saying it for as long as it does.
    async fn watch(&self, handle: &Handle, stop: &CancellationToken) {
        if self.socket.is_none() {
            return;
        }
        // Twice in the time there is, as the protocol recommends.
        let period = self.watchdog.map_or(PERIOD, |watchdog| (watchdog / 2).min(PERIOD));
        let mut words = "READY=1\n";
        loop {
            // Answered by the task that owns core: silence here is what the watchdog is for.
            match tokio::time::timeout(period, handle.pods()).await {
                Ok(Some(shown)) => {
                    self.say(&format!("{words}WATCHDOG=1\nSTATUS={}", status(&shown)));
                    words = "";
                }
                Ok(None) => return,
                Err(_) => tracing::warn!("the loop does not answer: the watchdog is not fed"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(period) => {}
            }
        }
    }

    fn say(&self, words: &str) {
        let Some(socket) = &self.socket else { return };
        // It never waits: a listener that is full misses a word, and the next one comes soon.
        if let Err(error) = socket.send(words.as_bytes()) {
            tracing::debug!(%error, "a notification was not taken");
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

/// What `systemctl status` shows.
fn status(shown: &PodsResponse) -> String {
    let running = |pod: &&podwright_core::model::Pod| {
        pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    let mut text = format!("{} of {} pods run", shown.pods.iter().filter(running).count(), shown.pods.len());
    if !shown.broken.is_empty() {
        text.push_str(&format!("; {} manifests can't be used", shown.broken.len()));
    }
    if !shown.runtime_up {
        text.push_str("; the container runtime does not answer");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_arrive_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).expect("bound");
        let name = format!("podwright-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).expect("a name");
        let by_name = UnixDatagram::bind_addr(&abstract_address).expect("bound");
        for (address, listener) in [(path.into_os_string(), by_path), (format!("@{name}").into(), by_name)] {
            let notifier = Notifier { socket: Some(connect(&address).expect("connected")), watchdog: None };
            notifier.say("STOPPING=1\n");
            listener.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
            let mut words = [0; 200];
            let size = listener.recv(&mut words).expect("words");
            assert!(words[..size].starts_with(b"STOPPING=1\n"), "{address:?}");
        }
        assert!(connect(&"/no/such/socket".into()).is_err());
    }

    #[test]
    fn the_status_says_what_is_wrong() {
        let shown = PodsResponse { broken: vec![("f".into(), "w".into())], ..PodsResponse::default() };
        assert_eq!(status(&shown), "0 of 0 pods run; 1 manifests can't be used; the container runtime does not answer");
    }
}
