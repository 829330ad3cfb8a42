//! From rules to instructions.

use std::collections::BTreeMap;

use super::table::{self, X32_BIT};
use super::{ArgumentCondition, Comparison, SeccompAction, SeccompArch, SeccompError, SeccompProfile};

/// `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub(super) code: u16,
    pub(super) jt: u8,
    pub(super) jf: u8,
    pub(super) k: u32,
}

/// `BPF_MAXINSNS`.
pub const PROGRAM_MAX: usize = 4096;

/// Rules for one call: the first whose conditions hold decides.
type Verdicts = Vec<(Vec<ArgumentCondition>, SeccompAction)>;

/// The whole program.
pub(super) fn program(profile: &SeccompProfile) -> Result<Vec<Instruction>, SeccompError> {
    let used = |arch| arch == SeccompArch::X86_64 || profile.architectures.contains(&arch);
    let section = |arch| -> Result<Vec<Instruction>, SeccompError> {
        if used(arch) { search(profile, arch) } else { Ok(vec![give(SeccompAction::KillProcess)]) }
    };
    let (native, x32, x86) = (section(SeccompArch::X86_64)?, section(SeccompArch::X32)?, section(SeccompArch::X86)?);
    let mut out = vec![load(ARCH_OFFSET), jump(JEQ, AUDIT_ARCH_X86_64, 0, 1)];
    // Offsets count from the next instruction. Long jumps are unconditional, because conditional ones reach 255 instructions.
    let native_entry = vec![load(NUMBER_OFFSET), jump(JGE, X32_BIT, 0, 1), far(native.len())];
    out.push(far(3));
    out.push(jump(JEQ, AUDIT_ARCH_I386, 1, 0));
    out.push(give(SeccompAction::KillProcess));
    out.push(far(native_entry.len() + native.len() + x32.len()));
    out.extend(native_entry);
    out.extend(native);
    out.extend(x32);
    out.push(load(NUMBER_OFFSET));
    out.extend(x86);
    if out.len() > PROGRAM_MAX { Err(SeccompError::TooLarge(out.len())) } else { Ok(out) }
}

/// The part for one architecture; the accumulator holds the number.
fn search(profile: &SeccompProfile, arch: SeccompArch) -> Result<Vec<Instruction>, SeccompError> {
    let rules = rules_by_number(profile, arch)?;
    // Ranges with the same unconditional verdict are one; each begins at its number and ends at the next.
    let mut ranges: Vec<(u32, Verdicts)> = vec![];
    let mut push = |from: u32, verdicts: Verdicts| {
        if ranges.last().is_none_or(|(_, last)| *last != verdicts || has_conditions(&verdicts)) {
            ranges.push((from, verdicts));
        }
    };
    let plain = |action| vec![(vec![], action)];
    let base = if arch == SeccompArch::X32 { X32_BIT } else { 0 };
    let end = table::newest(arch) + 1;
    let mut next = base;
    for (number, verdicts) in rules {
        if number > next {
            push(next, plain(profile.default_action));
        }
        push(number, verdicts);
        next = number + 1;
    }
    if next < end {
        push(next, plain(profile.default_action));
    }
    push(end, plain(newer_action(profile.default_action)));
    Ok(tree(&ranges, arch, profile.default_action))
}

/// Every call that a rule names, with its rules in order.
fn rules_by_number(profile: &SeccompProfile, arch: SeccompArch) -> Result<BTreeMap<u32, Verdicts>, SeccompError> {
    let mut found: BTreeMap<u32, Verdicts> = BTreeMap::new();
    for rule in &profile.rules {
        for name in &rule.names {
            if let Some(wrong) = rule.conditions.iter().find(|condition| condition.index > 5) {
                return Err(SeccompError::ArgumentIndex { name: name.clone(), index: wrong.index });
            }
            let Some(number) = table::number(name, arch) else { continue };
            let verdicts = found.entry(number).or_default();
            if repeats_an_argument(&rule.conditions) {
                verdicts.extend(rule.conditions.iter().map(|&condition| (vec![condition], rule.action)));
            } else {
                verdicts.push((rule.conditions.clone(), rule.action));
            }
        }
    }
    for verdicts in found.values_mut() {
        // Nothing after an unconditional rule is reached.
        if let Some(last) = verdicts.iter().position(|(conditions, _)| conditions.is_empty()) {
            verdicts.truncate(last + 1);
        }
    }
    Ok(found)
}

fn repeats_an_argument(conditions: &[ArgumentCondition]) -> bool {
    conditions.iter().enumerate().any(|(at, one)| conditions[..at].iter().any(|other| other.index == one.index))
}

fn has_conditions(verdicts: &Verdicts) -> bool {
    verdicts.iter().any(|(conditions, _)| !conditions.is_empty())
}

/// For calls that the author of the profile could not know.
fn newer_action(default: SeccompAction) -> SeccompAction {
    match default {
        SeccompAction::Allow | SeccompAction::Log | SeccompAction::Trace(_) => default,
        _ => SeccompAction::Errno(ENOSYS),
    }
}

/// A binary search over ranges.
fn tree(ranges: &[(u32, Verdicts)], arch: SeccompArch, default: SeccompAction) -> Vec<Instruction> {
    if let [(_, verdicts)] = ranges {
        return leaf(verdicts, arch, default);
    }
    let (below, above) = ranges.split_at(ranges.len() / 2);
    let pivot = above[0].0;
    let (below, above) = (tree(below, arch, default), tree(above, arch, default));
    let mut out = match u8::try_from(below.len()) {
        Ok(near) => vec![jump(JGE, pivot, near, 0)],
        Err(_) => vec![jump(JGE, pivot, 0, 1), far(below.len())],
    };
    out.extend(below);
    out.extend(above);
    out
}

/// The rules of one call, in order; then the default.
fn leaf(verdicts: &Verdicts, arch: SeccompArch, default: SeccompAction) -> Vec<Instruction> {
    let mut out = vec![];
    for (conditions, action) in verdicts {
        // Back to front: a failed condition jumps over the rest of this rule.
        let mut rule = vec![give(*action)];
        for condition in conditions.iter().rev() {
            let rest = u8::try_from(rule.len()).expect("six conditions of at most eight instructions");
            let mut with = compare(condition, rest, arch);
            with.extend(rule);
            rule = with;
        }
        out.extend(rule);
    }
    if verdicts.last().is_none_or(|(conditions, _)| !conditions.is_empty()) {
        out.push(give(default));
    }
    out
}

/// Goes on with the next instruction if the condition holds, else skips `rest` more. Arguments have 64 bits, compared in halves; on
/// 32-bit architectures the upper half is not part of the value.
fn compare(condition: &ArgumentCondition, rest: u8, arch: SeccompArch) -> Vec<Instruction> {
    let offset = ARGUMENTS_OFFSET + 8 * u32::from(condition.index);
    let halves = |value: u64| ((value >> 32) as u32, value as u32);
    let (high, low) = halves(condition.value);
    let wide = arch == SeccompArch::X86_64;
    match condition.comparison {
        Comparison::Equal if wide => {
            vec![load(offset + 4), jump(JEQ, high, 0, rest + 2), load(offset), jump(JEQ, low, 0, rest)]
        }
        Comparison::Equal => vec![load(offset), jump(JEQ, low, 0, rest)],
        Comparison::NotEqual if wide => {
            vec![load(offset + 4), jump(JEQ, high, 0, 2), load(offset), jump(JEQ, low, rest, 0)]
        }
        Comparison::NotEqual => vec![load(offset), jump(JEQ, low, rest, 0)],
        Comparison::MaskedEqual { mask } => {
            let (mask_high, mask_low) = halves(mask);
            let mut out = vec![];
            if wide {
                out.extend([load(offset + 4), and(mask_high), jump(JEQ, high, 0, rest + 3)]);
            }
            out.extend([load(offset), and(mask_low), jump(JEQ, low, 0, rest)]);
            out
        }
        ordered => {
            // The comparison of the lower halves, and whether it must fail.
            let (test, negated) = match ordered {
                Comparison::Greater => (JGT, false),
                Comparison::GreaterOrEqual => (JGE, false),
                Comparison::LessOrEqual => (JGT, true),
                _ => (JGE, true),
            };
            let last = if negated { jump(test, low, rest, 0) } else { jump(test, low, 0, rest) };
            if !wide {
                return vec![load(offset), last];
            }
            // A greater upper half decides, a smaller one too.
            let greater = if negated { jump(JGT, high, rest + 3, 0) } else { jump(JGT, high, 3, 0) };
            let equal = if negated { jump(JEQ, high, 0, 2) } else { jump(JEQ, high, 0, rest + 2) };
            vec![load(offset + 4), greater, equal, load(offset), last]
        }
    }
}

fn load(offset: u32) -> Instruction {
    Instruction { code: 0x20, jt: 0, jf: 0, k: offset }
}

fn and(mask: u32) -> Instruction {
    Instruction { code: 0x54, jt: 0, jf: 0, k: mask }
}

fn jump(test: u16, value: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code: test, jt, jf, k: value }
}

fn far(skip: usize) -> Instruction {
    Instruction { code: 0x05, jt: 0, jf: 0, k: u32::try_from(skip).unwrap_or(u32::MAX) }
}

fn give(action: SeccompAction) -> Instruction {
    let value = match action {
        SeccompAction::Allow => 0x7fff_0000,
        SeccompAction::Log => 0x7ffc_0000,
        SeccompAction::Trace(data) => 0x7ff0_0000 | u32::from(data),
        SeccompAction::Errno(number) => 0x0005_0000 | u32::from(number),
        SeccompAction::Trap => 0x0003_0000,
        SeccompAction::KillThread => 0,
        SeccompAction::KillProcess => 0x8000_0000,
    };
    Instruction { code: 0x06, jt: 0, jf: 0, k: value }
}

const JEQ: u16 = 0x15;
const JGT: u16 = 0x25;
const JGE: u16 = 0x35;
/// Offsets in `struct seccomp_data`.
const NUMBER_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const AUDIT_ARCH_I386: u32 = 0x4000_0003;
const ENOSYS: u16 = 38;
