//! Waits until the status of every pod is stable.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwright_testbed::wait_until;
use serde_json::{Value, json};

use super::cases::Compared;
use super::fields::{self, Fields};
use crate::suite::LIMIT;

/// A status that has not changed for this long is stable. Back-offs last 10 s, and the Go kubelet lists the runtime every second.
const STABLE_AFTER: Duration = Duration::from_millis(2500);
/// The same for a pod that has ended and whose sandbox is still to be stopped: a busy runtime takes its time.
const STABLE_AFTER_WITH_SANDBOX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// The Go kubelet reports an ended container as terminated until its next sync, which is at the end of the back-off, but at most this
/// (and half as much again) later: with its default of a minute, short back-offs show for a moment or not at all.
pub(crate) fn frequent_syncs() -> Value {
    json!({"syncFrequency": "5s"})
}

/// Waits until the pods that must start early are running, before other pods compete with them.
pub(crate) fn wait_running(who: &str, cases: &[Compared], suffix: &str, pods: impl Fn() -> Result<Value>) {
    for name in cases.iter().filter(|case| case.starts_early()).map(|case| format!("{}{suffix}", case.name)) {
        wait_until(LIMIT, &format!("{name} to run under {who}"), || {
            let list = pods()?;
            let mut all = list["items"].as_array().into_iter().flatten();
            let pod = all.find(|pod| pod["metadata"]["name"] == name).context("not known")?;
            ensure!(pod["status"]["phase"] == "Running", "{:#}", pod["status"]);
            Ok(())
        });
    }
}

fn stable_after(pod: &Value) -> Duration {
    let is_terminal = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let has_sandbox = conditions.any(|c| c["type"] == "PodReadyToStartContainers" && c["status"] == "True");
    if is_terminal && has_sandbox { STABLE_AFTER_WITH_SANDBOX } else { STABLE_AFTER }
}

/// The fields of every pod once its expected state is reached and stable. The names of the pods end with `suffix`.
pub(crate) fn stable_fields(
    who: &str,
    cases: &[Compared],
    suffix: &str,
    pods: impl Fn() -> Result<Value>,
) -> BTreeMap<&'static str, Fields> {
    let deadline = Instant::now() + LIMIT;
    let mut done: BTreeMap<&'static str, Fields> = BTreeMap::new();
    let mut last: BTreeMap<&'static str, (Fields, Instant)> = BTreeMap::new();
    loop {
        let list = pods().context("the pods").expect("the pods are listed");
        let mut open = vec![];
        for case in cases {
            if done.contains_key(case.name) {
                continue;
            }
            let name = format!("{}{suffix}", case.name);
            let Some(pod) = list["items"].as_array().into_iter().flatten().find(|p| p["metadata"]["name"] == name)
            else {
                open.push(format!("{}: not known", case.name));
                continue;
            };
            if let Err(why) = (case.until)(pod) {
                open.push(format!("{}: {why:#}\n{:#}", case.name, pod["status"]));
                last.remove(case.name);
                continue;
            }
            let fields = fields::of(pod, case.random_restarts());
            if case.loops() {
                done.insert(case.name, fields);
                continue;
            }
            match last.get(case.name) {
                Some((before, since)) if *before == fields => {
                    if since.elapsed() >= stable_after(pod) {
                        done.insert(case.name, fields);
                    } else {
                        open.push(format!("{}: not stable yet", case.name));
                    }
                }
                _ => {
                    last.insert(case.name, (fields, Instant::now()));
                    open.push(format!("{}: changed", case.name));
                }
            }
        }
        if done.len() == cases.len() {
            return done;
        }
        assert!(Instant::now() < deadline, "under {who}, after {LIMIT:?}:\n{}", open.join("\n"));
        std::thread::sleep(PAUSE);
    }
}
