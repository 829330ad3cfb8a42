//! The agent's journal, in real time: a full disk, a removed directory, a killed agent.

use std::collections::BTreeMap;

use podwright_cri::labels::RESTART_COUNT;
use podwright_sim::agent_harness::{AgentHarness, Program, pod, simple};
use serde_json::json;
use tokio::time::sleep;

use crate::{millis, secs, summary};

/// A tmpfs of one megabyte that is unmounted after the test.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let options = std::ffi::CString::new("size=1m,mode=0700").expect("no NUL");
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
async fn a_full_disk_is_reported_delays_nothing_and_records_are_written_when_space_is_free() {
    let disk = SmallDisk::mount();
    let root = disk.0.path().join("root");
    let mut harness = AgentHarness::with(29, Some(&root));
    harness.add(vec![simple("early", 0)]).await;
    harness.until_all("Running", secs(10)).await;
    assert_eq!(harness.handle().state().journal_error(), None);
    disk.fill();
    // Enough pods to need more than the space left in the last block.
    harness.add((0..5).map(|n| simple(&format!("on-full{n}"), 0)).chain([simple("leaves", 0)]).collect()).await;
    harness.until_all("Running", secs(10)).await;
    harness.remove(&["leaves"]).await;
    harness.until("stopped on a full disk", secs(10), async |harness| harness.phase("leaves").await.is_empty()).await;
    let error = harness.handle().state().journal_error().expect("the error is reported");
    assert!(error.contains("No space left"), "{error}");
    disk.free();
    // No pod changes: the missing records are written nevertheless.
    let works = async |harness: &AgentHarness| harness.handle().state().journal_error().is_none();
    harness.until("the journal works again", secs(10), works).await;
    let running = harness.runtime.running();
    harness.kill().await;
    harness.restart().await;
    let shown = async |harness: &AgentHarness| {
        harness.phase("on-full4").await == "Running" && harness.phase("early").await == "Running"
    };
    harness.until("known after the restart", secs(10), shown).await;
    sleep(millis(500)).await;
    assert_eq!(harness.runtime.running(), running, "nothing was restarted");
    assert_eq!(harness.runtime.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn pods_start_and_stop_though_the_journal_directory_was_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("root");
    let mut harness = AgentHarness::with(31, Some(&root));
    harness.add(vec![simple("early", 0)]).await;
    harness.until_all("Running", secs(10)).await;
    std::fs::remove_dir_all(&root).expect("removed");
    harness.add(vec![simple("late", 0)]).await;
    harness.until_all("Running", secs(10)).await;
    harness.remove(&["early", "late"]).await;
    harness.until_empty(secs(10)).await;
}

#[tokio::test]
async fn an_agent_killed_at_any_moment_continues_from_its_journal_and_restarts_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut harness = AgentHarness::with(37, Some(&dir.path().join("root")));
    harness.runtime.latency(millis(2));
    let once = harness.runtime.program(Program { exits_after: Some((millis(30), 3)), ..Program::default() });
    let mut rng = podwright_sim::rng::Rng::new(37);
    let mut ended = BTreeMap::new();
    for round in 0..12 {
        let job = json!({"restartPolicy": "Never", "containers": [{"name": "app", "image": "app:1",
            "command": [once.to_string()]}]});
        harness.add(vec![simple(&format!("p{round}"), 0), pod(&format!("job{round}"), job)]).await;
        if round >= 4 {
            harness.remove(&[&format!("p{}", round - 4)]).await;
        }
        sleep(rng.millis(0, 80)).await;
        for (uid, seen) in summary(&harness).await {
            if uid.starts_with("job") && seen.starts_with("Failed") {
                ended.insert(uid, seen);
            }
        }
        harness.kill().await;
        harness.restart().await;
    }
    let all = async |harness: &AgentHarness| {
        let seen = summary(harness).await;
        let ended = seen.iter().filter(|(uid, _)| uid.starts_with("job")).all(|(_, text)| text.starts_with("Failed"));
        let runs = seen.iter().filter(|(uid, _)| uid.starts_with('p')).all(|(_, text)| text.starts_with("Running"));
        seen.len() == 16 && ended && runs
    };
    harness.until("all pods in their expected phase", secs(20), all).await;
    let seen = summary(&harness).await;
    for (uid, text) in &ended {
        assert_eq!(seen.get(uid), Some(text), "a final status does not change");
    }
    for n in 0..12 {
        assert_eq!(seen[&format!("job{n}")], "Failed, app ×0 terminated 3 Error ready=false");
    }
    for n in 8..12 {
        assert_eq!(seen[&format!("p{n}")], "Running, app ×0 running ready=true", "p{n}");
    }
    assert_eq!(harness.runtime.violations(), Vec::<String>::new());
    let starts = harness.runtime.containers().iter().filter(|c| c.annotations[RESTART_COUNT] != "0").count();
    assert_eq!(starts, 0, "nothing was restarted");
}
