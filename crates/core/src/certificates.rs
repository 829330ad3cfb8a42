//! Certificates that signers of the API server issue for this node: when to request one, with which credentials, and what to do
//! while a request is pending.
//!
//! ```text
//!              it is time, or the certificate lacks something that is wanted
//!   idle ─────────────────────────────────────────────▶ creating ──▶ pending ──▶ issued: idle
//!    ▲                                                      │           │
//!    └──────────────── after a delay ◀── failed ◀───────────┴───────────┘ denied, failed, deleted, or pending for too long
//! ```
//!
//! A request for names that are not wanted any more is abandoned, and the next one is made at once. The executor is
//! `podwright_api::certificates`, which reports the results and performs the next step.

mod names;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::model::{Now, Time, jitter};
pub use names::{CertificateNames, MissingName, client_names, serving_names};

/// Fields of the current certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Subject and subject alternative names.
    pub names: CertificateNames,
    /// The first second of its validity.
    pub not_before: Timestamp,
    /// The last second of its validity.
    pub not_after: Timestamp,
    /// Its serial number as hexadecimal digits: spreads the rotations of many nodes.
    pub serial: String,
}

/// The credentials that a request is sent with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// The certificate that is to be replaced.
    Current,
    /// Those of the bootstrap kubeconfig, or of the kubeconfig if there is none.
    Bootstrap,
}

/// Why a request has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFailure {
    /// The API server refused our credentials (401).
    Unauthorized,
    /// Anything else: denied, failed, deleted, no connection, no space for the files.
    Other,
}

/// The next step of the executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RotationStep {
    /// Nothing until this moment of the boot clock, or until the inputs change; `None`: until the inputs change.
    Wait(Option<Time>),
    /// Create a request with a new key, and report `created`, `issued` or `failed`.
    Request {
        /// Subject and subject alternative names to request.
        names: CertificateNames,
        /// Credentials of the request.
        requester: Requester,
    },
    /// Report to the user that this request waits for approval. Returned once for each request.
    ReportPending(String),
    /// Stop waiting for the pending request.
    Abandon(AbandonReason),
}

/// Why a pending request is not waited for any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbandonReason {
    /// Other names are wanted now. The next request follows at once.
    NamesChanged,
    /// It was pending for [`PENDING_MAX`]. Counts as a failure.
    TooLong,
}

/// The rotation of one certificate: of the client, or of the server.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// Seed of the jitter: name of the node and kind of certificate.
    seed: String,
    /// `None`: nothing can be requested yet.
    wanted: Option<CertificateNames>,
    current: Option<CertificateFacts>,
    /// When the current certificate was issued; `None`: it was found on disk, and `not_before` is used instead. Signers set
    /// `not_before` minutes into the past, which can be most of a short lifetime.
    issued_at: Option<Timestamp>,
    /// The current certificate is replaced at once, regardless of its content.
    forced: bool,
    phase: RotationPhase,
    /// Failed requests since the last certificate with all wanted names.
    failures: u32,
    /// The last request with the current certificate was refused with 401.
    refused: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RotationPhase {
    /// Nothing is requested; not before this moment.
    Idle(Time),
    Requested {
        names: CertificateNames,
        since: Time,
        /// `None`: it is not created yet.
        name: Option<String>,
        reported: bool,
    },
}

impl Rotation {
    /// A rotation without a certificate and without wanted names.
    pub fn new(seed: String) -> Self {
        let phase = RotationPhase::Idle(Time::ZERO);
        Self { seed, wanted: None, current: None, issued_at: None, forced: false, phase, failures: 0, refused: false }
    }

    /// Sets the wanted names.
    pub fn want(&mut self, names: Option<CertificateNames>) {
        self.wanted = names;
    }

    /// A certificate was found. `temporary`: it came with the kubeconfig and is replaced at once.
    pub fn found(&mut self, certificate: Option<CertificateFacts>, temporary: bool) {
        self.forced = temporary && certificate.is_some();
        (self.current, self.issued_at) = (certificate, None);
    }

    /// The certificate that is in use; `None`: there is none.
    pub fn current(&self) -> Option<&CertificateFacts> {
        self.current.as_ref()
    }

    /// The first wanted name that the current certificate lacks; `None`: it has all, or there is no certificate.
    pub fn missing(&self) -> Option<MissingName> {
        self.wanted.as_ref()?.missing_from(&self.current.as_ref()?.names)
    }

    /// The request was created under this name.
    pub fn created(&mut self, request: &str) {
        if let RotationPhase::Requested { name, .. } = &mut self.phase {
            *name = Some(request.to_owned());
        }
    }

    /// The request gave this certificate, which is stored.
    pub fn issued(&mut self, certificate: CertificateFacts, now: Now) {
        (self.current, self.forced, self.refused) = (Some(certificate), false, false);
        self.issued_at = Some(now.wall);
        // A signer that leaves out names, or a wrong clock, must not cause a request each second.
        let due = self.wanted.as_ref().is_some_and(|wanted| self.due(wanted, now) <= now.boot);
        self.failures = if due { self.failures.saturating_add(1) } else { 0 };
        let delay = if due { retry_delay(&self.seed, self.failures) } else { Duration::ZERO };
        self.phase = RotationPhase::Idle(now.boot + delay);
    }

    /// The request has no result.
    pub fn failed(&mut self, failure: RequestFailure, now: Now) {
        self.refused = failure == RequestFailure::Unauthorized && self.requester(now) == Requester::Current;
        self.failures = self.failures.saturating_add(1);
        self.phase = RotationPhase::Idle(now.boot + retry_delay(&self.seed, self.failures));
    }

    /// Failed requests since the last certificate with all wanted names.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the next step.
    pub fn step(&mut self, now: Now) -> RotationStep {
        let step = match &mut self.phase {
            RotationPhase::Idle(not_before) => {
                let not_before = *not_before;
                return self.idle(not_before, now);
            }
            // A create request takes seconds and cannot be cancelled.
            RotationPhase::Requested { name: None, .. } => return RotationStep::Wait(None),
            RotationPhase::Requested { names, .. } if self.wanted.as_ref() != Some(names) => {
                RotationStep::Abandon(AbandonReason::NamesChanged)
            }
            RotationPhase::Requested { since, .. } if now.boot >= *since + PENDING_MAX => {
                RotationStep::Abandon(AbandonReason::TooLong)
            }
            RotationPhase::Requested { since, reported: true, .. } => {
                return RotationStep::Wait(Some(*since + PENDING_MAX));
            }
            RotationPhase::Requested { since, .. } if now.boot < *since + REPORT_PENDING_AFTER => {
                return RotationStep::Wait(Some(*since + REPORT_PENDING_AFTER));
            }
            RotationPhase::Requested { name: Some(name), reported, .. } => {
                *reported = true;
                return RotationStep::ReportPending(name.clone());
            }
        };
        match step {
            RotationStep::Abandon(AbandonReason::TooLong) => self.failed(RequestFailure::Other, now),
            _ => self.phase = RotationPhase::Idle(now.boot),
        }
        step
    }

    fn idle(&mut self, not_before: Time, now: Now) -> RotationStep {
        let Some(names) = self.wanted.clone() else { return RotationStep::Wait(None) };
        let due = self.due(&names, now).max(not_before);
        if due > now.boot {
            return RotationStep::Wait(Some(due.min(now.boot + RECHECK)));
        }
        self.phase = RotationPhase::Requested { names: names.clone(), since: now.boot, name: None, reported: false };
        RotationStep::Request { names, requester: self.requester(now) }
    }

    /// When the certificate must be replaced, on the boot clock.
    fn due(&self, wanted: &CertificateNames, now: Now) -> Time {
        let Some(current) = &self.current else { return now.boot };
        if self.forced || current.is_expired(now.wall) || wanted.missing_from(&current.names).is_some() {
            return now.boot;
        }
        let begin = self.issued_at.unwrap_or(current.not_before);
        let left = current.rotation_time(&self.seed, begin).duration_since(now.wall);
        now.boot + Duration::try_from(left).unwrap_or(Duration::ZERO)
    }

    fn requester(&self, now: Now) -> Requester {
        let valid = self.current.as_ref().is_some_and(|current| !current.is_expired(now.wall));
        if valid && !self.refused { Requester::Current } else { Requester::Bootstrap }
    }
}

impl CertificateFacts {
    /// It is not valid any more.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now > self.not_after
    }

    /// Between 70 % and 90 % of its lifetime from `begin` on (Kubernetes: `jitteryDuration`). The same certificate gives the same
    /// time.
    pub(crate) fn rotation_time(&self, seed: &str, begin: Timestamp) -> Timestamp {
        let begin = begin.max(self.not_before);
        let lifetime = self.not_after.duration_since(begin).max(SignedDuration::ZERO);
        let part = 0.7 + 0.2 * jitter(&format!("{}/{seed}", self.serial), 0);
        let age = SignedDuration::from_secs_f64(lifetime.as_secs_f64() * part);
        begin.checked_add(age).unwrap_or(self.not_after)
    }
}

/// Before the next request after so many failures: 2 s, doubled up to 32 s, with up to a tenth more.
fn retry_delay(seed: &str, failures: u32) -> Duration {
    let full = RETRY_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(RETRY_MAX);
    full + full.mul_f64(0.1 * jitter(seed, u64::from(failures)))
}

/// A request that is not issued in this time is replaced (Kubernetes: `certificateWaitTimeout`).
pub const PENDING_MAX: Duration = Duration::from_secs(15 * 60);
/// Approvers that are programs answer sooner.
const REPORT_PENDING_AFTER: Duration = Duration::from_secs(5);
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(32);
/// The wall clock may have been set since the time of a rotation was computed.
const RECHECK: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests;
