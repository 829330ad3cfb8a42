//! Rotation of container logs, the agent's own log, and the recording of decisions.

use std::time::Duration;

use podwright_agent::{recorder, rotate};
use podwright_core::quantity::Amount;

use super::LoggingConfig;
use super::diagnostics::Diagnostics;
use super::inputs::{ConfigInputs, absolute, text};
use crate::run_flags::LogFormat;

/// A smaller recording could not hold the state of many pods.
const RECORDING_MIN: u64 = 1 << 20;

pub(super) fn rotation(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> rotate::RotationConfig {
    let (file, defaults) = (&inputs.file, rotate::RotationConfig::default());
    let max_size = match text(&file.container_log_max_size).map(str::parse::<Amount>) {
        None => defaults.max_size,
        // In the Go kubelet -1 turns rotation off.
        Some(Ok(amount)) if amount.is_negative() => u64::MAX,
        Some(Ok(amount)) if amount.is_positive() => amount.value().unsigned_abs(),
        Some(Ok(_)) => {
            diagnostics.error("containerLogMaxSize", "must not be zero");
            defaults.max_size
        }
        Some(Err(error)) => {
            diagnostics.error("containerLogMaxSize", error);
            defaults.max_size
        }
    };
    let interval = file.container_log_monitor_interval.unwrap_or(defaults.interval);
    if interval < Duration::from_secs(3) {
        diagnostics.error("containerLogMonitorInterval", "must be at least 3s");
    }
    let max_files =
        diagnostics.integer("containerLogMaxFiles", file.container_log_max_files, defaults.max_files, 2, 1000);
    rotate::RotationConfig { max_size, max_files, interval }
}

pub(super) fn logging(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> LoggingConfig {
    let file = inputs.file.logging.clone().unwrap_or_default();
    let format = match text(&file.format) {
        None | Some("text") => LogFormat::Text,
        Some("json") => LogFormat::Json,
        Some(other) => {
            diagnostics.error("logging.format", format!("{other:?} must be text or json"));
            LogFormat::default()
        }
    };
    let verbosity = diagnostics.integer("logging.verbosity", file.verbosity, 0, 0, usize::from(u8::MAX));
    LoggingConfig {
        format: inputs.flags.observability.logging_format.unwrap_or(format),
        verbosity: inputs.flags.verbosity.unwrap_or(u8::try_from(verbosity).unwrap_or(u8::MAX)),
    }
}

/// `None`: decisions are not recorded.
pub(super) fn recording(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> Option<recorder::RecorderConfig> {
    let path = absolute(inputs.flags.observability.record.as_deref()?);
    let size = inputs.flags.observability.record_max_size.parse::<Amount>();
    match size.map(|size| u64::try_from(size.value())) {
        Ok(Ok(max_size)) if max_size >= RECORDING_MIN => Some(recorder::RecorderConfig { path, max_size }),
        _ => {
            diagnostics.error("--record-max-size", "must be a size of at least 1Mi, such as 256Mi");
            None
        }
    }
}
