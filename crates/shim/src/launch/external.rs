//! Containers of another OCI runtime, such as runc: it is run as a program, by a helper that then ends.
//!
//! ```text
//!  init   shim ── clone3 ──▶ helper, in a mount namespace with the root: runtime create ──▶ init ── runtime start ──▶ the program
//!  exec   shim ── clone3 ──▶ helper: runtime exec --detach ──▶ the program
//! ```
//! The program becomes a child of the shim when the runtime has ended, because the shim is the next subreaper: its exit is observed like
//! that of any other container. Root and namespaces are those of the plan, so that nothing is mounted on the host.

// A signal at the death of the helper has to be asked for between fork and exec.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use podwright_linux::fsctx::{self, MountPropagation};
use podwright_linux::namespace::{exit_now, flags};
use podwright_linux::pidfd::PidFd;
use podwright_linux::scm;
use serde_json::{Value, json};

use super::finish::streams;
use super::pending::{send_process, send_sibling, spawn_adopting};
use super::{ContainerStdio, LaunchFailure, LaunchStep, PendingLaunch, PodNamespaces};
use super::{reset, rootfs, targets, user};
use crate::plan::{ExecPlan, ExternalRuntime, LaunchPlan, ProcessPlan, ResolvedUser};

/// Begins a container of another runtime.
pub(crate) fn begin_external_init(
    plan: &LaunchPlan,
    runtime: &ExternalRuntime,
    namespaces: &PodNamespaces,
    stdio: ContainerStdio,
) -> Result<PendingLaunch, LaunchFailure> {
    if namespaces.user.is_some() {
        return Err(LaunchFailure::new(LaunchStep::Plan, "a user namespace is not supported with another runtime"));
    }
    let reports = scm::packet_pair().map_err(|e| LaunchFailure::io(LaunchStep::Clone, "report socket", &e))?;
    let options = reset::clone_into(flags::NEWNS, None);
    spawn_adopting(&options, reports, |report| create_and_start(plan, runtime, namespaces, &stdio, report))
}

/// Begins a process in a container of another runtime.
pub(crate) fn begin_external_exec(
    plan: &ExecPlan,
    runtime: &ExternalRuntime,
    stdio: ContainerStdio,
) -> Result<PendingLaunch, LaunchFailure> {
    let reports = scm::packet_pair().map_err(|e| LaunchFailure::io(LaunchStep::Clone, "report socket", &e))?;
    spawn_adopting(&reset::clone_into(0, None), reports, |report| exec(plan, runtime, &stdio, report))
}

fn create_and_start(
    plan: &LaunchPlan,
    runtime: &ExternalRuntime,
    namespaces: &PodNamespaces,
    stdio: &ContainerStdio,
    report: BorrowedFd<'_>,
) -> Result<Infallible, LaunchFailure> {
    let missing = |what: &str| LaunchFailure::new(LaunchStep::Plan, format!("launch plan: no {what}"));
    let process = plan.process.as_ref().ok_or_else(|| missing("process"))?;
    let layers = plan.rootfs.as_ref().ok_or_else(|| missing("root"))?;
    reset::inherited_state(process.umask)?;
    let user = attach_root(plan, layers, stdio)?;
    let bundle = Bundle { runtime, id: &plan.container_id, dir: Path::new(&runtime.bundle) };
    fs::create_dir_all(bundle.dir).map_err(|e| file_failure("make", bundle.dir, &e))?;
    let mut config = read_json(Path::new(&runtime.specification))?;
    let root = json!({ "path": plan.staging_dir, "readonly": layers.readonly || config["root"]["readonly"] == true });
    config["root"] = root;
    config["process"]["user"] = json!({ "uid": user.uid, "gid": user.gid, "additionalGids": user.groups });
    config["process"]["terminal"] = process.terminal.into();
    add_home(&mut config["process"]["env"], &user.home);
    join(&mut config["linux"]["namespaces"], namespaces);
    make_sources(&config["mounts"])?;
    write_json(&bundle.path(CONFIG), &config)?;
    let console = process.terminal.then(|| Console::listen(bundle.dir)).transpose()?;
    let [directory, pid_file] = [bundle.dir.to_path_buf(), bundle.path("init.pid")].map(text);
    bundle.run(&["create", "--bundle", &directory, "--pid-file", &pid_file], console.as_ref(), Some(stdio))?;
    let init = process_of(&pid_file)?;
    send_sibling(report, &init)?;
    let master = console.map(Console::receive).transpose()?;
    bundle.run(&["start"], None, None)?;
    send_process(report, &init, &user, master.as_ref())?;
    exit_now(0)
}

fn exec(
    plan: &ExecPlan,
    runtime: &ExternalRuntime,
    stdio: &ContainerStdio,
    report: BorrowedFd<'_>,
) -> Result<Infallible, LaunchFailure> {
    let missing = |what: &str| LaunchFailure::new(LaunchStep::Plan, format!("exec plan: no {what}"));
    let process = plan.process.as_ref().ok_or_else(|| missing("process"))?;
    let user = plan.user.as_ref().ok_or_else(|| missing("user"))?;
    reset::inherited_state(process.umask)?;
    user::own_streams(&streams(stdio), user.uid);
    let bundle = Bundle { runtime, id: &plan.container_id, dir: Path::new(&runtime.bundle) };
    let config = read_json(&bundle.path(CONFIG))?;
    let own = format!("exec-{}", std::process::id());
    let files = [format!("{own}.json"), format!("{own}.pid")].map(|name| bundle.path(&name));
    write_json(&files[0], &exec_process(&config["process"], process))?;
    let console = process.terminal.then(|| Console::listen(bundle.dir)).transpose()?;
    let [process_file, pid_file] = files.clone().map(text);
    let arguments = ["exec", "--detach", "--process", &process_file, "--pid-file", &pid_file];
    let done = bundle.run(&arguments, console.as_ref(), Some(stdio)).and_then(|()| process_of(&pid_file));
    files.iter().for_each(|file| drop(fs::remove_file(file)));
    let started = done?;
    send_sibling(report, &started)?;
    let master = console.map(Console::receive).transpose()?;
    send_process(report, &started, user, master.as_ref())?;
    exit_now(0)
}

/// The root in the mount namespace of the helper, at the place that the specification names; and the user in its files.
fn attach_root(
    plan: &LaunchPlan,
    layers: &crate::plan::RootfsPlan,
    stdio: &ContainerStdio,
) -> Result<ResolvedUser, LaunchFailure> {
    let failed = |what: &'static str| move |e: io::Error| LaunchFailure::io(LaunchStep::Rootfs, what, &e);
    fsctx::change_root(MountPropagation::Slave).map_err(failed("make the mounts of the host slaves"))?;
    let root = rootfs::make(layers, plan.rootfs_propagation(), None, &plan.staging_dir)?;
    let user = user::resolve(&root, &plan.user.clone().unwrap_or_default())?;
    user::own_streams(&streams(stdio), user.uid);
    let staging = targets::open_host(&plan.staging_dir)
        .map_err(|e| LaunchFailure::io(LaunchStep::Rootfs, &plan.staging_dir, &e.into()))?;
    fsctx::attach(&root, staging).map_err(failed("attach the root"))?;
    Ok(user)
}

/// As the builtin launcher and containerd: a source on the host that does not exist becomes a directory.
fn make_sources(mounts: &Value) -> Result<(), LaunchFailure> {
    let bound = mounts.as_array().into_iter().flatten().filter(|mount| mount["type"] == "bind");
    for source in bound.filter_map(|mount| mount["source"].as_str()).map(Path::new) {
        if fs::symlink_metadata(source).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            fs::create_dir_all(source).map_err(|e| file_failure("make", source, &e))?;
        }
    }
    Ok(())
}

/// As the builtin launcher: `HOME` of the user, if nothing sets it.
fn add_home(env: &mut Value, home: &str) {
    let Some(env) = env.as_array_mut() else { return };
    if !env.iter().any(|entry| entry.as_str().is_some_and(|entry| entry.starts_with("HOME="))) {
        env.push(format!("HOME={home}").into());
    }
}

/// The namespaces of the pod by the descriptors of this process, which outlives the runtime.
fn join(all: &mut Value, pod: &PodNamespaces) {
    let own = std::process::id();
    for namespace in all.as_array_mut().into_iter().flatten().filter(|namespace| namespace["path"].is_string()) {
        let fd = match namespace["type"].as_str() {
            Some("network") => &pod.net,
            Some("ipc") => &pod.ipc,
            Some("uts") => &pod.uts,
            Some("pid") => &pod.pid,
            _ => &None,
        };
        if let Some(fd) = fd {
            namespace["path"] = format!("/proc/{own}/fd/{}", fd.as_raw_fd()).into();
        }
    }
}

/// The process of the container with another command.
fn exec_process(init: &Value, plan: &ProcessPlan) -> Value {
    let texts =
        |all: &[Vec<u8>]| all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect::<Vec<_>>();
    let mut process = init.clone();
    let home = init["env"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|entry| entry.as_str().is_some_and(|entry| entry.starts_with("HOME=")));
    process["args"] = texts(&plan.argv).into();
    process["env"] = texts(&plan.env).into();
    if let Some(home) = home.and_then(Value::as_str) {
        add_home(&mut process["env"], home.trim_start_matches("HOME="));
    }
    process["terminal"] = plan.terminal.into();
    process
}

/// A container in the form of the OCI runtime specification.
struct Bundle<'a> {
    runtime: &'a ExternalRuntime,
    id: &'a str,
    dir: &'a Path,
}

impl Bundle<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Runs the runtime to its end. It ends with this process, which the shim kills at the deadline of the launch.
    fn run(
        &self,
        arguments: &[&str],
        console: Option<&Console>,
        stdio: Option<&ContainerStdio>,
    ) -> Result<(), LaunchFailure> {
        let log = self.path(&format!("runtime-{}.log", std::process::id()));
        let mut command = Command::new(&self.runtime.path);
        command.env_clear().env("PATH", SEARCH_PATH).current_dir("/");
        command
            .args(["--root", &self.runtime.root, "--log", &text(log.clone()), "--log-format", "json"])
            .args(arguments);
        if let Some(console) = console {
            command.args(["--console-socket", &console.path()]);
        }
        command.arg(self.id);
        let [stdin, stdout, stderr] = self.streams(stdio)?;
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        // SAFETY: one system call between fork and exec, without memory of ours.
        unsafe {
            command.pre_exec(|| {
                let kill = Some(rustix::process::Signal::KILL);
                Ok(rustix::process::set_parent_process_death_signal(kill)?)
            });
        }
        let status = command.status();
        let reported = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        let subject = format!("{} {}", self.runtime.path, arguments[0]);
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                let reason = last_error(&reported).unwrap_or_else(|| status.to_string());
                Err(LaunchFailure::new(LaunchStep::Exec, format!("{subject}: {reason}")))
            }
            Err(error) => Err(LaunchFailure::io(LaunchStep::Exec, subject, &error)),
        }
    }

    /// A terminal is the runtime's own.
    fn streams(&self, stdio: Option<&ContainerStdio>) -> Result<[Stdio; 3], LaunchFailure> {
        let Some(ContainerStdio::Streams { stdin, stdout, stderr }) = stdio else {
            return Ok([Stdio::null(), Stdio::null(), Stdio::null()]);
        };
        let failed = |e: io::Error| LaunchFailure::io(LaunchStep::Terminal, "copy the standard streams", &e);
        let copy = |fd: &OwnedFd| fd.try_clone().map(Stdio::from).map_err(failed);
        Ok([copy(stdin)?, copy(stdout)?, copy(stderr)?])
    }
}

/// The socket on which a runtime sends the master of the terminal that it has made.
struct Console {
    dir: OwnedFd,
    name: String,
    listener: UnixListener,
}

impl Console {
    fn listen(dir: &Path) -> Result<Self, LaunchFailure> {
        let name = format!("console-{}", std::process::id());
        let _ = fs::remove_file(dir.join(&name));
        let opened = fs::File::open(dir).map_err(|e| file_failure("open", dir, &e))?;
        // Through the descriptor, because `sun_path` has 108 bytes.
        let path = format!("/proc/self/fd/{}/{name}", opened.as_raw_fd());
        let listener = UnixListener::bind(path).map_err(|e| file_failure("listen in", dir, &e))?;
        Ok(Self { dir: opened.into(), name, listener })
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}/{}", std::process::id(), self.dir.as_raw_fd(), self.name)
    }

    fn receive(self) -> Result<OwnedFd, LaunchFailure> {
        let failed = |e: &io::Error| LaunchFailure::io(LaunchStep::Terminal, "receive the terminal", e);
        let (socket, _) = self.listener.accept().map_err(|e| failed(&e))?;
        let _ = rustix::fs::unlinkat(&self.dir, &self.name, rustix::fs::AtFlags::empty());
        // The name of the terminal, which no one needs.
        let received = scm::receive(&socket, &mut [0; 4096]).map_err(|e| failed(&e))?;
        let master = received.and_then(|(_, fds)| fds.into_iter().next());
        master.ok_or_else(|| LaunchFailure::new(LaunchStep::Terminal, "the runtime sent no terminal"))
    }
}

fn process_of(pid_file: &str) -> Result<OwnedFd, LaunchFailure> {
    let failed = |e: &io::Error| file_failure("read", Path::new(pid_file), e);
    let text = fs::read_to_string(pid_file).map_err(|e| failed(&e))?;
    let pid = text.trim().parse::<u32>().map_err(|e| failed(&io::Error::other(e)))?;
    Ok(PidFd::open(pid).map_err(|e| failed(&e))?.into_fd())
}

/// The message of the last error in a log of JSON lines.
fn last_error(log: &str) -> Option<String> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let errors = lines.filter(|line| line["level"] == "error" || line["level"] == "fatal");
    errors.filter_map(|line| line["msg"].as_str().map(|text| text.trim().to_owned())).next_back()
}

fn read_json(path: &Path) -> Result<Value, LaunchFailure> {
    let read = fs::read(path).and_then(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::other));
    read.map_err(|e| file_failure("read", path, &e))
}

fn write_json(path: &Path, value: &Value) -> Result<(), LaunchFailure> {
    fs::write(path, value.to_string()).map_err(|e| file_failure("write", path, &e))
}

fn file_failure(action: &str, path: &Path, error: &io::Error) -> LaunchFailure {
    LaunchFailure::io(LaunchStep::Plan, format!("{action} {}", path.display()), error)
}

fn text(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}

const CONFIG: &str = "config.json";
/// For what a runtime itself starts.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_the_log_is_the_reason() {
        let log = "{\"level\":\"warning\",\"msg\":\"old\"}\n{\"level\":\"error\",\"msg\":\"first\"}\nnot json\n\
                   {\"level\":\"error\",\"msg\":\"exec: \\\"x\\\": not found\\n\"}\n";
        assert_eq!(last_error(log).as_deref(), Some("exec: \"x\": not found"));
        assert_eq!(last_error(""), None);
    }

    #[test]
    fn an_exec_has_the_rights_of_the_init_and_its_own_command() {
        let init =
            json!({"user": {"uid": 7}, "args": ["init"], "env": ["A=1", "HOME=/h"], "cwd": "/w", "terminal": true});
        let plan = ProcessPlan { argv: vec![b"ls".to_vec()], env: vec![b"A=2".to_vec()], ..ProcessPlan::default() };
        let expected =
            json!({"user": {"uid": 7}, "args": ["ls"], "env": ["A=2", "HOME=/h"], "cwd": "/w", "terminal": false});
        assert_eq!(exec_process(&init, &plan), expected);
    }

    #[test]
    fn only_namespaces_of_the_pod_are_joined() {
        let file: OwnedFd = fs::File::open("/dev/null").unwrap().into();
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let mut all = json!([{"type": "mount"}, {"type": "pid"}, {"type": "ipc", "path": "/x"}, {"type": "network", "path": "/n"}]);
        join(&mut all, &PodNamespaces { ipc: Some(file), ..PodNamespaces::default() });
        let expected = json!([{"type": "mount"}, {"type": "pid"}, {"type": "ipc", "path": path}, {"type": "network", "path": "/n"}]);
        assert_eq!(all, expected);
    }
}
