//! `testbed up` gives a person what tests get: a cluster of one node on a containerd of its own, with the test images;
//! `testbed down` takes it away.

use std::path::PathBuf;

use anyhow::{Result, bail};
use podwright_testbed::{Agent, Containerd, ControlPlane, Flavor, GoKubelet, Scratch, image};
use serde_json::json;

const USAGE: &str =
    "usage: testbed up [--runtime debian|v2] [--agent podwright|kubelet|none] [--alone] | down [DIR|--all] | sweep | images
  up      starts a control plane, containerd and an agent, and prints how to use them: eval \"$(testbed up)\"
  --alone no control plane: pods come from manifests
  down    takes away what up has started: in DIR, else in $TESTBED, else the only one there is; with --all, everything
  sweep   takes away what tests that died have left
  images  prints where the test images are";

/// The node's name.
const NODE: &str = "node";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
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

/// The one in this directory, or the only one.
fn down(dir: Option<PathBuf>) -> Result<()> {
    let kept = Scratch::kept();
    match dir {
        Some(dir) if kept.contains(&dir) => remove(&[dir]),
        Some(dir) => bail!("nothing that `testbed up` has started is in {}; there is: {kept:?}", dir.display()),
        None if kept.len() < 2 => remove(&kept),
        None => bail!("there are {kept:?}: name one, or --all"),
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
    agent: Kind,
    alone: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Podwright,
    Kubelet,
    None,
}

fn parse(words: &[&str]) -> Result<Options> {
    let mut options = Options { flavor: Flavor::V2, agent: Kind::Podwright, alone: false };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match (*word, if *word == "--alone" { None } else { words.next().copied() }) {
            ("--alone", _) => options.alone = true,
            ("--runtime", Some("debian")) => options.flavor = Flavor::Debian16,
            ("--runtime", Some("v2")) => options.flavor = Flavor::V2,
            ("--agent", Some("podwright")) => options.agent = Kind::Podwright,
            ("--agent", Some("kubelet")) => options.agent = Kind::Kubelet,
            ("--agent", Some("none")) => options.agent = Kind::None,
            _ => bail!(USAGE),
        }
    }
    Ok(options)
}

/// Prints shell assignments.
fn up(options: &Options) -> Result<()> {
    let scratch = Scratch::new()?;
    let plane = if options.alone { None } else { Some(ControlPlane::start(&scratch)?) };
    let containerd = Containerd::start(&scratch, options.flavor)?;
    let kubeconfig = plane.as_ref().map(|plane| plane.node_kubeconfig(NODE)).transpose()?;
    let mut agents = (None, None);
    match (options.agent, &kubeconfig) {
        (Kind::Podwright, kubeconfig) => {
            let mut agent = Agent::new(&scratch).runtime(&containerd).hostname(NODE);
            if let Some(kubeconfig) = kubeconfig {
                agent = agent.kubeconfig(kubeconfig);
            }
            agents.0 = Some(agent.start()?);
        }
        (Kind::Kubelet, Some(kubeconfig)) => {
            agents.1 = Some(GoKubelet::start_joined(&scratch, &containerd, NODE, kubeconfig, &json!({}))?);
        }
        (Kind::Kubelet, None) => {
            agents.1 = Some(GoKubelet::start_standalone(&scratch, &containerd, NODE, &json!({}))?);
        }
        (Kind::None, _) => {}
    }
    if let Some(plane) = &plane {
        println!("export KUBECONFIG={}", plane.admin_kubeconfig().display());
    }
    if let Some(kubeconfig) = kubeconfig {
        println!("export TESTBED_NODE_KUBECONFIG={}", kubeconfig.display());
    }
    println!("export CONTAINER_RUNTIME_ENDPOINT={}", containerd.endpoint());
    println!("export CONTAINERD_ADDRESS={}", containerd.socket().display());
    println!("export CONTAINERD_NAMESPACE=k8s.io");
    println!("export TESTBED={}", scratch.path().display());
    println!("export TESTBED_MANIFESTS={}", scratch.manifests()?.display());
    println!("export TESTBED_CGROUP_ROOT={}", scratch.cgroup_root());
    println!("# Images: {}. The end: testbed down", image::ALL.join(" "));
    scratch.keep()?;
    // Their destructors would kill them; from here on they belong to `testbed down`.
    std::mem::forget((plane, containerd, agents));
    Ok(())
}
