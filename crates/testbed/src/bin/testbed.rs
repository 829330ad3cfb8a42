//! `testbed up` starts what tests use: a cluster with one node on a private containerd or on the agent's engine, with the test
//! images; `testbed down` removes it.

use std::path::PathBuf;

use anyhow::{Result, bail};
use podwright_testbed::{Agent, ControlPlane, Flavor, GoKubelet, NodeRuntime, Scratch, TestRuntime, image};
use serde_json::json;

const USAGE: &str =
    "usage: testbed up [--runtime engine|debian|v2] [--agent podwright|kubelet|none] [--alone] | down [DIR|--all] | sweep | images
  up      start a control plane, a runtime and an agent, and print the environment to use them: eval \"$(testbed up)\"
  --alone no control plane: pods come from static pod manifests
  down    remove what up has started: in DIR, else in $TESTBED, else the only instance; with --all, every instance
  sweep   remove what killed test runs have left behind
  images  print the path of the archive with the test images";

/// The node's name.
const NODE: &str = "node";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["up", options @ ..] => up(&parse(options)?),
        ["down"] => down(std::env::var_os("TESTBED").map(PathBuf::from)),
        ["down", "--all"] => remove(&Scratch::kept()),
        ["down", dir] if !dir.starts_with('-') => down(Some(dir.into())),
        ["-h" | "--help" | "help"] => {
            println!("{USAGE}");
            Ok(())
        }
        ["sweep"] => {
            Scratch::sweep();
            Ok(())
        }
        ["images"] => {
            println!("{}", image::archive()?.display());
            Ok(())
        }
        _ => bail!(USAGE),
    }
}

/// Removes the instance in this directory, or the only one.
fn down(dir: Option<PathBuf>) -> Result<()> {
    let kept = Scratch::kept();
    match dir {
        Some(dir) if kept.contains(&dir) => remove(&[dir]),
        Some(dir) => bail!("{} is not an instance of `testbed up`; instances: {kept:?}", dir.display()),
        None if kept.len() < 2 => remove(&kept),
        None => bail!("several instances: {kept:?}; give a directory or --all"),
    }
}

fn remove(dirs: &[PathBuf]) -> Result<()> {
    for dir in dirs {
        Scratch::remove_kept(dir);
        println!("removed {}", dir.display());
    }
    Ok(())
}

/// What `up` starts.
struct Options {
    flavor: Flavor,
    agent: AgentKind,
    alone: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum AgentKind {
    Podwright,
    Kubelet,
    None,
}

fn parse(arguments: &[&str]) -> Result<Options> {
    let mut options = Options { flavor: Flavor::V2, agent: AgentKind::Podwright, alone: false };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match (*argument, if *argument == "--alone" { None } else { arguments.next().copied() }) {
            ("--alone", _) => options.alone = true,
            ("--runtime", Some("debian")) => options.flavor = Flavor::Debian16,
            ("--runtime", Some("engine")) => options.flavor = Flavor::Engine,
            ("--runtime", Some("v2")) => options.flavor = Flavor::V2,
            ("--agent", Some("podwright")) => options.agent = AgentKind::Podwright,
            ("--agent", Some("kubelet")) => options.agent = AgentKind::Kubelet,
            ("--agent", Some("none")) => options.agent = AgentKind::None,
            _ => bail!(USAGE),
        }
    }
    Ok(options)
}

/// Starts an instance and prints shell assignments.
fn up(options: &Options) -> Result<()> {
    let scratch = Scratch::new()?;
    let plane = if options.alone { None } else { Some(ControlPlane::start(&scratch)?) };
    let mut runtime = TestRuntime::start(&scratch, options.flavor)?;
    let kubeconfig = plane.as_ref().map(|plane| plane.node_kubeconfig(NODE)).transpose()?;
    let mut agents = (None, None);
    match (options.agent, &kubeconfig) {
        (AgentKind::Podwright, kubeconfig) => {
            let mut agent = Agent::new(&scratch).runtime(&runtime).hostname(NODE);
            if let Some(kubeconfig) = kubeconfig {
                agent = agent.kubeconfig(kubeconfig);
            }
            agents.0 = Some(agent.start()?);
        }
        (AgentKind::Kubelet, Some(kubeconfig)) => {
            agents.1 = Some(GoKubelet::start_joined(&scratch, runtime.containerd()?, NODE, kubeconfig, &json!({}))?);
        }
        (AgentKind::Kubelet, None) => {
            agents.1 = Some(GoKubelet::start_standalone(&scratch, runtime.containerd()?, NODE, &json!({}))?);
        }
        (AgentKind::None, _) => {}
    }
    if let Some(plane) = &plane {
        println!("export KUBECONFIG={}", plane.admin_kubeconfig().display());
    }
    if let Some(kubeconfig) = kubeconfig {
        println!("export TESTBED_NODE_KUBECONFIG={}", kubeconfig.display());
    }
    println!("export CONTAINER_RUNTIME_ENDPOINT=unix://{}", runtime.socket().display());
    if let Ok(containerd) = runtime.containerd() {
        println!("export CONTAINERD_ADDRESS={}", containerd.socket().display());
        println!("export CONTAINERD_NAMESPACE=k8s.io");
    }
    let endpoint = runtime.endpoint().map(|endpoint| format!("--container-runtime-endpoint {endpoint}"));
    let flags = runtime.arguments().into_iter().map(|flag| flag.to_string_lossy().into_owned());
    let flags: Vec<String> = endpoint.into_iter().chain(flags).collect();
    println!("export TESTBED_AGENT_FLAGS='{}'", flags.join(" "));
    println!("export TESTBED={}", scratch.path().display());
    println!("export TESTBED_MANIFESTS={}", scratch.manifests()?.display());
    println!("export TESTBED_CGROUP_ROOT={}", scratch.cgroup_root());
    println!("# Images: {}. To remove everything: testbed down", image::ALL.join(" "));
    scratch.keep()?;
    // Their destructors would kill them; `testbed down` removes them.
    std::mem::forget((plane, runtime, agents));
    Ok(())
}
