//! `podwright run` on its own engine, when the engine cannot start.

use std::process::Command;

use podwright_linux::lock_file;

#[test]
fn an_engine_that_another_process_uses_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let (root, run) = (dir.path().join("root"), dir.path().join("run"));
    std::fs::create_dir_all(root.join("engine")).expect("made");
    let lock = root.join("engine/lock");
    let _held = lock_file::take(&lock).expect("free");
    let mut agent = Command::new(env!("CARGO_BIN_EXE_podwright"));
    // The engine takes its lock before it changes anything on the host. No flag names a runtime: it is the default.
    agent.args(["run", "--fail-swap-on=false", "--hostname-override=node", "--root-dir"]).arg(&root);
    let output = agent.arg("--run-dir").arg(&run).output().expect("it runs");
    let message = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    let cause = format!("open the embedded engine: {} is in use by process {}", lock.display(), std::process::id());
    assert!(message.contains(&cause) && message.contains("use another --root-dir"), "{message}");
}
