//! A case as on a kernel before 6.15, which does not tell how a process has ended once it was reaped: in a process of its own, because
//! a filter of system calls is never removed.

use std::process::Command;

use podwright_linux::seccomp_bpf::{
    ArgumentCondition, Comparison, SeccompAction, SeccompProfile, SeccompRule, compile, install, to_bytes,
};

/// Set in the process that has the filter.
const FORGETS_EXITS: &str = "PODWRIGHT_ENGINE_TEST_FORGETS_EXITS";
/// `_IOWR(0xff, 11, struct pidfd_info)`; see `podwright_linux::exit_info`. The kernel reads the request as 32 bits.
const PIDFD_GET_INFO: u64 = 0xc040_ff0b;
const ENOTTY: u16 = 25;

/// Whether this process, with its children, has such a kernel.
pub(crate) fn is_pretended() -> bool {
    std::env::var_os(FORGETS_EXITS).is_some()
}

/// For the process that [`run_case`] has started.
pub(crate) fn pretend() {
    let comparison = Comparison::MaskedEqual { mask: u64::from(u32::MAX) };
    let rule = SeccompRule {
        names: vec!["ioctl".into()],
        action: SeccompAction::Errno(ENOTTY),
        conditions: vec![ArgumentCondition { index: 1, value: PIDFD_GET_INFO, comparison }],
    };
    let profile = SeccompProfile { default_action: SeccompAction::Allow, architectures: vec![], rules: vec![rule] };
    install(&to_bytes(&compile(&profile).unwrap()), 0).unwrap();
}

/// Runs a case of this program with such a kernel, in namespaces of its own.
pub(crate) async fn run_case(name: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name]).env(FORGETS_EXITS, "1").env_remove(crate::INSIDE);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
