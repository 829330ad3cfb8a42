//! Compiles our CRI proto without protoc: protox parses it, tonic makes the client and the server.

use std::path::Path;

/// Messages that carry credentials or a container's environment. Their `Debug` is written by hand (src/redact.rs),
/// so that a request can be logged without leaking them.
const SECRET: [&str; 2] = [".runtime.v1.AuthConfig", ".runtime.v1.KeyValue"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new("proto");
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile([root.join("runtime/v1/api.proto")], [root])?;
    tonic_prost_build::configure().bytes(".").btree_map(".").skip_debug(SECRET).compile_fds(descriptors)?;
    Ok(())
}
