//! What the journal reports when it is opened.

use std::fmt;
use std::io;
use std::path::PathBuf;

use podwright_core::model::PodUid;

use super::JournalError;

/// Something that was lost or could not be done when the journal was opened. None of these stops the agent.
#[derive(Debug, thiserror::Error)]
pub enum JournalWarning {
    /// The last commit before a crash was not complete: its effects had not begun.
    #[error("the journal's last {bytes} bytes were not committed: truncated")]
    Torn {
        /// Truncated from the end of the file.
        bytes: u64,
    },
    /// Some records were lost. The others were kept, and the file was written again without the damaged parts.
    #[error("the journal is damaged, {damage} lost; {}", kept_text(.copy))]
    Damaged {
        /// What can't be read.
        damage: Damage,
        /// The damaged file, kept for examination; `None` if it could not be linked.
        copy: Option<PathBuf>,
    },
    /// No record can be read. The agent starts empty and adopts the pods of the runtime.
    #[error("the journal can't be used ({why}): renamed to {}, starting empty", .to.display())]
    Unusable {
        /// What is wrong with it.
        why: String,
        /// Its new name.
        to: PathBuf,
    },
    /// As `Unusable`, and the file stays where it is until a new one replaces it.
    #[error("the journal can't be used ({why}) nor renamed: starting empty")]
    Unrenamed {
        /// What is wrong with it.
        why: String,
        /// Of the rename.
        #[source]
        source: io::Error,
    },
    /// A record is intact and carries another UID than its frame.
    #[error("the journal's record of pod {uid} carries another uid ({found}): dropped")]
    OtherUid {
        /// Of the frame.
        uid: PodUid,
        /// Of the record.
        found: PodUid,
    },
    /// A record is intact and of an unknown shape.
    #[error("the journal's record of pod {uid} can't be decoded: dropped")]
    Undecodable {
        /// Of the frame.
        uid: PodUid,
        /// Of the decoder.
        #[source]
        source: serde_json::Error,
    },
    /// The file could not be written again. The next compaction repeats it.
    #[error("the journal can't be rewritten yet")]
    NotRewritten {
        /// Of the compaction.
        #[source]
        source: JournalError,
    },
    /// There is no file yet. The next commit tries again.
    #[error("the journal can't be created yet")]
    NotCreated {
        /// Of the creation.
        #[source]
        source: JournalError,
    },
}

impl JournalWarning {
    /// Records that had been synced were lost.
    pub fn is_loss(&self) -> bool {
        !matches!(self, Self::Torn { .. } | Self::NotRewritten { .. } | Self::NotCreated { .. })
    }
}

/// The parts of the journal that had been synced and can't be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Offset of the first one.
    pub first: u64,
    /// Contiguous parts.
    pub places: u64,
    /// The sum of their sizes.
    pub bytes: u64,
    /// Commits of which some or all records are missing. Records of a compaction are not counted.
    pub commits: u64,
}

impl Damage {
    pub(super) fn is_empty(&self) -> bool {
        self.places == 0 && self.commits == 0
    }

    pub(super) fn add(&mut self, other: Self) {
        if self.places == 0 && other.places > 0 {
            self.first = other.first;
        }
        self.places += other.places;
        self.bytes += other.bytes;
        self.commits = self.commits.saturating_add(other.commits);
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, places, bytes, commits } = self;
        write!(f, "{bytes} bytes in {places} places from byte {first} on and records of {commits} commits")
    }
}

fn kept_text(copy: &Option<PathBuf>) -> String {
    match copy {
        Some(copy) => format!("the damaged file is {}", copy.display()),
        None => "the damaged file could not be kept".into(),
    }
}
