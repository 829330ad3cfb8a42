//! What a translation needs to know of this moment: the resolver file, the runtime's abilities, the pod's range of ids.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use podwright_core::model::{CallError, Pod, PodUid};

use super::CallExecutor;
use crate::host::Pool;
use crate::translate::{HostDns, Situation};

impl CallExecutor {
    /// Looked up for every call, because the files may change and the pod must get what is there now.
    pub(super) async fn situation(&self, uid: &PodUid, pod: &Pod, limit: Duration) -> Result<Situation, CallError> {
        let mut situation = Situation { features: self.features.get(), ..Situation::default() };
        if let Some(path) = &self.facts.resolv_conf {
            let path = path.clone();
            let read = move || read_resolv_conf(&path);
            situation.dns = blocking(&self.pool, "resolv.conf", limit, read).await?;
        }
        let wants_users = pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false);
        if wants_users && situation.features.user_namespaces {
            situation.userns = Some(self.userns.range_of(&self.pool, uid, limit).await?);
        }
        Ok(situation)
    }
}

/// Runs blocking file work where it costs only its own call.
pub(super) async fn blocking<T: Send + 'static>(
    pool: &Pool,
    key: &str,
    limit: Duration,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, CallError> {
    match pool.run(key, limit, work).await {
        Ok(result) => result.map_err(|message| CallError::failed(message)),
        Err(error) => Err(CallError::failed(error.to_string())),
    }
}

fn read_resolv_conf(path: &Path) -> Result<HostDns, String> {
    let text = read_bounded(path, RESOLV_CONF_BYTES_MAX)
        .map_err(|error| format!("read resolver configuration {}: {error}", path.display()))?;
    Ok(HostDns::parse(&String::from_utf8_lossy(&text)))
}

/// The whole file, or an error if it is larger than `max`.
pub(super) fn read_bounded(path: &Path, max: u64) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    std::fs::File::open(path)?.take(max + 1).read_to_end(&mut content)?;
    if content.len() as u64 > max {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, format!("larger than {max} bytes")));
    }
    Ok(content)
}

/// Kubernetes: maxResolvConfLength is 10 MiB; no real one comes near a tenth of that.
const RESOLV_CONF_BYTES_MAX: u64 = 1 << 20;
