//! `podwright replay`: feeds a recording to core step by step, and compares the decisions with the recorded ones.
//!
//! Exit codes: 0 all decisions are the same; 1 a decision differs, or the file cannot be replayed; 2 wrong usage.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use podwright_core::model::{Effect, FullName, PodUid, Record};
use podwright_core::record::{Replay, ReplayError, Replayed, Step, effect_in_short, record_in_short};

use crate::cli::ReplayFlags;

/// A step of a busy node has some kilobytes, the state of a large node some megabytes.
const LINE_MAX: u64 = 1 << 30;

/// Runs the command.
pub(crate) fn run(flags: &ReplayFlags) -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    let result = replay(flags, &mut out).and_then(|same| out.flush().map(|()| same).map_err(ReplayCommandError::Write));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // A closed pipe is not a failure.
        Err(ReplayCommandError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = out.flush();
            eprintln!("podwright: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum ReplayCommandError {
    #[error("{path}: {source}")]
    Read { path: String, source: io::Error },
    #[error("{path}, line {line}: {source}")]
    Replay { path: String, line: u64, source: ReplayError },
    #[error("write the output: {0}")]
    Write(#[from] io::Error),
}

fn replay(flags: &ReplayFlags, out: &mut dyn Write) -> Result<bool, ReplayCommandError> {
    let path = flags.file.display().to_string();
    let mut lines =
        RecordingLines::open(&flags.file).map_err(|source| ReplayCommandError::Read { path: path.clone(), source })?;
    let mut replay = if flags.any_version { Replay::of_any_version() } else { Replay::default() };
    let (mut steps, mut ended) = (0, false);
    while let Some((number, line)) =
        lines.next().map_err(|source| ReplayCommandError::Read { path: path.clone(), source })?
    {
        let failed = |source| ReplayCommandError::Replay { path: path.clone(), line: number, source };
        match replay.feed(line).map_err(failed)? {
            Replayed::Began { at, pods } => {
                if !flags.quiet {
                    writeln!(out, "{} agent started with {pods} known pods", at.wall)?;
                }
            }
            Replayed::Ended(why) => {
                ended = true;
                if !flags.quiet {
                    writeln!(out, "end of the recording: {why}")?;
                }
            }
            Replayed::Step(step) => {
                steps = step.number;
                if !step.is_same() {
                    show(&step, out)?;
                    let (recorded, decided) = (&step.recorded, &step.decided);
                    writeln!(out, "step {steps} differs: recorded {recorded}, decided now {decided}, as shown above")?;
                    return Ok(false);
                }
                if !flags.quiet && flags.pod.as_deref().is_none_or(|pod| concerns(&step, pod)) {
                    show(&step, out)?;
                }
            }
        }
    }
    if lines.incomplete {
        writeln!(out, "the last line is incomplete: the agent was killed, or is still recording")?;
    } else if !ended && !flags.quiet {
        writeln!(out, "the recording has no end: the agent was killed, or is still recording")?;
    }
    writeln!(out, "{steps} steps, all decisions are the same")?;
    Ok(true)
}

/// `pod` is a UID, or a name with or without namespace and node name.
fn concerns(step: &Step, pod: &str) -> bool {
    let (namespace, name) = pod.split_once('/').map_or((None, pod), |(namespace, name)| (Some(namespace), name));
    step.pods.iter().any(|(uid, full_name)| {
        let named = |full: &FullName| {
            let rest = full.name.strip_prefix(name);
            let is_match = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
            is_match && namespace.is_none_or(|expected| *full.namespace == *expected)
        };
        uid.as_str() == pod || full_name.as_ref().is_some_and(named)
    })
}

fn show(step: &Step, out: &mut dyn Write) -> io::Result<()> {
    let name = |uid: &PodUid| {
        let known = step.pods.get(uid).and_then(Option::as_ref).map(ToString::to_string);
        known.unwrap_or_else(|| uid.to_string())
    };
    let about = if step.pods.len() == 1 { step.pods.keys().next().map(name) } else { None };
    let about = about.map_or(String::new(), |name| format!("{name}: "));
    writeln!(out, "#{} {} ({:.3}) {about}{}", step.number, step.at.wall, step.at.boot.as_secs_f64(), step.event)?;
    for record in &step.out.records {
        let uid = match record {
            Record::Put(put) => &put.uid,
            Record::Forget(uid) => uid,
        };
        writeln!(out, "    write {}: {}", name(uid), record_in_short(record))?;
    }
    for effect in &step.out.effects {
        match effect {
            Effect::Call { uid, .. } | Effect::Observe { uid, .. } | Effect::Sweep { uid } => {
                writeln!(out, "    do    {}: {}", name(uid), effect_in_short(effect))?;
            }
            Effect::Event(event) => {
                let about = event.uid.as_ref().map_or_else(|| "-".into(), name);
                writeln!(out, "    event {about}: {}", effect_in_short(effect))?;
            }
            Effect::StatusChanged(_) | Effect::PodRemoved { .. } => {}
            other => writeln!(out, "    do    {}", effect_in_short(other))?,
        }
    }
    if let Some(at) = step.out.wake_at {
        writeln!(out, "    do    wake at {:.3}", at.as_secs_f64())?;
    }
    Ok(())
}

/// The lines of a recording.
struct RecordingLines {
    file: BufReader<File>,
    line: String,
    number: u64,
    /// The last line had no newline.
    incomplete: bool,
}

impl RecordingLines {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: BufReader::new(File::open(path)?), line: String::new(), number: 0, incomplete: false })
    }

    fn next(&mut self) -> io::Result<Option<(u64, &str)>> {
        self.line.clear();
        let read = (&mut self.file).take(LINE_MAX).read_line(&mut self.line)?;
        if read as u64 == LINE_MAX {
            return Err(io::Error::other("a line is too long for a recording"));
        }
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        // An incomplete line is not replayed, except the first, so that a file that is no recording causes an error.
        self.incomplete = !self.line.ends_with('\n');
        Ok((!self.incomplete || self.number == 1).then_some((self.number, self.line.as_str())))
    }
}
