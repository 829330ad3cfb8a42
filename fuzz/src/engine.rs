//! What the embedded engine reads: packets of shims, frames of SPDY clients, CNI configurations and results, seccomp profiles.

use crate::{run, split};

/// One kind of packet or file by the first byte, then its bytes.
pub fn shim(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 4 {
        0 => podwright_shim::fuzz_api::request(bytes),
        1 => podwright_shim::fuzz_api::packet(bytes, usize::from(kind / 4) % 8),
        2 => podwright_shim::fuzz_api::plan(bytes),
        _ => podwright_shim::fuzz_api::read_exit_record(bytes),
    }
}

/// Everything that a client sends after the upgrade.
pub fn spdy(data: &[u8]) {
    run(podwright_engine::fuzz_api::spdy(data));
}

/// One kind of text by the first byte, then the text. The output of a plugin that fails is followed by a line feed and its errors.
pub fn cni(data: &[u8]) {
    let Some((kind, text)) = data.split_first() else { return };
    match kind % 4 {
        0 => podwright_net::fuzz_api::configuration(text),
        1 => podwright_net::fuzz_api::result(text),
        2 => {
            let (output, errors) = split(text);
            podwright_net::fuzz_api::failure(output, errors);
        }
        _ => podwright_net::fuzz_api::attachment(text),
    }
}

/// A profile that is accepted is a program that the kernel takes: of a bounded length, without a jump out of it, and with an end.
pub fn seccomp(data: &[u8]) {
    let Some(program) = podwright_engine::fuzz_api::seccomp_program(data) else { return };
    let count = program.len() / 8;
    assert!((1..=4096).contains(&count) && program.len().is_multiple_of(8), "{} bytes", program.len());
    for (at, instruction) in program.chunks_exact(8).enumerate() {
        let left = count - at - 1;
        let code = u16::from_ne_bytes([instruction[0], instruction[1]]);
        let far = u32::from_ne_bytes([instruction[4], instruction[5], instruction[6], instruction[7]]) as usize;
        let reach = match (code & 7, code) {
            (RETURN, _) => continue,
            (JUMP, JUMP_ALWAYS) => far,
            (JUMP, _) => usize::from(instruction[2].max(instruction[3])),
            _ => 0,
        };
        assert!(reach < left, "instruction {at} of {count} leaves the program");
    }
}

/// `BPF_CLASS`.
const JUMP: u16 = 5;
const RETURN: u16 = 6;
/// `BPF_JMP | BPF_JA`.
const JUMP_ALWAYS: u16 = 5;
