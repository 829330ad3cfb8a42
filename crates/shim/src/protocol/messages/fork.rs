//! Between agent and zygote.

/// To the zygote: fork a shim. Descriptors: the shim's end of the first connection, the run directory of the pod.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ForkRequest {
    /// The id of the sandbox; a part of it is the name of the process.
    #[prost(string, tag = "1")]
    pub pod: String,
}

/// From the zygote. Descriptors: a pidfd of the shim, if it was forked.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ForkReply {
    /// The shim; `None`: it could not be forked.
    #[prost(uint32, optional, tag = "1")]
    pub pid: Option<u32>,
    /// Why not.
    #[prost(int32, tag = "2")]
    pub errno: i32,
}
