//! The agent's trace lines in its log, target `podwright::trace`: when calls were sent and returned, when events came, when
//! statuses changed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;

/// Longer than any expected wait.
const LIMIT: Duration = Duration::from_secs(60);

/// One trace line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Microseconds since 1970.
    pub(crate) at: i64,
    pub(crate) what: String,
    /// `key=value key=value`, as in the log.
    pub(crate) fields: String,
}

impl Mark {
    pub(crate) fn is(&self, what: &str, field: &str) -> bool {
        self.what == what && self.fields.split(' ').any(|f| f == field)
    }

    pub(crate) fn field(&self, key: &str) -> Option<&str> {
        self.fields.split(' ').find_map(|f| f.strip_prefix(key)?.strip_prefix('='))
    }
}

/// The log, read as it grows.
pub(crate) struct Trace {
    file: File,
    read: u64,
    rest: String,
    pub(crate) marks: Vec<Mark>,
}

impl Trace {
    pub(crate) fn follow(log: &Path) -> Result<Self> {
        Ok(Self { file: File::open(log)?, read: 0, rest: String::new(), marks: vec![] })
    }

    fn take(&mut self) -> Result<()> {
        self.file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = vec![];
        self.read += self.file.read_to_end(&mut bytes)? as u64;
        self.rest.push_str(&String::from_utf8_lossy(&bytes));
        while let Some((line, rest)) = self.rest.split_once('\n') {
            self.marks.extend(parse(line));
            self.rest = rest.to_owned();
        }
        Ok(())
    }

    /// Waits for the first mark after index `from` that matches; returns its index.
    pub(crate) fn wait(&mut self, from: usize, what: &str, fits: impl Fn(&Mark) -> bool) -> Result<usize> {
        let began = Instant::now();
        loop {
            if let Some(found) = (from..self.marks.len()).find(|n| fits(&self.marks[*n])) {
                return Ok(found);
            }
            if began.elapsed() > LIMIT {
                let last: Vec<_> = self.marks.iter().skip(from).map(|m| format!("{} {}", m.what, m.fields)).collect();
                bail!("waited {LIMIT:?} for {what}, saw {}", last.join(", "));
            }
            std::thread::sleep(Duration::from_millis(2));
            self.take()?;
        }
    }

    /// The part of a span without a call in flight: the agent's own time, in microseconds.
    pub(crate) fn own_time(&self, from: i64, to: i64) -> i64 {
        let (mut own, mut under_way, mut last) = (0, 0i64, from);
        for mark in self.marks.iter().take_while(|m| m.at <= to) {
            if mark.at > last {
                own += if under_way == 0 { mark.at - last } else { 0 };
                last = mark.at;
            }
            match mark.what.as_str() {
                "sent" => under_way += 1,
                "returned" => under_way -= 1,
                _ => {}
            }
        }
        own + if under_way == 0 { (to - last).max(0) } else { 0 }
    }
}

/// `2026-01-01T00:00:00.000001Z TRACE call{…}:cri{…}: podwright::trace: sent call="X"`, with or without spans; `None` for other lines.
fn parse(line: &str) -> Option<Mark> {
    let (at, rest) = line.split_once(' ')?;
    let rest = rest.trim_start();
    let traced = rest.strip_prefix("TRACE ").and_then(|rest| rest.split_once("podwright::trace: "));
    let text = match traced {
        Some((_, text)) => text.to_owned(),
        // A call that core decided: its fields are those of the span.
        None => {
            let (fields, text) =
                rest.strip_prefix("DEBUG call{")?.split_once("}: podwright_agent::event_loop::in_flight: call ")?;
            let what = if text.starts_with("sent") { "order" } else { "answer" };
            format!("{what} {fields}")
        }
    };
    let (what, fields) = text.split_once(' ').unwrap_or((&text, ""));
    let at: Timestamp = at.parse().ok()?;
    Some(Mark { at: at.as_microsecond(), what: what.to_owned(), fields: fields.replace('"', "") })
}

/// The current time, on the clock of the log.
pub(crate) fn now() -> i64 {
    Timestamp::now().as_microsecond()
}

/// The value that this fraction of the values does not exceed.
pub(crate) fn percentile(values: &[i64], part: f64) -> Result<i64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "small and positive"
    )]
    let rank = ((sorted.len() as f64 * part).ceil() as usize).max(1);
    sorted.get(rank - 1).copied().context("no values")
}
