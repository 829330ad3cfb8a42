//! The usual commands of crictl, on `podwright engine`.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::peer_engine::{PeerEngine, PodNetwork};

/// Any reference leads to the registry of the test.
const IMAGE: &str = "registry.test/e2e-test-images/busybox:1.29-2";

/// Runs crictl, which must succeed, and returns what it printed.
fn crictl(engine: &PeerEngine, arguments: &[&str]) -> Result<String> {
    let output =
        engine.client("crictl")?.args(["--timeout", "60s"]).args(arguments).output().context("start crictl")?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "crictl {}: {}: {out}{err}", arguments.join(" "), output.status);
    Ok(out.trim().to_owned())
}

/// The output of a command with its options, as JSON.
fn show(engine: &PeerEngine, command: &str, arguments: &[&str]) -> Result<Value> {
    let arguments = [&[command, "-o", "json"], arguments].concat();
    let text = crictl(engine, &arguments)?;
    serde_json::from_str(&text).with_context(|| format!("crictl {}: {text}", arguments.join(" ")))
}

fn write(engine: &PeerEngine, name: &str, value: &Value) -> Result<String> {
    let path: PathBuf = engine.scratch.path().join(name);
    fs::write(&path, value.to_string())?;
    Ok(path.to_string_lossy().into_owned())
}

/// A pod from its image to nothing left.
pub(crate) fn run(network: PodNetwork) -> Result<()> {
    let engine = PeerEngine::start(network)?;
    let id = images(&engine)?;
    let logs = engine.scratch.dir("logs/crictl")?;
    let metadata = json!({"name": "web", "namespace": "default", "uid": "web-uid", "attempt": 0});
    let pod = json!({"metadata": metadata, "hostname": "web", "log_directory": logs, "linux": {}});
    let script = "echo started; trap 'exit 3' TERM; while :; do sleep 0.1; done";
    let container = json!({
        "metadata": {"name": "main", "attempt": 0}, "image": {"image": IMAGE}, "command": ["sh", "-c", script],
        "log_path": "main.log", "linux": {},
    });
    let (pod, container) = (write(&engine, "pod.json", &pod)?, write(&engine, "container.json", &container)?);
    let sandbox = crictl(&engine, &["runp", &pod])?;
    let created = crictl(&engine, &["create", &sandbox, &container, &pod])?;
    assert_eq!(crictl(&engine, &["start", &created])?, created);
    running(&engine, &sandbox, &created, &id)?;
    ended(&engine, &sandbox, &created)?;
    ensure!(crictl(&engine, &["rmi", IMAGE])?.contains("Deleted"));
    assert_eq!(show(&engine, "images", &[])?["images"], json!([]));
    engine.end()
}

fn images(engine: &PeerEngine) -> Result<String> {
    let version = crictl(engine, &["version"])?;
    ensure!(version.contains("RuntimeName:  podwright"), "{version}");
    ensure!(crictl(engine, &["info"])?.contains("NetworkReady"));
    let pulled = crictl(engine, &["pull", IMAGE])?;
    let images = show(engine, "images", &[])?;
    assert_eq!(images["images"][0]["repoTags"], json!([IMAGE]), "{images}");
    let id = images["images"][0]["id"].as_str().context("an id")?.to_owned();
    ensure!(pulled.contains(&id), "{pulled}");
    assert_eq!(show(engine, "inspecti", &[IMAGE])?["status"]["id"], json!(id));
    Ok(id)
}

fn running(engine: &PeerEngine, sandbox: &str, container: &str, image: &str) -> Result<()> {
    let pods = show(engine, "pods", &[])?;
    assert_eq!((&pods["items"][0]["id"], &pods["items"][0]["state"]), (&json!(sandbox), &json!("SANDBOX_READY")));
    let listed = show(engine, "ps", &[])?;
    let found = &listed["containers"][0];
    assert_eq!((&found["id"], &found["state"]), (&json!(container), &json!("CONTAINER_RUNNING")), "{listed}");
    assert_eq!(crictl(engine, &["exec", container, "hostname"])?, "web");
    assert_eq!(crictl(engine, &["exec", "--sync", container, "hostname"])?, "web");
    let until = Instant::now() + Duration::from_secs(20);
    while crictl(engine, &["logs", container])? != "started" {
        ensure!(Instant::now() < until, "no log");
    }
    let inspected = show(engine, "inspect", &[container])?;
    assert_eq!(inspected["status"]["imageId"], json!(image), "{inspected}");
    ensure!(inspected["info"]["pid"].as_i64().is_some_and(|pid| pid > 1), "{inspected}");
    let pod = show(engine, "inspectp", &[sandbox])?;
    ensure!(pod["status"]["network"]["ip"].as_str().is_some_and(|ip| ip.starts_with("10.200.")), "{pod}");
    let stats = show(engine, "stats", &[])?;
    let measured = &stats["stats"][0];
    assert_eq!(measured["attributes"]["id"], json!(container), "{stats}");
    let bytes = measured["memory"]["workingSetBytes"]["value"].as_str().and_then(|bytes| bytes.parse::<u64>().ok());
    ensure!(bytes.is_some_and(|bytes| bytes > 0), "{stats}");
    assert_eq!(show(engine, "statsp", &[])?["stats"][0]["attributes"]["id"], json!(sandbox));
    let metrics = show(engine, "metricsp", &[])?;
    let pod = &metrics["podMetrics"][0];
    let ids = (&pod["podSandboxId"], &pod["containerMetrics"][0]["containerId"]);
    assert_eq!(ids, (&json!(sandbox), &json!(container)), "{metrics}");
    let described = crictl(engine, &["metricdescs"])?;
    let name = pod["containerMetrics"][0]["metrics"][0]["name"].as_str().unwrap_or_default();
    ensure!(!name.is_empty() && described.contains(&format!("\"{name}\"")), "{name:?} is not described: {described}");
    Ok(())
}

fn ended(engine: &PeerEngine, sandbox: &str, container: &str) -> Result<()> {
    assert_eq!(crictl(engine, &["stop", "--timeout", "30", container])?, container);
    let inspected = show(engine, "inspect", &[container])?;
    let status = &inspected["status"];
    assert_eq!((&status["state"], &status["exitCode"]), (&json!("CONTAINER_EXITED"), &json!(3)), "{inspected}");
    assert_eq!(crictl(engine, &["rm", container])?, container);
    assert_eq!(show(engine, "ps", &["-a"])?["containers"], json!([]));
    crictl(engine, &["stopp", sandbox])?;
    assert_eq!(show(engine, "pods", &[])?["items"][0]["state"], "SANDBOX_NOTREADY");
    crictl(engine, &["rmp", sandbox])?;
    assert_eq!(show(engine, "pods", &[])?["items"], json!([]));
    Ok(())
}
