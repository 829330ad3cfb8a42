use super::*;
use crate::namespace::{CloneOptions, Cloned, clone3, exit_now};

/// Runs a program on the data of one system call, as the kernel does.
fn verdict(program: &[Instruction], arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let mut data = vec![];
    data.extend(number.to_ne_bytes());
    data.extend(arch.to_ne_bytes());
    data.extend([0; 8]);
    arguments.iter().for_each(|argument| data.extend(argument.to_ne_bytes()));
    let (mut at, mut value) = (0, 0_u32);
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let branch = |holds: bool| usize::from(if holds { jt } else { jf });
        match code {
            0x20 => value = u32::from_ne_bytes(data[k as usize..][..4].try_into().unwrap()),
            0x54 => value &= k,
            0x05 => at += k as usize,
            0x15 => at += branch(value == k),
            0x25 => at += branch(value > k),
            0x35 => at += branch(value >= k),
            0x06 => return k,
            other => panic!("unknown instruction {other:#x}"),
        }
    }
}

fn rule(names: &[&str], action: SeccompAction, conditions: &[ArgumentCondition]) -> SeccompRule {
    SeccompRule { names: names.iter().map(|&name| name.to_owned()).collect(), action, conditions: conditions.to_vec() }
}

fn profile(rules: Vec<SeccompRule>) -> SeccompProfile {
    let architectures = vec![SeccompArch::X86_64, SeccompArch::X86, SeccompArch::X32];
    SeccompProfile { default_action: SeccompAction::Errno(1), architectures, rules }
}

const NATIVE: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;
const ALLOW: u32 = 0x7fff_0000;
const EPERM: u32 = 0x0005_0001;
const ENOSYS: u32 = 0x0005_0026;
const KILL: u32 = 0x8000_0000;

#[test]
fn every_number_has_the_verdict_of_its_rule() {
    let allowed = ["read", "write", "ioctl", "socketcall", "exit_group", "futex_waitv", "waitid"];
    let program = compile(&profile(vec![rule(&allowed, SeccompAction::Allow, &[])])).unwrap();
    for (arch, kind, base) in
        [(NATIVE, SeccompArch::X86_64, 0), (NATIVE, SeccompArch::X32, 0x4000_0000), (I386, SeccompArch::X86, 0)]
    {
        let numbers: Vec<u32> = allowed.iter().filter_map(|name| table::number(name, kind)).collect();
        for number in 0..700 {
            let number = base + number;
            let expected = match number {
                _ if numbers.contains(&number) => ALLOW,
                _ if number > table::newest(kind) => ENOSYS,
                _ => EPERM,
            };
            assert_eq!(verdict(&program, arch, number, [0; 6]), expected, "{kind:?} {number:#x}");
        }
    }
    assert_eq!(verdict(&program, 0xc000_00b7, 0, [0; 6]), KILL, "an unknown architecture");
}

#[test]
fn an_architecture_that_is_not_in_the_profile_is_killed() {
    let mut native = profile(vec![rule(&["read"], SeccompAction::Allow, &[])]);
    native.architectures.clear();
    let program = compile(&native).unwrap();
    assert_eq!(verdict(&program, NATIVE, 0, [0; 6]), ALLOW);
    assert_eq!(verdict(&program, NATIVE, 0x4000_0000, [0; 6]), KILL);
    assert_eq!(verdict(&program, I386, 3, [0; 6]), KILL);
}

#[test]
fn comparisons_are_unsigned_and_64_bits_wide() {
    let wide = 0x1_0000_0005_u64;
    let samples = [0, 4, 5, 6, 0xffff_ffff, wide - 1, wide, wide + 1, 0x2_0000_0000, u64::MAX];
    type Expected = fn(u64, u64) -> bool;
    let cases: [(Comparison, Expected); 6] = [
        (Comparison::NotEqual, |a, v| a != v),
        (Comparison::Less, |a, v| a < v),
        (Comparison::LessOrEqual, |a, v| a <= v),
        (Comparison::Equal, |a, v| a == v),
        (Comparison::GreaterOrEqual, |a, v| a >= v),
        (Comparison::Greater, |a, v| a > v),
    ];
    for value in [5, wide] {
        for (comparison, expected) in cases {
            let condition = ArgumentCondition { index: 2, value, comparison };
            let second = ArgumentCondition { index: 0, value: 7, comparison: Comparison::Equal };
            let rules = vec![rule(&["read"], SeccompAction::Allow, &[condition, second])];
            let program = compile(&profile(rules)).unwrap();
            for argument in samples {
                let holds = if expected(argument, value) { ALLOW } else { EPERM };
                assert_eq!(
                    verdict(&program, NATIVE, 0, [7, 0, argument, 0, 0, 0]),
                    holds,
                    "{argument:#x} {condition:?}"
                );
                assert_eq!(verdict(&program, NATIVE, 0, [8, 0, argument, 0, 0, 0]), EPERM, "both conditions count");
            }
        }
    }
}

#[test]
fn a_masked_comparison_reads_only_its_bits_and_repeated_arguments_are_alternatives() {
    let new_namespaces = 0x7e02_0000;
    let masked = ArgumentCondition { index: 0, value: 0, comparison: Comparison::MaskedEqual { mask: new_namespaces } };
    let equal = |value| ArgumentCondition { index: 0, value, comparison: Comparison::Equal };
    let program = compile(&profile(vec![
        rule(&["clone"], SeccompAction::Allow, &[masked]),
        rule(&["clone"], SeccompAction::Errno(38), &[]),
        rule(&["personality"], SeccompAction::Allow, &[equal(0), equal(8)]),
    ]))
    .unwrap();
    assert_eq!(verdict(&program, NATIVE, 56, [0x11, 0, 0, 0, 0, 0]), ALLOW);
    assert_eq!(verdict(&program, NATIVE, 56, [0x1000_0011, 0, 0, 0, 0, 0]), ENOSYS);
    for (value, expected) in [(0, ALLOW), (8, ALLOW), (9, EPERM)] {
        assert_eq!(verdict(&program, NATIVE, 135, [value, 0, 0, 0, 0, 0]), expected);
    }
}

#[test]
fn a_seventh_argument_is_refused() {
    let condition = ArgumentCondition { index: 6, value: 0, comparison: Comparison::Equal };
    let wrong = profile(vec![rule(&["read"], SeccompAction::Allow, &[condition])]);
    assert_eq!(compile(&wrong), Err(SeccompError::ArgumentIndex { name: "read".into(), index: 6 }));
}

#[test]
fn the_kernel_takes_the_program_and_enforces_it() {
    let mut denying = profile(vec![rule(&["sethostname"], SeccompAction::Errno(77), &[])]);
    denying.default_action = SeccompAction::Allow;
    let bytes = to_bytes(&compile(&denying).unwrap());
    // The filter stays with its thread, which ends with the test.
    let error = std::thread::spawn(move || {
        install(&bytes, 0).unwrap();
        rustix::system::sethostname(b"never").unwrap_err().raw_os_error()
    });
    assert_eq!(error.join().unwrap(), 77);
    // A process that was not filtered goes on as before.
    // SAFETY: the child makes one system call and allocates nothing.
    let Cloned::Parent { pidfd, .. } = unsafe { clone3(&CloneOptions::default()) }.unwrap() else { exit_now(3) };
    assert_eq!(crate::exit_info::wait(&pidfd, true).unwrap().code, 3);
}
