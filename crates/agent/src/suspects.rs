//! Deaths of former agents, in `<run dir>/suspects.json`, and the log of the work under way, `<run dir>/work`.
//!
//! Both are on a tmpfs usually: a reboot clears them, and what a former boot left is not used.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use podwright_core::model::{InterruptedWork, PodRecord, PodUid, Suspect, Time};
use podwright_core::suspects::suspects_after;
use podwright_tasks::{Left, LeftWork, WorkLabel, WorkLog};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Saved {
    boot_id: String,
    suspects: Vec<Suspect>,
}

/// Opens the log of the work, and returns the suspects: pods in which former agents died. `records` are all pods of the journal.
/// If the files cannot be used, as on a full or read-only file system, the agent starts without this protection: no work is
/// marked.
pub fn open(run_dir: &Path, boot_id: &str, records: &[PodRecord], now: Time) -> (Option<Arc<WorkLog>>, Vec<Suspect>) {
    let path = run_dir.join("work");
    let (log, left) = match WorkLog::open(&path) {
        Ok((log, left)) => (Some(log), left),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "work on pods is not marked");
            (None, Left::default())
        }
    };
    for left in &left.work {
        let WorkLabel { uid, work, pod } = &left.label;
        tracing::warn!(uid, pod, call = work, "the agent died while it worked on a pod");
    }
    let path = run_dir.join("suspects.json");
    let mut former = read(&path, boot_id);
    for place in left.completed {
        former.get_mut(place).into_iter().for_each(|suspect| suspect.completed = true);
    }
    let interrupted: Vec<InterruptedWork> = left.work.into_iter().map(interrupted_work).collect();
    let suspects = suspects_after(former, &interrupted, records, now);
    let saved = Saved { boot_id: boot_id.to_owned(), suspects };
    if !saved.suspects.is_empty() || path.exists() {
        match (write(&path, &saved), &log) {
            // The next agent reads this list, and the places in it of what this one has completed.
            (Ok(()), Some(log)) => {
                log.watch(saved.suspects.iter().map(|suspect| (suspect.uid.to_string(), suspect.work.clone())));
            }
            (Ok(()), None) => {}
            (Err(error), _) => {
                tracing::warn!(path = %path.display(), %error, "deaths of former agents not saved");
            }
        }
    }
    (log, saved.suspects)
}

fn interrupted_work(left: LeftWork) -> InterruptedWork {
    let LeftWork { label, began, blocking } = left;
    InterruptedWork { uid: PodUid::from(label.uid.as_str()), work: label.work, began, blocking }
}

/// A file that is missing, damaged or of another boot has no suspects.
fn read(path: &Path, boot_id: &str) -> Vec<Suspect> {
    let mut text = String::new();
    match fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text)) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "deaths of former agents not read");
            return Vec::new();
        }
    }
    match serde_json::from_str::<Saved>(&text) {
        Ok(saved) if saved.boot_id == boot_id => saved.suspects,
        Ok(_) => Vec::new(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "deaths of former agents not read");
            Vec::new()
        }
    }
}

fn write(path: &Path, saved: &Saved) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(&serde_json::to_vec(saved)?)?;
    fs::rename(&temporary, path)
}

/// Above the bound of the suspects.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn die_in(dir: &Path, boot_id: &str, now: u64) -> Vec<Suspect> {
        let (log, suspects) = open(dir, boot_id, &[], Duration::from_secs(now));
        let label = WorkLabel { uid: "u".into(), work: "CreateContainer".into(), pod: "default/p".into() };
        std::mem::forget(log.unwrap().mark(&label));
        suspects
    }

    #[test]
    fn two_deaths_in_the_same_work_quarantine_the_pod_until_the_next_boot_at_most() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(die_in(dir.path(), "boot", 10), []);
        assert_eq!(die_in(dir.path(), "boot", 20)[0].until, None, "one death");
        let now = Duration::from_secs(30);
        let (log, suspects) = open(dir.path(), "boot", &[], now);
        assert!(suspects[0].is_quarantined(now), "{suspects:?}");
        log.unwrap().close();
        assert!(open(dir.path(), "boot", &[], now).1[0].is_quarantined(now), "also after a normal restart");
        assert_eq!(open(dir.path(), "another boot", &[], now).1, []);
    }

    #[test]
    fn a_death_in_work_that_was_completed_since_the_last_one_quarantines_no_pod() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(die_in(dir.path(), "boot", 10), []);
        let (log, suspects) = open(dir.path(), "boot", &[], Duration::from_secs(20));
        assert_eq!((suspects[0].deaths, suspects[0].completed), (1, false));
        let label = WorkLabel { uid: "u".into(), work: "CreateContainer".into(), pod: "default/p".into() };
        drop(log.unwrap().mark(&label));
        let suspects = die_in(dir.path(), "boot", 30);
        assert!(suspects[0].completed, "{suspects:?}");
        let (_, suspects) = open(dir.path(), "boot", &[], Duration::from_secs(40));
        assert_eq!((suspects[0].deaths, suspects[0].until), (2, None), "{suspects:?}");
    }

    #[test]
    fn a_damaged_file_has_no_suspects() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("suspects.json"), b"{").unwrap();
        assert_eq!(die_in(dir.path(), "boot", 10), []);
    }

    #[test]
    fn files_that_cannot_be_used_do_not_stop_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let (log, suspects) = open(&dir.path().join("missing"), "boot", &[], Duration::from_secs(1));
        assert!(log.is_none() && suspects.is_empty());
        assert_eq!(die_in(dir.path(), "boot", 10), []);
        assert!(!dir.path().join("suspects.json").exists(), "nothing to save");
        // The temporary file cannot be opened.
        fs::create_dir(dir.path().join("suspects.tmp")).unwrap();
        assert_eq!(die_in(dir.path(), "boot", 20).len(), 1, "the suspects are used although they are not saved");
    }
}
