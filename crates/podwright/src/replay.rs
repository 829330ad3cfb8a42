//! `podwright replay`: the shipped core over a flight recording, step by step, compared with what was decided then.
//!
//! Exit codes: 0 every decision was the same; 1 one differed, or the file can't be replayed; 2 wrong usage.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use podwright_core::model::{Effect, FullName, PodUid, Record};
use podwright_core::record::{Replay, ReplayError, Replayed, Step, effect_in_short, record_in_short};

use crate::cli::ReplayFlags;

/// A step of a busy node has some kilobytes, the state of a large one some megabytes.
const LINE_MAX: u64 = 1 << 30;

/// Replay, and say how it went.
pub(crate) fn run(flags: &ReplayFlags) -> ExitCode {
    let mut screen = BufWriter::new(io::stdout().lock());
    let result = replay(flags, &mut screen).and_then(|same| screen.flush().map(|()| same).map_err(Failure::Screen));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever read it has seen enough.
        Err(Failure::Screen(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = screen.flush();
            eprintln!("podwright: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{path}: {source}")]
    Read { path: String, source: io::Error },
    #[error("{path}, line {line}: {source}")]
    Replay { path: String, line: u64, source: ReplayError },
    #[error("write: {0}")]
    Screen(#[from] io::Error),
}

fn replay(flags: &ReplayFlags, screen: &mut dyn Write) -> Result<bool, Failure> {
    let path = flags.file.display().to_string();
    let mut lines = Lines::open(&flags.file).map_err(|source| Failure::Read { path: path.clone(), source })?;
    let mut replay = if flags.any_version { Replay::of_any_version() } else { Replay::default() };
    let (mut steps, mut ended) = (0, false);
    while let Some((number, line)) = lines.next().map_err(|source| Failure::Read { path: path.clone(), source })? {
        let failed = |source| Failure::Replay { path: path.clone(), line: number, source };
        match replay.feed(line).map_err(failed)? {
            Replayed::Began { at, pods } => {
                if !flags.quiet {
                    writeln!(screen, "{} an agent begins and knows {pods} pods", at.wall)?;
                }
            }
            Replayed::Ended(why) => {
                ended = true;
                if !flags.quiet {
                    writeln!(screen, "the recording ends: {why}")?;
                }
            }
            Replayed::Step(step) => {
                steps = step.number;
                if !step.is_same() {
                    show(&step, screen)?;
                    let (recorded, decided) = (&step.recorded, &step.decided);
                    writeln!(
                        screen,
                        "step {steps} is the first that differs: recorded {recorded}, decided now {decided}, as shown above"
                    )?;
                    return Ok(false);
                }
                if !flags.quiet && flags.pod.as_deref().is_none_or(|pod| concerns(&step, pod)) {
                    show(&step, screen)?;
                }
            }
        }
    }
    if lines.torn {
        writeln!(screen, "the last line is cut off: the agent was killed, or the file is still written")?;
    } else if !ended && !flags.quiet {
        writeln!(screen, "the recording just stops: the agent was killed, or it still runs")?;
    }
    writeln!(screen, "{steps} steps, every decision the same")?;
    Ok(true)
}

/// The pod is named by its UID, or by its name with or without the namespace and the node's name.
fn concerns(step: &Step, pod: &str) -> bool {
    let (namespace, name) = pod.split_once('/').map_or((None, pod), |(namespace, name)| (Some(namespace), name));
    step.pods.iter().any(|(uid, full_name)| {
        let named = |full: &FullName| {
            let rest = full.name.strip_prefix(name);
            let is_it = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
            is_it && namespace.is_none_or(|wanted| *full.namespace == *wanted)
        };
        uid.as_str() == pod || full_name.as_ref().is_some_and(named)
    })
}

fn show(step: &Step, screen: &mut dyn Write) -> io::Result<()> {
    let name = |uid: &PodUid| {
        let known = step.pods.get(uid).and_then(Option::as_ref).map(ToString::to_string);
        known.unwrap_or_else(|| if uid.as_str().is_empty() { "-".to_owned() } else { uid.to_string() })
    };
    let about = if step.pods.len() == 1 { step.pods.keys().next().map(name) } else { None };
    let about = about.map_or(String::new(), |name| format!("{name}: "));
    writeln!(screen, "#{} {} ({:.3}) {about}{}", step.number, step.at.wall, step.at.boot.as_secs_f64(), step.event)?;
    for record in &step.out.records {
        let uid = match record {
            Record::Put(put) => &put.uid,
            Record::Forget(uid) => uid,
        };
        writeln!(screen, "    write {}: {}", name(uid), record_in_short(record))?;
    }
    for effect in &step.out.effects {
        match effect {
            Effect::Call { uid, .. } | Effect::Observe { uid, .. } | Effect::Sweep { uid } => {
                writeln!(screen, "    do    {}: {}", name(uid), effect_in_short(effect))?;
            }
            Effect::Event(event) => writeln!(screen, "    tell  {}: {}", name(&event.uid), effect_in_short(effect))?,
            Effect::StatusChanged { .. } => {}
            other => writeln!(screen, "    do    {}", effect_in_short(other))?,
        }
    }
    Ok(())
}

/// The lines of a file, each whole.
struct Lines {
    file: BufReader<File>,
    line: String,
    number: u64,
    /// The last line had no end.
    torn: bool,
}

impl Lines {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: BufReader::new(File::open(path)?), line: String::new(), number: 0, torn: false })
    }

    fn next(&mut self) -> io::Result<Option<(u64, &str)>> {
        self.line.clear();
        let read = (&mut self.file).take(LINE_MAX).read_line(&mut self.line)?;
        if read as u64 == LINE_MAX {
            return Err(io::Error::other("a line is longer than any recording has"));
        }
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        // Without its end it may lack more. The first line of a file that is something else is told of as such.
        self.torn = !self.line.ends_with('\n');
        Ok((!self.torn || self.number == 1).then_some((self.number, self.line.as_str())))
    }
}
