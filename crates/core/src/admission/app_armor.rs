//! AppArmor: a pod with a profile is rejected where the kernel does not enforce it.

use k8s_openapi::api::core::v1::{AppArmorProfile, SecurityContext};

use super::Rejection;
use crate::model::Pod;

/// Passes if no profile but `Unconfined` is set, or AppArmor is enabled.
pub(super) fn check(pod: &Pod, enabled: bool) -> Result<(), Rejection> {
    let Some(spec) = pod.spec.as_ref().filter(|_| !enabled) else { return Ok(()) };
    let of_pod = spec.security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref());
    let plain = spec.init_containers.iter().flatten().chain(&spec.containers).map(|c| c.security_context.as_ref());
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| c.security_context.as_ref());
    let own = |context: Option<&SecurityContext>| context.and_then(|c| c.app_armor_profile.clone());
    let confines = |profile: AppArmorProfile| profile.type_ != "Unconfined";
    if plain.chain(ephemeral).any(|context| own(context).or_else(|| of_pod.cloned()).is_some_and(confines)) {
        let message = "Cannot enforce AppArmor: AppArmor is not enabled on the host".into();
        return Err(Rejection { reason: "AppArmor", message });
    }
    Ok(())
}
