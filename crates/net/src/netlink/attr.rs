//! Encoding and decoding of netlink messages and attributes.
//!
//! A message is a 16-byte header and a body; an attribute is a length and a type (16 bits each, host order) and a value padded to
//! 4 bytes. Netfilter's integers are big-endian.

/// Size of `struct nlmsghdr`.
pub(crate) const HEADER_LEN: usize = 16;
/// The attribute's value is a list of attributes (`NLA_F_NESTED`).
const NESTED: u16 = 0x8000;
/// The flags in an attribute's type (`NLA_F_NESTED | NLA_F_NET_BYTEORDER`).
const TYPE_FLAGS: u16 = 0xc000;

/// Builds messages one after another in one buffer.
#[derive(Debug, Default)]
pub(crate) struct MessageWriter {
    bytes: Vec<u8>,
    /// Where the last message begins.
    last: usize,
}

impl MessageWriter {
    /// Appends a message; `body` writes what follows its header.
    pub(crate) fn message(&mut self, kind: u16, flags: u16, sequence: u32, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.last = start;
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        body(self);
        let length = u32::try_from(self.bytes.len() - start).expect("a message is far smaller than 4 GiB");
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Sets flags of the last message.
    pub(crate) fn add_flags_to_last(&mut self, flags: u16) {
        let field = self.last + 6..self.last + 8;
        let present = u16::from_ne_bytes([self.bytes[field.start], self.bytes[field.start + 1]]);
        self.bytes[field].copy_from_slice(&(present | flags).to_ne_bytes());
    }

    /// Appends bytes without an attribute's header (fixed headers of a family).
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends an attribute.
    pub(crate) fn attr(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).expect("values are bounded by their callers");
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(aligned(self.bytes.len()), 0);
    }

    /// Appends a string with its NUL.
    pub(crate) fn string(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes);
    }

    /// Appends a big-endian 32-bit number.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// Appends an attribute that holds attributes.
    pub(crate) fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        body(self);
        let length = u16::try_from(self.bytes.len() - start).expect("nested attributes are bounded by their callers");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// The messages written so far.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// One received message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetlinkMessage<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) body: &'a [u8],
}

/// The messages of a datagram. Ends at the first one that does not fit.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<'_>> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let message = bytes.get(..length).filter(|message| message.len() >= HEADER_LEN)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some(NetlinkMessage {
            kind: u16::from_ne_bytes([message[4], message[5]]),
            flags: u16::from_ne_bytes([message[6], message[7]]),
            sequence: u32::from_ne_bytes([message[8], message[9], message[10], message[11]]),
            body: &message[HEADER_LEN..],
        })
    })
}

/// The attributes in `bytes`, types without their flags. Ends at the first one that does not fit.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = bytes.get(..4)?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & !TYPE_FLAGS;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The first attribute of a type.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A string attribute without its NUL; `None` if it is not UTF-8.
pub(crate) fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value.split(|byte| *byte == 0).next().unwrap_or_default()).ok()
}

fn aligned(length: usize) -> usize {
    length.div_ceil(4) * 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_carries_padded_and_nested_attributes() {
        let mut writer = MessageWriter::default();
        writer.message(7, 5, 9, |w| {
            w.raw(&[1, 0, 0, 0]);
            w.string(1, "abc");
            w.nest(2, |w| w.be32(3, 0x0102_0304));
        });
        let frame = messages(writer.as_bytes()).next().unwrap();
        assert_eq!((frame.kind, frame.flags, frame.sequence), (7, 5, 9));
        assert_eq!(frame.body[..4], [1, 0, 0, 0]);
        assert_eq!(find(&frame.body[4..], 1).and_then(text), Some("abc"));
        assert_eq!(find(find(&frame.body[4..], 2).unwrap(), 3), Some(&[1, 2, 3, 4][..]));
        assert_eq!(writer.as_bytes().len() % 4, 0);
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for frame in messages(&bytes) {
                let texts = attributes(frame.body).filter_map(|(_, value)| text(value)).count();
                prop_assert!(texts <= bytes.len());
            }
            prop_assert!(attributes(&bytes).count() <= bytes.len() / 4);
        }
    }
}
