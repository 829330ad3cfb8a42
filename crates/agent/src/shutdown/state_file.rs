//! `graceful_node_shutdown_state`: when the last graceful shutdown began and ended, in the format of the Go kubelet.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use podwright_tasks::{Pool, PoolError};
use serde::{Deserialize, Serialize};

use super::{FILE_LIMIT, pool_key};

/// Why the file could not be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateFileError {
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

/// The times of one shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShutdownTimes {
    pub(super) start_time: Timestamp,
    /// `None`: the pods have not all ended.
    pub(super) end_time: Option<Timestamp>,
}

/// Go's zero time stands for none.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StateFile {
    start_time: String,
    end_time: String,
}

const NAME: &str = "graceful_node_shutdown_state";
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";
/// The file has two times.
const SIZE_MAX: usize = 4096;

pub(super) async fn write(root_dir: &Path, times: ShutdownTimes, pool: &Pool) -> Result<(), StateFileError> {
    let path = root_dir.join(NAME);
    let end_time = times.end_time.map_or_else(|| ZERO_TIME.to_owned(), |time| time.to_string());
    let state = StateFile { start_time: times.start_time.to_string(), end_time };
    let (new, to) = (root_dir.join(format!("{NAME}.new")), path.clone());
    let work = move || {
        let mut file = fs::File::create(&new)?;
        file.write_all(&serde_json::to_vec(&state)?)?;
        // The host is about to lose its power.
        file.sync_all()?;
        fs::rename(&new, to)
    };
    match pool.run(pool_key("state"), FILE_LIMIT, work).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(source)) => Err(StateFileError::Write { path, source }),
        Err(source) => Err(StateFileError::Hangs { path, source }),
    }
}

/// `None`: there was no graceful shutdown, or its file is not readable.
pub(super) async fn read(root_dir: &Path, pool: &Pool) -> Option<ShutdownTimes> {
    let path = root_dir.join(NAME);
    let bytes = pool.run(pool_key("state"), FILE_LIMIT, move || fs::read(path)).await.ok()?.ok()?;
    let state: StateFile = serde_json::from_slice(&bytes).ok().filter(|_| bytes.len() <= SIZE_MAX)?;
    let time = |text: &str| text.parse::<Timestamp>().ok().filter(|_| text != ZERO_TIME);
    Some(ShutdownTimes { start_time: time(&state.start_time)?, end_time: time(&state.end_time) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_times_are_read_again_in_the_format_of_the_go_kubelet() {
        let (dir, pool) = (tempfile::tempdir().unwrap(), Pool::default());
        assert_eq!(read(dir.path(), &pool).await, None);
        let time = |second| Timestamp::from_second(second).unwrap();
        let path = dir.path().join(NAME);
        for (end_time, text) in [
            (None, r#"{"startTime":"2023-11-14T22:13:20Z","endTime":"0001-01-01T00:00:00Z"}"#),
            (Some(time(1_700_000_030)), r#"{"startTime":"2023-11-14T22:13:20Z","endTime":"2023-11-14T22:13:50Z"}"#),
        ] {
            let times = ShutdownTimes { start_time: time(1_700_000_000), end_time };
            write(dir.path(), times, &pool).await.unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(read(dir.path(), &pool).await, Some(times));
        }
        fs::write(&path, "{").unwrap();
        assert_eq!(read(dir.path(), &pool).await, None);
    }
}
