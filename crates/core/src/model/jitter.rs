//! Deterministic jitter.

/// A number in 0…1 that depends only on its arguments, because core draws no random numbers.
pub(crate) fn jitter(uid: &str, counter: u64) -> f64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in uid.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (hash >> 40) as f64 / f64::from(1 << 24)
}
