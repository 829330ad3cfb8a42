//! Netlink: sockets, attributes, and the messages of the three families in use (routing, nf_tables, conntrack).
//!
//! Links, addresses and routes are encoded by `netlink-packet-route`; nf_tables and conntrack by [`attr`], as no maintained crate
//! has them (see `docs/decisions/008-network.md`).

pub(crate) mod attr;
pub(crate) mod conntrack;
pub(crate) mod expr;
pub(crate) mod nft;
pub(crate) mod route;
pub(crate) mod socket;

use std::io;

/// A failed exchange with the kernel.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket could not be made, written or read.
    #[error("netlink socket: {operation}")]
    Socket {
        /// What was being done.
        operation: &'static str,
        #[source]
        /// The system call's error.
        source: io::Error,
    },
    /// The kernel answered with an error.
    #[error("{operation}")]
    Refused {
        /// The refused operation with its subject.
        operation: String,
        /// Position of the refused operation in its batch; 0 for a single request.
        position: usize,
        /// The kernel's errno.
        #[source]
        source: io::Error,
    },
    /// The answer does not follow the protocol.
    #[error("malformed answer to: {operation}")]
    Malformed {
        /// The operation that was answered.
        operation: String,
    },
}

impl NetlinkError {
    /// The kernel's errno, if the kernel refused the operation.
    pub(crate) fn errno(&self) -> Option<rustix::io::Errno> {
        match self {
            NetlinkError::Refused { source, .. } => rustix::io::Errno::from_io_error(source),
            _ => None,
        }
    }
}
