//! A private containerd: Debian's 1.6, which has no CRI event stream, or 2.x, which has one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cache::Cache;
use crate::command::run;
use crate::containerd_config::{Layout, hosts_toml, network, version_2, version_3};
use crate::process::Process;
use crate::registry::Registry;
use crate::scratch::{Scratch, remove_shim_sockets};
use crate::wait::wait_until;
use crate::{host_state, image};

/// How long a start may take on a busy host.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// containerd 1.6, Debian 12's package.
    Debian16,
    /// The pinned containerd 2.x of `make peers`.
    V2,
    /// The engine in the agent; see [`crate::TestRuntime`].
    Engine,
}

/// A running containerd with the test images in it.
#[derive(Debug)]
pub struct Containerd {
    scratch: Scratch,
    flavor: Flavor,
    home: PathBuf,
    program: PathBuf,
    ctr: PathBuf,
    process: Process,
}

impl Containerd {
    /// Starts it in the scratch and imports the test images.
    pub fn start(scratch: &Scratch, flavor: Flavor) -> Result<Self> {
        Self::start_on(scratch, flavor, &Cache::find().debian("runc")?)
    }

    /// Starts the pinned 2.x with the pinned runc, which supports user namespaces. Debian's does not.
    pub fn start_with_user_namespaces(scratch: &Scratch) -> Result<Self> {
        Self::start_on(scratch, Flavor::V2, &Cache::find().peer("runc")?)
    }

    fn start_on(scratch: &Scratch, flavor: Flavor, runc: &Path) -> Result<Self> {
        ensure!(flavor != Flavor::Engine, "the engine is no containerd: use TestRuntime");
        let cache = Cache::find();
        let find = |name| if flavor == Flavor::V2 { cache.peer(name) } else { cache.debian(name) };
        let (program, ctr) = (find("containerd")?, find("ctr")?);
        let home = scratch.dir("containerd")?;
        configure(scratch, flavor, &home, runc)?;
        let process = launch(scratch, flavor, &program, &home)?;
        let containerd = Self { scratch: scratch.clone(), flavor, home, program, ctr, process };
        containerd.wait_ready()?;
        containerd.import(&image::archive()?)?;
        containerd.wait_images()?;
        Ok(containerd)
    }

    /// The version it was started with.
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.home.join("c.sock")
    }

    /// Its socket in the form of `--container-runtime-endpoint`.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Itself and its shims.
    pub fn processes(&self) -> Vec<u32> {
        host_state::shims_of(&self.scratch.path()).into_iter().chain([self.pid()]).collect()
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// SIGKILL; shims and containers keep running.
    pub fn kill9(&mut self) -> Result<()> {
        self.process.kill9().map(|_| ())
    }

    /// SIGTERM and wait; shims and containers keep running.
    pub fn stop(&mut self) -> Result<()> {
        self.process.terminate(Duration::from_secs(20)).map(|_| ())
    }

    /// Start again on the same directories, after [`Self::kill9`] or [`Self::stop`].
    pub fn start_again(&mut self) -> Result<()> {
        self.process = launch(&self.scratch, self.flavor, &self.program, &self.home)?;
        self.wait_ready()
    }

    /// Stop and start.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.start_again()
    }

    /// Simulates a power cut: kills containerd, shims and containers, removes mounts, cgroups and everything in /run, keeps disks.
    /// containerd stays down until [`Self::start_again`]; the agent must have been killed before.
    pub fn power_cut(&mut self) -> Result<()> {
        self.kill9()?;
        let (path, name) = (self.scratch.path(), self.scratch.name());
        host_state::kill_containers(&name, &path);
        remove_shim_sockets(&path);
        host_state::unmount_below(&path);
        host_state::remove_cgroup(&name);
        host_state::make_cgroup(&name)?;
        host_state::delete_link(&name);
        host_state::delete_nat_rules(&name);
        for volatile in [self.home.join("state"), self.home.join("runc"), self.scratch.run_dir()?] {
            if volatile.exists() {
                fs::remove_dir_all(&volatile).with_context(|| format!("remove {}", volatile.display()))?;
            }
        }
        // host-local stores addresses in /var by default, where they would leak; the image of a real node removes them at boot.
        let ipam = self.home.join("ipam");
        if ipam.exists() {
            fs::remove_dir_all(ipam)?;
        }
        Ok(())
    }

    /// Runs `ctr` in the CRI namespace and returns its stdout.
    pub fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.ctr);
        command.arg("-a").arg(self.socket()).args(["-n", "k8s.io"]).args(arguments);
        command.env("PATH", Cache::find().search_path(self.flavor == Flavor::V2));
        run(&mut command)
    }

    /// Runs a container without CRI until it exits and returns its output. `arguments` are its command.
    pub fn ctr_run(&self, image: &str, id: &str, arguments: &[&str]) -> Result<String> {
        let (cgroup, root) = (format!("{}/{id}", self.scratch.cgroup_root()), self.home.join("runc"));
        let (fifos, runc) = (self.scratch.dir("fifos")?, Cache::find().debian("runc")?);
        let mut command = vec!["run", "--rm", "--cgroup", &cgroup];
        let (fifos, root, runc) = (fifos.display().to_string(), root.display().to_string(), runc.display().to_string());
        command.extend(["--fifo-dir", &fifos, "--runc-root", &root, "--runc-binary", &runc, image, id]);
        command.extend(arguments);
        self.ctr(&command)
    }

    /// Import a docker-archive or an OCI archive.
    pub fn import(&self, archive: &Path) -> Result<()> {
        self.ctr(&["images", "import", &archive.display().to_string()]).map(|_| ())
    }

    /// Sends pulls of image references with this `host` to the registry. containerd reads it at each pull: no restart needed.
    pub fn use_registry(&self, host: &str, registry: &Registry) -> Result<()> {
        let dir = self.home.join("certs.d").join(host);
        fs::create_dir_all(&dir)?;
        Ok(fs::write(dir.join("hosts.toml"), hosts_toml(&registry.address()))?)
    }

    /// The ids of its containers, sandboxes included.
    pub fn containers(&self) -> Result<Vec<String>> {
        Ok(self.ctr(&["containers", "ls", "-q"])?.lines().map(str::to_owned).collect())
    }

    /// The process id of a running container.
    pub fn pid_of(&self, id: &str) -> Result<u32> {
        let tasks = self.ctr(&["tasks", "ls"])?;
        let task = tasks.lines().find(|line| line.split_whitespace().next() == Some(id));
        let pid = task.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        pid.with_context(|| format!("container {id} does not run: {tasks}"))
    }

    fn wait_ready(&self) -> Result<()> {
        wait_until(START_LIMIT, "containerd to be ready", || {
            let plugins = self.ctr(&["plugins", "ls"])?;
            let cri = plugins.lines().any(|line| line.contains("cri") && line.trim_end().ends_with("ok"));
            if cri { Ok(()) } else { Err(anyhow::anyhow!("no CRI plugin in:\n{plugins}")) }
        });
        Ok(())
    }

    /// The CRI plugin is notified of an import by an event, a moment later.
    fn wait_images(&self) -> Result<()> {
        wait_until(START_LIMIT, "CRI to know the imported images", || {
            let listed = self.ctr(&["images", "ls"])?;
            let managed = |name: &str| {
                listed.lines().any(|line| line.starts_with(name) && line.contains("io.cri-containerd.image=managed"))
            };
            let missing: Vec<_> = image::ALL.into_iter().filter(|name| !managed(name)).collect();
            if missing.is_empty() { Ok(()) } else { Err(anyhow::anyhow!("unknown to CRI: {missing:?}")) }
        });
        Ok(())
    }
}

fn configure(scratch: &Scratch, flavor: Flavor, home: &Path, runc: &Path) -> Result<()> {
    let cni_plugins = Cache::find().cni_plugins()?;
    scratch.uses_cni_plugins()?;
    let layout = Layout { home, runc, cni_plugins: &cni_plugins };
    let config = if flavor == Flavor::V2 { version_3(&layout) } else { version_2(&layout) };
    for dir in ["cni", "certs.d", "temp", "ipam"] {
        fs::create_dir_all(home.join(dir))?;
    }
    fs::write(home.join("config.toml"), config)?;
    let network = network(&scratch.name(), &scratch.subnet(), home);
    Ok(fs::write(home.join("cni/10-testbed.conflist"), network.to_string())?)
}

fn launch(scratch: &Scratch, flavor: Flavor, program: &Path, home: &Path) -> Result<Process> {
    let mut command = Command::new(program);
    command.arg("--config").arg(home.join("config.toml"));
    command.env("PATH", Cache::find().search_path(flavor == Flavor::V2));
    Process::start(scratch, "containerd", &mut command)
}
