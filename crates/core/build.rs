//! Computes a fingerprint of core's sources: a recording is replayed exactly only by the code that made it.

#![expect(clippy::disallowed_methods, reason = "only the build script reads files")]

use std::path::{Path, PathBuf};
use std::{fs, io};

fn main() -> io::Result<()> {
    let root = Path::new("src");
    println!("cargo::rerun-if-changed=src");
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    for file in files {
        hash.add(file.strip_prefix(root).unwrap_or(&file).to_string_lossy().as_bytes());
        hash.add(&fs::read(&file)?);
    }
    println!("cargo::rustc-env=PODWRIGHT_CORE_SOURCES={:016x}", hash.0);
    Ok(())
}

/// All sources except tests.
fn collect(dir: &Path, into: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            collect(&path, into)?;
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            into.push(path);
        }
    }
    Ok(())
}

/// FNV-1a; it only has to distinguish versions.
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
