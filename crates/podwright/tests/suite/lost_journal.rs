//! The journal is lost: what is wanted is found in the runtime and left alone, what is not ends as its own labels say.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use podwright_testbed::{Flavor, wait_until};
use serde_json::{Value, json};

use super::{Bed, LIMIT, container, one, sh, sleeper};

pub(crate) fn a_lost_journal_touches_nothing_that_is_wanted(flavor: Flavor) {
    let mut bed = Bed::start(flavor);
    let witness = bed.scratch.dir("witness").expect("made");
    bed.put("stays", &one(&sleeper("c")));
    bed.put("begun", &begun(&witness));
    let mut done = one(&sh("c", "exit 3"));
    done["restartPolicy"] = json!("Never");
    bed.put("done", &done);
    for name in ["leaves", "edited"] {
        bed.put(name, &slow_to_end(&witness, name));
    }
    for name in ["stays", "begun", "leaves", "edited"] {
        bed.wait_phase(name, "Running");
    }
    bed.wait_phase("done", "Failed");
    let before = ["stays", "begun", "done"].map(|name| instance(&bed, name).expect("there"));
    let edited = uid(&bed, "edited").expect("known");

    bed.agent.kill9().expect("killed");
    fs::remove_file(bed.scratch.root_dir().expect("there").join("journal")).expect("there was one");
    bed.remove("leaves");
    let mut next = one(&sh("c", "echo next >> /w/edited; trap 'exit 0' TERM; while :; do sleep 0.1; done"));
    shown(&mut next, &witness);
    bed.put("edited", &next);
    bed.agent.start_again().expect("started");

    wait_until(LIMIT, "the edited one to run anew", || {
        bed.phase("edited", "Running")?;
        ensure!(uid(&bed, "edited")? != edited, "the old one");
        ensure!(lines(&witness, "edited").last().is_some_and(|l| l == "next"), "{:?}", lines(&witness, "edited"));
        Ok(())
    });
    // The old one stood in its way and nobody knew its spec: its hook and its grace are written on its containers.
    assert_eq!(lines(&witness, "edited"), ["hook", "ended", "next"]);
    wait_until(LIMIT, "the one that left to be gone", || {
        ensure!(bed.pod("leaves").is_err(), "still there");
        Ok(())
    });
    assert_eq!(lines(&witness, "leaves"), ["hook"], "nobody wants it: its hook runs, and a second is its grace");
    bed.wait_phase("stays", "Running");
    bed.wait_phase("begun", "Running");
    bed.wait_phase("done", "Failed");
    assert_eq!(["stays", "begun", "done"].map(|name| instance(&bed, name).expect("there")), before);
    assert_eq!(
        (lines(&witness, "inits"), lines(&witness, "hooks")),
        (vec!["init".into()], vec!["hook".into()]),
        "again"
    );
    bed.remove_all();
    bed.wait_nothing_left();
}

fn begun(witness: &Path) -> Value {
    let mut spec = one(&sleeper("c"));
    spec["initContainers"] = json!([sh("i", "echo init >> /w/inits")]);
    spec["containers"][0]["lifecycle"] =
        json!({"postStart": {"exec": {"command": ["sh", "-c", "echo hook >> /w/hooks"]}}});
    shown(&mut spec, witness);
    spec["initContainers"][0]["volumeMounts"] = spec["containers"][0]["volumeMounts"].clone();
    spec
}

/// It takes three seconds from TERM to its end, and has more.
fn slow_to_end(witness: &Path, name: &str) -> Value {
    let script = format!("trap 'sleep 3; echo ended >> /w/{name}; exit 0' TERM; while :; do sleep 0.1; done");
    let mut c = sh("c", &script);
    let hook = json!(["sh", "-c", format!("echo hook >> /w/{name}")]);
    c["lifecycle"] = json!({"preStop": {"exec": {"command": hook}}});
    let mut spec = one(&c);
    spec["terminationGracePeriodSeconds"] = json!(20);
    shown(&mut spec, witness);
    spec
}

fn shown(spec: &mut Value, witness: &Path) {
    spec["containers"][0]["volumeMounts"] = json!([{"name": "w", "mountPath": "/w"}]);
    spec["volumes"] = json!([{"name": "w", "hostPath": {"path": witness}}]);
}

fn lines(witness: &Path, name: &str) -> Vec<String> {
    fs::read_to_string(witness.join(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn uid(bed: &Bed, name: &str) -> Result<Value> {
    Ok(bed.pod(name)?["metadata"]["uid"].clone())
}

/// What must not change: the container, how often it was restarted, and how it ended.
fn instance(bed: &Bed, name: &str) -> Result<[Value; 3]> {
    let pod = bed.pod(name)?;
    let c = container(&pod, "c");
    let id = c["containerID"].as_str().with_context(|| format!("{name} has no container: {c:#}"))?;
    Ok([json!(id), c["restartCount"].clone(), c["state"]["terminated"]["exitCode"].clone()])
}
