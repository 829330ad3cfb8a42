//! Link options of the program.

use std::env::var;
use std::path::Path;
use std::process::{Command, Stdio};

/// Functions with the same code exist once: drops, collections and futures of many types have the same code.
const MERGE_FUNCTIONS: &str = "-Wl,--icf=all";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTFLAGS");
    if var("PROFILE").is_ok_and(|profile| profile == "release") && links_with(MERGE_FUNCTIONS) {
        println!("cargo:rustc-link-arg-bins={MERGE_FUNCTIONS}");
    }
}

/// Whether the linker accepts an option: lld does, the linker of binutils does not.
fn links_with(option: &str) -> bool {
    let directory = var("OUT_DIR").unwrap_or_default();
    let source = Path::new(&directory).join("empty.rs");
    if std::fs::write(&source, "fn main() {}\n").is_err() {
        return false;
    }
    let mut rustc = Command::new(var("RUSTC").unwrap_or_else(|_| "rustc".into()));
    rustc.args(["--target", &var("TARGET").unwrap_or_default(), "-C", &format!("link-arg={option}")]);
    if let Ok(linker) = var("RUSTC_LINKER") {
        rustc.args(["-C", &format!("linker={linker}")]);
    }
    let flags = var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    rustc.arg("-o").arg(source.with_extension("out")).arg(&source);
    rustc.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    rustc.status().is_ok_and(|status| status.success())
}
