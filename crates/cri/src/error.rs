//! What a call on a runtime can come back with, and whether its effect may have happened all the same.

use std::fmt;

/// A call on the runtime that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {message}")]
pub struct CriError {
    /// What kind of failure.
    pub code: Code,
    /// The call, in the protocol's spelling: "RunPodSandbox".
    pub call: &'static str,
    /// The runtime's words, or ours about it; at most [`MESSAGE_BYTES_MAX`].
    pub message: String,
    in_doubt: bool,
}

/// The kinds of failure the agent tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// There is no such object: for a stop or a removal that is success.
    NotFound,
    /// The name is taken: an earlier call in doubt did succeed.
    AlreadyExists,
    /// The time was up, here or in the runtime.
    DeadlineExceeded,
    /// The runtime is not there, went away, or is not ready yet.
    Unavailable,
    /// The runtime is too old for this call.
    Unimplemented,
    /// Too many, or too large.
    ResourceExhausted,
    /// The runtime does not accept what was asked.
    InvalidArgument,
    /// The runtime gave the call up.
    Cancelled,
    /// Everything else; most failures of real runtimes carry no code of their own.
    Other,
}

impl CriError {
    /// A failure of `call`. What is in doubt follows from the code: a deadline, a lost runtime, a cancelled call.
    pub fn new(code: Code, call: &'static str, message: impl Into<String>) -> Self {
        let in_doubt = matches!(code, Code::DeadlineExceeded | Code::Unavailable | Code::Cancelled);
        Self { code, call, message: bounded(message.into()), in_doubt }
    }

    /// The call never left: nobody was there to take it.
    pub fn not_sent(call: &'static str, message: impl Into<String>) -> Self {
        Self { in_doubt: false, ..Self::new(Code::Unavailable, call, message) }
    }

    /// The runtime answered, and the answer makes no sense. Whatever was asked may have been done.
    pub fn malformed(call: &'static str, message: impl Into<String>) -> Self {
        Self { in_doubt: true, ..Self::new(Code::Other, call, message) }
    }

    /// This runtime does not have the call.
    pub fn unimplemented(call: &'static str) -> Self {
        Self::new(Code::Unimplemented, call, "the runtime does not implement it")
    }

    /// The object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// The name of the new sandbox or container is taken: an earlier call for the very same thing made it, or is about to.
    /// Containerd reports a name that is still being used by such a call without a code of its own.
    pub fn name_is_reserved(&self) -> bool {
        self.code == Code::AlreadyExists || self.message.contains("is reserved for")
    }

    /// An earlier StartContainer of this container is still under way.
    pub fn start_is_under_way(&self) -> bool {
        self.message.contains("already in starting state")
    }

    /// The effect may have happened, or may still happen: look before the call is made again.
    pub fn in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// What a failed gRPC call means.
    pub(crate) fn from_status(call: &'static str, status: &tonic::Status) -> Self {
        use tonic::Code as Grpc;
        // A status the peer sent has no source; one that tonic made of a broken transport has.
        if let Some(source) = std::error::Error::source(status) {
            return Self::from_transport(call, status.message(), source);
        }
        let code = match status.code() {
            Grpc::NotFound => Code::NotFound,
            Grpc::AlreadyExists => Code::AlreadyExists,
            Grpc::DeadlineExceeded => Code::DeadlineExceeded,
            Grpc::Unavailable => Code::Unavailable,
            Grpc::Unimplemented => Code::Unimplemented,
            Grpc::ResourceExhausted => Code::ResourceExhausted,
            Grpc::InvalidArgument => Code::InvalidArgument,
            Grpc::Cancelled => Code::Cancelled,
            _ => Code::Other,
        };
        let message = if status.message().is_empty() { status.code().description() } else { status.message() };
        let mut error = Self::new(code, call, message);
        error.in_doubt |= match status.code() {
            // Also what tonic says of an answer that is too large or cannot be decoded.
            Grpc::Internal | Grpc::DataLoss | Grpc::OutOfRange => true,
            // Some runtimes pass the end of their Go context on without its code.
            Grpc::Unknown => message.contains("context deadline exceeded") || message.contains("context canceled"),
            _ => false,
        };
        error
    }

    /// The connection failed, before the call or under it.
    fn from_transport(call: &'static str, message: &str, source: &(dyn std::error::Error + 'static)) -> Self {
        let mut cause = Some(source);
        let mut deepest = String::new();
        while let Some(error) = cause {
            if let Some(connect) = error.downcast_ref::<tonic::ConnectError>() {
                return Self::not_sent(call, connect.to_string());
            }
            if error.is::<tonic::TimeoutExpired>() {
                return Self::new(Code::DeadlineExceeded, call, "the deadline passed");
            }
            deepest = error.to_string();
            cause = error.source();
        }
        Self::new(Code::Unavailable, call, format!("connection lost: {message}: {deepest}"))
    }

    /// The status that tells a peer this error.
    pub(crate) fn to_status(&self) -> tonic::Status {
        use tonic::Code as Grpc;
        let code = match self.code {
            Code::NotFound => Grpc::NotFound,
            Code::AlreadyExists => Grpc::AlreadyExists,
            Code::DeadlineExceeded => Grpc::DeadlineExceeded,
            Code::Unavailable => Grpc::Unavailable,
            Code::Unimplemented => Grpc::Unimplemented,
            Code::ResourceExhausted => Grpc::ResourceExhausted,
            Code::InvalidArgument => Grpc::InvalidArgument,
            Code::Cancelled => Grpc::Cancelled,
            // So that the doubt survives the wire.
            Code::Other if self.in_doubt => Grpc::Internal,
            Code::Other => Grpc::Unknown,
        };
        tonic::Status::new(code, self.message.clone())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Cuts a message that a runtime made too long, at a character's edge.
fn bounded(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX - ELLIPSIS.len()));
        message.push_str(ELLIPSIS);
        message.shrink_to_fit();
    }
    message
}

/// Enough for runc's longest stories; what a runtime says ends up in statuses, events and records.
pub const MESSAGE_BYTES_MAX: usize = 4096;

const ELLIPSIS: &str = "…";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_doubt_follows_from_the_status() {
        let doubt = |code, message: &str| CriError::from_status("X", &tonic::Status::new(code, message)).in_doubt();
        use tonic::Code as Grpc;
        for code in [Grpc::DeadlineExceeded, Grpc::Unavailable, Grpc::Cancelled, Grpc::Internal, Grpc::OutOfRange] {
            assert!(doubt(code, ""), "{code:?}");
        }
        for code in [Grpc::NotFound, Grpc::AlreadyExists, Grpc::Unimplemented, Grpc::InvalidArgument, Grpc::Unknown] {
            assert!(!doubt(code, "exec: no such file"), "{code:?}");
        }
        assert!(doubt(Grpc::Unknown, "stop container: context deadline exceeded"));
        assert!(!CriError::not_sent("X", "nobody there").in_doubt());
        assert!(CriError::malformed("X", "no id").in_doubt());
    }

    #[test]
    fn every_code_and_its_doubt_survive_the_wire() {
        use Code::*;
        for code in [NotFound, AlreadyExists, DeadlineExceeded, Unavailable, Unimplemented, ResourceExhausted] {
            let error = CriError::new(code, "X", "why");
            assert_eq!(CriError::from_status("X", &error.to_status()), error);
        }
        for code in [InvalidArgument, Cancelled, Other] {
            let error = CriError::new(code, "X", "why");
            assert_eq!(CriError::from_status("X", &error.to_status()), error);
        }
        let error = CriError::malformed("X", "why");
        assert_eq!(CriError::from_status("X", &error.to_status()), error);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let error = CriError::new(Code::Other, "X", "ä".repeat(MESSAGE_BYTES_MAX));
        assert!(error.message.len() <= MESSAGE_BYTES_MAX && error.message.len() > MESSAGE_BYTES_MAX - 4);
        assert!(error.message.ends_with("ä…"));
        assert_eq!(CriError::new(Code::Other, "X", "short").message, "short");
    }
}
