//! Copies between the descriptors of a process and the streams of a client.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use podwright_linux::pty;
use rustix::io::Errno;
use serde::Deserialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

use super::streams::{StreamInput, StreamOutput};

/// A pipe, socket or pty master on the event loop.
#[derive(Debug)]
pub(super) struct AsyncDescriptor(AsyncFd<OwnedFd>);

impl AsyncDescriptor {
    pub(super) fn new(descriptor: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        // Deprecated because some types can change their descriptor; an `OwnedFd` can't, and the replacement is unsafe.
        #[allow(deprecated)]
        let registered = AsyncFd::new(descriptor)?;
        Ok(Self(registered))
    }

    /// The next bytes; empty at the end. A pty whose slave side is closed ends with EIO.
    pub(super) async fn read(&self) -> io::Result<Bytes> {
        let mut chunk = BytesMut::zeroed(CHUNK);
        let read = |fd: &OwnedFd| match rustix::io::read(fd, &mut chunk[..]) {
            Err(Errno::IO) => Ok(0),
            read => Ok(read?),
        };
        let length = self.0.async_io(Interest::READABLE, read).await?;
        chunk.truncate(length);
        Ok(chunk.freeze())
    }

    pub(super) async fn write_all(&self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let written = self.0.async_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, data)?)).await?;
            data = &data[written..];
        }
        Ok(())
    }
}

/// From the process to the client, until the process closes it. After `exited` it ends too when nothing came for a while: a
/// background process may hold the descriptor.
pub(super) async fn copy_output(
    from: Option<OwnedFd>,
    to: Option<StreamOutput>,
    exited: CancellationToken,
) -> io::Result<()> {
    let (Some(from), Some(to)) = (from, to) else { return Ok(()) };
    let from = AsyncDescriptor::new(from)?;
    loop {
        let quiet = async {
            exited.cancelled().await;
            tokio::time::sleep(DRAIN_TIMEOUT).await;
        };
        let chunk = tokio::select! {
            biased;
            chunk = from.read() => chunk?,
            () = quiet => break,
        };
        if chunk.is_empty() || to.write(chunk).await.is_err() {
            break;
        }
    }
    let _ = to.finish().await;
    Ok(())
}

/// From the client to the process, until either closes it.
pub(super) async fn copy_input(from: Option<StreamInput>, to: Option<OwnedFd>) -> io::Result<()> {
    let (Some(mut from), Some(to)) = (from, to) else { return Ok(()) };
    let to = AsyncDescriptor::new(to)?;
    while let Some(chunk) = from.next().await {
        match to.write_all(&chunk).await {
            // The process does not read any more.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => break,
            Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => break,
            written => written?,
        }
    }
    Ok(())
}

/// Applies the window sizes that the client sends: JSON objects, one after the other.
pub(super) async fn apply_sizes(from: Option<StreamInput>, terminal: Option<OwnedFd>) {
    let (Some(mut from), Some(terminal)) = (from, terminal) else { return };
    let mut text = BytesMut::new();
    while let Some(chunk) = from.next().await {
        text.extend_from_slice(&chunk);
        match take_last_size(&mut text) {
            Ok(Some(size)) => {
                if let Err(error) = pty::resize(&terminal, size.height, size.width) {
                    tracing::debug!(%error, "window size is not set");
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "window sizes of the client are not valid");
                return;
            }
        }
    }
}

/// remotecommand: `TerminalSize`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
struct TerminalSize {
    #[serde(rename = "Width", alias = "width")]
    width: u16,
    #[serde(rename = "Height", alias = "height")]
    height: u16,
}

/// Removes the complete objects from `text`; returns the last.
fn take_last_size(text: &mut BytesMut) -> Result<Option<TerminalSize>, serde_json::Error> {
    let mut sizes = serde_json::Deserializer::from_slice(text).into_iter::<TerminalSize>();
    let (mut last, mut used) = (None, 0);
    loop {
        match sizes.next() {
            Some(Ok(size)) => (last, used) = (Some(size), sizes.byte_offset()),
            None => break,
            Some(Err(error)) if error.is_eof() && text.len() - used <= SIZE_MAX => break,
            Some(Err(error)) => return Err(error),
        }
    }
    let _ = text.split_to(used);
    Ok(last)
}

/// Read at once.
const CHUNK: usize = 32 << 10;
/// Without output, after the process has exited.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of one window size.
const SIZE_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_sizes_are_read_from_any_pieces() {
        let mut text = BytesMut::new();
        text.extend_from_slice(b"{\"Width\":80,\"Height\":24}\n{\"Width\":100,\"He");
        assert_eq!(take_last_size(&mut text).unwrap(), Some(TerminalSize { width: 80, height: 24 }));
        assert_eq!(take_last_size(&mut text).unwrap(), None);
        text.extend_from_slice(b"ight\":50}");
        assert_eq!(take_last_size(&mut text).unwrap(), Some(TerminalSize { width: 100, height: 50 }));
        assert_eq!(take_last_size(&mut text).unwrap(), None);
        text.extend_from_slice(b"{\"Width\":-1,\"Height\":24}");
        assert!(take_last_size(&mut text).is_err());
        let mut endless = BytesMut::from(&vec![b'['; 2 * SIZE_MAX][..]);
        assert!(take_last_size(&mut endless).is_err());
    }
}
