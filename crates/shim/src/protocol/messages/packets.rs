//! The packets of a shim.

use super::answers::RequestAnswer;
use super::descriptors::DescriptorKind;
use super::events::ShimEvent;

/// From a shim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ShimPacket {
    /// `None`: a packet that this version does not know.
    #[prost(oneof = "shim_packet::PacketBody", tags = "1, 2, 3")]
    pub body: Option<shim_packet::PacketBody>,
}

/// The kinds of packets from a shim.
pub mod shim_packet {
    /// What the shim says.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum PacketBody {
        /// To a request.
        #[prost(message, tag = "1")]
        Answer(super::RequestAnswer),
        /// What happened; repeated after each `Hello` until acknowledged.
        #[prost(message, tag = "2")]
        Event(super::ShimEvent),
        /// Copies of descriptors, after the answer to `Hello` and `Adopt`.
        #[prost(message, tag = "3")]
        Hold(super::Hold),
    }
}

/// Descriptors: those of `kinds`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Hold {
    /// Container id; `None`: they are the pod's.
    #[prost(string, optional, tag = "1")]
    pub container: Option<String>,
    /// One per descriptor.
    #[prost(enumeration = "DescriptorKind", repeated, tag = "2")]
    pub kinds: Vec<i32>,
}
