//! Bad input is named, and touches nothing else.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::ensure;
use podwright_testbed::{Flavor, wait_until};
use serde_json::json;

use super::{Bed, LIMIT, one, sleeper};

pub(crate) fn broken_manifests_are_named_and_touch_nothing_else(flavor: Flavor) {
    let bed = Bed::start(flavor);
    let dir = bed.scratch.manifests().expect("there");
    bed.put("good", &one(&sleeper("c")));
    let good = bed.wait_phase("good", "Running");
    fs::write(dir.join("truncated.yaml"), "apiVersion: v1\nkind: Pod\nmetadata: {name: t").expect("written");
    fs::write(dir.join("binary.yaml"), [0u8, 159, 146, 150, 0, 1]).expect("written");
    fs::write(dir.join("kind.yaml"), "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n").expect("written");
    fs::write(
        dir.join("slash.yaml"),
        "apiVersion: v1\nkind: Pod\nmetadata: {name: ../../etc}\nspec: {containers: []}\n",
    )
    .expect("written");
    let mut negative = one(&sleeper("c"));
    negative["terminationGracePeriodSeconds"] = json!(-5);
    bed.put("negative", &negative);
    fs::File::create(dir.join("huge.yaml")).expect("made").set_len(100 << 20).expect("grown");
    symlink("loop-b.yaml", dir.join("loop-a.yaml")).expect("linked");
    symlink("loop-a.yaml", dir.join("loop-b.yaml")).expect("linked");
    fs::create_dir(dir.join("directory.yaml")).expect("made");
    for file in
        ["truncated.yaml", "binary.yaml", "kind.yaml", "slash.yaml", "negative.json", "huge.yaml", "loop-a.yaml"]
    {
        wait_until(LIMIT, &format!("{file} to be named"), || {
            let log = bed.agent.log();
            ensure!(log.contains(file), "the log does not name it");
            Ok(())
        });
    }
    // A good file that breaks keeps its pod as it is, over a restart of the agent too.
    fs::write(dir.join("good.json"), "{\"apiVersion\": ").expect("written");
    std::thread::sleep(std::time::Duration::from_millis(700));
    let after = bed.phase("good", "Running").expect("it runs on");
    assert_eq!(after["metadata"]["uid"], good["metadata"]["uid"]);
    let mut bed = bed;
    bed.agent.kill9().expect("killed");
    bed.agent.start_again().expect("started");
    let after = bed.wait_phase("good", "Running");
    let id = |pod: &serde_json::Value| super::container(pod, "c")["containerID"].clone();
    assert_eq!(id(&after), id(&good), "the container was touched");
    for entry in fs::read_dir(&dir).expect("there").flatten() {
        let _ = fs::remove_file(entry.path());
    }
    bed.wait_nothing_left();
}
