//! Configuration and result of the ADD of each sandbox, one file per sandbox.

use std::fs;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::config::NetworkList;
use crate::cni_error::CniError;

/// Configuration and result are bounded by 1 MiB each.
const FILE_LEN_MAX: u64 = 4 << 20;

/// The configuration and the result of a sandbox's ADD.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct CachedAttachment {
    pub(crate) list: NetworkList,
    /// Values by capability.
    pub(crate) runtime: Map<String, Value>,
    /// `None` until ADD has ended.
    pub(crate) result: Option<Value>,
}

/// The directory of results.
#[derive(Debug)]
pub(crate) struct ResultCache {
    dir: PathBuf,
}

impl ResultCache {
    pub(crate) fn new(dir: PathBuf) -> Self {
        ResultCache { dir }
    }

    /// Writes by rename, so that a reader sees the old file or the new one.
    pub(crate) fn store(&self, sandbox_id: &str, attachment: &CachedAttachment) -> Result<(), CniError> {
        let path = self.path(sandbox_id)?;
        let write = || -> io::Result<()> {
            fs::create_dir_all(&self.dir)?;
            let temporary = self.dir.join(format!(".{sandbox_id}"));
            fs::File::create(&temporary)?.write_all(&serde_json::to_vec(attachment)?)?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|source| CniError::Cache { path: path.clone(), source })
    }

    /// `None` if there is none. A file that cannot be parsed is an error: DEL without its configuration would leave resources behind.
    pub(crate) fn read(&self, sandbox_id: &str) -> Result<Option<CachedAttachment>, CniError> {
        let path = self.path(sandbox_id)?;
        let mut bytes = vec![];
        let read = fs::File::open(&path).and_then(|file| file.take(FILE_LEN_MAX).read_to_end(&mut bytes));
        let cache_error = |source| CniError::Cache { path: path.clone(), source };
        match read {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(cache_error(e)),
            Ok(_) => serde_json::from_slice(&bytes).map(Some).map_err(|e| cache_error(e.into())),
        }
    }

    /// A missing one is no error.
    pub(crate) fn remove(&self, sandbox_id: &str) -> Result<(), CniError> {
        let path = self.path(sandbox_id)?;
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(CniError::Cache { path, source: e }),
            _ => Ok(()),
        }
    }

    /// The sandboxes with a result.
    pub(crate) fn ids(&self) -> Result<Vec<String>, CniError> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            Err(source) => return Err(CniError::Cache { path: self.dir.clone(), source }),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut ids: Vec<String> = names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned)).collect();
        ids.retain(|id| !id.starts_with('.') && !id.is_empty());
        ids.sort();
        Ok(ids)
    }

    fn path(&self, sandbox_id: &str) -> Result<PathBuf, CniError> {
        let path = self.dir.join(format!("{sandbox_id}.json"));
        if sandbox_id.is_empty() || sandbox_id.contains('/') || sandbox_id.starts_with('.') {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "a sandbox id is a plain file name");
            return Err(CniError::Cache { path, source });
        }
        Ok(path)
    }
}
