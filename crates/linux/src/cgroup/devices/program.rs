//! Device rules as a program for the kernel (`BPF_PROG_TYPE_CGROUP_DEVICE`).

// bpf(2) has no wrapper at all.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{DeviceKind, DeviceRule};

/// `struct bpf_insn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct BpfInstruction {
    code: u8,
    /// Destination in the lower four bits, source in the upper.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// The last rule first. An allowed kind of access is struck off what was requested; when nothing is left the access is allowed. A
/// refused one that was requested refuses all.
pub(super) fn compile(rules: &[DeviceRule]) -> Vec<BpfInstruction> {
    // `struct bpf_cgroup_dev_ctx`: r2 kind, r3 access that is not decided yet, r4 major, r5 minor.
    let mut program = vec![
        instruction(LOAD, 2, 1, 0, 0),
        instruction(AND, 2, 0, 0, 0xffff),
        instruction(LOAD, 3, 1, 0, 0),
        instruction(SHIFT_RIGHT, 3, 0, 0, 16),
        instruction(LOAD, 4, 1, 4, 0),
        instruction(LOAD, 5, 1, 8, 0),
    ];
    for rule in rules.iter().rev() {
        let mut block = vec![];
        match rule.kind {
            DeviceKind::All => {}
            DeviceKind::Block => block.push(instruction(SKIP_UNLESS_EQUAL, 2, 0, 0, KIND_BLOCK)),
            DeviceKind::Char => block.push(instruction(SKIP_UNLESS_EQUAL, 2, 0, 0, KIND_CHAR)),
        }
        for (register, number) in [(4, rule.major), (5, rule.minor)] {
            block.extend(number.map(|number| instruction(SKIP_UNLESS_EQUAL, register, 0, 0, number.cast_signed())));
        }
        let bits = [(rule.mknod, ACCESS_MKNOD), (rule.read, ACCESS_READ), (rule.write, ACCESS_WRITE)];
        let access = bits.iter().filter(|(set, _)| *set).fold(0, |all, (_, bit)| all | bit);
        if rule.allow {
            block.extend([instruction(AND, 3, 0, 0, !access), instruction(SKIP_UNLESS_EQUAL, 3, 0, 0, 0)]);
        } else {
            block.extend([
                instruction(MOVE_REGISTER, 1, 3, 0, 0),
                instruction(AND, 1, 0, 0, access),
                instruction(SKIP_IF_EQUAL, 1, 0, 0, 0),
            ]);
        }
        block.extend([instruction(MOVE, 0, 0, 0, i32::from(rule.allow)), instruction(EXIT, 0, 0, 0, 0)]);
        let length = block.len();
        for (at, step) in block.iter_mut().enumerate() {
            if matches!(step.code, SKIP_UNLESS_EQUAL | SKIP_IF_EQUAL) {
                step.offset = i16::try_from(length - at - 1).expect("a rule has at most eight instructions");
            }
        }
        program.extend(block);
    }
    program.extend([instruction(MOVE, 0, 0, 0, 0), instruction(EXIT, 0, 0, 0, 0)]);
    program
}

fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> BpfInstruction {
    BpfInstruction { code, registers: to | from << 4, offset, immediate }
}

pub(super) fn load(program: &[BpfInstruction]) -> io::Result<OwnedFd> {
    let count = u32::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut attr = LoadAttr {
        kind: PROG_TYPE_CGROUP_DEVICE,
        count,
        instructions: program.as_ptr() as u64,
        license: c"Apache".as_ptr() as u64,
        rest: [0; 12],
    };
    descriptor(bpf(PROG_LOAD, &mut attr)?)
}

pub(super) fn attach(cgroup: BorrowedFd<'_>, program: &OwnedFd) -> io::Result<()> {
    bpf(PROG_ATTACH, &mut attach_attr(cgroup, program, ALLOW_MULTI)).map(drop)
}

/// Detaches a program by its id.
pub(super) fn detach(cgroup: BorrowedFd<'_>, id: u32) -> io::Result<()> {
    let program = descriptor(bpf(PROG_GET_FD_BY_ID, &mut [id, 0, 0, 0])?)?;
    bpf(PROG_DETACH, &mut attach_attr(cgroup, &program, 0)).map(drop)
}

/// The ids of the programs that are attached to this cgroup itself.
pub(super) fn attached(cgroup: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut ids = [0_u32; PROGRAMS_MAX];
    let mut query = QueryAttr {
        target: cgroup.as_raw_fd(),
        kind: CGROUP_DEVICE,
        query_flags: 0,
        attach_flags: 0,
        ids: ids.as_mut_ptr() as u64,
        count: 64,
        padding: 0,
    };
    bpf(PROG_QUERY, &mut query)?;
    Ok(ids.into_iter().take(usize::try_from(query.count).unwrap_or_default()).collect())
}

fn attach_attr(cgroup: BorrowedFd<'_>, program: &OwnedFd, flags: u32) -> AttachAttr {
    AttachAttr { target: cgroup.as_raw_fd(), program: program.as_raw_fd(), kind: CGROUP_DEVICE, flags }
}

fn descriptor(number: i32) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the kernel has just returned this descriptor; no one else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn bpf<T>(command: i32, attr: &mut T) -> io::Result<i32> {
    // SAFETY: the kernel reads and writes at most the size that is passed; pointers inside refer to memory of the callers, which
    // lives until the call returns.
    match unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) } {
        -1 => Err(io::Error::last_os_error()),
        value => i32::try_from(value).map_err(|_| io::ErrorKind::InvalidData.into()),
    }
}

#[repr(C)]
struct LoadAttr {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    /// Log, flags, name and expected attach type: none.
    rest: [u32; 12],
}

#[repr(C)]
struct AttachAttr {
    target: i32,
    program: i32,
    kind: u32,
    flags: u32,
}

#[repr(C)]
struct QueryAttr {
    target: i32,
    kind: u32,
    query_flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    padding: u32,
}

/// The kernel attaches at most 64 programs of a kind to a cgroup.
const PROGRAMS_MAX: usize = 64;
const PROG_LOAD: i32 = 5;
const PROG_ATTACH: i32 = 8;
const PROG_DETACH: i32 = 9;
const PROG_GET_FD_BY_ID: i32 = 13;
const PROG_QUERY: i32 = 16;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const CGROUP_DEVICE: u32 = 6;
/// Programs of cgroups above are in effect too.
const ALLOW_MULTI: u32 = 2;

/// `BPF_DEVCG_DEV_*` and `BPF_DEVCG_ACC_*`.
const KIND_BLOCK: i32 = 1;
const KIND_CHAR: i32 = 2;
const ACCESS_MKNOD: i32 = 1;
const ACCESS_READ: i32 = 2;
const ACCESS_WRITE: i32 = 4;

/// 32-bit instructions throughout: their comparisons take the whole range of the numbers.
const LOAD: u8 = 0x61;
const AND: u8 = 0x54;
const SHIFT_RIGHT: u8 = 0x74;
const MOVE_REGISTER: u8 = 0xbc;
const MOVE: u8 = 0xb4;
const SKIP_UNLESS_EQUAL: u8 = 0x56;
const SKIP_IF_EQUAL: u8 = 0x16;
const EXIT: u8 = 0x95;

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict of a program, by its instructions.
    fn run(program: &[BpfInstruction], kind: i32, access: i32, major: u32, minor: u32) -> bool {
        let context = [(access << 16 | kind).cast_unsigned(), major, minor];
        let mut registers = [0_u32; 11];
        let mut at = 0;
        loop {
            let BpfInstruction { code, registers: named, offset, immediate } = program[at];
            let (to, from) = (usize::from(named & 15), usize::from(named >> 4));
            let constant = immediate.cast_unsigned();
            at += 1;
            let mut skip = false;
            match code {
                LOAD => registers[to] = context[usize::try_from(offset).unwrap() / 4],
                AND => registers[to] &= constant,
                SHIFT_RIGHT => registers[to] >>= constant,
                MOVE_REGISTER => registers[to] = registers[from],
                MOVE => registers[to] = constant,
                SKIP_UNLESS_EQUAL => skip = registers[to] != constant,
                SKIP_IF_EQUAL => skip = registers[to] == constant,
                EXIT => return registers[0] != 0,
                other => panic!("instruction {other:#x}"),
            }
            if skip {
                at += usize::try_from(offset).unwrap();
            }
        }
    }

    /// The meaning of rules, written down as it reads.
    fn allowed(rules: &[DeviceRule], kind: i32, access: i32, major: u32, minor: u32) -> bool {
        [ACCESS_MKNOD, ACCESS_READ, ACCESS_WRITE].into_iter().filter(|bit| access & bit != 0).all(|bit| {
            let decides = |rule: &&DeviceRule| {
                let kinds = match rule.kind {
                    DeviceKind::All => true,
                    DeviceKind::Block => kind == KIND_BLOCK,
                    DeviceKind::Char => kind == KIND_CHAR,
                };
                let bits = [(rule.mknod, ACCESS_MKNOD), (rule.read, ACCESS_READ), (rule.write, ACCESS_WRITE)];
                kinds
                    && rule.major.is_none_or(|number| number == major)
                    && rule.minor.is_none_or(|number| number == minor)
                    && bits.contains(&(true, bit))
            };
            rules.iter().rev().find(decides).is_some_and(|rule| rule.allow)
        })
    }

    #[test]
    fn a_program_decides_as_its_rules_read() {
        let numbers = [None, Some(1), Some(3), Some(u32::MAX)];
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        };
        for _ in 0..2000 {
            let rules: Vec<DeviceRule> = (0..random(6))
                .map(|_| DeviceRule {
                    allow: random(2) == 0,
                    kind: [DeviceKind::All, DeviceKind::Char, DeviceKind::Block][random(3)],
                    major: numbers[random(4)],
                    minor: numbers[random(4)],
                    read: random(2) == 0,
                    write: random(2) == 0,
                    mknod: random(2) == 0,
                })
                .collect();
            let program = compile(&rules);
            for kind in [KIND_BLOCK, KIND_CHAR] {
                for access in 1..8 {
                    for (major, minor) in [(1, 3), (3, 1), (1, u32::MAX), (7, 7)] {
                        let found = run(&program, kind, access, major, minor);
                        let expected = allowed(&rules, kind, access, major, minor);
                        assert_eq!(found, expected, "{rules:?} kind {kind} access {access} {major}:{minor}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_kernel_takes_programs_of_every_shape() {
        let null = DeviceRule { kind: DeviceKind::Char, major: Some(1), ..DeviceRule::everything(true) };
        for rules in [&[][..], &[DeviceRule::everything(true)], &[DeviceRule::everything(false), null], &[null; 200]] {
            load(&compile(rules)).unwrap();
        }
    }
}
