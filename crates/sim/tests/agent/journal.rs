//! The real journal, on running time: a full disk, a lost directory, an agent that is killed.

use std::collections::BTreeMap;

use podwright_cri::labels::RESTART_COUNT;
use podwright_sim::rig::{Program, Rig, pod, simple};
use serde_json::json;
use tokio::time::sleep;

use crate::{millis, secs, summary};

/// A file system of one megabyte that goes with the test.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let options = std::ffi::CString::new("size=1m,mode=0700").expect("no zero in it");
        rustix::mount::mount("podwright-test", dir.path(), "tmpfs", rustix::mount::MountFlags::empty(), &*options)
            .expect("a tmpfs can be mounted: this test needs root");
        Self(dir)
    }

    fn fill(&self) {
        let mut size = 1 << 20;
        let mut n = 0;
        while size >= 1 {
            n += 1;
            let file = self.0.path().join(format!("filler-{n}"));
            if std::fs::write(&file, vec![0; size]).is_err() {
                let _ = std::fs::remove_file(&file);
                size /= 2;
            }
        }
    }

    fn free(&self) {
        for entry in std::fs::read_dir(self.0.path()).expect("listed").flatten() {
            if entry.file_name().to_string_lossy().starts_with("filler-") {
                std::fs::remove_file(entry.path()).expect("removed");
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn a_full_disk_under_the_journal_is_told_of_holds_nothing_back_and_is_made_up_for() {
    let disk = SmallDisk::mount();
    let root = disk.0.path().join("root");
    let mut rig = Rig::with(29, Some(&root));
    rig.add(vec![simple("early", 0)]).await;
    rig.until_all("Running", secs(10)).await;
    assert_eq!(rig.handle().state().journal_error(), None);
    disk.fill();
    // Enough of them for more than the last block has room for.
    rig.add((0..5).map(|n| simple(&format!("on-full{n}"), 0)).chain([simple("leaves", 0)]).collect()).await;
    rig.until_all("Running", secs(10)).await;
    rig.remove(&["leaves"]).await;
    rig.until("an end on a full disk", secs(10), async |rig| rig.phase("leaves").await.is_empty()).await;
    let error = rig.handle().state().journal_error().expect("it is told of");
    assert!(error.contains("No space left"), "{error}");
    disk.free();
    // Nothing new happens to any pod: what is owed is written all the same.
    let well = async |rig: &Rig| rig.handle().state().journal_error().is_none();
    rig.until("the journal is whole again", secs(10), well).await;
    let running = rig.runtime.running();
    rig.kill().await;
    rig.revive().await;
    let shown = async |rig: &Rig| rig.phase("on-full4").await == "Running" && rig.phase("early").await == "Running";
    rig.until("remembered", secs(10), shown).await;
    sleep(millis(500)).await;
    assert_eq!(rig.runtime.running(), running, "nothing was restarted");
    assert_eq!(rig.runtime.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn a_journal_directory_that_vanishes_stops_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("root");
    let mut rig = Rig::with(31, Some(&root));
    rig.add(vec![simple("early", 0)]).await;
    rig.until_all("Running", secs(10)).await;
    std::fs::remove_dir_all(&root).expect("removed");
    rig.add(vec![simple("late", 0)]).await;
    rig.until_all("Running", secs(10)).await;
    rig.remove(&["early", "late"]).await;
    rig.until_empty(secs(10)).await;
}

#[tokio::test]
async fn an_agent_killed_at_any_moment_goes_on_from_its_journal_and_restarts_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut rig = Rig::with(37, Some(&dir.path().join("root")));
    rig.runtime.latency(millis(2));
    let once = rig.runtime.program(Program { exits: Some((millis(30), 3)), ..Program::default() });
    let mut rng = podwright_sim::rng::Rng::new(37);
    let mut ended = BTreeMap::new();
    for round in 0..12 {
        let job = json!({"restartPolicy": "Never", "containers": [{"name": "app", "image": "app:1",
            "command": [once.to_string()]}]});
        rig.add(vec![simple(&format!("p{round}"), 0), pod(&format!("job{round}"), job)]).await;
        if round >= 4 {
            rig.remove(&[&format!("p{}", round - 4)]).await;
        }
        sleep(rng.millis(0, 80)).await;
        for (uid, seen) in summary(&rig).await {
            if uid.starts_with("job") && seen.starts_with("Failed") {
                ended.insert(uid, seen);
            }
        }
        rig.kill().await;
        rig.revive().await;
    }
    let all = async |rig: &Rig| {
        let seen = summary(rig).await;
        let ended = seen.iter().filter(|(uid, _)| uid.starts_with("job")).all(|(_, text)| text.starts_with("Failed"));
        let runs = seen.iter().filter(|(uid, _)| uid.starts_with('p')).all(|(_, text)| text.starts_with("Running"));
        seen.len() == 16 && ended && runs
    };
    rig.until("all as it should be", secs(20), all).await;
    let seen = summary(&rig).await;
    for (uid, text) in &ended {
        assert_eq!(seen.get(uid), Some(text), "what has ended stays as it was");
    }
    for n in 0..12 {
        assert_eq!(seen[&format!("job{n}")], "Failed, app ×0 terminated 3 Error ready=false");
    }
    for n in 8..12 {
        assert_eq!(seen[&format!("p{n}")], "Running, app ×0 running ready=true", "p{n}");
    }
    assert_eq!(rig.runtime.violations(), Vec::<String>::new());
    let starts = rig.runtime.containers().iter().filter(|c| c.annotations[RESTART_COUNT] != "0").count();
    assert_eq!(starts, 0, "nothing was restarted");
}
