//! Chain ids: the digest of a layer together with all layers below it (OCI image specification, "Layer ChainID").

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, DigestError};

/// Names an unpacked layer. Two images that begin with the same layers share them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChainId(Digest);

impl ChainId {
    /// The chain ids of an image's layers, from the lowest to the topmost.
    pub fn of_layers(diff_ids: &[Digest]) -> Vec<Self> {
        let mut below: Option<Digest> = None;
        let chain = diff_ids.iter().map(|diff_id| {
            let id = match below {
                None => *diff_id,
                Some(below) => Digest::of(format!("{below} {diff_id}").as_bytes()),
            };
            below = Some(id);
            Self(id)
        });
        chain.collect()
    }

    pub(crate) fn digest(self) -> Digest {
        self.0
    }
}

impl FromStr for ChainId {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        text.parse().map(Self)
    }
}

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chain {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_id_covers_all_layers_below() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let chain = ChainId::of_layers(&[a, b]);
        assert_eq!(chain[0].0, a);
        assert_eq!(chain[1].0, Digest::of(format!("{a} {b}").as_bytes()));
        assert_ne!(ChainId::of_layers(&[b, a])[1], chain[1]);
        assert_eq!(ChainId::of_layers(&[]), []);
    }
}
