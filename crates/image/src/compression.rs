//! Streams that may be compressed: gzip and zstd are recognised by their first bytes, anything else passes unchanged.
//!
//! The media type of a layer is not trusted for this: docker-archives have no media types, and some tools write wrong ones.

use std::io::{self, BufReader, Read};

/// The uncompressed stream. A zstd window of more than 128 MiB is refused, so that memory has a bound.
pub(crate) fn decompress<'a>(mut source: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    // A source may return fewer bytes than requested; the magic numbers need four.
    let mut head = vec![];
    source.by_ref().take(4).read_to_end(&mut head)?;
    let (gzip, zstd) = (is_gzip(&head), is_zstd(&head));
    let source = BufReader::with_capacity(BUFFER_BYTES, io::Cursor::new(head).chain(source));
    if gzip {
        return Ok(Box::new(flate2::bufread::MultiGzDecoder::new(source)));
    }
    if zstd {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
        decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
        return Ok(Box::new(decoder));
    }
    Ok(Box::new(source))
}

fn is_gzip(head: &[u8]) -> bool {
    matches!(head, [0x1f, 0x8b, ..])
}

/// A frame, or a skippable frame in front of one.
fn is_zstd(head: &[u8]) -> bool {
    matches!(head, [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

const BUFFER_BYTES: usize = 64 << 10;
/// What `zstd --ultra` and `--long` produce at most.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut text = vec![];
        decompress(bytes)?.read_to_end(&mut text)?;
        Ok(text)
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn formats_are_recognised_by_content() {
        assert_eq!(read(b"plain").unwrap(), b"plain");
        assert_eq!(read(b"").unwrap(), b"");
        // Two members, as estargz and pigz write them.
        assert_eq!(read(&[gzip(b"a"), gzip(b"b")].concat()).unwrap(), b"ab");
        assert_eq!(read(&zstd::encode_all(&b"zs"[..], 3).unwrap()).unwrap(), b"zs");
        let cut = gzip(&[7; 1000]);
        assert!(read(&cut[..cut.len() - 3]).is_err(), "a truncated stream is an error");
    }

    #[test]
    fn a_zstd_window_over_the_bound_is_refused() {
        let mut encoder = zstd::Encoder::new(vec![], 1).unwrap();
        encoder.window_log(28).unwrap();
        encoder.include_contentsize(false).unwrap();
        encoder.write_all(&[1; 4096]).unwrap();
        let bytes = encoder.finish().unwrap();
        assert!(read(&bytes).is_err());
    }
}
