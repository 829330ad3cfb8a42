//! The drop-in file that raises logind's `InhibitDelayMaxSec`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwright_tasks::{Pool, PoolError};

use super::{FILE_LIMIT, pool_key};

/// Why the file could not be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum OverrideError {
    #[error("write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("write {}", path.display())]
    Hangs {
        path: PathBuf,
        #[source]
        source: PoolError,
    },
}

/// Of several drop-in files the last by name wins: 99-kubelet.conf, the name of the Go kubelet, loses to that of unattended-upgrades.
const NAME: &str = "zz-podwright.conf";

/// Writes the file as a whole, so that logind never reads half of it.
pub(super) async fn write(dir: &Path, delay: Duration, pool: &Pool) -> Result<(), OverrideError> {
    let path = dir.join(NAME);
    let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
    let text = format!(
        "# Written by podwright: its pods have this long to end (shutdownGracePeriod).\n[Login]\nInhibitDelayMaxSec={seconds}\n"
    );
    let (dir, to) = (dir.to_owned(), path.clone());
    let work = move || {
        fs::create_dir_all(&dir)?;
        let new = dir.join(format!(".{NAME}.new"));
        fs::write(&new, text)?;
        fs::rename(&new, to)
    };
    match pool.run(pool_key("logind"), FILE_LIMIT, work).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(source)) => Err(OverrideError::Write { path, source }),
        Err(source) => Err(OverrideError::Hangs { path, source }),
    }
}
