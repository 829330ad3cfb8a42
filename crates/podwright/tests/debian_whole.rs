//! The whole suite, the commands and the local API on Debian's containerd 1.6.

mod cli;
mod fixture;
mod local_api;
mod proxied_runtime;
#[expect(
    dead_code,
    reason = "the suite is shared; the tests of images, which slow a registry down, run on the engine only"
)]
mod suite;

use podwright_testbed::Flavor;

/// The runtime of the agents of this program.
const FLAVOR: Flavor = Flavor::Debian16;

all_on!(FLAVOR);
