//! UpdateRuntimeConfig: the range of the node's pods. A configured range stays; another one is replaced while no pod has an address
//! of it, and else the call fails: the kubelet repeats it.

use std::time::Duration;

use ipnet::IpNet;
use podwright_cri::{CriError, v1};

use super::{VerbContext, failed, invalid};
use crate::context::failure;
use crate::machine::Failure;
use crate::settings::NetworkSettings;
use crate::sweep;

pub(crate) async fn update_runtime_config(calls: VerbContext<'_>, config: v1::RuntimeConfig) -> Result<(), CriError> {
    let asked = config.network_config.unwrap_or_default().pod_cidr;
    let NetworkSettings::Bridge { ranges, replaceable, .. } = &calls.context.settings.network else { return Ok(()) };
    if asked.is_empty() {
        return Ok(());
    }
    let parsed: Result<Vec<IpNet>, _> = asked.split(',').map(|range| range.trim().parse()).collect();
    let asked = parsed.map_err(|_| invalid(CALL, format!("{asked:?} is not a list of CIDRs")))?;
    if !replaceable {
        if asked.iter().any(|range| !ranges.contains(&range.trunc())) {
            tracing::warn!(pod_cidr = ?asked, configured = ?ranges, "the pod CIDR of the node differs from the configured one, which stays");
        }
        return Ok(());
    }
    let network = std::sync::Arc::clone(&calls.context.network);
    let set = move || network.set_ranges(&asked).map_err(|error| failure(&error));
    let set = calls.context.pool.run("engine network", LIMIT, set).await;
    let set = set.unwrap_or_else(|error| Err(Failure::new(error.to_string())));
    set.map_err(|failure| {
        tracing::warn!(error = %failure, "the pod CIDR of the node is not used");
        failed(CALL, &failure)
    })?;
    // The bridge has its address before the first pod comes.
    sweep::reconcile_network(calls.context).await;
    Ok(())
}

const CALL: &str = "UpdateRuntimeConfig";
const LIMIT: Duration = Duration::from_secs(30);
