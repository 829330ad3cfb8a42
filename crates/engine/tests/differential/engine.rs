//! A bundle by the engine: specification to plan, then zygote, shim and launcher.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use oci_spec::runtime::{LinuxNamespaceType, Spec};
use podwright_engine::plan::{PlanInputs, launch_plan};
use podwright_linux::mountinfo;
use podwright_shim::client::{RequestPacket, ShimAnswer, ShimClient};
use podwright_shim::plan::{CgroupMembership, ExecPlan, LaunchPlan, ResolvedUser, RootfsPlan, SetupPlan};
use podwright_shim::protocol::{ExecRequest, LaunchRequest, StdioPlan};
use podwright_shim::zygote::{Zygote, ZygoteOptions};
use rustix::process::{Signal, pidfd_send_signal};

use crate::bundle::Bundle;
use crate::{GROUP, eventually};

const LIMIT: Duration = Duration::from_secs(30);
const ID: &str = "container";

/// A container that runs; it ends with this.
pub(crate) struct EngineContainer<'a> {
    bundle: &'a Bundle,
    plan: LaunchPlan,
    _zygote: Zygote,
    client: ShimClient,
    shim: OwnedFd,
    init: Option<OwnedFd>,
    user: ResolvedUser,
    cgroups: Vec<PathBuf>,
}

impl<'a> EngineContainer<'a> {
    pub(crate) fn run(bundle: &'a Bundle) -> Self {
        let spec: Spec = serde_json::from_value(bundle.config.clone()).unwrap();
        let cgroups = make_cgroups();
        let members = cgroups.iter().map(|(hierarchy, path)| CgroupMembership {
            hierarchy: hierarchy.clone(),
            directory: path.to_str().unwrap().to_owned(),
        });
        let inputs = PlanInputs {
            container_id: ID,
            rootfs: RootfsPlan { directory: bundle.text("rootfs"), ..RootfsPlan::default() },
            staging_dir: &bundle.text("staging"),
            cgroups: members.collect(),
            user: None,
            image_layers: &BTreeMap::new(),
            devices: &[],
        };
        let plan = launch_plan(&spec, &inputs).unwrap();
        let mut zygote = Zygote::start(&ZygoteOptions::default()).unwrap();
        let forked = zygote.fork("differential", File::open(bundle.path("pod")).unwrap().as_fd()).unwrap();
        let client = ShimClient::from_socket(forked.connection).unwrap();
        let cgroups = cgroups.into_iter().map(|(_, path)| path).collect();
        let user = ResolvedUser::default();
        let mut container =
            Self { bundle, plan, _zygote: zygote, client, shim: forked.pidfd, init: None, user, cgroups };
        container.launch(&spec);
        container
    }

    fn call(&mut self, packet: &RequestPacket) -> ShimAnswer {
        self.client.call(packet, LIMIT).unwrap()
    }

    fn launch(&mut self, spec: &Spec) {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        self.call(&RequestPacket::hello(&boot_id));
        let namespaces = spec.linux().as_ref().unwrap().namespaces().clone().unwrap_or_default();
        let has = |kind| namespaces.iter().any(|namespace| namespace.typ() == kind);
        let setup = SetupPlan {
            new_network: has(LinuxNamespaceType::Network),
            new_ipc: has(LinuxNamespaceType::Ipc),
            new_uts: has(LinuxNamespaceType::Uts),
            hostname: spec.hostname().clone().unwrap_or_default(),
            ..SetupPlan::default()
        };
        let answer = self.call(&RequestPacket::setup(&setup).unwrap());
        assert!(matches!(answer, ShimAnswer::Setup { .. }), "{answer:?}");
        let request = LaunchRequest { container: ID.into(), stdio: Some(StdioPlan::default()), ..Default::default() };
        let packet = RequestPacket::launch(request, &self.plan).unwrap();
        match self.call(&packet) {
            ShimAnswer::Launched { reply, pidfd, .. } => {
                self.init = Some(pidfd);
                self.user = ResolvedUser { uid: reply.uid, gid: reply.gid, groups: reply.groups, home: reply.home };
            }
            other => panic!("{other:?}"),
        }
        eventually("the probe of the init", || !self.bundle.printed("init").is_empty());
    }

    pub(crate) fn exec(&mut self) {
        let mut process = self.plan.process.clone().unwrap();
        process.argv = ["/bin/sh", "/probe.sh", "exec"].map(|part| part.as_bytes().to_vec()).to_vec();
        let plan = ExecPlan {
            container_id: ID.into(),
            process: Some(process),
            user: Some(self.user.clone()),
            cgroups: self.plan.cgroups.clone(),
            oom_score_adj: self.plan.oom_score_adj,
            personality: self.plan.personality,
            ..ExecPlan::default()
        };
        let request = ExecRequest {
            container: ID.into(),
            exec: "e1".into(),
            stdio: Some(StdioPlan::default()),
            ..ExecRequest::default()
        };
        let answer = self.call(&RequestPacket::exec(request, &plan).unwrap());
        assert!(matches!(answer, ShimAnswer::ExecStarted { .. }), "{answer:?}");
        eventually("the probe of the exec", || !self.bundle.printed("exec").is_empty());
    }
}

impl Drop for EngineContainer<'_> {
    fn drop(&mut self) {
        if let Some(init) = &self.init {
            let _ = pidfd_send_signal(init, Signal::KILL);
        }
        let gone = |path: &PathBuf| fs::remove_dir(path).is_ok() || !path.exists();
        let mut left = self.cgroups.clone();
        eventually("the cgroups are empty", || {
            left.retain(|path| !gone(path));
            left.is_empty()
        });
        let _ = pidfd_send_signal(&self.shim, Signal::KILL);
    }
}

/// One per v1 hierarchy, or one of the v2 tree.
fn make_cgroups() -> Vec<(String, PathBuf)> {
    let mounts = mountinfo::read().unwrap();
    let v1 = mounts.iter().filter(|mount| mount.fstype == "cgroup");
    let mut trees: Vec<(String, PathBuf)> =
        v1.map(|mount| (mount.point.file_name().unwrap().to_str().unwrap().to_owned(), mount.point.clone())).collect();
    if trees.is_empty() {
        let v2 = mounts.iter().find(|mount| mount.fstype == "cgroup2").expect("a cgroup file system");
        trees.push((String::new(), v2.point.clone()));
    }
    for (_, path) in &mut trees {
        let parent = path.clone();
        path.push(format!("{GROUP}-{}", std::process::id()));
        fs::create_dir(&*path).unwrap();
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if path.join(file).exists() && parent.join(file).exists() {
                fs::write(path.join(file), fs::read(parent.join(file)).unwrap()).unwrap();
            }
        }
    }
    trees
}
