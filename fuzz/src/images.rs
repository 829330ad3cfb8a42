//! What registries, archives and the administrator's registry configuration contain.

use std::io::Read;
use std::path::Path;

use podwright_image::{ImageConfiguration, ImageLimits, ImageReference, ManifestDocument, TarReader, parse_hosts_toml};

/// One of the formats by the first byte, then its content.
pub fn images(data: &[u8]) {
    let Some((kind, content)) = data.split_first() else { return };
    let limits = ImageLimits::default();
    match kind % 5 {
        0 => drop(ManifestDocument::parse(content, "", &limits)),
        1 => drop(ImageConfiguration::parse(content, &limits)),
        2 => layer(content),
        3 => drop(parse_hosts_toml(content, "example.com:5000", Path::new("/"))),
        _ => reference(content),
    }
}

/// No entry has more content than the file.
fn layer(content: &[u8]) {
    let mut reader = TarReader::new(content, 1000);
    let mut total = 0;
    while let Ok(Some(_)) = reader.next_entry() {
        let mut file = vec![];
        if reader.read_to_end(&mut file).is_err() {
            break;
        }
        total += file.len();
    }
    assert!(total <= content.len(), "{total} bytes in {}", content.len());
}

/// A reference prints as itself.
fn reference(content: &[u8]) {
    let Ok(text) = std::str::from_utf8(content) else { return };
    if let Ok(reference) = text.parse::<ImageReference>() {
        assert_eq!(reference.to_string().parse(), Ok(reference));
    }
}
