//! Image pulls and image garbage collection.

use std::time::Duration;

use podwright_core::image_access::{ImageAllowlist, VerificationPolicy};

use super::ImageConfig;
use super::diagnostics::Diagnostics;
use super::inputs::{ConfigInputs, period};

/// Default of `maxParallelImagePulls`. The Go kubelet pulls one image at a time by default; a hung registry then blocks all pods.
const PARALLEL_PULLS: usize = 5;

pub(super) fn read(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> ImageConfig {
    let file = &inputs.file;
    let serialize = file.serialize_image_pulls == Some(true);
    let parallel = diagnostics.integer("maxParallelImagePulls", file.max_parallel_image_pulls, PARALLEL_PULLS, 1, 1000);
    if serialize && file.max_parallel_image_pulls.is_some_and(|n| n > 1) {
        diagnostics.error("maxParallelImagePulls", "must not be more than 1 with serializeImagePulls: true");
    }
    let qps = diagnostics.integer("registryPullQPS", file.registry_pull_qps, 5, 0, 1_000_000);
    let burst = diagnostics.integer("registryBurst", file.registry_burst, 10, 0, 1_000_000);
    let high = diagnostics.integer("imageGCHighThresholdPercent", file.image_gc_high_threshold_percent, 85, 0, 100);
    let low = diagnostics.integer("imageGCLowThresholdPercent", file.image_gc_low_threshold_percent, 80, 0, 100);
    if low >= high {
        diagnostics.error("imageGCLowThresholdPercent", "must be below imageGCHighThresholdPercent");
    }
    let min_age = period(file.image_minimum_gc_age, Duration::from_secs(120));
    let max_age = file.image_maximum_gc_age.filter(|age| !age.is_zero());
    if max_age.is_some_and(|max| max <= min_age) {
        diagnostics.error("imageMaximumGCAge", "must be above imageMinimumGCAge");
    }
    ImageConfig {
        parallel: if serialize { 1 } else { parallel },
        rate: (qps > 0)
            .then(|| (u32::try_from(qps).unwrap_or(u32::MAX), u32::try_from(burst.max(1)).unwrap_or(u32::MAX))),
        verification: verification(inputs, diagnostics),
        gc_high: u8::try_from(high).unwrap_or(100),
        gc_low: u8::try_from(low).unwrap_or(100),
        gc_min_age: min_age,
        gc_max_age: max_age,
    }
}

fn verification(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> VerificationPolicy {
    let file = &inputs.file;
    let patterns = file.preloaded_images_verification_allowlist.as_deref().unwrap_or_default();
    let policy = file.image_pull_credentials_verification_policy.as_deref().filter(|policy| !policy.is_empty());
    if policy != Some("NeverVerifyAllowlistedImages") && !patterns.is_empty() {
        diagnostics.error(
            "preloadedImagesVerificationAllowlist",
            "needs imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages",
        );
    }
    match policy {
        None | Some("NeverVerifyPreloadedImages") => VerificationPolicy::NeverVerifyPreloadedImages,
        Some("NeverVerify") => VerificationPolicy::NeverVerify,
        Some("AlwaysVerify") => VerificationPolicy::AlwaysVerify,
        Some("NeverVerifyAllowlistedImages") => match ImageAllowlist::parse(patterns) {
            Ok(list) => VerificationPolicy::NeverVerifyAllowlistedImages(list),
            Err(error) => {
                diagnostics.error("preloadedImagesVerificationAllowlist", error.to_string());
                VerificationPolicy::AlwaysVerify
            }
        },
        Some(other) => {
            let known = "NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify";
            diagnostics.error("imagePullCredentialsVerificationPolicy", format!("{other:?} must be {known}"));
            VerificationPolicy::AlwaysVerify
        }
    }
}
