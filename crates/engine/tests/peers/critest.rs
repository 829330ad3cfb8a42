//! critest, the conformance suite of the CRI, on `podwright engine`.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use podwright_testbed::Process;
use serde_json::Value;

use crate::peer_engine::{PeerEngine, PodNetwork};

/// The specs of critest 1.36, without its benchmarks.
const SPECS: usize = 117;
/// Those of exec, attach and port-forward.
const STREAMING: usize = 5;
/// Those of names, addresses and ports of pods.
const NETWORKING: usize = 4;

/// Specs that do not pass, with the reason.
const MISSING: &[(&str, &str)] = &[
    (
        "[k8s.io] AppArmor runtime should prefer new apparmor field should enforce a apparmor_profile blocking writes",
        NO_APPARMOR,
    ),
    (
        "[k8s.io] AppArmor runtime should prefer new apparmor field should fail with an unloaded apparmor_profile",
        NO_APPARMOR,
    ),
    ("[k8s.io] AppArmor runtime should prefer new apparmor field should work with apparmor profile", NO_APPARMOR),
    (
        "[k8s.io] AppArmor runtime should support apparmor field should enforce a apparmor_profile blocking writes",
        NO_APPARMOR,
    ),
    (
        "[k8s.io] AppArmor runtime should support apparmor field should enforce a permissive deprecated profile",
        NO_APPARMOR,
    ),
    (
        "[k8s.io] AppArmor runtime should support apparmor field should fail with an unloaded apparmor_profile",
        NO_APPARMOR,
    ),
    (
        "[k8s.io] AppArmor runtime should support deprecated apparmor_profile field should enforce a apparmor_profile blocking writes",
        NO_APPARMOR,
    ),
    (
        "[k8s.io] AppArmor runtime should support deprecated apparmor_profile field should enforce a permissive deprecated profile",
        NO_APPARMOR,
    ),
    (
        "[k8s.io] AppArmor runtime should support deprecated apparmor_profile field should fail with an unloaded apparmor_profile",
        NO_APPARMOR,
    ),
    ("[k8s.io] Image Manager public image with digest should be pulled and removed [Conformance]", FIXED_DIGEST),
];
const NO_APPARMOR: &str = "skipped: the kernel has no AppArmor";
const FIXED_DIGEST: &str = "failed: the digest of the image is part of critest, and no local image has it";

/// For one run of critest, which takes about a minute.
const LIMIT: Duration = Duration::from_secs(600);

pub(crate) fn run() -> Result<()> {
    let engine = PeerEngine::start(PodNetwork::Builtin)?;
    let specs = critest(&engine, "all", &[])?;
    assert_eq!(specs.len(), SPECS, "{:#?}", specs.keys());
    let missing: BTreeMap<&str, &Spec> =
        specs.iter().filter(|(_, spec)| spec.state != "passed").map(|(name, spec)| (name.as_str(), spec)).collect();
    let accepted: BTreeMap<&str, &str> = MISSING.iter().copied().collect();
    for (name, spec) in missing.iter().filter(|(name, _)| !accepted.contains_key(*name)) {
        println!("---- {name}: {}\n{}", spec.state, spec.output);
    }
    let states = missing.iter().map(|(name, spec)| (*name, spec.state.as_str())).collect::<BTreeMap<_, _>>();
    let state = |reason: &'static str| reason.split_once(':').map_or(reason, |(state, _)| state);
    assert_eq!(states, accepted.iter().map(|(name, reason)| (*name, state(reason))).collect());
    // The same streams by the other protocol.
    let websockets = ["-websocket-exec", "-websocket-attach", "-websocket-portforward", "-ginkgo.focus=Streaming"];
    focused(&engine, "websockets", &websockets, STREAMING)?;
    engine.end()
}

/// The specs that the network of a pod matters for, on CNI plugins.
pub(crate) fn run_on_cni() -> Result<()> {
    let engine = PeerEngine::start(PodNetwork::Cni)?;
    focused(&engine, "networking", &["-ginkgo.focus=Networking"], NETWORKING)?;
    engine.end()
}

/// All specs of a part pass, and there are so many.
fn focused(engine: &PeerEngine, name: &str, arguments: &[&str], count: usize) -> Result<()> {
    let specs = critest(engine, name, arguments)?;
    let ran: Vec<_> = specs.iter().filter(|(_, spec)| spec.state != "skipped").collect();
    for (name, spec) in ran.iter().filter(|(_, spec)| spec.state != "passed") {
        println!("---- {name}: {}\n{}", spec.state, spec.output);
    }
    assert_eq!(ran.iter().map(|(_, spec)| spec.state.as_str()).collect::<Vec<_>>(), vec!["passed"; count]);
    Ok(())
}

/// The report of a spec.
struct Spec {
    /// `passed`, `failed`, `skipped` and others.
    state: String,
    /// What it printed, and how it failed.
    output: String,
}

/// Runs critest and reads its report; the exit code says less.
fn critest(engine: &PeerEngine, name: &str, arguments: &[&str]) -> Result<BTreeMap<String, Spec>> {
    let report = engine.scratch.path().join(format!("critest-{name}.json"));
    let mut command = engine.client("critest")?;
    command.arg("-ginkgo.no-color").arg(format!("-ginkgo.json-report={}", report.display())).args(arguments);
    let mut process = Process::start(&engine.scratch, &format!("critest-{name}"), &mut command)?;
    process.wait(LIMIT)?;
    read(&report).with_context(|| format!("the report of critest; its output:\n{}", process.log()))
}

fn read(report: &Path) -> Result<BTreeMap<String, Spec>> {
    let suites: Value = serde_json::from_reader(File::open(report)?)?;
    let suites = suites.as_array().context("no list of suites")?;
    let reports = suites.iter().flat_map(|suite| suite["SpecReports"].as_array()).flatten();
    let mut specs = BTreeMap::new();
    for report in reports.filter(|report| report["LeafNodeType"] == "It") {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut parts: Vec<String> =
            report["ContainerHierarchyTexts"].as_array().into_iter().flatten().map(text).collect();
        parts.push(text(&report["LeafNodeText"]));
        let name = parts.join(" ");
        if name.contains("benchmark") {
            continue;
        }
        let state = text(&report["State"]);
        let output =
            format!("{}\n{}", text(&report["CapturedGinkgoWriterOutput"]), text(&report["Failure"]["Message"]));
        specs.insert(name, Spec { state, output });
    }
    Ok(specs)
}
