//! Random inputs: parsers return an error or a value, and never panic. A small stand-in for the fuzz targets.

use std::io::Read;
use std::path::Path;

use podwright_image::{ImageConfiguration, ImageLimits, ImageReference, ManifestDocument, TarReader, parse_hosts_toml};

/// xorshift64: the same inputs in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits")
    }

    /// A copy with some bytes changed, removed or repeated.
    fn mutate(&mut self, seed: &[u8]) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..=self.next() % 6 {
            let at = self.next() % bytes.len().max(1);
            match self.next() % 4 {
                0 if !bytes.is_empty() => bytes[at] = u8::try_from(self.next() % 256).expect("a byte"),
                1 => bytes.truncate(at),
                2 => bytes.splice(at..at, b"\"{[=,\x00\xff-9".iter().copied()).for_each(drop),
                _ if !bytes.is_empty() => {
                    let tail = bytes[at..].to_vec();
                    bytes.extend(tail);
                }
                _ => {}
            }
        }
        bytes
    }
}

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn check(seeds: &[Vec<u8>], mut parse: impl FnMut(&[u8])) {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    for round in 0..4000 {
        let mut bytes = noise.mutate(&seeds[round % seeds.len()]);
        bytes.truncate(64 << 10);
        parse(&bytes);
    }
}

#[test]
fn no_manifest_or_configuration_panics() {
    let descriptor =
        format!(r#"{{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "{DIGEST}", "size": 3}}"#);
    let manifest =
        format!(r#"{{"schemaVersion": 2, "config": {{"digest": "{DIGEST}", "size": 1}}, "layers": [{descriptor}]}}"#);
    let index = format!(r#"{{"schemaVersion": 2, "manifests": [{descriptor}]}}"#);
    let config = format!(r#"{{"os": "linux", "config": {{"Env": null}}, "rootfs": {{"diff_ids": ["{DIGEST}"]}}}}"#);
    let limits = ImageLimits::default();
    check(&[manifest.into(), index.into(), config.into()], |bytes| {
        let _ = ManifestDocument::parse(bytes, "", &limits);
        let _ = ImageConfiguration::parse(bytes, &limits);
    });
}

#[test]
fn no_hosts_toml_or_reference_panics() {
    let hosts = b"server = \"https://a\"\n[host.\"https://b:5/x\"]\ncapabilities = [\"pull\"]\n[host.\"https://b:5/x\".header]\nx = [\"y\"]\n";
    check(&[hosts.to_vec(), b"ca = \"\\u00e9\"".to_vec()], |bytes| {
        let _ = parse_hosts_toml(bytes, "example.com:5000", Path::new("/"));
    });
    check(&[format!("a.example:5000/b/c_d:tag@{DIGEST}").into_bytes(), b"[::1]:5/a".to_vec()], |bytes| {
        if let Ok(reference) = String::from_utf8_lossy(bytes).parse::<ImageReference>() {
            assert_eq!(reference.to_string().parse(), Ok(reference));
        }
    });
}

#[test]
fn no_tar_panics_or_returns_more_than_it_has() {
    let mut builder = tar::Builder::new(vec![]);
    let mut header = tar::Header::new_gnu();
    header.set_size(600);
    header.set_mode(0o644);
    builder.append_data(&mut header, "d/".repeat(80) + "f", &[7; 600][..]).expect("a valid entry");
    builder.append_pax_extensions([("SCHILY.xattr.user.a", &b"v"[..]), ("mtime", b"1.5")]).expect("valid records");
    header.set_size(0);
    builder.append_data(&mut header, "g", &[][..]).expect("a valid entry");
    check(&[builder.into_inner().expect("in memory")], |bytes| {
        let mut reader = TarReader::new(bytes, 100);
        let mut total = 0;
        while let Ok(Some(_)) = reader.next_entry() {
            let mut content = vec![];
            if reader.read_to_end(&mut content).is_err() {
                break;
            }
            total += content.len();
        }
        assert!(total <= bytes.len());
    });
}
