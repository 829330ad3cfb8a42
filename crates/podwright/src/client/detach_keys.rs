//! The keys that leave an attached container without ending it: Ctrl-P Ctrl-Q, as in docker and podman.

const CTRL_P: u8 = 0x10;
const CTRL_Q: u8 = 0x11;

/// Recognises the keys in the input, also across chunks.
#[derive(Debug, Default)]
pub(super) struct DetachKeys {
    after_ctrl_p: bool,
}

impl DetachKeys {
    /// The chunk completes the sequence.
    pub(super) fn pressed(&mut self, chunk: &[u8]) -> bool {
        chunk.iter().any(|key| {
            let complete = self.after_ctrl_p && *key == CTRL_Q;
            self.after_ctrl_p = *key == CTRL_P;
            complete
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_found_within_and_across_chunks() {
        for (chunks, detached) in [
            (&[&b"ab\x10\x11"[..]][..], true),
            (&[b"\x10", b"\x11"], true),
            (&[b"\x10\x10", b"\x11x"], true),
            (&[b"\x10x\x11", b"\x11\x10"], false),
            (&[b"", b"exit\r"], false),
        ] {
            let mut keys = DetachKeys::default();
            assert_eq!(chunks.iter().any(|chunk| keys.pressed(chunk)), detached, "{chunks:?}");
        }
    }
}
