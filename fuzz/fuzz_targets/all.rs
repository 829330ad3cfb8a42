//! All targets in one program, which is linked once; `PODWRIGHT_FUZZ_TARGET` selects one.
#![no_main]

use std::sync::OnceLock;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("PODWRIGHT_FUZZ_TARGET").unwrap_or_default();
        let target = podwright_fuzz::TARGETS.iter().find(|(known, _)| *known == name);
        let (_, target) = target.unwrap_or_else(|| panic!("PODWRIGHT_FUZZ_TARGET={name:?} is not a target"));
        TARGET.set(*target).expect("initialized once");
    },
    |data: &[u8]| TARGET.get().expect("initialized")(data)
);
