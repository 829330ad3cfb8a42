//! `testbed up` gives a person what tests get: a containerd of their own with the test images; `testbed down` takes it away.

use anyhow::{Result, bail};
use podwright_testbed::{Containerd, Flavor, Scratch, image};

const USAGE: &str = "usage: testbed up [--runtime debian|v2] | down | sweep | images";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["up"] | ["up", "--runtime", "debian"] => up(Flavor::Debian16),
        ["up", "--runtime", "v2"] => up(Flavor::V2),
        ["down"] => {
            Scratch::remove_kept().iter().for_each(|path| println!("removed {}", path.display()));
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

/// Prints shell assignments: `eval "$(testbed up)"`.
fn up(flavor: Flavor) -> Result<()> {
    let scratch = Scratch::new()?;
    let containerd = Containerd::start(&scratch, flavor)?;
    println!("CONTAINER_RUNTIME_ENDPOINT={}", containerd.endpoint());
    println!("CONTAINERD_ADDRESS={}", containerd.socket().display());
    println!("CONTAINERD_NAMESPACE=k8s.io");
    println!("TESTBED={}", scratch.path().display());
    println!("TESTBED_MANIFESTS={}", scratch.manifests()?.display());
    println!("TESTBED_CGROUP_ROOT={}", scratch.cgroup_root());
    scratch.keep()?;
    // Its destructor would kill it; from here on it belongs to `testbed down`.
    std::mem::forget(containerd);
    Ok(())
}
