//! A logind on a bus of its own, for tests: delay locks, `PrepareForShutdown`, and the drop-in files that it reads on SIGHUP.
//!
//! The bus is a real dbus-daemon. The test of the whole agent includes this file too.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::sync::mpsc;
use zbus::connection::Builder;
use zbus::message::{Message, Type};
use zbus::{Connection, MessageStream, Variant};

const LOGIND: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const BUS: &str = "/usr/bin/dbus-daemon";

/// Ends with its bus when it is dropped.
pub(crate) struct FakeLogind {
    dir: PathBuf,
    bus: Child,
    state: Arc<LogindState>,
    signals: mpsc::UnboundedSender<bool>,
}

#[derive(Default)]
struct LogindState {
    delay_us: AtomicU64,
    is_preparing: AtomicBool,
    /// Locks whose file descriptor is open.
    locks: AtomicUsize,
    /// The arguments of each lock that was taken.
    taken: Mutex<Vec<[String; 4]>>,
    reloads: AtomicUsize,
}

impl FakeLogind {
    /// `None`: dbus-daemon is not installed, which is noted.
    pub(crate) fn start(dir: &Path, delay: Duration) -> Option<Self> {
        if !Path::new(BUS).exists() {
            if let Some(list) = std::env::var_os("PODWRIGHT_SKIPPED") {
                let mut list = std::fs::OpenOptions::new().append(true).create(true).open(list).unwrap();
                std::io::Write::write_all(&mut list, b"shutdown: dbus is not installed (apt-get install dbus)\n")
                    .unwrap();
            }
            return None;
        }
        let state = Arc::<LogindState>::default();
        state.delay_us.store(u64::try_from(delay.as_micros()).unwrap(), Ordering::SeqCst);
        let bus = start_bus(dir);
        let signals = serve(dir.to_owned(), Arc::clone(&state));
        Some(Self { dir: dir.to_owned(), bus, state, signals })
    }

    /// For `DBUS_SYSTEM_BUS_ADDRESS`.
    pub(crate) fn address(&self) -> String {
        address(&self.dir)
    }

    /// Where it reads drop-in files.
    pub(crate) fn conf_dir(&self) -> PathBuf {
        self.dir.join("logind.conf.d")
    }

    /// A shutdown begins, or is cancelled.
    pub(crate) fn prepare(&self, begin: bool) {
        self.state.is_preparing.store(begin, Ordering::SeqCst);
        self.signals.send(begin).unwrap();
    }

    /// Changes the property only, as if the signal were lost.
    pub(crate) fn set_preparing(&self, preparing: bool) {
        self.state.is_preparing.store(preparing, Ordering::SeqCst);
    }

    /// The locks that are held.
    pub(crate) fn locks(&self) -> usize {
        self.state.locks.load(Ordering::SeqCst)
    }

    /// The arguments of every lock so far.
    pub(crate) fn taken(&self) -> Vec<[String; 4]> {
        self.state.taken.lock().unwrap().clone()
    }

    pub(crate) fn reloads(&self) -> usize {
        self.state.reloads.load(Ordering::SeqCst)
    }

    pub(crate) fn stop_bus(&mut self) {
        self.bus.kill().unwrap();
        self.bus.wait().unwrap();
    }

    /// The bus and logind's connection to it; locks stay.
    pub(crate) fn start_bus_again(&mut self) {
        self.bus = start_bus(&self.dir);
        self.signals = serve(self.dir.clone(), Arc::clone(&self.state));
    }
}

impl Drop for FakeLogind {
    fn drop(&mut self) {
        let _ = self.bus.kill();
        let _ = self.bus.wait();
    }
}

fn address(dir: &Path) -> String {
    format!("unix:path={}/bus", dir.display())
}

fn start_bus(dir: &Path) -> Child {
    let config = dir.join("bus.conf");
    let text = format!(
        "<busconfig><type>system</type><listen>{}</listen><policy context=\"default\"><allow user=\"*\"/><allow own=\"*\"/>\
         <allow send_destination=\"*\"/><allow receive_sender=\"*\"/></policy></busconfig>\n",
        address(dir)
    );
    std::fs::write(&config, text).unwrap();
    let _ = std::fs::remove_file(dir.join("bus"));
    let mut command = Command::new(BUS);
    command.arg(format!("--config-file={}", config.display())).arg("--nofork").stdin(Stdio::null());
    let bus = command.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::os::unix::net::UnixStream::connect(dir.join("bus")).is_err() {
        assert!(Instant::now() < deadline, "dbus-daemon did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    bus
}

/// Serves on a thread of its own until the bus ends. Returns when logind has its name.
fn serve(dir: PathBuf, state: Arc<LogindState>) -> mpsc::UnboundedSender<bool> {
    let (signals, mut received) = mpsc::unbounded_channel();
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let bus = Builder::address(address(&dir).as_str()).build().await.unwrap();
            let mut calls = MessageStream::from(&bus);
            bus.request_name(LOGIND).await.unwrap();
            bus.request_name("org.freedesktop.systemd1").await.unwrap();
            ready.send(()).unwrap();
            loop {
                tokio::select! {
                    call = calls.next() => match call {
                        Some(Ok(call)) if call.message_type() == Type::MethodCall => answer(&bus, &call, &dir, &state).await,
                        Some(_) => {}
                        None => return,
                    },
                    Some(begin) = received.recv() => {
                        let _ = bus.emit_signal(None::<&str>, PATH, MANAGER, "PrepareForShutdown", &(begin,)).await;
                    }
                }
            }
        });
    });
    is_ready.recv().unwrap();
    signals
}

async fn answer(bus: &Connection, call: &Message, dir: &Path, state: &Arc<LogindState>) {
    let header = call.header();
    let body = call.body();
    let result = match header.member().map(|member| member.as_str()) {
        Some("Get") => {
            let (_, name): (String, String) = body.deserialize().unwrap();
            let value = match name.as_str() {
                "InhibitDelayMaxUSec" => Variant::from(state.delay_us.load(Ordering::SeqCst)),
                "PreparingForShutdown" => Variant::from(state.is_preparing.load(Ordering::SeqCst)),
                other => panic!("property {other}"),
            };
            bus.reply(&header, &(value,)).await
        }
        Some("Inhibit") if state.is_preparing.load(Ordering::SeqCst) => {
            bus.reply_error(&header, "org.freedesktop.login1.OperationInProgress", &("too late",)).await
        }
        Some("Inhibit") => {
            let arguments: (String, String, String, String) = body.deserialize().unwrap();
            state.taken.lock().unwrap().push(arguments.into());
            let (mut reader, writer) = std::io::pipe().unwrap();
            state.locks.fetch_add(1, Ordering::SeqCst);
            let counted = Arc::clone(state);
            std::thread::spawn(move || {
                // Ends when the other side is closed.
                let _ = reader.read(&mut [0]);
                counted.locks.fetch_sub(1, Ordering::SeqCst);
            });
            bus.reply(&header, &(zbus::OwnedFd::from(std::os::fd::OwnedFd::from(writer)),)).await
        }
        Some("KillUnit") => {
            let arguments: (String, String, i32) = body.deserialize().unwrap();
            assert_eq!(arguments, ("systemd-logind.service".into(), "all".into(), 1));
            if let Some(seconds) = configured_delay(&dir.join("logind.conf.d")) {
                state.delay_us.store(seconds * 1_000_000, Ordering::SeqCst);
            }
            state.reloads.fetch_add(1, Ordering::SeqCst);
            bus.reply(&header, &()).await
        }
        _ => Ok(()),
    };
    // The client may be gone.
    let _ = result;
}

/// Of all files the last by name wins, as in logind.
fn configured_delay(conf_dir: &Path) -> Option<u64> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(conf_dir).ok()?.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
    files.sort();
    let texts = files.iter().map(|path| std::fs::read_to_string(path).unwrap());
    let mut delays =
        texts.filter_map(|text| text.lines().find_map(|line| line.strip_prefix("InhibitDelayMaxSec=")?.parse().ok()));
    delays.next_back()
}
