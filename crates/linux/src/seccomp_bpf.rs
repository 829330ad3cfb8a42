//! Seccomp profiles of the OCI runtime specification, compiled to BPF programs.
//!
//! ```text
//!  architecture ─┬─ x86_64 ─┬─ number ≥ 0x4000_0000: x32 ─┐
//!                │          └─ native ────────────────────┼─▶ binary search over the numbers ─▶ verdict, or conditions ─▶ verdict
//!                ├─ x86 ──────────────────────────────────┘
//!                └─ anything else, or not in the profile: the process is killed
//! ```
//! System calls that are newer than our table fail with ENOSYS where the profile would refuse them: programs then try an older
//! one, while EPERM makes them fail. Of several rules for one call the first that matches decides, as in libseccomp. On x86 the
//! multiplexers `socketcall` and `ipc` are calls of their own: a profile that means them names them.

// Loading a program has no safe wrapper.
#![allow(unsafe_code)]

mod assemble;
mod table;

use std::io;

pub use assemble::{Instruction, PROGRAM_MAX};

/// What happens to a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeccompAction {
    /// It is made.
    Allow,
    /// It is made and logged.
    Log,
    /// It fails with this number; 0 is no error.
    Errno(u16),
    /// SIGSYS.
    Trap,
    /// A tracer decides; it reads this number.
    Trace(u16),
    /// The thread ends.
    KillThread,
    /// The process ends.
    KillProcess,
}

/// An architecture of x86_64 hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SeccompArch {
    /// 64 bit.
    X86_64,
    /// 32 bit.
    X86,
    /// 32-bit pointers in 64-bit mode.
    X32,
}

/// How an argument is compared with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Not equal.
    NotEqual,
    /// Less than.
    Less,
    /// Less or equal.
    LessOrEqual,
    /// Equal.
    Equal,
    /// Greater or equal.
    GreaterOrEqual,
    /// Greater than.
    Greater,
    /// `argument & mask == value`.
    MaskedEqual {
        /// Applied to the argument.
        mask: u64,
    },
}

/// A condition on one argument; unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentCondition {
    /// 0 to 5.
    pub index: u8,
    /// The value of the comparison.
    pub value: u64,
    /// The kind of the comparison.
    pub comparison: Comparison,
}

/// One rule of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeccompRule {
    /// System calls. Unknown names are ignored: they are newer than our table, or of another architecture.
    pub names: Vec<String>,
    /// What happens to them.
    pub action: SeccompAction,
    /// All must hold. As in runc, several on the same argument are alternatives instead.
    pub conditions: Vec<ArgumentCondition>,
}

/// A profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeccompProfile {
    /// For calls without a matching rule.
    pub default_action: SeccompAction,
    /// Architectures that may be used besides the native one.
    pub architectures: Vec<SeccompArch>,
    /// In order of precedence.
    pub rules: Vec<SeccompRule>,
}

/// A profile that cannot be compiled.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SeccompError {
    /// System calls have six arguments.
    #[error("seccomp: system call {name}: there is no argument {index}")]
    ArgumentIndex {
        /// The system call.
        name: String,
        /// The index.
        index: u8,
    },
    /// The kernel takes at most 4096 instructions.
    #[error("seccomp: the profile needs {0} instructions, the kernel takes {PROGRAM_MAX}")]
    TooLarge(usize),
}

/// Compiles a profile for this host.
pub fn compile(profile: &SeccompProfile) -> Result<Vec<Instruction>, SeccompError> {
    assemble::program(profile)
}

/// The bytes of a program as the kernel reads them.
pub fn to_bytes(program: &[Instruction]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(program.len() * 8);
    for instruction in program {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
    }
    bytes
}

/// Installs a program, given as [`to_bytes`], for this thread and what it executes. Needs `no_new_privs` or `CAP_SYS_ADMIN`.
/// `flags`: `SECCOMP_FILTER_FLAG_*`.
pub fn install(bytes: &[u8], flags: u32) -> io::Result<()> {
    let count = u16::try_from(bytes.len() / 8).map_err(|_| io::ErrorKind::InvalidInput)?;
    if bytes.is_empty() || !bytes.len().is_multiple_of(8) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a seccomp program"));
    }
    let filter: Vec<libc::sock_filter> = bytes
        .chunks_exact(8)
        .map(|chunk| libc::sock_filter {
            code: u16::from_ne_bytes([chunk[0], chunk[1]]),
            jt: chunk[2],
            jf: chunk[3],
            k: u32::from_ne_bytes([chunk[4], chunk[5], chunk[6], chunk[7]]),
        })
        .collect();
    let program = libc::sock_fprog { len: count, filter: filter.as_ptr().cast_mut() };
    // SAFETY: `program` refers to `count` instructions; both live until the call returns, and the kernel only reads and checks them.
    match unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests;
