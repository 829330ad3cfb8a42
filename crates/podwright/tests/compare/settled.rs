//! Waiting until every pod has come to where it stays.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use podwright_testbed::wait_until;
use serde_json::Value;

use crate::cases::Compared;
use crate::fields::{self, Fields};
use crate::suite::LIMIT;

/// A status that has not changed for this long is taken for an end. Back-offs last 10 s, the Go kubelet looks each second.
const STILL: Duration = Duration::from_millis(2500);
const PAUSE: Duration = Duration::from_millis(100);

/// Wait until those that hurry run: what comes after them must not be in their way.
pub(crate) fn running(who: &str, cases: &[Compared], suffix: &str, pods: impl Fn() -> Result<Value>) {
    for name in cases.iter().filter(|case| case.hurries()).map(|case| format!("{}{suffix}", case.name)) {
        wait_until(LIMIT, &format!("{name} to run under {who}"), || {
            let list = pods()?;
            let mut all = list["items"].as_array().into_iter().flatten();
            let pod = all.find(|pod| pod["metadata"]["name"] == name).context("not known")?;
            ensure!(pod["status"]["phase"] == "Running", "{:#}", pod["status"]);
            Ok(())
        });
    }
}

/// The fields of every pod, each taken when the pod had come to its end and stayed there. Their names end with `suffix`.
pub(crate) fn settled(
    who: &str,
    cases: &[Compared],
    suffix: &str,
    pods: impl Fn() -> Result<Value>,
) -> BTreeMap<&'static str, Fields> {
    let deadline = Instant::now() + LIMIT;
    let mut done: BTreeMap<&'static str, Fields> = BTreeMap::new();
    let mut last: BTreeMap<&'static str, (Fields, Instant)> = BTreeMap::new();
    loop {
        let list = pods().context("the pods").expect("it answers");
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
            let fields = fields::of(pod, case.restarts_by_chance());
            if case.loops() {
                done.insert(case.name, fields);
                continue;
            }
            match last.get(case.name) {
                Some((before, since)) if *before == fields => {
                    if since.elapsed() >= STILL {
                        done.insert(case.name, fields);
                    } else {
                        open.push(format!("{}: not yet still", case.name));
                    }
                }
                _ => {
                    last.insert(case.name, (fields, Instant::now()));
                    open.push(format!("{}: changes", case.name));
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
