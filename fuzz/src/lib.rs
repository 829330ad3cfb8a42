//! What each fuzz target does with its input. A panic, a hang of more than some seconds, or more memory than the limit is a finding;
//! hack/fuzz sets the limits.
//!
//! | target | input |
//! |---|---|
//! | manifests | a manifest file, from a directory and from the local API |
//! | credentials | a pull secret and an image reference |
//! | environment | environment, command and arguments of a container |
//! | values | a quantity, selectors, query parameters |
//! | logs | a CRI log that is read and followed across a rotation |
//! | journal | the journal's file, and recordings |
//! | api_inputs | watch lines, kubeconfig, output of a credential plugin, PEM |
//! | urls | `staticPodURL` and its headers |
//! | images | image manifests and configurations, layers (tar), `hosts.toml`, image references |
//! | runtime | messages of a container runtime, observed and handled by core |
//! | shim | packets between the agent and its shims, launch plans, exit records |
//! | spdy | frames of clients of exec, attach and port-forward |
//! | cni | configurations and results of CNI plugins, their errors, kept results |
//! | seccomp | seccomp profiles, compiled |

mod engine;
mod environment;
mod images;
mod runtime;

use std::cell::RefCell;
use std::path::Path;

use podwright_agent::journal::{Journal, JournalWarning};
use podwright_agent::sources::url::UrlSourceConfig;
use podwright_agent::sources::{Strictness, read_manifests, static_pods, submitted_pods};
use podwright_core::model::Source;
use podwright_core::quantity::Amount;
use podwright_core::record::{Replay, ReplayError};

use engine::{cni, seccomp, shim, spdy};
use environment::environment;
use images::images;
use runtime::runtime;

/// Every target with its name, which is also the name of its directory in `corpus`.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("manifests", manifests),
    ("credentials", credentials),
    ("environment", environment),
    ("values", values),
    ("logs", logs),
    ("journal", journal),
    ("api_inputs", api_inputs),
    ("urls", urls),
    ("images", images),
    ("runtime", runtime),
    ("shim", shim),
    ("spdy", spdy),
    ("cni", cni),
    ("seccomp", seccomp),
];

/// A manifest file.
fn manifests(data: &[u8]) {
    for strictness in [Strictness::Lenient, Strictness::Strict] {
        read_manifests(data, "fuzz.yaml", &static_pods(Source::File, "node", strictness));
    }
    read_manifests(data, "fuzz.yaml", &submitted_pods());
}

/// The image reference, a line feed, `.dockerconfigjson`.
fn credentials(data: &[u8]) {
    let (image, config) = split(data);
    podwright_agent::fuzz_api::match_credentials(&String::from_utf8_lossy(image), config);
}

/// One of the parsers by the first byte, then its text.
fn values(data: &[u8]) {
    let Some((kind, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    match kind % 3 {
        0 => quantities(text),
        1 => podwright_server::fuzz_api::selectors(text, text),
        _ => podwright_server::fuzz_api::query(text),
    }
}

/// A quantity prints as a quantity of the same value, and adding zero changes nothing.
fn quantities(text: &str) {
    let Ok(amount) = text.parse::<Amount>() else { return };
    let printed = amount.to_string();
    let again: Amount = printed.parse().unwrap_or_else(|error| panic!("{text:?} prints as {printed:?}: {error}"));
    assert_eq!(amount, again, "{text:?} prints as {printed:?}");
    assert_eq!(amount.plus(Amount::ZERO), amount);
    let _ = (amount.value(), amount.milli_value(), amount.plus(amount));
}

/// The query, a line feed, the log.
fn logs(data: &[u8]) {
    let (query, log) = split(data);
    let Ok(query) = std::str::from_utf8(query) else { return };
    with_dir(|dir| run(podwright_server::fuzz_api::read_log(dir, query, log)));
}

/// One of two formats by the first byte, then the file.
fn journal(data: &[u8]) {
    let Some((kind, file)) = data.split_first() else { return };
    match kind % 2 {
        0 => with_dir(|dir| {
            std::fs::write(dir.join("journal"), file).expect("written");
            let (journal, records, _) = Journal::open(dir).expect("a directory of our own");
            drop(journal);
            let (_, again, warnings) = Journal::open(dir).expect("a directory of our own");
            assert_eq!(records, again, "what was read is kept");
            // A record of an unknown shape is reported until a compaction drops it; damage is repaired.
            let repaired = |warning: &JournalWarning| {
                matches!(warning, JournalWarning::OtherUid { .. } | JournalWarning::Undecodable { .. })
            };
            assert!(warnings.iter().all(repaired), "{warnings:?}");
            std::fs::remove_dir_all(dir).and_then(|()| std::fs::create_dir(dir)).expect("emptied");
        }),
        _ => {
            let mut replay = Replay::of_any_version();
            for line in String::from_utf8_lossy(file).lines() {
                if let Err(ReplayError::NotARecording(_)) = replay.feed(line) {
                    return;
                }
            }
        }
    }
}

/// One of the inputs by the first byte, then its content.
fn api_inputs(data: &[u8]) {
    let Some((kind, content)) = data.split_first() else { return };
    match kind % 4 {
        0 => run(podwright_api::fuzz_api::watch(content)),
        1 => with_dir(|dir| podwright_api::fuzz_api::kubeconfig(dir, content)),
        2 => podwright_api::fuzz_api::credential_plugin(content),
        _ => podwright_api::fuzz_api::pem(content),
    }
}

/// The URL, then a name and a value of a header, separated by line feeds.
fn urls(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.split('\n');
    let (url, name, value) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    let _ = UrlSourceConfig::new(url, [(name, value)], std::time::Duration::from_secs(20));
}

fn split(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &[]),
    }
}

thread_local! {
    static DIR: tempfile::TempDir =
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
    static RUNTIME: RefCell<tokio::runtime::Runtime> =
        RefCell::new(tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"));
}

/// A directory in memory, the same for all inputs of this process.
fn with_dir<T>(work: impl FnOnce(&Path) -> T) -> T {
    DIR.with(|dir| {
        let path = dir.path().join("input");
        std::fs::create_dir_all(&path).expect("created");
        work(&path)
    })
}

fn run<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.borrow_mut().block_on(future))
}
