//! Reads certificates again when their files change: the serving pair and the client CA independently, so that a broken pair never
//! keeps a removed CA trusted.

use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use podwright_agent::host::Pool;
use podwright_tasks::error_chain;
use tokio_util::sync::CancellationToken;

use super::{READ_TIMEOUT, ServerTls, ServingSource, TlsError, TlsFiles, authorities, serving};

/// Files that are used together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilePart {
    /// Certificate and key of the server.
    Serving,
    ClientCa,
}

impl FilePart {
    pub(super) const ALL: [Self; 2] = [Self::Serving, Self::ClientCa];

    /// In log lines, and the key of the pool: a part whose file system hangs does not delay the other.
    fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving certificate of the HTTPS server",
            Self::ClientCa => "client CA of the HTTPS server",
        }
    }
}

/// Time of change, inode and size of each file; `None`: it cannot be found.
pub(super) type FileStamps = Vec<Option<(SystemTime, u64, u64)>>;

/// Symbolic links are followed.
pub(super) fn file_stamps(files: &TlsFiles, part: FilePart) -> FileStamps {
    use std::os::unix::fs::MetadataExt;
    let paths: Vec<&PathBuf> = match part {
        FilePart::Serving => match &files.serving {
            ServingSource::Files { certificate, key } => vec![certificate, key],
            ServingSource::SelfSigned | ServingSource::Issued => vec![],
        },
        FilePart::ClientCa => files.client_ca.iter().collect(),
    };
    let stamp = |path: &PathBuf| {
        let about = std::fs::metadata(path).ok()?;
        Some((about.modified().ok()?, about.ino(), about.len()))
    };
    paths.into_iter().map(stamp).collect()
}

/// A part as it was read last.
struct FollowedPart {
    part: FilePart,
    seen: FileStamps,
    /// The error that was logged since then.
    complaint: Option<String>,
}

impl ServerTls {
    /// Reads the files again when they change, until `stop` is cancelled. A file that cannot be used leaves the old content.
    pub(in crate::kubelet) async fn follow_files(&self, pool: Pool, stop: CancellationToken) {
        let followed = |index: usize| {
            let (part, seen) = (FilePart::ALL[index], self.opened[index].clone());
            FollowedPart { part, seen, complaint: None }
        };
        let mut parts = [followed(0), followed(1)];
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
            for part in &mut parts {
                self.check(part, &pool).await;
            }
        }
    }

    async fn check(&self, followed: &mut FollowedPart, pool: &Pool) {
        let (files, part) = (self.files.clone(), followed.part);
        let now = pool.run(part.name(), READ_TIMEOUT, move || file_stamps(&files, part)).await;
        let now = now.unwrap_or_default();
        if now == followed.seen || now.iter().any(Option::is_none) && followed.complaint.is_some() {
            return;
        }
        match self.reload(part, pool).await {
            Ok(()) => {
                tracing::info!(certificate = part.name(), "certificates were read again");
                (followed.seen, followed.complaint) = (now, None);
            }
            // The files may be in the middle of a change: tried again.
            Err(error) => {
                let error = error_chain(&error);
                if followed.complaint.as_ref() != Some(&error) {
                    let part = part.name();
                    tracing::warn!(certificate = part, error, "certificates cannot be read: the old ones stay");
                    followed.complaint = Some(error);
                }
            }
        }
    }

    pub(super) async fn reload(&self, part: FilePart, pool: &Pool) -> Result<(), TlsError> {
        let files = self.files.clone();
        match part {
            FilePart::Serving => {
                let new = pool.run(part.name(), READ_TIMEOUT, move || serving(&files)).await??;
                new.into_iter().for_each(|new| self.serving.set(new));
            }
            FilePart::ClientCa => {
                let new = pool.run(part.name(), READ_TIMEOUT, move || authorities(&files)).await??;
                if let (Some(current), Some(new)) = (&self.authorities, new) {
                    *current.write().unwrap_or_else(PoisonError::into_inner) = new;
                }
            }
        }
        Ok(())
    }
}

/// Between two checks of the files. Certificates change days before the old ones end.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
