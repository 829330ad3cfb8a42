//! The part of a translation to CRI that is read for each call: resolver configuration, runtime features, user namespace.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwright_core::model::{CallError, Pod, PodUid};

use super::CallExecutor;
use super::files::{blocking, read_bounded};
use crate::translate::{HostDns, Situation};

impl CallExecutor {
    /// Read for every call, because the files may change and the pod must get their current content.
    pub(super) async fn situation(&self, uid: &PodUid, pod: &Pod, limit: Duration) -> Result<Situation, CallError> {
        let mut situation = Situation { features: self.features.get(), ..Situation::default() };
        if let Some(path) = &self.settings.resolv_conf {
            let path = path.clone();
            let read = move || read_resolv_conf(&path);
            situation.dns = blocking(&self.pool, "resolv.conf", limit, read).await?;
        }
        let user_namespace = pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false);
        if user_namespace && situation.features.user_namespaces {
            situation.userns = Some(self.userns.range_of(&self.pool, uid, limit).await?);
        }
        Ok(situation)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("read resolver configuration {}: {source}", path.display())]
struct ResolvConfError {
    path: PathBuf,
    source: io::Error,
}

fn read_resolv_conf(path: &Path) -> Result<HostDns, ResolvConfError> {
    let text = read_bounded(path, RESOLV_CONF_BYTES_MAX)
        .map_err(|source| ResolvConfError { path: path.to_owned(), source })?;
    Ok(HostDns::parse(&String::from_utf8_lossy(&text)))
}

/// Kubernetes: maxResolvConfLength is 10 MiB; real files are far below a tenth of that.
const RESOLV_CONF_BYTES_MAX: u64 = 1 << 20;
