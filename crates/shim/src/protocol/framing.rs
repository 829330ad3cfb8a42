//! From messages to packets and back.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};

use prost::Message;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

/// Why a packet or memfd was refused.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The bytes are no message of this kind.
    #[error("decode a packet")]
    Decode(#[from] prost::DecodeError),
    /// A packet without its message, or with the wrong number of descriptors.
    #[error("a packet without {0}")]
    Missing(&'static str),
    /// Something is in the packet that does not belong to it.
    #[error("it has unexpected {0}")]
    Unexpected(&'static str),
    /// A memfd that its sender could still change, or that is too large.
    #[error("a memfd that is not sealed, or has more than {PLAN_BYTES_MAX} bytes")]
    Memfd,
    /// The memfd cannot be read or written.
    #[error("read or write a memfd")]
    Io(#[source] io::Error),
}

pub(crate) fn encode(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

pub(crate) fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, ProtocolError> {
    Ok(M::decode(bytes)?)
}

/// A message in a memfd that cannot change any more.
pub fn sealed_memfd(message: &impl Message) -> io::Result<OwnedFd> {
    let fd = memfd_create(c"podwright-plan", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(fd);
    file.write_all(&message.encode_to_vec())?;
    let fd = OwnedFd::from(file);
    fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// The message in a sealed memfd. It was made by the agent; the seals keep a file that changes while it is read from getting in.
pub fn read_sealed<M: Message + Default>(fd: OwnedFd) -> Result<M, ProtocolError> {
    let seals = fcntl_get_seals(fd.as_fd()).map_err(|_| ProtocolError::Memfd)?;
    let mut file = File::from(fd);
    let length = file.seek(SeekFrom::End(0)).map_err(ProtocolError::Io)?;
    if !seals.contains(SEALS) || length > PLAN_BYTES_MAX {
        return Err(ProtocolError::Memfd);
    }
    file.rewind().map_err(ProtocolError::Io)?;
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    file.read_to_end(&mut bytes).map_err(ProtocolError::Io)?;
    decode(&bytes)
}

const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);

/// Arguments and environment have at most 6 MiB in the kernel; mounts and seccomp programs come on top.
const PLAN_BYTES_MAX: u64 = 16 << 20;
