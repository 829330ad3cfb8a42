//! Version.

use podwright_cri::v1;

pub(crate) fn version() -> v1::VersionResponse {
    v1::VersionResponse {
        version: "0.1.0".into(),
        runtime_name: "podwright".into(),
        runtime_version: env!("CARGO_PKG_VERSION").into(),
        runtime_api_version: "v1".into(),
    }
}
