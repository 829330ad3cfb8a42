//! The errors of runtime calls, whether the effect may have happened nevertheless, and the messages of containerd that carry a
//! meaning without a code of their own.

use std::fmt;

/// A failed runtime call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {message}")]
pub struct CriError {
    /// The kind of failure.
    pub code: Code,
    /// The call, in the protocol's spelling: "RunPodSandbox".
    pub call: &'static str,
    /// The runtime's message, or ours if it sent none; at most [`MESSAGE_BYTES_MAX`].
    pub message: String,
    in_doubt: bool,
}

/// The kinds of failure that the agent distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// The object does not exist: for a stop or a removal that is success.
    NotFound,
    /// The name is taken: an earlier call in doubt succeeded.
    AlreadyExists,
    /// The timeout expired, here or in the runtime.
    DeadlineExceeded,
    /// The runtime is unreachable, exited, or is not ready yet.
    Unavailable,
    /// The runtime is too old for this call.
    Unimplemented,
    /// Too many, or too large.
    ResourceExhausted,
    /// The runtime refuses the request as invalid.
    InvalidArgument,
    /// The runtime cancelled the call.
    Cancelled,
    /// Everything else; most failures of real runtimes have no specific code.
    Other,
}

impl CriError {
    /// A failure of `call`. Whether it is in doubt follows from the code: DeadlineExceeded, Unavailable and Cancelled are.
    pub fn new(code: Code, call: &'static str, message: impl Into<String>) -> Self {
        let in_doubt = matches!(code, Code::DeadlineExceeded | Code::Unavailable | Code::Cancelled);
        Self { code, call, message: bounded(message.into()), in_doubt }
    }

    /// The request was never sent, because the connection failed: not in doubt.
    pub fn not_sent(call: &'static str, message: impl Into<String>) -> Self {
        Self { in_doubt: false, ..Self::new(Code::Unavailable, call, message) }
    }

    /// The runtime's response is invalid. The effect may have happened.
    pub fn malformed(call: &'static str, message: impl Into<String>) -> Self {
        Self { in_doubt: true, ..Self::new(Code::Other, call, message) }
    }

    /// This runtime does not implement the call.
    pub fn unimplemented(call: &'static str) -> Self {
        Self::new(Code::Unimplemented, call, "the runtime does not implement it")
    }

    /// The name of the sandbox or container is taken: an earlier call for the same object is in progress or succeeded. containerd
    /// reports it with a message only (internal/registrar: "name %q is reserved for %q").
    pub fn name_is_reserved(&self) -> bool {
        self.code == Code::AlreadyExists || self.message.contains("is reserved for")
    }

    /// An earlier start of the container is still in progress. containerd reports it with a message only (container_start.go:
    /// setContainerStarting).
    pub fn start_is_under_way(&self) -> bool {
        self.message.contains("already in starting state")
    }

    /// The object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// The runtime does not know the call. containerd 2.2 has some that answer with `Unknown`.
    pub fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented || (self.code == Code::Other && self.message.contains("not implemented"))
    }

    /// The effect may have happened, or may still happen: observe the object before the call is repeated.
    pub fn in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// From the status of a failed gRPC call.
    pub(crate) fn from_status(call: &'static str, status: &tonic::Status) -> Self {
        use tonic::Code as Grpc;
        // A status from the peer has no source; one that tonic made from a transport error has.
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
            // Also tonic's codes for a response that is too large or can't be decoded.
            Grpc::Internal | Grpc::DataLoss | Grpc::OutOfRange => true,
            // Some runtimes return the error of their Go context without its code.
            Grpc::Unknown => message.contains("context deadline exceeded") || message.contains("context canceled"),
            _ => false,
        };
        error
    }

    /// From a transport error, before the request was sent or during the call.
    fn from_transport(call: &'static str, message: &str, source: &(dyn std::error::Error + 'static)) -> Self {
        let mut cause = Some(source);
        let mut deepest = String::new();
        while let Some(error) = cause {
            if let Some(connect) = error.downcast_ref::<tonic::ConnectError>() {
                return Self::not_sent(call, connect.to_string());
            }
            if error.is::<tonic::TimeoutExpired>() {
                return Self::new(Code::DeadlineExceeded, call, "the deadline expired");
            }
            deepest = error.to_string();
            cause = error.source();
        }
        Self::new(Code::Unavailable, call, format!("connection lost: {message}: {deepest}"))
    }

    /// The gRPC status for this error.
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
            // So that `in_doubt` is preserved on the wire.
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

/// Truncates a long message at a character boundary.
fn bounded(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX - ELLIPSIS.len()));
        message.push_str(ELLIPSIS);
        message.shrink_to_fit();
    }
    message
}

/// Enough for runc's longest messages; they are stored in pod statuses, events and the journal.
pub const MESSAGE_BYTES_MAX: usize = 4096;

const ELLIPSIS: &str = "…";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_a_call_is_in_doubt_follows_from_the_status() {
        let doubt = |code, message: &str| CriError::from_status("X", &tonic::Status::new(code, message)).in_doubt();
        use tonic::Code as Grpc;
        for code in [Grpc::DeadlineExceeded, Grpc::Unavailable, Grpc::Cancelled, Grpc::Internal, Grpc::OutOfRange] {
            assert!(doubt(code, ""), "{code:?}");
        }
        for code in [Grpc::NotFound, Grpc::AlreadyExists, Grpc::Unimplemented, Grpc::InvalidArgument, Grpc::Unknown] {
            assert!(!doubt(code, "exec: no such file"), "{code:?}");
        }
        assert!(doubt(Grpc::Unknown, "stop container: context deadline exceeded"));
        assert!(!CriError::not_sent("X", "connection refused").in_doubt());
        assert!(CriError::malformed("X", "no id").in_doubt());
    }

    #[test]
    fn every_code_and_its_doubt_are_preserved_on_the_wire() {
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
    fn a_long_message_is_truncated_at_a_character_boundary() {
        let error = CriError::new(Code::Other, "X", "ä".repeat(MESSAGE_BYTES_MAX));
        assert!(error.message.len() <= MESSAGE_BYTES_MAX && error.message.len() > MESSAGE_BYTES_MAX - 4);
        assert!(error.message.ends_with("ä…"));
        assert_eq!(CriError::new(Code::Other, "X", "short").message, "short");
    }

    #[test]
    fn containerds_messages_are_recognised() {
        let error = |message: &str| CriError::new(Code::Other, "X", message);
        assert!(
            error("failed to reserve container name \"a_0\": name \"a_0\" is reserved for \"c\"").name_is_reserved()
        );
        assert!(CriError::new(Code::AlreadyExists, "X", "taken").name_is_reserved());
        assert!(error("failed to set starting state: container is already in starting state").start_is_under_way());
        assert!(!error("no such image").name_is_reserved() && !error("no such image").start_is_under_way());
    }
}
