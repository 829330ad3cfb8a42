//! Requests that wait for their client, each under a random token that works once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use podwright_cri::{Code, CriError, v1};
use rustix::rand::{GetRandomFlags, getrandom};

/// A request of the CRI that returned a URL.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StreamRequest {
    Exec(v1::ExecRequest),
    Attach(v1::AttachRequest),
    PortForward(v1::PortForwardRequest),
}

impl StreamRequest {
    /// The first segment of the URL's path, as cri-streaming has it.
    pub(super) fn path(&self) -> &'static str {
        match self {
            Self::Exec(_) => "exec",
            Self::Attach(_) => "attach",
            Self::PortForward(_) => "portforward",
        }
    }

    fn call(&self) -> &'static str {
        match self {
            Self::Exec(_) => "Exec",
            Self::Attach(_) => "Attach",
            Self::PortForward(_) => "PortForward",
        }
    }
}

/// The requests whose client has not come yet (cri-streaming: `requestCache`).
#[derive(Debug, Default)]
pub(super) struct PendingRequests(Mutex<Pending>);

#[derive(Debug, Default)]
struct Pending {
    requests: HashMap<String, (StreamRequest, Instant)>,
    /// Tokens with the end of their validity, the oldest first.
    by_age: VecDeque<(Instant, String)>,
}

impl PendingRequests {
    /// Keeps a request; returns its token.
    pub(super) fn insert(&self, request: StreamRequest, now: Instant) -> Result<String, CriError> {
        let call = request.call();
        let mut pending = self.lock();
        pending.expire(now);
        if pending.requests.len() >= PENDING_MAX {
            return Err(CriError::new(
                Code::ResourceExhausted,
                call,
                format!("{PENDING_MAX} streaming requests wait for their clients; try again later"),
            ));
        }
        let token = random_token().map_err(|e| CriError::new(Code::Other, call, format!("random token: {e}")))?;
        let expires = now + TOKEN_LIFETIME;
        pending.by_age.push_back((expires, token.clone()));
        pending.requests.insert(token.clone(), (request, expires));
        Ok(token)
    }

    /// Takes the request of a token. `None`: it was never given out, was used, or has expired.
    pub(super) fn take(&self, token: &str, now: Instant) -> Option<StreamRequest> {
        let mut pending = self.lock();
        let (request, expires) = pending.requests.remove(token)?;
        pending.by_age.retain(|(_, other)| other != token);
        (now < expires).then_some(request)
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().expect("no panic under this lock")
    }
}

impl Pending {
    fn expire(&mut self, now: Instant) {
        while let Some((_, token)) = self.by_age.pop_front_if(|(expires, _)| *expires <= now) {
            self.requests.remove(&token);
        }
    }
}

/// 128 bits: other users of the host can connect to the listener too.
fn random_token() -> rustix::io::Result<String> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

/// cri-streaming: `cacheTTL`.
const TOKEN_LIFETIME: Duration = Duration::from_secs(60);
/// cri-streaming: `maxInFlight`.
const PENDING_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn port_forward(id: &str) -> StreamRequest {
        StreamRequest::PortForward(v1::PortForwardRequest { pod_sandbox_id: id.into(), port: vec![] })
    }

    #[test]
    fn a_token_works_once_and_for_a_minute() {
        let (pending, now) = (PendingRequests::default(), Instant::now());
        let first = pending.insert(port_forward("a"), now).unwrap();
        let second = pending.insert(port_forward("b"), now).unwrap();
        assert_ne!(first, second);
        assert_eq!(first.len(), 22);
        assert_eq!(pending.take("unknown", now), None);
        assert_eq!(pending.take(&first, now), Some(port_forward("a")));
        assert_eq!(pending.take(&first, now), None);
        assert_eq!(pending.take(&second, now + TOKEN_LIFETIME), None);
    }

    #[test]
    fn the_number_of_tokens_is_bounded_until_they_expire() {
        let (pending, now) = (PendingRequests::default(), Instant::now());
        let tokens: Vec<_> = (0..PENDING_MAX).map(|_| pending.insert(port_forward("a"), now).unwrap()).collect();
        let refused = pending.insert(port_forward("b"), now).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert!(pending.take(&tokens[0], now).is_some());
        assert!(pending.insert(port_forward("b"), now).is_ok(), "a used token makes a place free");
        assert!(pending.insert(port_forward("b"), now).is_err());
        assert!(pending.insert(port_forward("b"), now + TOKEN_LIFETIME).is_ok());
        assert_eq!(pending.lock().by_age.len(), 1);
        assert_eq!(pending.lock().requests.len(), 1);
    }
}
