//! A seccomp profile of a specification as a program for the kernel.

use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompFilterFlag, LinuxSeccompOperator,
};
use podwright_linux::seccomp_bpf::{
    ArgumentCondition, Comparison, SeccompAction, SeccompArch, SeccompProfile, SeccompRule, compile, to_bytes,
};

use super::PlanError;

/// The program and the flags of `seccomp(2)`.
pub(super) fn program(profile: &LinuxSeccomp) -> Result<(Vec<u8>, u32), PlanError> {
    if profile.listener_path().is_some() {
        return Err(PlanError::Unsupported("seccomp.listenerPath".into()));
    }
    let default = action(profile.default_action(), profile.default_errno_ret())?;
    let mut rules = vec![];
    for syscall in profile.syscalls().iter().flatten() {
        let conditions = syscall.args().iter().flatten().map(condition).collect::<Result<_, _>>()?;
        let action = action(syscall.action(), syscall.errno_ret())?;
        // libseccomp leaves out rules that say what the default says.
        if action != default {
            rules.push(SeccompRule { names: syscall.names().clone(), action, conditions });
        }
    }
    let architectures = profile.architectures().iter().flatten().filter_map(architecture).collect();
    let profile_in = SeccompProfile { default_action: default, architectures, rules };
    let program = compile(&profile_in).map_err(|error| PlanError::Seccomp(error.to_string()))?;
    Ok((to_bytes(&program), flags(profile)?))
}

fn action(action: LinuxSeccompAction, errno: Option<u32>) -> Result<SeccompAction, PlanError> {
    let number = || {
        let errno = errno.unwrap_or(EPERM);
        u16::try_from(errno)
            .ok()
            .filter(|errno| *errno <= ERRNO_MAX)
            .ok_or_else(|| PlanError::Invalid { field: "seccomp.errnoRet", value: errno.to_string() })
    };
    Ok(match action {
        LinuxSeccompAction::ScmpActAllow => SeccompAction::Allow,
        LinuxSeccompAction::ScmpActLog => SeccompAction::Log,
        LinuxSeccompAction::ScmpActErrno => SeccompAction::Errno(number()?),
        LinuxSeccompAction::ScmpActTrace => SeccompAction::Trace(number()?),
        LinuxSeccompAction::ScmpActTrap => SeccompAction::Trap,
        LinuxSeccompAction::ScmpActKill | LinuxSeccompAction::ScmpActKillThread => SeccompAction::KillThread,
        LinuxSeccompAction::ScmpActKillProcess => SeccompAction::KillProcess,
        LinuxSeccompAction::ScmpActNotify => {
            return Err(PlanError::Unsupported("seccomp action SCMP_ACT_NOTIFY".into()));
        }
    })
}

fn condition(argument: &LinuxSeccompArg) -> Result<ArgumentCondition, PlanError> {
    let index = u8::try_from(argument.index())
        .map_err(|_| PlanError::Invalid { field: "seccomp argument index", value: argument.index().to_string() })?;
    // A masked comparison has its mask in `value` and what remains in `valueTwo`.
    let (value, comparison) = match argument.op() {
        LinuxSeccompOperator::ScmpCmpNe => (argument.value(), Comparison::NotEqual),
        LinuxSeccompOperator::ScmpCmpLt => (argument.value(), Comparison::Less),
        LinuxSeccompOperator::ScmpCmpLe => (argument.value(), Comparison::LessOrEqual),
        LinuxSeccompOperator::ScmpCmpEq => (argument.value(), Comparison::Equal),
        LinuxSeccompOperator::ScmpCmpGe => (argument.value(), Comparison::GreaterOrEqual),
        LinuxSeccompOperator::ScmpCmpGt => (argument.value(), Comparison::Greater),
        LinuxSeccompOperator::ScmpCmpMaskedEq => {
            (argument.value_two().unwrap_or(0), Comparison::MaskedEqual { mask: argument.value() })
        }
    };
    Ok(ArgumentCondition { index, value, comparison })
}

/// Architectures of other hosts are left out: their programs do not run here.
fn architecture(arch: &Arch) -> Option<SeccompArch> {
    match arch {
        Arch::ScmpArchX86_64 => Some(SeccompArch::X86_64),
        Arch::ScmpArchX86 => Some(SeccompArch::X86),
        Arch::ScmpArchX32 => Some(SeccompArch::X32),
        _ => None,
    }
}

fn flags(profile: &LinuxSeccomp) -> Result<u32, PlanError> {
    let flag = |flag: &LinuxSeccompFilterFlag| match flag.to_string().as_str() {
        "SECCOMP_FILTER_FLAG_TSYNC" => Ok(1),
        "SECCOMP_FILTER_FLAG_LOG" => Ok(2),
        "SECCOMP_FILTER_FLAG_SPEC_ALLOW" => Ok(4),
        other => Err(PlanError::Unsupported(format!("seccomp flag {other}"))),
    };
    profile.flags().iter().flatten().try_fold(0, |all, next| Ok(all | flag(next)?))
}

const EPERM: u32 = 1;
/// The kernel cuts larger numbers (MAX_ERRNO).
const ERRNO_MAX: u16 = 4095;
