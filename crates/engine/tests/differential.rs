//! The same OCI bundle by the engine (specification, plan, zygote, shim, launcher) and by runc: what a process sees must be equal,
//! for the init and for an exec. What may differ is in `differential/allowed.txt`, with the reason.
//!
//! `cargo test -p podwright-engine --test differential [part of a case]`. Needs root. `--print`: shows what the probes print.

#[path = "differential/bundle.rs"]
mod bundle;
#[path = "differential/compare.rs"]
mod compare;
#[path = "differential/engine.rs"]
mod engine;
#[path = "differential/runc.rs"]
mod runc;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use podwright_testbed::run_on_main_thread;
use serde_json::{Value, json};

use bundle::Bundle;

/// The name of cgroups and of runc's containers, with our pid behind it.
const GROUP: &str = "podwright-differential";

type Case = (&'static str, fn(&mut Value));

const CASES: &[Case] = &[
    ("default", |_| {}),
    ("no_new_privileges", |config| config["process"]["noNewPrivileges"] = true.into()),
    ("other_user", |config| {
        config["process"]["user"] = json!({"uid": 1000, "gid": 1001, "additionalGids": [1001, 50, 60]});
    }),
    ("no_capabilities", |config| config["process"]["capabilities"] = json!({})),
    ("ambient_capabilities", |config| {
        let sets = json!(["CAP_NET_BIND_SERVICE", "CAP_CHOWN"]);
        let all = ["bounding", "effective", "permitted", "inheritable", "ambient"];
        config["process"]["capabilities"] = all.into_iter().map(|set| (set.to_owned(), sets.clone())).collect();
        config["process"]["user"] = json!({"uid": 1000, "gid": 1000, "additionalGids": [1000]});
    }),
    ("many_capabilities", |config| {
        let sets = json!(["CAP_SYS_ADMIN", "CAP_MKNOD", "CAP_NET_ADMIN", "CAP_SYS_CHROOT", "CAP_CHOWN"]);
        for set in ["bounding", "effective", "permitted"] {
            config["process"]["capabilities"][set] = sets.clone();
        }
    }),
    ("limits", |config| {
        config["process"]["rlimits"] = json!([
            {"type": "RLIMIT_NOFILE", "soft": 100, "hard": 200},
            {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
            {"type": "RLIMIT_STACK", "soft": 1_048_576, "hard": 2_097_152},
        ]);
        config["process"]["oomScoreAdj"] = 900.into();
    }),
    ("working_directory_and_umask", |config| {
        config["process"]["cwd"] = "/tmp/work/here".into();
        config["process"]["user"]["umask"] = 0o077.into();
    }),
    ("read_only_root", |config| config["root"]["readonly"] = true.into()),
    ("host_network", |config| without(config, "network")),
    ("host_pid", |config| without(config, "pid")),
    ("host_ipc", |config| without(config, "ipc")),
    ("cgroup_namespace", |config| add(&mut config["linux"]["namespaces"], json!({"type": "cgroup"}))),
    ("cgroup_mount", |config| {
        let options = ["nosuid", "noexec", "nodev", "relatime", "ro"];
        add(
            &mut config["mounts"],
            json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": options}),
        );
    }),
    ("binds", |config| {
        for (target, options) in [
            ("/data", json!(["rbind", "ro"])),
            ("/data2", json!(["bind", "rw", "nosuid", "nodev", "noexec"])),
            ("/data3", json!(["rbind", "rslave", "noatime"])),
        ] {
            let bind = json!({"destination": target, "type": "bind", "source": "BUNDLE/host", "options": options});
            add(&mut config["mounts"], bind);
        }
        let file = json!({"destination": "/etc/deep/file", "type": "bind", "source": "BUNDLE/host/file", "options": ["bind", "ro"]});
        add(&mut config["mounts"], file);
        let tmpfs = json!({"destination": "/cache", "type": "tmpfs", "source": "tmpfs", "options": ["size=64k", "mode=0700", "nodev"]});
        add(&mut config["mounts"], tmpfs);
    }),
    ("devices", |config| {
        config["linux"]["devices"] = json!([
            {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o640, "uid": 3, "gid": 4},
        ]);
    }),
    ("seccomp", |config| {
        let errno =
            |names: &[&str], number: u32| json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": number});
        config["linux"]["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
            "syscalls": [
                errno(&["mkdir", "mkdirat"], 99),
                errno(&["mknod", "mknodat"], 98),
                errno(&["chroot", "fchownat", "chown", "lchown"], 97),
                errno(&["symlink", "symlinkat", "fallocate", "personality"], 95),
                {"names": ["unshare"], "action": "SCMP_ACT_ERRNO", "errnoRet": 94,
                 "args": [{"index": 0, "value": 0x1000_0000, "valueTwo": 0x1000_0000, "op": "SCMP_CMP_MASKED_EQ"}]},
                {"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": 93,
                 "args": [{"index": 0, "value": 16, "op": "SCMP_CMP_EQ"}]},
            ],
        });
    }),
    ("seccomp_without_new_privileges", |config| {
        config["process"]["noNewPrivileges"] = true.into();
        config["process"]["user"] = json!({"uid": 1000, "gid": 1000, "additionalGids": [1000]});
        config["linux"]["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{"names": ["chmod", "fchmodat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 99}],
        });
    }),
    ("personality", |config| config["linux"]["personality"] = json!({"domain": "LINUX32"})),
    ("no_masks", |config| {
        config["linux"]["maskedPaths"] = json!([]);
        config["linux"]["readonlyPaths"] = json!([]);
    }),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if podwright_shim::is_zygote(&arguments) {
        return podwright_shim::zygote::main();
    }
    let print = arguments.iter().any(|argument| argument == "--print");
    let cases: Vec<_> = CASES.iter().map(|(name, change)| (*name, (*name, *change))).collect();
    run_on_main_thread(&cases, |(name, change)| compare_case(name, change, print))
}

fn compare_case(name: &str, change: fn(&mut Value), print: bool) {
    let bundle = Bundle::new(change);
    let printed = || ["init", "exec"].map(|process| bundle.printed(process));
    let ours = {
        let mut container = engine::EngineContainer::run(&bundle);
        container.exec();
        printed()
    };
    bundle.clean();
    let theirs = {
        let container = runc::RuncContainer::run(&bundle);
        container.exec();
        printed()
    };
    if print {
        println!("{}\n{}", ours[0], ours[1]);
    }
    let mut found = vec![];
    for ((process, ours), theirs) in ["init", "exec"].iter().zip(&ours).zip(&theirs) {
        found.extend(compare::differences(name, process, ours, theirs));
    }
    assert!(found.is_empty(), "not as by runc:\n{}", found.join("\n"));
}

fn add(list: &mut Value, item: Value) {
    list.as_array_mut().unwrap().push(item);
}

fn without(config: &mut Value, namespace: &str) {
    let all = config["linux"]["namespaces"].as_array_mut().unwrap();
    all.retain(|known| known["type"] != namespace);
    if namespace == "network" {
        all.retain(|known| known["type"] != "uts");
        config.as_object_mut().unwrap().remove("hostname");
    }
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
