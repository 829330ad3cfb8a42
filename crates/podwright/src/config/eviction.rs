//! The settings of eviction. Errors have the texts of the Go kubelet (`ParseThresholdConfig`).

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_core::eviction::{EvictionConfig, Threshold, ThresholdValue};
use podwright_core::model::Signal;
use podwright_core::quantity::{Amount, QuantityError};

use super::diagnostics::Diagnostics;
use super::inputs::{ConfigInputs, period};
use crate::go_duration::{self, GoDurationError};

/// Why a threshold can't be used.
#[derive(Debug, thiserror::Error)]
enum ThresholdError {
    #[error("unsupported eviction signal {0}")]
    Signal(String),
    #[error("{0:?} is not a percentage")]
    Percentage(String),
    #[error("eviction percentage threshold {0} must be >= 0%: {1}")]
    BelowZero(&'static str, String),
    #[error("eviction percentage threshold {0} must be <= 100%: {1}")]
    AboveAll(&'static str, String),
    #[error("eviction threshold {0} must be positive: {1}")]
    NotPositive(&'static str, Amount),
    #[error("eviction percentage minimum reclaim {0} must be positive: {1}")]
    NoReclaim(&'static str, String),
    #[error("negative eviction minimum reclaim specified for {0}")]
    NegativeReclaim(&'static str),
    #[error("grace period must be specified for the soft eviction threshold {0}")]
    NoGracePeriod(&'static str),
    #[error("invalid eviction grace period specified: {0}, must be a positive value")]
    NegativeGracePeriod(String),
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    #[error(transparent)]
    Duration(#[from] GoDurationError),
}

/// Reads all settings. `enforced`: `enforceNodeAllocatable` names pods, so that the memory of their cgroup counts too.
pub(super) fn read(
    inputs: &ConfigInputs<'_>,
    hard: &BTreeMap<Signal, ThresholdValue>,
    enforced: bool,
    diagnostics: &mut Diagnostics,
) -> EvictionConfig {
    let file = &inputs.file;
    let soft = given(&file.eviction_soft, "evictionSoft", threshold, diagnostics);
    let periods = given(&file.eviction_soft_grace_period, "evictionSoftGracePeriod", grace_period, diagnostics);
    let reclaims = given(&file.eviction_minimum_reclaim, "evictionMinimumReclaim", minimum_reclaim, diagnostics);
    let make = |signal: Signal, value: ThresholdValue, grace: Duration| Threshold {
        signal,
        value,
        min_reclaim: reclaims.get(&signal).copied(),
        grace,
    };
    let mut thresholds: Vec<Threshold> =
        hard.iter().map(|(signal, value)| make(*signal, *value, Duration::ZERO)).collect();
    for (signal, value) in soft {
        match periods.get(&signal) {
            Some(grace) => thresholds.push(make(signal, value, *grace)),
            None => diagnostics.error("evictionSoftGracePeriod", ThresholdError::NoGracePeriod(signal.as_str())),
        }
    }
    let of_memory = |t: &&Threshold| t.signal == Signal::MemoryAvailable && t.is_hard();
    let allocatable = thresholds.iter().find(of_memory).filter(|_| enforced);
    let allocatable = allocatable.map(|t| Threshold { signal: Signal::AllocatableMemoryAvailable, ..t.clone() });
    thresholds.extend(allocatable);
    let grace = diagnostics.integer("evictionMaxPodGracePeriod", file.eviction_max_pod_grace_period, 0, 0, GRACE_MAX);
    EvictionConfig {
        thresholds,
        max_pod_grace: Duration::from_secs(grace as u64),
        transition_period: period(file.eviction_pressure_transition_period, TRANSITION_PERIOD),
        storage_limits: file.local_storage_capacity_isolation.unwrap_or(true),
    }
}

/// `evictionHard` with its defaults; a signal that is switched off has no threshold.
pub(super) fn hard_thresholds(
    inputs: &ConfigInputs<'_>,
    diagnostics: &mut Diagnostics,
) -> BTreeMap<Signal, ThresholdValue> {
    let hard = &inputs.file.eviction_hard;
    let merge = inputs.file.merge_default_eviction_settings.unwrap_or(false);
    let mut texts: BTreeMap<String, String> = match hard {
        Some(_) if !merge => BTreeMap::new(),
        _ => DEFAULTS.iter().map(|(signal, text)| ((*signal).to_owned(), (*text).to_owned())).collect(),
    };
    texts.extend(hard.clone().into_iter().flatten());
    given(&Some(texts), "evictionHard", threshold, diagnostics)
}

/// The values by signal. `None` of `parse`: the signal is switched off.
fn given<T>(
    texts: &Option<BTreeMap<String, String>>,
    field: &str,
    parse: impl Fn(Signal, &str) -> Result<Option<T>, ThresholdError>,
    diagnostics: &mut Diagnostics,
) -> BTreeMap<Signal, T> {
    let mut values = BTreeMap::new();
    for (name, text) in texts.iter().flatten() {
        let signal = Signal::parse(name).ok_or_else(|| ThresholdError::Signal(name.clone()));
        match signal.and_then(|signal| Ok((signal, parse(signal, text)?))) {
            Ok((signal, value)) => values.extend(value.map(|value| (signal, value))),
            Err(error) => diagnostics.error(&format!("{field}[{name}]"), error),
        }
    }
    values
}

/// `None`: 0% and 100% switch the signal off.
fn threshold(signal: Signal, text: &str) -> Result<Option<ThresholdValue>, ThresholdError> {
    if text == "0%" || text == "100%" {
        return Ok(None);
    }
    if let Some(fraction) = percentage(text)? {
        return match fraction {
            below if below < 0.0 => Err(ThresholdError::BelowZero(signal.as_str(), text.to_owned())),
            above if above > 1.0 => Err(ThresholdError::AboveAll(signal.as_str(), text.to_owned())),
            fraction => Ok(Some(ThresholdValue::Fraction(fraction))),
        };
    }
    match text.parse::<Amount>()? {
        amount if amount.is_positive() => Ok(Some(ThresholdValue::Quantity(amount))),
        amount => Err(ThresholdError::NotPositive(signal.as_str(), amount)),
    }
}

fn minimum_reclaim(signal: Signal, text: &str) -> Result<Option<ThresholdValue>, ThresholdError> {
    if let Some(fraction) = percentage(text)? {
        if fraction <= 0.0 {
            return Err(ThresholdError::NoReclaim(signal.as_str(), text.to_owned()));
        }
        return Ok(Some(ThresholdValue::Fraction(fraction)));
    }
    match text.parse::<Amount>()? {
        amount if amount.is_negative() => Err(ThresholdError::NegativeReclaim(signal.as_str())),
        amount => Ok(Some(ThresholdValue::Quantity(amount))),
    }
}

fn grace_period(_: Signal, text: &str) -> Result<Option<Duration>, ThresholdError> {
    match go_duration::parse(text) {
        Err(GoDurationError::Negative(text)) => Err(ThresholdError::NegativeGracePeriod(text)),
        parsed => Ok(Some(parsed?)),
    }
}

/// `None`: it is an amount. In single precision, so that the result is the Go kubelet's.
fn percentage(text: &str) -> Result<Option<f32>, ThresholdError> {
    let Some(percent) = text.strip_suffix('%') else { return Ok(None) };
    let parsed = percent.parse::<f32>().ok().filter(|percent| percent.is_finite());
    let percent = parsed.ok_or_else(|| ThresholdError::Percentage(text.to_owned()))?;
    Ok(Some(percent / 100.0))
}

/// Kubernetes: `DefaultEvictionHard` on Linux.
const DEFAULTS: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];
/// The default of `evictionPressureTransitionPeriod`.
const TRANSITION_PERIOD: Duration = Duration::from_secs(300);
/// Upper bound of `evictionMaxPodGracePeriod` in seconds: that of an int32.
const GRACE_MAX: usize = i32::MAX as usize;
