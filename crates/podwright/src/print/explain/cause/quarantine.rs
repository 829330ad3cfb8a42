//! A pod for which nothing is done: the agent died in it, or met an internal error.

use jiff::Timestamp;
use podwright_core::pod::Wait;

use super::Headline;
use super::blocked::shortened;
use crate::print::{age, seconds};

/// A pod in quarantine, why, and when it is tried again. After an internal error only a restart of the agent tries it again.
pub(super) fn quarantined(waits: &[Wait], now: Timestamp) -> Option<Headline> {
    let wait = waits.iter().find(|wait| wait.reason == REASON)?;
    let why = shortened(&wait.message);
    let text = match wait.until {
        None => format!("is in quarantine after an internal error: {why}"),
        Some(until) if until > now => format!("is in quarantine: {why}, next try in {}", age(seconds(now, until))),
        Some(_) => format!("is in quarantine: {why}, next try now"),
    };
    Some(Headline::of_wait(wait, &text))
}

const REASON: &str = "Quarantined";
