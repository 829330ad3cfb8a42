//! podwright: the binary.
fn main() {}
